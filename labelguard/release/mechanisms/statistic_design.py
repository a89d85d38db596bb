"""The public design of a statistic release, fixed before a label is looked at.

And the rows that a head labels: those of the input, and further pairs that nobody labeled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.budget.events import STATISTIC_RELEASES
from labelguard.errors import LedgerError, PolicyError
from labelguard.inputs.pairs import DistinctPairs, find_distinct_pairs
from labelguard.inputs.staged import Staged
from labelguard.keys.prf import Split
from labelguard.learning.features import PairFeatures, fit_features
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.records import ReleaseRecord
from labelguard.mechanisms import statistic
from labelguard.mechanisms.geometry import Basis, Shape, choose_basis, compute_spectrum
from labelguard.mechanisms.noise import Noise, noise_of_price
from labelguard.mechanisms.statistic import Bounds, Grid, Rows
from labelguard.planner.components import Directions
from labelguard.release import selection
from labelguard.release.head import FILE, Head
from labelguard.release.mechanisms.options import StatisticOptions
from labelguard.release.pairs_file import find_agreement_in_releases
from labelguard.release.protocol import Finished, Prepared, ReleaseContext
from labelguard.release.selection import PlannedRows
from labelguard.storage import blocks, buckets
from labelguard.storage.blocks import Blocks


def check_identity(noun: str, recorded: str, present: str) -> None:
    """Raise `LedgerError` if a release that is being resumed was begun with another one."""
    if recorded != present:
        raise LedgerError(
            f"this release was begun with the {noun} {recorded}; found "
            f"{present}; restore what it was and run the same command again"
        )


def write_pair_labels(
    context: ReleaseContext,
    plan: PlannedRows,
    pairs: DistinctPairs,
    probability: NDArray[np.float64],
) -> None:
    """Write every planned row with its pair's `probability` (pairs,) of the first side."""
    of_row = probability[pairs.of_row]
    for bucket in range(context.staged.buckets):
        selected = selection.read_selected(plan.directory, context.staged.rows_directory, bucket)
        if selected is None:
            continue
        rows, table = selected
        row = buckets.read_column(table, "row")[rows.index].astype(np.intp)
        items = buckets.read_blocks(table, "item")[rows.index]
        _write_labeled(context.outcomes, bucket, context.staged, row, rows.key, items, of_row[row])


def add_head_and_labels(
    finished: Finished,
    context: ReleaseContext,
    head: Head,
    provider: PairFeatures,
    labeled: DistinctPairs,
) -> Finished:
    """Add the head and, by it, labels of the further pairs that are not `labeled`."""
    file = context.opened.project.work / FILE
    file.write_bytes(head.to_bytes())
    further = context.further

    def predict_new(new: NDArray[np.intp]) -> NDArray[np.float64]:
        assert further is not None
        return head.predict_probability(provider(buckets.take_rows(further.pairs.table, new)))

    return add_further_labels(replace(finished, files=(file,)), context, labeled, predict_new)


def add_further_labels(
    finished: Finished,
    context: ReleaseContext,
    labeled: DistinctPairs,
    probability: Callable[[NDArray[np.intp]], NDArray[np.float64]],
) -> Finished:
    """Add labels of the further pairs that are not `labeled`, if there are any.

    `probability` returns that of the first side of those further pairs, by their numbers.
    """
    if context.further is None:
        return finished
    pairs = context.further.pairs
    directory = context.opened.project.work / "also-outcomes"
    new = np.flatnonzero(~pairs.are_among(labeled))
    keys = np.zeros((len(new), 2), np.uint64)
    keys[:, 1] = new
    first = probability(new) if len(new) else np.zeros(0)
    _write_labeled(
        directory, 0, context.further.staged, pairs.first_row[new], keys, pairs.items[new], first
    )
    outcomes = (*finished.outcomes, (context.further.staged, directory))
    return replace(finished, outcomes=outcomes, further=len(new))


def _write_labeled(
    outcomes: Path,
    source: int,
    staged: Staged,
    row: NDArray[np.generic],
    key: Blocks,
    items: Blocks,
    probability: NDArray[np.float64],
) -> None:
    """Write rows of one bucket with the likelier side as chosen, and its probability."""
    first = probability >= 0.5
    table = pa.table(
        {
            "row": row.astype(np.uint64),
            "key_hi": np.ascontiguousarray(key[:, 0]),
            "key_lo": np.ascontiguousarray(key[:, 1]),
            "value": first.astype(np.uint8),
            "label_probability": np.where(first, probability, 1 - probability),
        }
    )
    targets = buckets.assign_buckets(items, staged.buckets)
    buckets.write_part(outcomes, source, table, targets, staged.buckets)


@dataclass(frozen=True)
class Design(Prepared):
    """Features, coordinates, who compared what, bounds and noise of one window.

    `bounds` and `grid` are None where no label is new; `first` names the release that began the
    sum which this window joins, or is None if this one begins a sum. `agreement` is how often two
    labelers agree, where that is known.
    """

    pairs: DistinctPairs
    provider: PairFeatures
    x: NDArray[np.float32]
    shape: Shape
    basis: Basis
    z: NDArray[np.float32]
    rows: Rows
    noise: Noise
    bounds: Bounds | None
    grid: Grid | None
    first: str | None
    agreement: float | None = None


def design_window(
    context: ReleaseContext,
    plan: PlannedRows,
    options: StatisticOptions,
    recorded: Mapping[str, Any] | None,
) -> Design:
    """Return the design of a release, from public columns only; as `recorded` if it is resumed.

    Raises `PolicyError` for features other than those of the sum it would join, `InvalidLabels`
    if the features say nothing about the pairs.
    """
    first_release = recorded["first"] if recorded else find_sum_to_join(context, "training")
    first = load_head_to_join(context, options, first_release)
    pairs, provider, x = _compute_pairs_and_features(context, options.features, first)
    identity = provider.identity()
    if recorded:
        check_identity("features", recorded["identity"], identity)
    counts, rows = read_planned_comparisons(context, plan, pairs)
    if first is None and not recorded:
        check_has_new_labels(rows)
    noise = find_priced_noise(context)
    if first is not None:
        shape, coordinates = first.shape, first.basis
    else:
        shape = _choose_shape(x, rows, noise, options, recorded, context.workers.scratch)
        spectrum = compute_spectrum(x, counts)
        coordinates = choose_basis(spectrum, shape)
    # What the ledger is given, so that a resumed release chooses nothing anew.
    parameters = {"identity": identity, "shape": asdict(shape), "first": first_release}
    z = coordinates.coordinates(x, context.workers.scratch)
    return complete_design(
        noise,
        rows,
        z,
        statistic.compute_bounds(z, rows, shape.clip_quantile) if len(rows) else None,
        plan=plan,
        parameters=parameters,
        pairs=pairs,
        provider=provider,
        x=x,
        shape=shape,
        basis=coordinates,
        first=first_release,
        agreement=options.agreement or find_agreement_in_releases(context.opened),
    )


def load_head_to_join(
    context: ReleaseContext, options: StatisticOptions, first_release: str | None
) -> Head | None:
    """Return the head that began the sum which a window joins, if any.

    Raise `PolicyError` unless features and shape fit: a window takes the shape of its sum.
    """
    if first_release is None:
        return None
    first = Head.load(context.opened.project.releases / first_release)
    if first.features != options.features:
        raise PolicyError(
            f"the sum that this window joins has the features {first.features}; asked: "
            f"{options.features}; windows add up in one set of coordinates only, or begin anew "
            "with --again"
        )
    fixed = asdict(first.shape)
    for name, value in options.collect_shape_options().items():
        if value != fixed[name]:
            raise PolicyError(
                f"the sum that this window joins has {name.replace('_', '-')} = {fixed[name]:g}; "
                f"asked: {value:g}; leave it out, or begin anew with --again"
            )
    return first


def complete_design(
    noise: Noise, rows: Rows, z: NDArray[np.float32], bounds: Bounds | None, **parts: Any
) -> Design:
    """Return the design of a window of labels `rows` on pairs at `z`, with bounds and noise.

    `bounds` are None without a row; `parts` are the other members of the design.
    """
    grid = statistic.choose_grid(bounds, z.shape[1], noise) if bounds else None
    return Design(z=z, rows=rows, noise=noise, bounds=bounds, grid=grid, **parts)


def check_has_new_labels(rows: Rows) -> None:
    """Raise `PolicyError` if there is no new label to begin a sum with."""
    if not len(rows):
        raise PolicyError(
            "no label of this input is new: all are in releases that are unfinished, or of "
            "labelers who are exhausted; finish those releases by their own commands"
        )


def _compute_pairs_and_features(
    context: ReleaseContext, spec: str, first: Head | None
) -> tuple[DistinctPairs, PairFeatures, NDArray[np.float32]]:
    """Return distinct pairs and their features.

    They are those of the sum that the window joins, those that a first policy was sized by, or
    fitted on these pairs.
    """
    featured = context.featured
    if featured is not None and featured.spec == spec and first is None:
        return featured.pairs, featured.provider, featured.x
    pairs = find_distinct_pairs(context.staged, context.executor)
    if first is None:
        workers = context.workers
        return pairs, *fit_features(spec, pairs.table, context.progress, workers, pairs.files)
    provider = first.load_provider_to_join(context.progress, context.workers)
    return pairs, provider, provider(pairs.table, pairs.files)


def find_priced_noise(context: ReleaseContext) -> Noise:
    """Return the noise of each release: as the ledger prices it, or calibrated for the first."""
    [price] = context.find_or_calibrate_prices().values()
    return noise_of_price(price)


def _choose_shape(
    x: NDArray[np.float32],
    rows: Rows,
    noise: Noise,
    options: StatisticOptions,
    recorded: Mapping[str, Any] | None,
    scratch: Path | None,
) -> Shape:
    """Return the shape: as recorded, as asked, and its components by public columns."""
    if recorded:
        return Shape(**recorded["shape"])
    fixed = options.collect_shape_options()
    if {"components", "ridge"} <= fixed.keys():
        return Shape(**fixed)
    directions = Directions.of_features(x, rows, scratch)
    return replace(directions.choose_shape(lambda _: noise), **fixed)


@dataclass(frozen=True)
class _Compared:
    """Public, of one bucket: the staged rows of all labels, and which of them are `used`.

    `unit` (indices within the bucket), `item` and `size` (of rankings) are those of the used ones.
    """

    row: NDArray[np.intp]
    used: NDArray[np.bool_]
    unit: NDArray[np.intp]
    item: Blocks
    size: NDArray[np.int64] | None


@dataclass(frozen=True)
class _Comparing:
    """A task for `read_bucket_comparisons`: selected and staged rows; if all labels count."""

    selected: Path
    staged: Path
    released_too: bool


def read_bucket_comparisons(task: _Comparing, bucket: int) -> _Compared | None:
    """Return the comparisons of the labels of one bucket; None if it is empty."""
    selected = selection.read_selected(task.selected, task.staged, bucket)
    if selected is None:
        return None
    rows, table = selected
    used = rows.new
    if task.released_too:
        used = np.ones(len(rows.index), bool)
    index = rows.index[used]
    size = buckets.read_column(table, "size")[index] if "size" in table.column_names else None
    return _Compared(
        buckets.read_column(table, "row")[rows.index].astype(np.intp),
        used,
        rows.unit[used],
        buckets.read_blocks(table, "item")[index],
        None if size is None else size.astype(np.int64),
    )


def read_planned_comparisons(
    context: ReleaseContext, plan: PlannedRows, pairs: DistinctPairs, *, released_too: bool = False
) -> tuple[NDArray[np.int64], Rows]:
    """Count the release's labels of each pair, (pairs,), and return the rows of the new ones.

    Public: which pairs these compare, and whose they are, bucket by bucket. `released_too`: the
    rows are those of all labels, so that they are the same when a drawn release is finished.
    """
    task = _Comparing(plan.directory, context.staged.rows_directory, released_too)
    parts = list(enumerate(context.over_buckets("planning", read_bucket_comparisons, task)))
    compared = [(plan.first_unit[bucket], part) for bucket, part in parts if part is not None]
    pair = [pairs.of_row[part.row] for _, part in compared]
    counts = np.bincount(np.concatenate(pair), minlength=len(pairs))
    unit = np.concatenate([first + part.unit for first, part in compared]).astype(np.intp)
    of_used = np.concatenate([p[part.used] for p, (_, part) in zip(pair, compared, strict=True)])
    if not context.staged.pairs_of_rankings:
        return counts, Rows(of_used, unit, len(plan.units))
    # Not by ranking_id, which may be one for several rankings.
    group = blocks.unique(np.concatenate([part.item for _, part in compared]))[1]
    ranking = np.unique(unit * (group.max(initial=0) + 1) + group, return_inverse=True)[1]
    size = np.concatenate([part.size for _, part in compared if part.size is not None])
    return counts, Rows(of_used, unit, len(plan.units), ranking, size, context.staged.choices)


def find_sum_to_join(context: ReleaseContext, part: Split) -> str | None:
    """Return the release that began the sum which a new window joins.

    None with `--again`, and at first: then a sum begins.
    """
    return None if context.again else find_newest_sum(context.opened.ledger, part)


def find_newest_sum(ledger: Ledger, part: Split) -> str | None:
    """Return the newest release that began a sum of one part's labels, in its coordinates."""
    records = reversed(list_statistic_releases(ledger, part))
    return next((r.id for r in records if r.settings["parameters"]["first"] is None), None)


def list_statistic_releases(ledger: Ledger, part: Split) -> list[ReleaseRecord]:
    """Return the committed releases of statistics of one part's labels, oldest first."""
    return [
        record
        for record in ledger.releases.list_committed()
        if (record.event, record.part) == (STATISTIC_RELEASES.name, part)
    ]
