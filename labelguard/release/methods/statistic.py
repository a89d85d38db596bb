"""`--mechanism statistic`: one noisy statistic, the head fitted from it, and its labels.

The head is a teacher: it relabels every pair of the input, and any others, at no further price.
A later release adds the labels that are new in it (a window) in the coordinates of the first one;
its teacher is fitted on the sum of all windows. With `--again` a new sum begins: corrections of
labels are no increments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard.errors import ProjectError
from labelguard.ingest.staging import Staged
from labelguard.keys import keyring
from labelguard.ledger.ledger import Grant
from labelguard.mechanisms import statistic
from labelguard.mechanisms.discrete_gaussian import NONCE_BYTES
from labelguard.policy.events import STATISTIC_RELEASES
from labelguard.project import private_map
from labelguard.release import card
from labelguard.release.head import FILE, Head, Window, fit
from labelguard.release.methods import further as also
from labelguard.release.methods.featured import FeatureOptions
from labelguard.release.methods.statistic_design import Design, committed, design, selected
from labelguard.release.planning import Plan
from labelguard.release.protocol import Finished, Job
from labelguard.storage import buckets
from labelguard.storage.buckets import BucketWriter
from labelguard.terms import LABEL_TIE

_WINDOW = "window.npz"


class Teacher(also.Featured[FeatureOptions]):
    """The statistic release; `labelguard.mechanisms.statistic` has its mathematics."""

    name = statistic.NAME
    version = statistic.VERSION
    priced = STATISTIC_RELEASES.name

    def __init__(self, options: FeatureOptions) -> None:
        super().__init__(options)
        self._design: Design | None = None

    def prepare(
        self, job: Job, staged: Staged, plan: Plan, recorded: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Features, shape, coordinates: tuned by simulation on public columns, or as recorded."""
        self._design = design(job, staged, plan, self.options, recorded)
        return self._design.parameters()

    def draw(self, job: Job, staged: Staged, plan: Plan, grant: Grant, drawn: Path | None) -> None:
        """Sum and add noise, whose randomness ends with this call; note which labels were used."""
        if drawn is None:
            return
        design = self._fixed
        if design.bounds and design.grid:
            _window(design, _labels(staged, plan)).save(drawn / _WINDOW)
        for bucket, rows in selected(plan):
            new = rows[np.flatnonzero(rows.new)]
            if len(new.index):
                nothing = np.zeros(len(new.index), np.uint64)
                tie = np.full(len(new.index), LABEL_TIE, np.uint8)
                private_map.write_bucket(
                    drawn, bucket, new.key, new.author, new.version, tie, nothing, new.content
                )

    def finish(self, job: Job, staged: Staged, plan: Plan, grant: Grant) -> Finished:
        """Fit the teacher on all windows and label every pair by it."""
        design = self._fixed
        windows = list(_windows(job, grant))
        coefficients, total, noise = fit(windows, design.basis, design.shape)
        head = Head(
            self.options.features,
            design.provider.identity(),
            design.provider.state(),
            design.shape,
            design.basis,
            coefficients,
            total,
            noise,
        )
        probability = head.probability(design.x)
        with BucketWriter(job.outcomes) as outcomes:
            for bucket, rows in selected(plan):
                table = buckets.read_bucket(staged.rows_directory, bucket)
                assert table is not None
                row = buckets.column(table, "row")[rows.index]
                items = buckets.blocks(table, "item")[rows.index]
                chosen = probability[design.pairs.of_row[row.astype(np.intp)]]
                also.append(outcomes, row, rows.key, items, chosen)
        finished = Finished(self._card(job, grant, windows), {FILE: head.to_bytes()})
        return self.with_further(
            design.pairs,
            job,
            lambda pairs: head.probability(design.provider(pairs)),
            finished,
        )

    def _card(self, job: Job, grant: Grant, windows: list[Window]) -> dict[str, Any]:
        design = self._fixed
        last = windows[-1]
        drawn = grant.release.drawn  # without new labels the last window is an old one
        multiplier = design.noise_multiplier if drawn else last.noise / last.sensitivity
        return {
            "kind": "teacher",
            "privacy": {
                "accounting": f"analytic Gaussian mechanism, {job.allowance.allowed} per "
                f"{job.policy.unit}, noise on a grid"
                + card.together(job.policy, STATISTIC_RELEASES.name)
            },
            "statistic": {
                "windows": len(windows),
                "labels_in_window": drawn,
                "noise_multiplier": multiplier,
                "noise": last.noise,
                "sensitivity": last.sensitivity,
                "clip": last.clip,
                "features": self.options.features,
                "features_identity": design.provider.identity(),
                **asdict(design.shape) | {"components": len(design.basis.metric)},
            },
            "train_with": "soft",
        }

    @property
    def _fixed(self) -> Design:
        assert self._design is not None, "prepare comes first"
        return self._design


def _window(design: Design, labels: NDArray[np.uint8]) -> Window:
    """The noisy statistic of the new labels, (rows,); the exact sum is nowhere else."""
    assert design.bounds and design.grid
    total = statistic.exact_sum(design.z, design.rows, labels, design.bounds, design.grid.step)
    noisy = statistic.noisy(total, design.grid, keyring.random_bytes(NONCE_BYTES))
    weight = statistic.pair_weights(design.rows, design.bounds, len(design.z))
    used = np.flatnonzero(weight)
    return Window(
        np.asarray(noisy * design.grid.step, np.float64),
        design.grid.scale * design.grid.step,
        design.z[used],
        weight[used],
        design.bounds.clip,
        design.bounds.sensitivity,
    )


def _labels(staged: Staged, plan: Plan) -> NDArray[np.uint8]:
    """PRIVATE: the labels of the design's rows, in the same order."""
    labels = []
    for bucket, chosen in selected(plan):
        table = buckets.read_bucket(staged.rows_directory, bucket)
        assert table is not None
        labels.append(buckets.column(table, "label")[chosen.index[chosen.new]])
    return np.concatenate(labels).astype(np.uint8)


def _windows(job: Job, grant: Grant) -> Iterator[Window]:
    """The windows of the sum that a release belongs to, its own last."""
    own = grant.release
    first = own.settings["parameters"]["first"] or own.id
    for record in [*committed(job), own]:
        path = job.project.released / record.id / _WINDOW
        if first in (record.id, record.settings["parameters"]["first"]):
            if path.exists():
                yield Window.load(path)
            elif record.drawn:
                raise ProjectError(f"{path} is missing; restore it from a backup")
