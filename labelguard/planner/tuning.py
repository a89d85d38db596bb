"""Public tuning: the shape of a statistic release, and what each mechanism may be expected to give.

Everything here reads public pairs, who labels which of them, and a prior; labels are simulated.
What it returns is the same whatever the real labels are, so it costs no privacy, and it can be run
before any label exists.

Utility is the expected share of a fresh labeler's strict labels that a linear head gets right. The
fits of a release and of trials use `statistic.noise_aware_ridge`: on 50 labelers at ε = 1 it
bettered the plain ridge with any number of components, and mattered little with many labelers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from labelguard.accounting import gaussian, randomized_response
from labelguard.errors import PolicyError
from labelguard.mechanisms.geometry import Shape
from labelguard.mechanisms.statistic import Rows
from labelguard.planner.prior import KINDS, Prior
from labelguard.planner.trials import Heads, PublicSide, Trial, public_side
from labelguard.policy.bounds import rounded_bound
from labelguard.terms import Progress, silent

__all__ = [
    "MECHANISMS",
    "Forecast",
    "Interval",
    "Prior",
    "best",
    "check_budgets",
    "choose",
    "forecast",
    "recommend",
]

Floats = NDArray[np.float64]

MECHANISMS = ("statistic", "rr", "props")

BOUNDS = (None, 1, 2, 4, 8, 16, 32)
"""Labels per labeler that are tried for randomized response; None: all, at their own price.

A labeler's k labels inform about as k · (1 − 2γ)² labels without noise would, which falls with k
once (1 − 2γ) falls faster than 1/√k: fewer labels, answered more truly, can teach more.
"""

DRAWS = 6 * len(KINDS)
_NOISES = 8  # noise realised per simulated world, for intervals
_INDISTINCT = 5e-4  # less than simulations can tell
_TIE = 0.002  # a difference in accuracy that decides nothing


def choose(
    x: NDArray[np.float32],
    rows: Rows,
    noise_multiplier: float,
    prior: Prior | None = None,
) -> Shape:
    """The shape with the best expected accuracy of a statistic released with this noise.

    `x` (pairs, d) are public features of pairs. Averages over worlds drawn from `prior`, whose
    directions of utility differ in how many components they need, so that the choice suits none of
    them badly.

    Raises `InvalidLabels` if there are no rows, or no pair differs in any feature.
    """
    simulated = _Simulated.of(x, rows, prior or Prior(), DRAWS)
    return simulated.public.shapes[simulated.best_shape(noise_multiplier)]


@dataclass(frozen=True)
class Interval:
    """A mean over simulated worlds, and the range that holds 90% of them."""

    mean: float
    """the mean"""
    low: float
    """the 5% quantile"""
    high: float
    """the 95% quantile"""


@dataclass(frozen=True)
class Forecast:
    """What one mechanism may be expected to give at one ε.

    A statistic has a `shape`; randomized response, and PROPS on top of it, have a flip probability
    and a bound.
    """

    mechanism: str
    """rr, props, statistic or non-private"""
    epsilon: float | None
    """its ε; null for non-private"""
    accuracy: Interval
    """share of fresh labelers' strict labels that a head learns to predict"""
    label_error: Interval
    """share of strict labels whose released value differs"""
    shape: Shape | None = None
    """the public choices of a statistic"""
    flip_probability: Interval | None = None
    """over released labels"""
    max_labels_per_labeler: int | None = None
    """the bound; null: everybody's own number of labels, rounded up"""
    released: float = 1.0
    """share of labels within the bound"""
    twice_labelers: float | None = None
    """accuracy with twice as many labelers"""
    twice_labels: float | None = None
    """accuracy with twice as many labels from each"""


def forecast(
    x: NDArray[np.float32],
    rows: Rows,
    epsilons: Sequence[float],
    delta: float,
    prior: Prior | None = None,
    *,
    draws: int = DRAWS,
    bounds: Sequence[int | None] = BOUNDS,
    growth: bool = True,
    progress: Progress = silent,
) -> tuple[Forecast, ...]:
    """One forecast a mechanism and ε, after one for `non-private`; ε in the order given.

    `bounds` are the numbers of labels per labeler that randomized response may choose from; None is
    all of them. `growth` also forecasts twice the labelers and twice the labels, at twice the cost.

    Raises `PolicyError` for budgets no mechanism has, `InvalidLabels` as `choose`.
    """
    check_budgets(epsilons, delta)
    prior = prior or Prior()
    progress("simulating labels", None)
    now = _forecasts(_Simulated.of(x, rows, prior, draws), epsilons, delta, bounds)
    if not growth:
        return now
    grown = []
    for step, more in (("labelers", _twice_labelers(rows)), ("labels", _twice_labels(rows, prior))):
        progress(f"simulating twice the {step}", None)
        simulated = _Simulated.of(x, more, prior, max(draws // 2, 1))
        grown.append(_forecasts(simulated, epsilons, delta, bounds))
    return tuple(
        replace(here, twice_labelers=a.accuracy.mean, twice_labels=b.accuracy.mean)
        for here, a, b in zip(now, *grown, strict=True)
    )


def recommend(
    x: NDArray[np.float32],
    rows: Rows,
    epsilon: float,
    delta: float,
    prior: Prior | None = None,
) -> Forecast:
    """What `--mechanism auto` does at this budget. Raises as `forecast`."""
    return best(forecast(x, rows, [epsilon], delta, prior, growth=False), epsilon)


def best(forecasts: Sequence[Forecast], epsilon: float) -> Forecast:
    """The forecast of highest accuracy at ε.

    Of those as good within .002, one that releases most labels, and of these the least label error.
    """
    here = [f for f in forecasts if f.epsilon == epsilon]
    top = max(f.accuracy.mean for f in here)
    near = [f for f in here if f.accuracy.mean >= top - _TIE]
    return min(near, key=lambda f: (-f.released, f.label_error.mean))


@dataclass(frozen=True, eq=False)
class _Simulated:
    """A public side, and trials of simulated labels on it."""

    public: PublicSide
    trials: tuple[Trial, ...]
    seed: int

    @classmethod
    def of(cls, x: NDArray[np.float32], rows: Rows, prior: Prior, draws: int) -> _Simulated:
        public = public_side(x, rows, prior.seed)
        return cls(public, tuple(public.trials(prior, draws)), prior.seed)

    def accuracy(self, heads_of: Callable[[Trial], Heads]) -> Floats:
        """The mean accuracy of each head, shape (heads,)."""
        return np.asarray(np.mean([t.scores(heads_of(t))[0] for t in self.trials], axis=0))

    def judged(self, heads_of: Callable[[Trial], Heads], index: int) -> tuple[Interval, Interval]:
        """Accuracy and label error of one head: means over noise, ranges with noise realised."""
        rng = np.random.default_rng(self.seed)
        means, realised = [], []
        for trial in self.trials:
            heads = heads_of(trial)
            mean, variance = heads.mean[index], heads.variance[index]
            noise = np.sqrt(variance) * rng.standard_normal((_NOISES, len(mean)))
            one = Heads(mean[None], variance[None])
            means.append([float(score[0]) for score in trial.scores(one)])
            realised.append(trial.scores(Heads(mean + noise, np.zeros_like(noise))))
        accuracy, error = np.mean(means, axis=0)
        spread = np.stack([np.stack(scores) for scores in realised], axis=1)
        return _interval(float(accuracy), spread[0]), _interval(float(error), spread[1])

    def best(self, heads_of: Callable[[Trial], Heads]) -> tuple[Interval, Interval]:
        """What the head with the highest mean accuracy is `judged`."""
        return self.judged(heads_of, int(self.accuracy(heads_of).argmax()))

    def best_shape(self, noise_multiplier: float) -> int:
        """Which shape is most accurate; of those that cannot be told apart, fewest components."""
        accuracy = self.accuracy(lambda trial: trial.statistic_heads(noise_multiplier))
        equal = np.flatnonzero(accuracy >= accuracy.max() - _INDISTINCT)
        components = np.array([self.public.shapes[index].components for index in equal])
        fewest = equal[components == components.min()]
        return int(fewest[accuracy[fewest].argmax()])

    def statistic(self, epsilon: float, delta: float) -> Forecast:
        """A statistic of the best shape."""
        noise = gaussian.calibrate(epsilon, delta)
        index = self.best_shape(noise)
        judged = self.judged(lambda trial: trial.statistic_heads(noise), index)
        return Forecast("statistic", epsilon, *judged, self.public.shapes[index])


@dataclass(frozen=True, eq=False)
class _Flips:
    """Randomized response under one bound, or None: what each labeler's labels become.

    `signal` is 1 − 2γ and `share` the share of labels released, of the sampled labelers; `every`
    holds γ of all labelers and `released` how many of their labels are released.
    """

    bound: int | None
    signal: Floats
    share: Floats
    every: Floats
    released: Floats

    @classmethod
    def of(cls, public: PublicSide, epsilon: float, delta: float, bound: int | None) -> _Flips:
        def flips(counts: NDArray[np.int64]) -> Floats:
            answers = rounded_bound(counts) if bound is None else counts * 0 + bound
            prices = randomized_response.calibrate_many(epsilon, delta, answers)
            return np.asarray(1 / (1 + np.exp(prices)))

        most = math.inf if bound is None else bound
        sampled = np.bincount(public.rows.unit, minlength=public.rows.units)
        return cls(
            bound,
            1 - 2 * flips(sampled),
            np.minimum(1, most / sampled),
            flips(public.counts),
            np.minimum(public.counts, most).astype(np.float64),
        )

    def heads(self, trial: Trial) -> Heads:
        return trial.flipped_heads(self.signal, self.share)

    def half_heads(self, trial: Trial) -> Heads:
        """Heads from one of two stages of PROPS."""
        return trial.flipped_heads(self.signal, self.share / 2)

    def mean(self, values: Floats | float) -> float:
        """Mean over released labels of what labelers have."""
        return float(
            np.average(np.broadcast_to(values, self.released.shape), weights=self.released)
        )

    def spread(self) -> Interval:
        return Interval(self.mean(self.every), float(self.every.min()), float(self.every.max()))


def _forecasts(
    simulated: _Simulated,
    epsilons: Sequence[float],
    delta: float,
    bounds: Sequence[int | None],
) -> tuple[Forecast, ...]:
    found = [Forecast("non-private", None, *simulated.best(Trial.plain_heads))]
    for epsilon in epsilons:
        found.append(simulated.statistic(epsilon, delta))
        found += _flipped(simulated, epsilon, delta, bounds)
    return tuple(found)


def _flipped(
    simulated: _Simulated, epsilon: float, delta: float, bounds: Sequence[int | None]
) -> list[Forecast]:
    """Randomized response under the best bound, and PROPS on its labels."""
    options = [_Flips.of(simulated.public, epsilon, delta, bound) for bound in bounds]
    found = [float(simulated.accuracy(option.heads).max()) for option in options]
    near = [option for option, top in zip(options, found, strict=True) if top >= max(found) - _TIE]
    flips = max(near, key=lambda option: float(option.released.sum()))
    accuracy, _ = simulated.best(flips.heads)
    error = flips.mean(flips.every)
    rr = Forecast(
        "rr",
        epsilon,
        accuracy,
        Interval(error, error, error),
        flip_probability=flips.spread(),
        max_labels_per_labeler=flips.bound,
        released=float(flips.released.sum() / simulated.public.counts.sum()),
    )
    return [rr, _props(simulated, flips, rr)]


def _props(simulated: _Simulated, flips: _Flips, rr: Forecast) -> Forecast:
    """Two stages, hard votes, on the labels of `rr`.

    The model of stage 1 overrules a label of stage 2 where its estimated error is below γ. The
    second model then learns what the first one knew; elsewhere it learns from all labels.
    """
    half, _ = simulated.best(flips.half_heads)
    signal = 1 - 2 * flips.every
    weight = float(signal**2 @ flips.released) / 2
    noise = math.sqrt((signal**2 * flips.every * (1 - flips.every)) @ flips.released / 2)
    standard_error = noise / weight

    def against(accuracy: float) -> tuple[float, float]:
        """How often the model decides, and the error of all labels."""
        error = 1 - accuracy
        ratio = (flips.every - error) / (math.sqrt(2) * standard_error)
        decides = (1 + erf(ratio)) / 2
        second = flips.mean(decides * error + (1 - decides) * flips.every)
        return flips.mean(decides), (rr.label_error.mean + second) / 2

    decides, error = against(half.mean)
    errors = [error, against(half.low)[1], against(half.high)[1]]

    def between(full: float, part: float) -> float:
        return decides * part + (1 - decides) * full

    accuracy = Interval(
        between(rr.accuracy.mean, half.mean),
        between(rr.accuracy.low, half.low),
        between(rr.accuracy.high, half.high),
    )
    label_error = Interval(error, min(errors), max(errors))
    return replace(rr, mechanism="props", accuracy=accuracy, label_error=label_error)


def _twice_labelers(rows: Rows) -> Rows:
    """As many new labelers, on the same pairs."""
    size = None if rows.size is None else np.tile(rows.size, 2)
    units = np.concatenate([rows.unit, rows.unit + rows.units])
    return Rows(np.tile(rows.pair, 2), units, 2 * rows.units, None, size)


def _twice_labels(rows: Rows, prior: Prior) -> Rows:
    """As many further labels from each labeler, on pairs as popular as those labeled."""
    other = np.random.default_rng(prior.seed).permutation(len(rows))
    size = None if rows.size is None else np.concatenate([rows.size, rows.size[other]])
    pair = np.concatenate([rows.pair, rows.pair[other]])
    return Rows(pair, np.tile(rows.unit, 2), rows.units, None, size)


def _interval(mean: float, values: Floats) -> Interval:
    low, high = np.quantile(values, (0.05, 0.95))
    return Interval(mean, min(float(low), mean), max(float(high), mean))


def check_budgets(epsilons: Sequence[float], delta: float) -> None:
    if not len(epsilons):
        raise PolicyError("expected at least one epsilon")
    for epsilon in epsilons:
        if not (math.isfinite(epsilon) and epsilon > 0):
            raise PolicyError(f"epsilon must be finite and above 0, found {epsilon}")
    if not gaussian.SMALLEST_DELTA <= delta < 1:
        raise PolicyError(
            f"delta must be at least {gaussian.SMALLEST_DELTA:g} and below 1, found {delta}"
        )
