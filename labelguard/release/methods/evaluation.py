"""`--mechanism evaluation`: one noisy statistic of held-out labelers, and nothing to train on.

The statistic is drawn, noised and charged as that of `--mechanism statistic`, in the coordinates of
a head that exists already. A later evaluation adds the labels that are new in it (a window). What
is released are no labels, but the file by which heads are judged (`labelguard.release.evaluation`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from labelguard.errors import LabelguardError, PolicyError, ProjectError
from labelguard.ingest.pairs import distinct_pairs
from labelguard.keys.parts import Part
from labelguard.learning.features import column_features
from labelguard.ledger.ledger import Grant
from labelguard.mechanisms import statistic
from labelguard.policy.events import STATISTIC_RELEASES
from labelguard.project.opening import OpenProject
from labelguard.release import windows
from labelguard.release.coordinates import Coordinates
from labelguard.release.evaluation import FILE, Evaluation, coordinates_in
from labelguard.release.methods import summing
from labelguard.release.methods.options import EvaluationOptions
from labelguard.release.methods.statistic import statistic_card
from labelguard.release.methods.statistic_design import (
    Design,
    begun,
    check_new,
    compared,
    joined,
    window_of,
)
from labelguard.release.planning import PlannedRows
from labelguard.release.protocol import Finished, Job, Mechanism
from labelguard.storage.sums import fault

NAME = "evaluation"
VERSION = 1


class HeldOut(Mechanism[Design]):
    """The statistic of held-out labelers, in the coordinates of a head."""

    name = NAME
    version = VERSION
    priced = STATISTIC_RELEASES.name
    part: Part = "held-out"

    def __init__(self, options: EvaluationOptions, coordinates: Coordinates | None = None) -> None:
        """`coordinates` are known within a project (see `within`)."""
        self.options, self._coordinates = options, coordinates
        self.features = column_features(coordinates.features) if coordinates else ()

    @property
    def coordinates(self) -> Coordinates:
        """In which heads are judged."""
        assert self._coordinates
        return self._coordinates

    def within(self, opened: OpenProject) -> HeldOut:
        """With the coordinates of the head that was named, or of the evaluation before.

        A head is known by its coordinates, not by where it lies.
        """
        head, first = self.options.head, begun(opened.ledger, self.part)
        if head:
            directory = Path(head) if Path(head).is_dir() else _release(str(head), opened)
        elif first:
            directory = opened.project.releases / first
        else:
            raise PolicyError(
                "the first evaluation needs a head, in whose coordinates it and all later ones "
                "are: --head RELEASE, or the directory of a model with head.npz"
            )
        return HeldOut(self.options, coordinates_in(directory))

    def settings(self) -> dict[str, Any]:
        """The coordinates, by their digest."""
        return {"coordinates": self.coordinates.digest()}

    def prepare(self, job: Job, plan: PlannedRows, recorded: Mapping[str, Any] | None) -> Design:
        """The new labels' pairs in these coordinates.

        Raises `PolicyError` for other coordinates than those of the sum that this window joins.
        """
        coordinates = self.coordinates
        first = recorded["first"] if recorded else joined(job, self.part)
        if first is not None:
            self._check_joined(job, first)
        provider = coordinates.provider(job.progress)
        pairs = distinct_pairs(job.staged)
        _, rows = compared(job, plan, pairs)
        if first is None and not recorded:
            check_new(rows)
        used, pair = np.unique(rows.pair, return_inverse=True)
        x = np.zeros((0, len(coordinates.basis.projection)), np.float32)
        if len(used):
            x = provider(pairs.table.take(pa.array(used)))
        if x.shape[1] != len(coordinates.basis.projection):
            raise ProjectError(
                f"the head has {len(coordinates.basis.projection)} coefficients where its features "
                f"{coordinates.features} are {x.shape[1]}; it is damaged, or was altered"
            )
        rows, z = replace(rows, pair=pair), coordinates.basis.coordinates(x)
        return window_of(
            job,
            rows,
            z,
            statistic.unclipped_bounds(z, rows) if len(rows) else None,  # a judge has no bias
            plan=plan,
            parameters={"first": first},
            pairs=pairs,
            provider=provider,
            x=x,
            shape=coordinates.shape,
            basis=coordinates.basis,
            first=first,
        )

    def draw(self, job: Job, prepared: Design, grant: Grant, drawn: Path | None) -> None:
        """Sum and add noise, whose randomness ends with this call; note which labels were used."""
        if drawn is not None and (window := summing.draw(job, prepared, drawn)):
            window.save(drawn / windows.FILE)

    def finish(self, job: Job, prepared: Design, grant: Grant) -> Finished:
        """The sum of all windows, as a file."""
        found = summing.windows(job, grant, self.part)
        file = job.opened.project.work / FILE
        file.write_bytes(Evaluation.of(self.coordinates, found).to_bytes())
        card = statistic_card(job, prepared, grant, found, self.coordinates.features)
        return Finished(card | {"kind": NAME, "train_with": "nothing"}, (), files=(file,))

    def _check_joined(self, job: Job, first: str) -> None:
        found = Evaluation.load(job.opened.project.releases / first).coordinates
        if found.digest() != self.coordinates.digest():
            raise PolicyError(
                "evaluations add up in one set of coordinates only, and this head has others than "
                f"evaluation {first}, which this one joins: leave --head out, or begin anew, at a "
                "new charge, with --again"
            )


def _release(head: str, opened: OpenProject) -> Path:
    """The directory of a committed release; its id may be shortened."""
    done = [record for record in opened.ledger.releases() if record.state == "committed"]
    found = [record for record in done if record.id.startswith(head)]
    if len(found) != 1:
        raise LabelguardError(
            f"--head {head} is no directory and names {len(found)} committed releases; "
            "see: labelguard release list"
        )
    directory = opened.project.releases / found[0].id
    if broken := fault(directory, found[0].files):
        raise ProjectError(f"release {found[0].id}: {broken}; restore it from a backup")
    return directory
