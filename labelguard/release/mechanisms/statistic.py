"""`--mechanism statistic`: one noisy statistic, the head fitted from it, and its labels.

The head is a teacher: it relabels every pair of the input, and any others, at no further price.
A later release adds the labels that are new in it (a window) in the coordinates of the first one;
its teacher is fitted on the sum of all windows. With `--again` a new sum begins: corrections of
labels are no increments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard.budget.events import STATISTIC_RELEASES
from labelguard.keys import keyring
from labelguard.keys.prf import Split
from labelguard.learning.columns import parse_feature_columns
from labelguard.learning.heads import square_sums
from labelguard.ledger.ledger import Grant
from labelguard.ledger.records import ReleaseRecord
from labelguard.mechanisms import statistic
from labelguard.mechanisms.noise import NONCE_BYTES, Noise
from labelguard.mechanisms.statistic import Bounds, Rows
from labelguard.project import private_map
from labelguard.release import card, selection
from labelguard.release.head import WINDOW, Head, Window, fit, load_windows_of_sum
from labelguard.release.mechanisms.options import StatisticOptions
from labelguard.release.mechanisms.statistic_design import (
    Design,
    add_head_and_labels,
    design_window,
    find_sum_to_join,
    list_statistic_releases,
    load_head_to_join,
    write_pair_labels,
)
from labelguard.release.protocol import Finished, Mechanism, ReleaseContext
from labelguard.release.selection import PlannedRows
from labelguard.storage import buckets
from labelguard.storage.buckets import check_seen
from labelguard.storage.portions import SharedArray
from labelguard.text import LABEL_TIE

# Named columns of a head that its card lists.
_MOST_COLUMNS = 40


class Teacher(Mechanism[Design]):
    """The statistic release; `labelguard.mechanisms.statistic` has its mathematics."""

    name = statistic.NAME
    version = statistic.VERSION
    priced = STATISTIC_RELEASES.name

    def __init__(self, options: StatisticOptions) -> None:
        self.options = options
        self.features, self.also = parse_feature_columns(options.features), options.also

    def settings(self) -> dict[str, Any]:
        """Return features, and what of the shape was asked for."""
        return self.options.settings()

    def check(self, context: ReleaseContext) -> None:
        """Raise `PolicyError` if the window would not fit the sum that it joins."""
        load_head_to_join(context, self.options, find_sum_to_join(context, self.part))

    def prepare(
        self, context: ReleaseContext, plan: PlannedRows, recorded: Mapping[str, Any] | None
    ) -> Design:
        """Fix features, shape and coordinates, by public columns alone, or as recorded."""
        return design_window(context, plan, self.options, recorded)

    def draw(
        self, context: ReleaseContext, prepared: Design, grant: Grant, map_path: Path | None
    ) -> None:
        """Sum and add noise, whose randomness ends with this call; note which labels were used."""
        if map_path is not None and (window := draw_window(context, prepared, map_path)):
            before = list_windows_of_sum(context, prepared.first, self.part)
            scale = calibrate_head_of_sum(context, prepared, window, before)
            replace(window, scale=scale).save(map_path / WINDOW)

    def finish(self, context: ReleaseContext, prepared: Design, grant: Grant) -> Finished:
        """Fit the teacher on all windows and label every pair by it."""
        design, provider, release = prepared, prepared.provider, grant.release
        summed = list_windows_of_sum(context, design.first or release.id, self.part, release)
        coefficients, total, noise = fit(summed, design.basis, design.shape)
        scale = summed[-1].scale
        head = Head(
            self.options.features,
            provider.identity(),
            provider.state(),
            design.shape,
            design.basis,
            scale * coefficients,
            total,
            noise,
            scale,
        )
        write_pair_labels(context, design.plan, design.pairs, head.predict_probability(design.x))
        card = build_statistic_card(context, design, grant, summed, self.options.features)
        card["statistic"] |= {"probability_scale": scale}
        about = {"features": self.options.features, "weights": list_named_weights(head, design)}
        card |= {"kind": "teacher", "train_with": "soft", "head": about}
        finished = Finished(card, ((context.staged, context.outcomes),))
        return add_head_and_labels(finished, context, head, provider, design.pairs)


def list_named_weights(head: Head, design: Design) -> list[dict[str, Any]]:
    """Return the weights of named columns: the log-odds of a typical difference, largest first.

    A difference is typical that is the column's root mean square over the release's pairs.
    """
    typical = np.sqrt(square_sums(design.x, np.ones(len(design.x))) / len(design.x))
    named: list[dict[str, Any]] = [
        {"feature": name, "log_odds": float(head.coefficients[column] * typical[column])}
        for group in design.provider.groups()
        for column, name in enumerate(group.names or (), group.start)
        if typical[column]
    ]
    return sorted(named, key=lambda one: -abs(one["log_odds"]))[:_MOST_COLUMNS]


_ACCOUNTING = {
    "gaussian": "analytic Gaussian mechanism",
    "ball": "ball noise (K-norm mechanism of the l2 ball)",
}


def build_statistic_card(
    context: ReleaseContext, design: Design, grant: Grant, windows: Sequence[Window], features: str
) -> dict[str, Any]:
    """Return the card of a statistic of `windows`; its own, if labels were new, is the last."""
    last = windows[-1]
    drawn = grant.release.drawn  # without new labels the last window is an old one
    noise = design.noise if drawn else _recover_released_noise(last)
    joint = card.describe_joint_price(context.policy, STATISTIC_RELEASES.name)
    return {
        "privacy": {
            "accounting": f"{_ACCOUNTING[design.noise.kind]}, {context.allowance.allowed} per "
            f"{context.policy.unit}{joint}"
        },
        "statistic": {
            "windows": len(windows),
            "labels_in_window": drawn,
            "noise_kind": noise.kind,
            "noise_scale": noise.scale,
            "noise_least_components": noise.least,
            "noise": last.noise,
            "sensitivity": last.sensitivity,
            "clip": last.clip,
            "features": features,
            "features_identity": design.provider.identity(),
            **asdict(design.shape) | {"components": len(design.basis.metric)},
        },
    }


def _recover_released_noise(window: Window) -> Noise:
    """Return the noise of a window that was released, in its sensitivities."""
    unit = Noise(window.kind, 1.0, window.least).deviation(len(window.statistic))
    return Noise(window.kind, window.noise / window.sensitivity / unit, window.least)


def calibrate_head_of_sum(
    context: ReleaseContext, design: Design, window: Window, before: Sequence[Window]
) -> float:
    """Return the scale of the head of the sum that `window` joins, simulated on public columns.

    It stands for all windows of the sum, those `before` it and itself. It is kept with the window,
    since a release that is finished later finds none of its labels new.
    """
    from labelguard.planner.calibration import calibrate_head
    from labelguard.planner.prior import Prior

    assert design.bounds is not None  # there is no window without a row
    every = [*before, window]
    return calibrate_head(
        design.x,
        design.rows,
        design.basis,
        design.shape,
        design.bounds,
        math.sqrt(sum(each.noise**2 for each in every)),
        window.kind,
        Prior(design.agreement),
        windows=sum(float(each.weight.sum()) for each in every) / float(window.weight.sum()),
        progress=context.progress,
    )


@dataclass(frozen=True)
class LabelNotes:
    """A task for `record_used_labels`: staged and selected rows, `buckets` of them, a new map."""

    staged: Path
    buckets: int
    selected: Path
    map_path: Path


@dataclass(frozen=True, repr=False, eq=False)
class SummingTask:
    """A task for `sum_new_labels`: what `record_used_labels` needs, and the public design.

    Of this, there are coordinates `z`, of the new rows their `pair`, `unit` and ranking
    `size`, and each unit's `weight`. By bucket, `rows` and `units` are its own of these.
    """

    notes: LabelNotes
    z: SharedArray
    pair: SharedArray
    unit: SharedArray
    size: SharedArray | None
    weight: SharedArray
    clip: float
    step: float
    rows: Mapping[int, slice]
    units: Mapping[int, slice]


def draw_window(context: ReleaseContext, design: Design, map_path: Path) -> Window | None:
    """Sum the new labels and add noise, whose randomness ends with this call.

    Which labels were used is noted in the map begun at `map_path`. None if no label is new.
    """
    if design.bounds is None or design.grid is None:
        return None
    task = _plan_sum(context, design, design.bounds, design.grid.step, map_path)
    total = np.zeros(design.z.shape[1], np.int64)
    for part in context.over_buckets("summing", sum_new_labels, task):
        total += part
    noisy = statistic.add_noise(total, design.grid, keyring.random_bytes(NONCE_BYTES))
    weight = statistic.sum_pair_weights(design.rows, design.bounds, len(design.z))
    used = np.flatnonzero(weight)
    return Window(
        np.asarray(noisy * design.grid.step, np.float64),
        design.grid.deviation,
        design.z if len(used) == len(design.z) else design.z[used],  # z may be large
        weight[used],
        design.bounds.clip,
        design.bounds.sensitivity,
        kind=design.grid.kind,
        least=design.grid.least,
    )


def _plan_sum(
    context: ReleaseContext, design: Design, bounds: Bounds, step: float, map_path: Path
) -> SummingTask:
    """Return the task of summing the new labels, whose rows are in the order of buckets."""
    rows, workers = design.rows, context.workers
    first = design.plan.first_unit
    edges = [*first.values(), rows.units]
    bucket_of_row = np.searchsorted(edges, rows.unit, side="right") - 1
    starts = np.searchsorted(bucket_of_row, np.arange(len(edges))).tolist()

    def share(values: NDArray[Any]) -> SharedArray:
        return SharedArray.of(values, workers)

    return SummingTask(
        LabelNotes(
            context.staged.rows_directory, context.staged.buckets, design.plan.directory, map_path
        ),
        share(design.z),
        share(rows.pair),
        share(rows.unit),
        None if rows.size is None else share(rows.size),
        share(bounds.weight),
        bounds.clip,
        step,
        dict(zip(first, map(slice, starts, starts[1:]), strict=False)),
        dict(zip(first, map(slice, edges, edges[1:]), strict=False)),
    )


def sum_new_labels(task: SummingTask, bucket: int) -> NDArray[np.int64]:
    """Sum the new labels of one bucket, and note in the map which these are.

    PRIVATE: returns their clipped sum on the grid, (components,).
    """
    labels, z = record_used_labels(task.notes, bucket), task.z.open()
    if labels is None or not len(labels):
        return np.zeros(z.shape[1], np.int64)
    own, units = task.rows[bucket], task.units[bucket]
    rows = Rows(
        np.asarray(task.pair.open()[own]),
        np.asarray(task.unit.open()[own]) - units.start,
        units.stop - units.start,
        size=None if task.size is None else np.asarray(task.size.open()[own]),
    )
    check_seen(len(rows), len(labels), "labels")
    bounds = Bounds(task.clip, np.asarray(task.weight.open()[units]), 2 * task.clip)
    return statistic.clip_and_sum_labels(z, rows, labels, bounds, task.step)


def record_used_labels(task: LabelNotes, bucket: int) -> NDArray[np.uint8] | None:
    """Write the new labels of one bucket into the map, without values.

    PRIVATE: returns the labels, in the order of the design's rows.
    """
    selected = selection.read_selected(task.selected, task.staged, bucket)
    if selected is None:
        return None
    rows, table = selected
    new = rows[np.flatnonzero(rows.new)]
    if len(new.index):
        tie = np.full(len(new.index), LABEL_TIE, np.uint8)
        private_map.write_bucket(
            *(task.map_path, bucket, task.buckets, new.key, new.author),
            version=new.version,
            value=tie,
            content=new.content,
        )
    return buckets.read_column(table, "label")[new.index].astype(np.uint8)


def list_windows_of_sum(
    context: ReleaseContext, first: str | None, part: Split, own: ReleaseRecord | None = None
) -> list[Window]:
    """Return the windows of the sum that a release `first` of one part began, an `own` one last.

    There is none where a release begins a sum.
    """
    if first is None:
        return []
    records = list_statistic_releases(context.opened.ledger, part) + ([own] if own else [])
    return list(load_windows_of_sum(context.opened.project.private_maps, first, records))
