"""Forecasts of every mechanism and the best of them, by simulated labels.

Everything here reads public pairs, who labels which of them, and a prior; labels are simulated.
What it returns is the same whatever the real labels are, so it costs no privacy, and it can be run
before any label exists. The shape of a statistic needs no simulation: see `planner.components`.

Utility is the expected share of a fresh labeler's strict labels that a linear head gets right. The
fits of a release and of trials use `statistic.compute_noise_aware_ridge`: on 50 labelers at ε = 1
it bettered the plain ridge with any number of components, and mattered little with many labelers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelguard.accounting import gaussian
from labelguard.errors import PolicyError
from labelguard.mechanisms.geometry import Shape
from labelguard.mechanisms.noise import Noise
from labelguard.mechanisms.statistic import Rows
from labelguard.planner import components, flips
from labelguard.planner.flips import Flips, TriedBound
from labelguard.planner.outcomes import INDISTINCT, Forecast, Interval, find_best_excluding_uls
from labelguard.planner.prior import Prior
from labelguard.planner.trials import Trial, Worlds
from labelguard.text import Progress, no_progress

_Share: TypeAlias = Callable[[float], None]

MECHANISMS = ("statistic", "rr", "props", "uls")

DRAWS = 18
_FIRST_DRAWS = 6
_SURE = 3  # standard errors, of worlds in pairs, by which a mechanism has to lead


def forecast(
    x: NDArray[np.float32],
    rows: Rows,
    epsilons: Sequence[float],
    delta: float,
    prior: Prior | None = None,
    *,
    draws: int = DRAWS,
    bounds: Sequence[int | None] | None = None,
    periods: int = 1,
    growth: bool = True,
    progress: Progress = no_progress,
) -> tuple[Forecast, ...]:
    """Forecasts of every mechanism and ε, after one for `non-private`; ε in the order given.

    Of randomized response there is one for each of the `bounds`, which are numbers of labels of
    each labeler, None being all of them: by default all, one and three. PROPS is forecast on the
    best of them. Without any column of x there is randomized response alone.

    (ε, δ) is for `periods` releases, which each bring as many new labels as there are now; what is
    forecast is one of them; `flips.choose_blocks` says whether randomized response flips labels
    together then. `growth` also forecasts twice the labelers and twice the labels, at twice the
    cost.

    Raises `PolicyError` for budgets no mechanism has, `InvalidLabels` as
    `trials.derive_public_side`.
    """
    check_budgets(epsilons, delta)
    prior = prior or Prior()
    parts = 3 if growth else 1
    progress("simulating labels", 0.0)
    counts = np.bincount(rows.unit)
    bounds = tuple(bounds or flips.list_bounds_to_try(counts))
    if not x.shape[1]:
        every = ((epsilon, delta, bound, periods) for epsilon in epsilons for bound in bounds)
        return tuple(flips.forecast_labels(counts[counts > 0], *terms) for terms in every)
    terms = _ForecastTerms(tuple(epsilons), delta, bounds, periods)
    share = _narrow_progress(partial(progress, "simulating labels"), 0, parts)
    now = terms.forecasts(Worlds.of(x, rows, prior, draws), share)
    if growth:
        grown = []
        for part, (name, more) in enumerate(
            (("labelers", repeat_labelers(rows, 2)), ("labels", _double_labels(rows, prior))), 1
        ):
            share = _narrow_progress(partial(progress, f"simulating twice the {name}"), part, parts)
            worlds = Worlds.of(x, more, prior, max(draws // 2, 1))
            grown.append(terms.forecasts(worlds, share))
        now = [
            replace(here, twice_labelers=a.accuracy.mean, twice_labels=b.accuracy.mean)
            for here, a, b in zip(now, *grown, strict=True)
        ]
    return tuple(now)


def recommend(
    x: NDArray[np.float32],
    rows: Rows,
    epsilon: float,
    delta: float,
    prior: Prior | None = None,
    *,
    periods: int = 1,
    progress: Progress = no_progress,
) -> Forecast:
    """Return the forecast of what `--mechanism auto` chooses at this budget, for `periods`.

    It is the best `forecast`, found with less work: in a third of the worlds, unless these leave
    open which mechanism is better; and without PROPS where it cannot be chosen. The accuracy of
    PROPS lies between that of randomized response and that of half of its labels, so that it is
    chosen only where randomized response is as good as the best. Raises as `forecast`.
    """
    check_budgets([epsilon], delta)
    terms = _ForecastTerms(
        (epsilon,), delta, flips.list_bounds_to_try(np.bincount(rows.unit)), periods
    )
    worlds = Worlds.of(x, rows, prior or Prior(), _FIRST_DRAWS)
    step = "comparing mechanisms on simulated labels"
    compared = terms.compare(worlds, epsilon, partial(progress, step))
    if not compared.is_conclusive:
        worlds = worlds.extend_to(DRAWS)
        compared = terms.compare(worlds, epsilon, partial(progress, f"{step}, in more worlds"))
    option = flips.choose_bound(compared.tried)
    statistic, rr = compared.statistic(worlds), flips.forecast_rr(worlds, epsilon, option)
    forecasts = [statistic, rr]
    if rr.accuracy.mean >= statistic.accuracy.mean - INDISTINCT:
        forecasts.append(flips.forecast_props(worlds, option.flips, rr))
    return find_best_excluding_uls(forecasts, epsilon)


def forecast_statistic_alone(
    x: NDArray[np.float32],
    rows: Rows,
    epsilon: float,
    delta: float,
    prior: Prior | None = None,
    *,
    periods: int = 1,
) -> Interval:
    """Return the accuracy of a statistic on x (pairs, d) alone, some of the columns of a release.

    Raises as `forecast`.
    """
    worlds = Worlds.of(x, rows, prior or Prior(), DRAWS)
    noises = components.make_noise_chooser(epsilon, delta, periods)
    shape = worlds.public.directions.choose_shape(noises)
    return worlds.statistic(epsilon, noises(shape.components), shape).accuracy


@dataclass(frozen=True, eq=False)
class _Comparison:
    """A statistic and randomized response at one ε, in the same worlds.

    `accuracy` (worlds,) is that of a statistic of this `shape` and `noise`; `tried` holds
    randomized response under every bound.
    """

    epsilon: float
    shape: Shape
    noise: Noise
    accuracy: NDArray[np.float64]
    tried: list[TriedBound]

    def statistic(self, worlds: Worlds) -> Forecast:
        """Return the statistic."""
        return worlds.statistic(self.epsilon, self.noise, self.shape)

    @property
    def is_conclusive(self) -> bool:
        """True if these worlds tell which of the two is more accurate."""
        difference = self.accuracy - flips.choose_bound(self.tried).accuracy
        error = float(difference.std(ddof=1)) / math.sqrt(len(difference))
        return abs(float(difference.mean())) > INDISTINCT + _SURE * error


@dataclass(frozen=True)
class _ForecastTerms:
    """For what budgets, bounds and periods mechanisms are forecast."""

    epsilons: tuple[float, ...]
    delta: float
    bounds: tuple[int | None, ...]
    periods: int

    def compare(self, worlds: Worlds, epsilon: float, share: _Share) -> _Comparison:
        """Return a statistic, and randomized response under every bound."""
        share(0.0)
        noises = components.make_noise_chooser(epsilon, self.delta, self.periods)
        shape = worlds.public.directions.choose_shape(noises)
        noise = noises(shape.components)
        accuracies = worlds.accuracies(lambda trial: trial.statistic_head(shape, noise))
        tried = []
        for number, bound in enumerate(self.bounds, 1):
            share(number / (len(self.bounds) + 1))
            terms = epsilon, self.delta, bound, self.periods
            option = Flips.of(worlds.public.counts, worlds.public.sampled_counts, *terms)
            tried.append(TriedBound.of(worlds, option))
        share(1.0)
        return _Comparison(epsilon, shape, noise, accuracies[:, 0], tried)

    def user_wise(self, worlds: Worlds, epsilon: float) -> Forecast:
        """Return a run of `uls` in each of the periods.

        `Trial.approximate_user_wise_head` has its noise.
        """
        noise = Noise("gaussian", gaussian.calibrate(epsilon, self.delta, self.periods))
        return worlds.user_wise(
            epsilon, noise, worlds.public.directions.choose_shape(lambda _: noise)
        )

    def forecasts(self, worlds: Worlds, share: _Share) -> list[Forecast]:
        """Without privacy; then, at every ε, a statistic, randomized response under every bound,
        PROPS under the best of them, and `uls`.
        """
        forecasts = [Forecast("non-private", None, *worlds.score_best_head(Trial.plain_heads))]
        for number, epsilon in enumerate(self.epsilons):
            mine = _narrow_progress(share, number, len(self.epsilons))
            compared = self.compare(
                worlds, epsilon, _narrow_progress(mine, 0, 2)
            )  # about half of the work
            best_option = flips.choose_bound(compared.tried)
            rr = [flips.forecast_rr(worlds, epsilon, option) for option in compared.tried]
            forecasts += [compared.statistic(worlds), *rr]
            of_best = rr[compared.tried.index(best_option)]
            forecasts.append(flips.forecast_props(worlds, best_option.flips, of_best))
            forecasts.append(self.user_wise(worlds, epsilon))
            mine(1.0)
        return forecasts


def _narrow_progress(whole: _Share, number: int, parts: int) -> _Share:
    """Shares of one of so many equal parts, told as shares of the whole."""
    return lambda share: whole((number + share) / parts)


def repeat_labelers(rows: Rows, times: int) -> Rows:
    """Return so many times the labelers, on the same pairs."""
    size = None if rows.size is None else np.tile(rows.size, times)
    units = np.concatenate([rows.unit + copy * rows.units for copy in range(times)])
    return Rows(np.tile(rows.pair, times), units, times * rows.units, None, size, rows.choices)


def _double_labels(rows: Rows, prior: Prior) -> Rows:
    """As many further labels from each labeler, on pairs as popular as those labeled."""
    other = np.random.default_rng(prior.seed).permutation(len(rows))
    size = None if rows.size is None else np.concatenate([rows.size, rows.size[other]])
    pair = np.concatenate([rows.pair, rows.pair[other]])
    return Rows(pair, np.tile(rows.unit, 2), rows.units, None, size, rows.choices)


def check_budgets(epsilons: Sequence[float], delta: float) -> None:
    """Raise `PolicyError` for ε and δ that no mechanism has."""
    if not len(epsilons):
        raise PolicyError("expected at least one epsilon")
    for epsilon in epsilons:
        if not (math.isfinite(epsilon) and epsilon > 0):
            raise PolicyError(f"epsilon must be finite and above 0, found {epsilon}")
    if not gaussian.SMALLEST_DELTA <= delta < 1:
        raise PolicyError(
            f"delta must be at least {gaussian.SMALLEST_DELTA:g} and below 1, found {delta}"
        )
