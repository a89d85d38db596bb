"""The public design of a statistic release: what is fixed before a label is looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard.accounting import gaussian
from labelguard.errors import LedgerError, PolicyError
from labelguard.ingest.pairs import DistinctPairs, distinct_pairs
from labelguard.ingest.staging import Staged
from labelguard.learning.features import PairFeatures, open_fitted, open_provider
from labelguard.ledger.records import ReleaseRecord
from labelguard.mechanisms import statistic
from labelguard.mechanisms.geometry import Basis, Shape, basis, spectrum
from labelguard.mechanisms.statistic import Bounds, Grid, Rows
from labelguard.policy.events import STATISTIC_RELEASES
from labelguard.policy.pricing import prices
from labelguard.release import planning
from labelguard.release.head import Head
from labelguard.release.methods.featured import FeatureOptions
from labelguard.release.planning import Plan
from labelguard.release.protocol import Job
from labelguard.release.selection import SelectedRows
from labelguard.storage import blocks, buckets


@dataclass(frozen=True)
class Design:
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

    def parameters(self) -> dict[str, Any]:
        """What the ledger keeps of it, so that a resumed release chooses nothing anew."""
        return {
            "identity": self.provider.identity(),
            "shape": asdict(self.shape),
            "first": self.first,
        }


def design(
    job: Job,
    staged: Staged,
    plan: Plan,
    options: FeatureOptions,
    recorded: Mapping[str, Any] | None,
) -> Design:
    """The design of a release, from public columns only; as `recorded` if it is being resumed.

    Raises `PolicyError` for features other than those of the sum it would join, `InvalidLabels`
    if the features say nothing about the pairs.
    """
    first_release = recorded["first"] if recorded else _first_release(job)
    first = Head.load(job.project.releases / first_release) if first_release else None
    pairs = distinct_pairs(staged)
    provider = _provider(job, options.features, first, pairs)
    if recorded and recorded["identity"] != provider.identity():
        raise LedgerError(
            f"this release was begun with the features {recorded['identity']}; found "
            f"{provider.identity()}; restore them and run the same command again"
        )
    x = provider(pairs.table)
    rows = _new_rows(staged, plan, pairs.of_row)
    if not len(rows) and first is None and not recorded:
        raise PolicyError(
            "no label of this input is new: all are in releases that are unfinished, or of "
            "labelers who are exhausted; finish those releases by their own commands"
        )
    multiplier = _noise_multiplier(job)
    if first is not None:
        _check_shape(options, first)
        shape, coordinates = first.shape, first.basis
    else:
        shape = _shape(x, rows, multiplier, options, recorded, job)
        coordinates = basis(spectrum(x, _counts(staged, plan, pairs)), shape)
    _check_discretisation(job, multiplier, len(coordinates.metric))
    z = coordinates.coordinates(x)
    bounds = grid = None
    if len(rows):
        bounds = statistic.bounds(z, rows, shape.clip_quantile)
        grid = statistic.grid(bounds, z.shape[1], multiplier)
    return Design(
        pairs, provider, x, shape, coordinates, z, rows, multiplier, bounds, grid, first_release
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


def _check_shape(options: FeatureOptions, first: Head) -> None:
    """A window takes the shape of the sum it joins."""
    fixed = asdict(first.shape)
    for name, value in options.given().items():
        if value != fixed[name]:
            raise PolicyError(
                f"the sum that this window joins has {name.replace('_', '-')} = {fixed[name]:g}; "
                f"asked: {value:g}; leave it out, or begin anew with --again"
            )


def _noise_multiplier(job: Job) -> float:
    """σ of each release: as the ledger has it, or calibrated for the first."""
    releases = _releases(job)
    stored = job.ledger.prices(STATISTIC_RELEASES.name)
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
    options: FeatureOptions,
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


def selected(plan: Plan) -> Iterator[tuple[int, SelectedRows]]:
    """The buckets of a plan that hold rows, with these."""
    for bucket in range(buckets.BUCKETS):
        rows = planning.selected(plan, bucket)
        if rows is not None:
            yield bucket, rows


def _counts(staged: Staged, plan: Plan, pairs: DistinctPairs) -> NDArray[np.int64]:
    """How many labels of the release each pair has, new ones or not."""
    counts = np.zeros(len(pairs), np.int64)
    for bucket, rows in selected(plan):
        table = buckets.read_bucket(staged.rows_directory, bucket)
        assert table is not None
        row = buckets.column(table, "row")[rows.index].astype(np.intp)
        counts += np.bincount(pairs.of_row[row], minlength=len(pairs))
    return counts


def _new_rows(staged: Staged, plan: Plan, of_row: NDArray[np.intp]) -> Rows:
    """Public: which pairs the new labels compare, and whose they are, bucket by bucket."""
    pairs, units, groups, sizes = [], [], [], []
    for bucket, chosen in selected(plan):
        table = buckets.read_bucket(staged.rows_directory, bucket)
        assert table is not None
        new = chosen[np.flatnonzero(chosen.new)]
        row = buckets.column(table, "row")[new.index].astype(np.intp)
        pairs.append(of_row[row])
        units.append(plan.bucket_units[bucket].start + new.unit)
        if staged.pairs_of_rankings:
            # Not by ranking_id, which may be one for several rankings.
            groups.append(buckets.blocks(table, "item")[new.index])
            sizes.append(buckets.column(table, "size")[new.index].astype(np.int64))
    unit = np.concatenate(units).astype(np.intp)
    ranking = size = None
    if staged.pairs_of_rankings:
        group = blocks.unique(np.concatenate(groups))[1]
        ranking = np.unique(unit * (group.max(initial=0) + 1) + group, return_inverse=True)[1]
        size = np.concatenate(sizes)
    return Rows(np.concatenate(pairs), unit, len(plan.units), ranking, size)


def _first_release(job: Job) -> str | None:
    """The newest release that began a sum, whose coordinates later windows take.

    With `--again` there is none: a new sum begins.
    """
    if job.again:
        return None
    firsts = [r.id for r in committed(job) if r.settings["parameters"]["first"] is None]
    return firsts[-1] if firsts else None


def committed(job: Job) -> list[ReleaseRecord]:
    """This project's finished statistic releases, oldest first."""
    return [
        record
        for record in job.ledger.releases()
        if record.state == "committed" and record.event == STATISTIC_RELEASES.name
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
