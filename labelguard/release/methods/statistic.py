"""`--mechanism statistic`: one noisy statistic, the head fitted from it, and its labels.

The head is a teacher: it relabels every pair of the input, and any others, at no further price.
A later release adds the labels that are new in it (a window) in the coordinates of the first one;
its teacher is fitted on the sum of all windows. With `--again` a new sum begins: corrections of
labels are no increments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard.keys import keyring
from labelguard.learning.features import column_features
from labelguard.ledger.ledger import Grant
from labelguard.mechanisms import choices, statistic
from labelguard.mechanisms.discrete_gaussian import NONCE_BYTES
from labelguard.mechanisms.statistic import Bounds, Floats
from labelguard.policy.events import STATISTIC_RELEASES
from labelguard.project import private_map
from labelguard.release import card, planning
from labelguard.release.head import Head, Window, fit
from labelguard.release.methods.further import with_head, write_labeled
from labelguard.release.methods.options import StatisticOptions
from labelguard.release.methods.statistic_design import Design, committed, design
from labelguard.release.planning import Plan
from labelguard.release.protocol import Finished, Job, Mechanism
from labelguard.release.windows import FILE as WINDOW
from labelguard.release.windows import windows_of
from labelguard.storage import blocks, buckets
from labelguard.terms import LABEL_TIE


class Teacher(Mechanism[Design]):
    """The statistic release; `labelguard.mechanisms.statistic` has its mathematics."""

    name = statistic.NAME
    version = statistic.VERSION
    priced = STATISTIC_RELEASES.name
    choices = True

    def __init__(self, options: StatisticOptions) -> None:
        self.options = options
        self.features, self.also = column_features(options.features), options.also

    def settings(self) -> dict[str, Any]:
        """Features, and what of the shape was asked for."""
        return self.options.settings()

    def prepare(self, job: Job, plan: Plan, recorded: Mapping[str, Any] | None) -> Design:
        """Features, shape, coordinates: tuned by simulation on public columns, or as recorded."""
        return design(job, plan, self.options, recorded)

    def draw(self, job: Job, prepared: Design, grant: Grant, drawn: Path | None) -> None:
        """Sum and add noise, whose randomness ends with this call; note which labels were used."""
        if drawn is None:
            return
        task = Noting(job.staged.rows_directory, prepared.plan.directory, drawn)
        found = [part for part in job.over_buckets("summing", note, task) if part is not None]
        if prepared.bounds and prepared.grid:
            _window(prepared, np.concatenate(found)).save(drawn / WINDOW)

    def finish(self, job: Job, prepared: Design, grant: Grant) -> Finished:
        """Fit the teacher on all windows and label every pair by it."""
        design, provider = prepared, prepared.provider
        windows = _windows(job, grant)
        coefficients, total, noise = fit(windows, design.basis, design.shape)
        head = Head(
            self.options.features,
            provider.identity(),
            provider.state(),
            design.shape,
            design.basis,
            coefficients,
            total,
            noise,
        )
        probability = head.probability(design.x)[design.pairs.of_row]
        selection, staged = design.plan.directory, job.staged.rows_directory
        for bucket in range(buckets.BUCKETS):
            found = planning.selected(selection, staged, bucket)
            if found is None:
                continue
            rows, table = found
            row = buckets.column(table, "row")[rows.index].astype(np.intp)
            items = buckets.blocks(table, "item")[rows.index]
            write_labeled(job.outcomes, bucket, row, rows.key, items, probability[row])
        finished = Finished(self._card(job, design, grant, windows), ((job.staged, job.outcomes),))
        return with_head(finished, job, head, provider, design.pairs)

    def _card(
        self, job: Job, design: Design, grant: Grant, windows: list[Window]
    ) -> dict[str, Any]:
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
                **({"of": "choices"} if design.rows.choices else {}),
                **asdict(design.shape) | {"components": len(design.basis.metric)},
            },
            "train_with": "soft",
        }


@dataclass(frozen=True)
class Noting:
    """A task for `note`: the staged and the selected rows, and the map that was begun."""

    staged: Path
    selected: Path
    drawn: Path


def note(task: Noting, bucket: int) -> NDArray[np.uint8] | None:
    """Write the new labels of one bucket into the map, without values.

    PRIVATE: returns the labels, in the order of the design's rows.
    """
    found = planning.selected(task.selected, task.staged, bucket)
    if found is None:
        return None
    rows, table = found
    new = rows[np.flatnonzero(rows.new)]
    if len(new.index):
        nothing = np.zeros(len(new.index), np.uint64)
        tie = np.full(len(new.index), LABEL_TIE, np.uint8)
        private_map.write_bucket(
            task.drawn, bucket, new.key, new.author, new.version, tie, nothing, new.content
        )
    return buckets.column(table, "label")[new.index].astype(np.uint8)


def _window(design: Design, labels: NDArray[np.uint8]) -> Window:
    """The noisy statistic of the new labels, (rows,); the exact sum is nowhere else."""
    assert design.bounds and design.grid
    total = statistic.exact_sum(design.z, design.rows, labels, design.bounds, design.grid.step)
    noisy = statistic.noisy(total, design.grid, keyring.random_bytes(NONCE_BYTES))
    return Window(
        np.asarray(noisy * design.grid.step, np.float64),
        design.grid.scale * design.grid.step,
        *_likelihood(design, design.bounds),
    )


def _likelihood(
    design: Design, bounds: Bounds
) -> tuple[NDArray[np.float32], Floats, float, float, NDArray[np.int64] | None]:
    """What the fit needs beside the statistic, all public: see `Window`."""
    rows = design.rows
    weight = statistic.pair_weights(rows, bounds, len(design.z))
    used = np.flatnonzero(weight)
    if not rows.choices or rows.size is None:
        return design.z[used], weight[used], bounds.clip, bounds.sensitivity, None
    size = np.zeros(len(design.z), np.int64)
    size[rows.pair] = rows.size
    sets = blocks.unique(design.pairs.items[used])[1]
    z, offsets = choices.responses_of_pairs(
        design.z[used], sets, design.pairs.number[used], size[used]
    )
    of_set = np.zeros(len(offsets) - 1)
    np.maximum.at(of_set, sets, weight[used] * size[used] / 2)  # a pair weighs w · 2/K
    return z, of_set, bounds.clip, bounds.sensitivity, np.diff(offsets).astype(np.int64)


def _windows(job: Job, grant: Grant) -> list[Window]:
    """The windows of the sum that a release belongs to, its own last."""
    own = grant.release
    first = own.settings["parameters"]["first"] or own.id
    return list(windows_of(job.opened.project.released, first, [*committed(job), own]))
