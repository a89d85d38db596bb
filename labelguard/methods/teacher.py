"""`--mechanism statistic`: one noisy statistic, the head fitted from it, and its labels.

The head is a teacher: it relabels every pair of the input, and any others, at no further price.
A later release adds the labels that are new in it (a window) in the coordinates of the first one;
its teacher is fitted on the sum of all windows. With `--again` a new sum begins: corrections of
labels are no increments.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard import block128, planning, segments
from labelguard._files import fresh_directory, publish_directory
from labelguard.accounting import gaussian
from labelguard.errors import LedgerError, PolicyError
from labelguard.features import PairFeatures, open_provider
from labelguard.labels import LABEL_TIE
from labelguard.ledger import Grant, ReleaseRecord
from labelguard.mechanisms import statistic
from labelguard.mechanisms.geometry import Basis, Shape, basis, spectrum
from labelguard.mechanisms.protocol import Finished, Job
from labelguard.mechanisms.statistic import Bounds, Grid, Rows
from labelguard.methods import also
from labelguard.methods.featured import FeatureOptions, column_features
from labelguard.pairs import DistinctPairs, distinct_pairs
from labelguard.planning import Plan
from labelguard.policy import Priced
from labelguard.pricing import DISCRETISATION_SHARE, prices
from labelguard.released_head import FILE, Head, Window, fit
from labelguard.segments import BucketWriter, ReleasedMap
from labelguard.selection import SelectedRows
from labelguard.staging import Staged

_WINDOW = "window.npz"


@dataclass(frozen=True)
class _Design:
    """What is fixed before the charge, all of it public."""

    pairs: DistinctPairs
    provider: PairFeatures
    x: NDArray[np.float32]
    shape: Shape
    basis: Basis
    z: NDArray[np.float32]
    rows: Rows
    noise_multiplier: float


class Teacher:
    """The statistic release; `labelguard.mechanisms.statistic` has its mathematics."""

    name = statistic.NAME
    version = statistic.VERSION
    priced: Priced = "statistic"

    def __init__(self, options: FeatureOptions) -> None:
        self.options = options
        self._design: _Design | None = None
        self._further: also.Further | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """Numeric columns named by the features."""
        return column_features(self.options.features)

    def settings(self) -> dict[str, Any]:
        """Features, given parameters, and which further pairs are to be labeled."""
        return self.options.settings()

    def read(self, job: Job, staged: Staged) -> bytes:
        """The further pairs, if any."""
        self._further = also.read(self.options, job, staged)
        return self._further.staged.public_digest if self._further else b""

    def prepare(
        self, job: Job, staged: Staged, plan: Plan, recorded: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Features, shape, coordinates: tuned by simulation on public columns, or as recorded."""
        if recorded:
            first_release = recorded["first"]
        else:
            first_release = None if job.again else _first_release(job)
        first = Head.load(job.project.releases / first_release) if first_release else None
        spec = self.options.features
        if first and first.features != spec:
            raise PolicyError(
                f"the sum that this window joins has the features {first.features}; "
                f"asked: {spec}; windows add up in one set of coordinates only, or begin anew with "
                "--again"
            )
        pairs = distinct_pairs(staged)
        provider = open_provider(spec, first.state if first else None)
        provider.report_to(job.progress)
        if first is None:
            provider.fit(pairs.table)
        elif provider.identity() != first.identity:
            raise PolicyError(
                f"the features {spec} are no longer those of the sum that this window joins "
                f"({first.identity}); found {provider.identity()}"
            )
        x = provider(pairs.table)
        rows = _new_rows(staged, plan, pairs.of_row)
        multiplier = gaussian.noise_multiplier_of(
            prices(job.policy, np.array([job.policy.releases]))[job.policy.releases]
        )
        if first is not None:
            shape, coordinates = first.shape, first.basis
        else:
            shape = self._shape(x, rows, multiplier, recorded, job)
            coordinates = basis(spectrum(x, _counts(staged, plan, pairs)), shape)
        if recorded and recorded["identity"] != provider.identity():
            raise LedgerError(
                "this release was begun with other features "
                f"({recorded['identity']}); found {provider.identity()}; restore them and run the "
                "same command again"
            )
        _check_discretisation(job, multiplier, len(coordinates.metric))
        z = coordinates.coordinates(x)
        self._design = _Design(pairs, provider, x, shape, coordinates, z, rows, multiplier)
        return {
            "identity": provider.identity(),
            "shape": asdict(shape),
            "first": first_release,
        }

    def _shape(
        self,
        x: NDArray[np.float32],
        rows: Rows,
        multiplier: float,
        recorded: Mapping[str, Any] | None,
        job: Job,
    ) -> Shape:
        if recorded:
            return Shape(**recorded["shape"])
        given = self.options.given()
        if len(given) == len(asdict(Shape())):
            return Shape(**given)
        from labelguard import tuning

        job.progress("tuning on simulated labels", None)
        tuned = tuning.choose(x, rows, multiplier, prior=tuning.Prior(self.options.agreement))
        return replace(tuned, **given)

    def draw(self, job: Job, staged: Staged, plan: Plan, grant: Grant, epoch: int) -> None:
        """Sum, seal, add noise; then the private map is written and flushed as a whole."""
        final = job.project.released / grant.release.id
        if final.exists():
            return
        design = self._fixed
        temporary = fresh_directory(final.with_name(f"{final.name}.partial"), mode=0o700)
        if plan.drawn:
            bounds = statistic.bounds(design.z, design.rows, design.shape.clip_quantile)
            grid = statistic.grid(bounds, design.z.shape[1], design.noise_multiplier)
            window = self._window(job, staged, plan, grant, epoch, bounds, grid)
            window.save(temporary / _WINDOW)
        for bucket, rows in _selected(plan):
            new = rows[np.flatnonzero(rows.new)]
            if len(new.index):
                nothing = np.zeros(len(new.index), np.uint64)
                tie = np.full(len(new.index), LABEL_TIE, np.uint8)
                ReleasedMap.write(
                    temporary, bucket, new.key, new.version, tie, nothing, new.content
                )
        (temporary / ReleasedMap.COUNT).write_text(str(plan.drawn), encoding="ascii")
        publish_directory(temporary, final)

    def _window(
        self,
        job: Job,
        staged: Staged,
        plan: Plan,
        grant: Grant,
        epoch: int,
        bounds: Bounds,
        grid: Grid,
    ) -> Window:
        """The noisy statistic of the new labels, sealed before the noise is added."""
        design = self._fixed
        nonce = job.keys.nonce(grant.release.id)
        total = statistic.exact_sum(design.z, design.rows, _labels(staged, plan), bounds, grid.step)
        exact = total.astype(">i8").tobytes() + repr((grid.scale, grid.step)).encode()
        job.ledger.seal(grant, epoch, hmac.digest(nonce, b"seal" + exact, "sha256").hex())
        key = hmac.digest(nonce, b"noise", "sha256")
        noisy = statistic.noisy(total, grid, key)
        weight = statistic.pair_weights(design.rows, bounds, len(design.z))
        used = np.flatnonzero(weight)
        return Window(
            np.asarray(noisy * grid.step, np.float64),
            grid.scale * grid.step,
            design.z[used],
            weight[used],
            bounds.clip,
            bounds.sensitivity,
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
            for bucket, rows in _selected(plan):
                table = segments.read_bucket(staged.rows_directory, bucket)
                assert table is not None
                row = segments.column(table, "row")[rows.index]
                items = segments.blocks(table, "item")[rows.index]
                chosen = probability[design.pairs.of_row[row.astype(np.intp)]]
                also.append(outcomes, row, rows.key, items, chosen)
        finished = Finished(self._card(job, grant, windows), {FILE: head.to_bytes()})
        if self._further is None:
            return finished
        return also.label(
            self._further,
            design.pairs,
            job,
            lambda pairs: head.probability(design.provider(pairs)),
            finished,
        )

    def _card(self, job: Job, grant: Grant, windows: list[Window]) -> dict[str, Any]:
        design, policy = self._fixed, job.policy
        last = windows[-1]
        return {
            "kind": "teacher",
            "privacy": {
                "accounting": f"analytic Gaussian mechanism, {policy.releases} per "
                f"{policy.unit}, noise on a grid"
            },
            "statistic": {
                "windows": len(windows),
                "labels_in_window": grant.release.settings["drawn"],
                "noise_multiplier": design.noise_multiplier,
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
    def _fixed(self) -> _Design:
        assert self._design is not None, "prepare comes first"
        return self._design


def _selected(plan: Plan) -> Iterator[tuple[int, SelectedRows]]:
    for bucket in range(segments.BUCKETS):
        rows = planning.selected(plan, bucket)
        if rows is not None:
            yield bucket, rows


def _counts(staged: Staged, plan: Plan, pairs: DistinctPairs) -> NDArray[np.int64]:
    """How many labels of the release each pair has, new ones or not."""
    counts = np.zeros(len(pairs), np.int64)
    for bucket, rows in _selected(plan):
        table = segments.read_bucket(staged.rows_directory, bucket)
        assert table is not None
        row = segments.column(table, "row")[rows.index].astype(np.intp)
        counts += np.bincount(pairs.of_row[row], minlength=len(pairs))
    return counts


def _new_rows(staged: Staged, plan: Plan, of_row: NDArray[np.intp]) -> Rows:
    """Public: which pairs the new labels compare, and whose they are, bucket by bucket."""
    pairs, units, groups, sizes = [], [], [], []
    for bucket, selected in _selected(plan):
        table = segments.read_bucket(staged.rows_directory, bucket)
        assert table is not None
        new = selected[np.flatnonzero(selected.new)]
        row = segments.column(table, "row")[new.index].astype(np.intp)
        pairs.append(of_row[row])
        units.append(plan.bucket_units[bucket].start + new.unit)
        if staged.pairs_of_rankings:
            groups.append(segments.blocks(table, "group")[new.index])
            sizes.append(segments.column(table, "size")[new.index].astype(np.int64))
    unit = np.concatenate(units).astype(np.intp)
    ranking = size = None
    if staged.pairs_of_rankings:
        group = block128.unique(np.concatenate(groups))[1]
        ranking = np.unique(unit * (group.max(initial=0) + 1) + group, return_inverse=True)[1]
        size = np.concatenate(sizes)
    return Rows(np.concatenate(pairs), unit, len(plan.units), ranking, size)


def _labels(staged: Staged, plan: Plan) -> NDArray[np.uint8]:
    """PRIVATE: the labels of `_new_rows`, in the same order."""
    labels = []
    for bucket, selected in _selected(plan):
        table = segments.read_bucket(staged.rows_directory, bucket)
        assert table is not None
        labels.append(segments.column(table, "label")[selected.index[selected.new]])
    return np.concatenate(labels).astype(np.uint8)


def _windows(job: Job, grant: Grant) -> Iterator[Window]:
    """The windows of the sum that a release belongs to, its own last."""
    own = grant.release
    first = own.settings["parameters"]["first"] or own.id
    for record in [*_committed(job), own]:
        path = job.project.released / record.id / _WINDOW
        if first in (record.id, record.settings["parameters"]["first"]) and path.exists():
            yield Window.load(path)


def _first_release(job: Job) -> str | None:
    """The newest release that began a sum; its coordinates are those of later windows."""
    firsts = [r.id for r in _committed(job) if r.settings["parameters"]["first"] is None]
    return firsts[-1] if firsts else None


def _committed(job: Job) -> list[ReleaseRecord]:
    return [record for record in job.ledger.releases() if record.state == "committed"]


def _check_discretisation(job: Job, multiplier: float, components: int) -> None:
    """Noise on a grid must cost no more δ than was set aside for it."""
    policy = job.policy
    spent = gaussian.discretisation_delta(
        policy.epsilon, components, statistic.step_ratio(multiplier), policy.releases
    )
    if spent > policy.delta * DISCRETISATION_SHARE:
        raise PolicyError(
            f"delta {policy.delta:g} is too small for noise on a grid with {components} "
            f"components at epsilon {policy.epsilon:g}; it must be at least "
            f"{spent / DISCRETISATION_SHARE:.1g}"
        )
