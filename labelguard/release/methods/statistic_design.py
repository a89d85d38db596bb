"""The public design of a statistic release: what is fixed before a label is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard.accounting import gaussian
from labelguard.errors import PolicyError
from labelguard.ingest.pairs import DistinctPairs, distinct_pairs
from labelguard.keys.parts import Part
from labelguard.learning.features import PairFeatures, open_fitted, open_provider
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.records import ReleaseRecord
from labelguard.mechanisms import statistic
from labelguard.mechanisms.geometry import Basis, Shape, basis, spectrum
from labelguard.mechanisms.statistic import Bounds, Grid, Rows
from labelguard.policy.events import STATISTIC_RELEASES
from labelguard.policy.pricing import prices
from labelguard.release import planning
from labelguard.release.head import Head
from labelguard.release.methods.further import check_identity
from labelguard.release.methods.options import StatisticOptions
from labelguard.release.planning import Plan
from labelguard.release.protocol import Job, Prepared
from labelguard.storage import blocks, buckets
from labelguard.storage.blocks import Blocks


@dataclass(frozen=True)
class Design(Prepared):
    """Features, coordinates, who compared what, bounds and noise of one window.

    `bounds` and `grid` are None where no label is new; `first` names the release that began the
    sum which this window joins, or is None if this one begins a sum.
    """

    pairs: DistinctPairs
    provider: PairFeatures
    x: NDArray[np.float32]
    shape: Shape
    basis: Basis
    z: NDArray[np.float32]
    rows: Rows
    noise_multiplier: float
    bounds: Bounds | None
    grid: Grid | None
    first: str | None


def design(
    job: Job, plan: Plan, options: StatisticOptions, recorded: Mapping[str, Any] | None
) -> Design:
    """The design of a release, from public columns only; as `recorded` if it is being resumed.

    Raises `PolicyError` for features other than those of the sum it would join, `InvalidLabels`
    if the features say nothing about the pairs.
    """
    first_release = recorded["first"] if recorded else joined(job, "training")
    releases = job.opened.project.releases
    first = Head.load(releases / first_release) if first_release else None
    _check_kind(job, first_release)
    pairs = distinct_pairs(job.staged)
    provider = _provider(job, options.features, first, pairs)
    identity = provider.identity()
    if recorded:
        check_identity("features", recorded["identity"], identity)
    x = provider(pairs.table)
    counts, rows = compared(job, plan, pairs)
    if first is None and not recorded:
        check_new(rows)
    multiplier = noise_multiplier(job)
    if first is not None:
        _check_shape(options, first)
        shape, coordinates = first.shape, first.basis
    else:
        shape = _shape(x, rows, multiplier, options, recorded, job)
        coordinates = basis(spectrum(x, counts), shape)
    # What the ledger is given, so that a resumed release chooses nothing anew.
    parameters = {"identity": identity, "shape": asdict(shape), "first": first_release}
    parameters |= {"choices": True} if job.staged.choices else {}
    z = coordinates.coordinates(x)
    return window_of(
        job,
        rows,
        z,
        statistic.bounds(z, rows, shape.clip_quantile) if len(rows) else None,
        plan=plan,
        parameters=parameters,
        pairs=pairs,
        provider=provider,
        x=x,
        shape=shape,
        basis=coordinates,
        first=first_release,
    )


def window_of(
    job: Job, rows: Rows, z: NDArray[np.float32], bounds: Bounds | None, **known: Any
) -> Design:
    """The design of a window of labels `rows` on pairs at `z`, with its bounds and its noise.

    `bounds` are None without a row; `known` are the other members of the design. Raises
    `PolicyError` if the policy's δ is too small for noise on a grid.
    """
    multiplier, components = noise_multiplier(job), z.shape[1]
    _check_discretisation(job, multiplier, components)
    grid = statistic.grid(bounds, components, multiplier) if bounds else None
    return Design(z=z, rows=rows, noise_multiplier=multiplier, bounds=bounds, grid=grid, **known)


def check_new(rows: Rows) -> None:
    """Raise `PolicyError` if there is no new label to begin a sum with."""
    if not len(rows):
        raise PolicyError(
            "no label of this input is new: all are in releases that are unfinished, or of "
            "labelers who are exhausted; finish those releases by their own commands"
        )


def _check_kind(job: Job, first: str | None) -> None:
    """Choices add up with choices alone: their likelihood is another."""
    record = job.opened.ledger.release(first) if first else None
    if record and bool(record.settings["parameters"].get("choices")) != job.staged.choices:
        raise PolicyError(
            "the sum that this window joins is of another kind: choices add up with choices, "
            "comparisons and rankings with each other; begin anew with --again"
        )


def _provider(job: Job, spec: str, first: Head | None, pairs: DistinctPairs) -> PairFeatures:
    """The features: those of the sum that the window joins, or fitted on these pairs."""
    if first and first.features != spec:
        raise PolicyError(
            f"the sum that this window joins has the features {first.features}; asked: {spec}; "
            "windows add up in one set of coordinates only, or begin anew with --again"
        )
    if first is None:
        return open_fitted(spec, pairs.table, job.progress)
    provider = open_provider(spec, first.state)
    provider.report_to(job.progress)
    if provider.identity() != first.identity:
        raise PolicyError(
            f"the features {spec} are no longer those of the sum that this window joins "
            f"({first.identity}); found {provider.identity()}"
        )
    return provider


def _check_shape(options: StatisticOptions, first: Head) -> None:
    """A window takes the shape of the sum it joins."""
    fixed = asdict(first.shape)
    for name, value in options.given().items():
        if value != fixed[name]:
            raise PolicyError(
                f"the sum that this window joins has {name.replace('_', '-')} = {fixed[name]:g}; "
                f"asked: {value:g}; leave it out, or begin anew with --again"
            )


def noise_multiplier(job: Job) -> float:
    """σ of each release: as the ledger has it, or calibrated for the first."""
    releases = _releases(job)
    stored = job.opened.ledger.prices(STATISTIC_RELEASES.name)
    stored = stored or prices(job.policy, STATISTIC_RELEASES.name, np.array([releases]))
    return float(stored[releases]["noise_multiplier"])


def _releases(job: Job) -> int:
    """How many statistic releases the policy pays for."""
    assert job.allowance.allowed is not None  # only coins go by labelers' own numbers
    return job.allowance.allowed


def _shape(
    x: NDArray[np.float32],
    rows: Rows,
    multiplier: float,
    options: StatisticOptions,
    recorded: Mapping[str, Any] | None,
    job: Job,
) -> Shape:
    """As recorded, as asked, and for the rest by simulation on public data."""
    if recorded:
        return Shape(**recorded["shape"])
    given = options.given()
    if len(given) == len(asdict(Shape())):
        return Shape(**given)
    from labelguard.planner import tuning

    job.progress("tuning on simulated labels", None)
    tuned = tuning.choose(x, rows, multiplier, prior=tuning.Prior(options.agreement))
    return replace(tuned, **given)


@dataclass(frozen=True)
class _Compared:
    """Public, of one bucket: the staged rows of all labels, and which of them are new.

    `unit` (indices within the bucket), `item` and `size` (of rankings) are those of the new ones.
    """

    row: NDArray[np.intp]
    new: NDArray[np.bool_]
    unit: NDArray[np.intp]
    item: Blocks
    size: NDArray[np.int64] | None


def compare(task: tuple[Path, Path], bucket: int) -> _Compared | None:
    """What the labels of one bucket compare; the task names the selected and the staged rows."""
    found = planning.selected(*task, bucket)
    if found is None:
        return None
    rows, table = found
    index = rows.index[rows.new]
    size = buckets.column(table, "size")[index] if "size" in table.column_names else None
    return _Compared(
        buckets.column(table, "row")[rows.index].astype(np.intp),
        rows.new,
        rows.unit[rows.new],
        buckets.blocks(table, "item")[index],
        None if size is None else size.astype(np.int64),
    )


def compared(job: Job, plan: Plan, pairs: DistinctPairs) -> tuple[NDArray[np.int64], Rows]:
    """How many labels of the release each pair has, new ones or not; and the rows of the new ones.

    Public: which pairs these compare, and whose they are, bucket by bucket.
    """
    task = (plan.directory, job.staged.rows_directory)
    parts = list(enumerate(job.over_buckets("planning", compare, task)))
    found = [(plan.first_unit[bucket], part) for bucket, part in parts if part is not None]
    pair = [pairs.of_row[part.row] for _, part in found]
    counts = np.bincount(np.concatenate(pair), minlength=len(pairs))
    unit = np.concatenate([first + part.unit for first, part in found]).astype(np.intp)
    of_new = np.concatenate([p[part.new] for p, (_, part) in zip(pair, found, strict=True)])
    if not job.staged.pairs_of_rankings:
        return counts, Rows(of_new, unit, len(plan.units))
    # Not by ranking_id, which may be one for several rankings.
    group = blocks.unique(np.concatenate([part.item for _, part in found]))[1]
    ranking = np.unique(unit * (group.max(initial=0) + 1) + group, return_inverse=True)[1]
    size = np.concatenate([part.size for _, part in found if part.size is not None])
    return counts, Rows(of_new, unit, len(plan.units), ranking, size, job.staged.choices)


def joined(job: Job, part: Part) -> str | None:
    """The release that began the sum which a new window joins; None with `--again`, and at first:
    then a sum begins.
    """
    return None if job.again else begun(job.opened.ledger, part)


def begun(ledger: Ledger, part: Part) -> str | None:
    """The newest release that began a sum of one part's labels, which has the sum's coordinates."""
    firsts = [r.id for r in committed(ledger, part) if r.settings["parameters"]["first"] is None]
    return firsts[-1] if firsts else None


def committed(ledger: Ledger, part: Part) -> list[ReleaseRecord]:
    """The finished releases of statistics of one part's labels, oldest first."""
    return [
        record
        for record in ledger.releases()
        if record.state == "committed"
        and (record.event, record.part) == (STATISTIC_RELEASES.name, part)
    ]


def _check_discretisation(job: Job, multiplier: float, components: int) -> None:
    """Noise on a grid must cost no more δ than was set aside for it."""
    policy = job.policy
    ratio = statistic.step_ratio(multiplier)
    if ratio > gaussian.LARGEST_STEP_RATIO:
        raise PolicyError(
            f"epsilon {policy.epsilon:g} asks for less noise than the grid can hold; ask for less"
        )
    spent = gaussian.discretisation_delta(policy.epsilon, components, ratio, _releases(job))
    if spent > policy.delta_at_points * STATISTIC_RELEASES.grid_share:
        least = spent / STATISTIC_RELEASES.grid_share * policy.closing_points
        raise PolicyError(
            f"delta {policy.delta:g} is too small for noise on a grid with {components} "
            f"components at epsilon {policy.epsilon:g}; "
            + (f"it must be at least {least:.1g}" if least < 0.01 else "take a smaller epsilon")
        )
