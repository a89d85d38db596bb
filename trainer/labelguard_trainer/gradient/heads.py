"""Linear heads on frozen features, in coordinates: a cohort's gradients in one sparse product.

What is clipped lies on a grid, within a bound of whole numbers (`labelguard.mechanisms.geometry`),
is summed exactly, and its noise is drawn exactly (`labelguard.mechanisms.noise`): floating point is
no part of the guarantee.

What a run is fixed by is public: coordinates, weights, clip, rates, and how timid or bold a head is
that noisy steps have trained, which the same run on simulated labels tells.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from labelguard.inputs.pairs import DistinctPairs
from labelguard.learning.features import PairFeatures
from labelguard.learning.heads import square_sums
from labelguard.mechanisms import geometry, statistic
from labelguard.mechanisms.geometry import (
    Basis,
    Shape,
    choose_basis,
    compute_spectrum,
    compute_squared_norms,
)
from labelguard.mechanisms.noise import Noise
from labelguard.mechanisms.statistic import STEP_BITS, Grid, Rows
from labelguard.planner.calibration import AXES, find_best_scale, sample_labelers
from labelguard.planner.components import Directions
from labelguard.planner.prior import Population, Prior
from labelguard.release.head import Head
from labelguard.release.mechanisms.statistic_design import add_head_and_labels
from labelguard.release.protocol import Featured, Finished, ReleaseContext
from labelguard.text import Progress, no_progress
from labelguard_trainer.gradient.loop import NoisyRun
from labelguard_trainer.gradient.options import Weighting

Floats = NDArray[np.float64]

_FLOOR = 1e-12  # of curvature, beside the largest
_BLOCK = 1 << 17  # numbers that are worked on while they lie in the cache


@dataclass(frozen=True, eq=False)
class ComparisonRecords:
    """The comparisons of a run on frozen features, and whose they are: public.

    A row is a pair, scored by x·θ of its coordinates x, the difference of its sides. The rows of
    each unit stand together: row k is `features[index[k]]`, and those of unit u begin at
    `starts[u]`, (units + 1,); `row` (n,) are the rows of a release that `index` was sorted from.
    The loss is Bradley and Terry's, −y log σ(z) − (1 − y) log σ(−z), z = x·θ, of derivative
    σ(z) − y; a ranking is the pairs that it was broken into.
    """

    features: NDArray[np.float32]
    index: NDArray[np.intp]
    starts: NDArray[np.intp]
    row: NDArray[np.intp]

    @classmethod
    def of(cls, z: NDArray[np.float32], rows: Rows) -> Self:
        """Of coordinates z (pairs, d) and who compared what."""
        order = np.argsort(rows.unit, kind="stable")
        starts = np.searchsorted(rows.unit[order], np.arange(rows.units + 1))
        return cls(z, rows.pair[order], starts, order)

    def residuals(
        self, score: NDArray[np.float32], places: NDArray[np.intp], labels: Floats
    ) -> Floats:
        """Return σ(z) − y of the rows at `places`; `labels` are those of the release's rows."""
        return 0.5 * (1 + np.tanh(score / 2)) - labels[self.row[places]]

    def counts(self) -> NDArray[np.int64]:
        """Return how many rows each unit has, (units,)."""
        return np.diff(self.starts)

    def weigh_by_unit(self, weighting: Weighting) -> Floats:
        """Return the weight of each row of a unit: 1/m, or 1/√m, of m rows; (units,)."""
        counts = np.maximum(self.counts(), 1)
        return 1 / (counts if weighting == "mean" else np.sqrt(counts))

    def expected_squared_norms(self) -> Floats:
        """Return Σ ¼‖x‖² of each unit, (units,): E‖gradient‖² at θ = 0, if labels are random."""
        # Row by row: a difference of sums would lose what is small beside others'.
        unit = np.repeat(np.arange(len(self.starts) - 1), self.counts())
        each = (compute_squared_norms(self.features) / 4)[self.index].astype(np.float64)
        return np.asarray(np.bincount(unit, each, len(self.starts) - 1), np.float64)

    def curvature(self, weight: Floats) -> Floats:
        """Return Σ ¼x² over rows, each of its unit's weight: the loss's at θ = 0, (d,)."""
        of_pair = np.bincount(self.index, np.repeat(weight, self.counts()), len(self.features))
        return square_sums(self.features, of_pair.astype(np.float64)) / 4


class HeadProblem:
    """θ (d,) on the coordinates of records, from 0; see `loop.Problem`.

    `weight` (units,) is what each record of a unit weighs in its gradient, and `rate` (d,) how far
    a step goes along each coordinate. All of it is public; `clip` sets the grid.
    """

    def __init__(
        self, records: ComparisonRecords, weight: Floats, rate: Floats, clip: float
    ) -> None:
        self._records, self._weight, self._rate = records, weight, rate
        self._grid = math.ldexp(1.0, math.frexp(clip)[1] - STEP_BITS)  # a power of 2: exact
        self.theta: Floats = np.zeros(records.features.shape[1])

    def clipped_sum(self, units: NDArray[np.intp], labels: Floats, clip: float) -> Floats:
        """PRIVATE: a whole number of grid steps in every coordinate, (d,)."""
        total = np.zeros(len(self.theta), np.int64)
        parts = self.gradients(units, labels)
        for part in _split_rows(*parts.shape):
            total += geometry.clip_to_grid(parts[part], clip, self._grid).sum(axis=0)
        return np.asarray(total * self._grid)

    def gradients(self, units: NDArray[np.intp], labels: Floats) -> NDArray[np.float32]:
        """PRIVATE: Σ weight · residual · features over the records of each unit, (units, d).

        That of a unit is a function of its own records: sums are taken row by row, in one order. A
        product of matrices would not do, since what it gives a row depends on how many there are.
        """
        starts = self._records.starts
        sizes = starts[units + 1] - starts[units]
        ends = np.append(0, np.cumsum(sizes))
        places = np.repeat(starts[units] - ends[:-1], sizes) + np.arange(ends[-1])
        features, index = self._records.features, self._records.index[places]
        theta, score = self.theta.astype(np.float32), np.empty(len(index), np.float32)
        for part in _split_rows(len(index), features.shape[1]):
            score[part] = np.einsum("ij,j->i", features[index[part]], theta)
        residual = self._records.residuals(score, places, labels)
        factor = (residual * np.repeat(self._weight[units], sizes)).astype(np.float32)
        rows = csr_array((factor, index, ends), shape=(len(units), len(features)))
        return np.asarray(rows @ features, np.float32)

    def add_noise(self, total: Floats, deviation: float, secret: bytes) -> Floats:
        """Return the sum with noise that was drawn exactly, on the grid."""
        scale = math.ceil(deviation / self._grid)
        grid = Grid(self._grid, scale, "gaussian", len(total))
        whole = np.array([int(number) for number in np.rint(total / self._grid)], object)
        return np.asarray(statistic.add_noise(whole, grid, secret) * self._grid, np.float64)

    def step(self, gradient: Floats) -> None:
        """θ − rate · gradient."""
        self.theta = self.theta - self._rate * gradient

    def state(self) -> dict[str, NDArray[Any]]:
        """θ."""
        return {"theta": self.theta}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """The inverse of `state`; ValueError for coefficients of another shape."""
        if state["theta"].shape != self.theta.shape:
            raise ValueError("coefficients of another shape")
        self.theta = state["theta"]

    def margins(self) -> Floats:
        """Return x·θ of every pair, (pairs,)."""
        return np.asarray(self._records.features @ self.theta.astype(np.float32), np.float64)


def _split_rows(rows: int, width: int) -> Iterator[slice]:
    """Of so many rows, some `_BLOCK` numbers each."""
    height = max(1, _BLOCK // width)
    return (slice(at, at + height) for at in range(0, rows, height))


def choose_clip_norm(records: ComparisonRecords, weight: Floats) -> float:
    """Return the median norm of a unit's gradient at θ = 0, were labels random and independent.

    Raises `InvalidLabels` if no record says anything, or a feature is not finite.
    """
    return statistic.choose_clip_and_weights(
        weight * np.sqrt(records.expected_squared_norms()), 0.5
    )[0]


def rates(
    records: ComparisonRecords, weight: Floats, penalty: Floats, noise: float, steps: int
) -> Floats:
    """Return how far each coordinate goes in a step, (d,), in closed form from public numbers.

    `steps` steps at rate η along a coordinate of curvature h, from 0, give (1 − e^(−ηh·steps))/h of
    the mean gradient: as much as a ridge R, the gradient's 1/(h + R), for η·steps = ln(1 + h/R)/h.
    R = penalty · (scatter of labels + noise²)/h makes it the posterior mean of a coefficient of
    prior variance 1/penalty. `noise` is the deviation of the mean of all steps' noise.
    """
    units = np.count_nonzero(records.counts())
    h = records.curvature(weight) / units
    h = np.maximum(h, max(float(h.max()) * _FLOOR, np.finfo(float).tiny))
    scatter = records.curvature(weight**2) / units**2
    ridge = penalty * (scatter + noise**2) / h
    return np.asarray(np.log1p(h / ridge) / h / steps)


@dataclass(frozen=True, eq=False)
class HeadRun:
    """A `LearnerRun` of a linear head."""

    features: str
    provider: PairFeatures
    shape: Shape
    basis: Basis
    records: ComparisonRecords
    weight: Floats
    clip: float
    rate: Floats
    scale: float

    @property
    def parameters(self) -> dict[str, Any]:
        """Features and shape."""
        return {"identity": self.provider.identity(), "shape": asdict(self.shape)}

    @property
    def card_facts(self) -> dict[str, Any]:
        """Features, and how many coefficients."""
        return {
            "features": self.features,
            "features_identity": self.provider.identity(),
            "parameters": self.records.features.shape[1],
            "noise_drawn": "exactly, on a grid",
            "probability_scale": self.scale,
        }

    def problem(self) -> HeadProblem:
        """Return a head at 0."""
        return HeadProblem(self.records, self.weight, self.rate, self.clip)

    def predict_log_odds(self, problem: HeadProblem) -> Floats:
        """Log-odds that the first side is preferred, for every pair, (pairs,)."""
        return self.scale * problem.margins()

    def add_model_and_further_labels(
        self,
        context: ReleaseContext,
        problem: HeadProblem,
        pairs: DistinctPairs,
        finished: Finished,
    ) -> Finished:
        """With `head.npz`, which scores other pairs too."""
        head = Head(
            self.features,
            self.provider.identity(),
            self.provider.state(),
            self.shape,
            self.basis,
            self.scale * self.basis.projection @ problem.theta,
            scale=self.scale,
        )
        return add_head_and_labels(finished, context, head, self.provider, pairs)


def compute_step_averaged_noise_deviation(price: Mapping[str, Any], units: int) -> float:
    """Return the deviation of the mean of all steps' noise on a mean gradient, in clip norms."""
    q, steps = float(price["sampling_probability"]), int(price["steps"])
    return float(price["noise_multiplier"]) / (q * units * math.sqrt(steps))


def prepare_head_run(
    seen: Featured,
    rows: Rows,
    price: Mapping[str, Any],
    weighting: Weighting,
    given: Mapping[str, Any],
    prior: Prior | None = None,
    progress: Progress = no_progress,
) -> HeadRun:
    """Return a head on the pairs of an input that `rows` compare; `given` are parts of its shape.

    The number of components is that of a statistic with as much noise as all steps' mean has, and
    every step goes as far as a ridge would (`rates`): closed forms, nothing is tuned. With a
    `prior`, probabilities are scaled by what simulated worlds say (`probability_scale`); of
    rankings they are left as they are.
    """
    x, units = seen.x, len(np.unique(rows.unit))
    # Noise of a statistic is counted in sensitivities, which are two clip norms.
    noise = Noise("gaussian", compute_step_averaged_noise_deviation(price, units) * units / 2)
    shape = replace(Directions.of_features(x, rows).choose_shape(lambda _: noise), **given)
    axes = choose_basis(compute_spectrum(x, np.bincount(rows.pair, minlength=len(x))), shape)
    records = ComparisonRecords.of(axes.coordinates(x), rows)
    weight = records.weigh_by_unit(weighting)
    clip = choose_clip_norm(records, weight)
    penalty = shape.ridge * axes.metric**2
    spread, steps = compute_step_averaged_noise_deviation(price, units) * clip, int(price["steps"])
    rate = rates(records, weight, penalty, spread, steps)
    scale = 1.0
    if prior is not None and rows.ranking is None:
        run = NoisyRun.from_price(price, clip, units)
        scale = probability_scale(x, records.features, rows, weight, rate, run, prior, progress)
    return HeadRun(seen.spec, seen.provider, shape, axes, records, weight, clip, rate, scale)


WORLDS = 9


class _SimulatedHead(HeadProblem):
    """A head with noise that is no secret."""

    def __init__(self, *arguments: object, generator: np.random.Generator) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._generator = generator

    def add_noise(self, total: Floats, deviation: float, secret: bytes) -> Floats:
        return total + deviation * self._generator.standard_normal(len(total))


def probability_scale(
    x: NDArray[np.float32],
    z: NDArray[np.float32],
    rows: Rows,
    weight: Floats,
    rate: Floats,
    run: NoisyRun,
    prior: Prior,
    progress: Progress = no_progress,
) -> float:
    """Return the scale of a run on comparisons `rows` of pairs x (pairs, d) at z (pairs,
    components).

    As `planner.calibration` does for statistics: clip and step size shrink a head, so that it says
    .60 where .70 are right, and noise does the opposite. Its coefficients are multiplied by the one
    number at which fresh simulated labelers are predicted best. Nothing here has an argument that
    could hold labels.

    `weight` (units,) and `rate` (components,) are the run's. Of many rows those of some labelers
    are simulated, drawn at random; the noise is scaled to them. To two digits, in [0.01, 10].
    """
    mine, units, times = sample_labelers(rows)
    counts = np.bincount(mine.pair, minlength=len(x))
    axes = compute_spectrum(x, counts)
    size = min(AXES, axes.rank)
    principal = x @ axes.axes[:, :size].astype(np.float32)
    records = ComparisonRecords.of(z, mine)
    worlds = []
    for number, draw in enumerate(
        Population(principal, axes.values[:size], mine, prior).draws(WORLDS)
    ):
        progress("simulating calibration", number / WORLDS)
        generator = np.random.default_rng([prior.seed, number])
        problem = _SimulatedHead(records, weight[units], rate, run.clip, generator=generator)
        labels = draw.half.astype(np.float64) + 0.5
        for _ in range(run.steps):
            members = np.flatnonzero(generator.random(mine.units) < run.probability)
            total = problem.clipped_sum(members, labels, run.clip)
            noisy_sum = problem.add_noise(total, run.deviation / times, b"")
            problem.step(noisy_sum * times / run.divisor)
        share = counts / len(mine)
        worlds.append((problem.margins(), share * draw.gain, share * draw.strict))
    margins, gains, stricts = (np.concatenate(part) for part in zip(*worlds, strict=True))
    return round(find_best_scale(margins, gains, stricts), 2)
