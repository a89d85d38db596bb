"""ELS, DP-SGD with example-level sampling: what a run costs a labeler, by mixtures of Gaussians.

Every labeler keeps `records` records at most. In each of `steps` steps every record is drawn with
probability q, its gradient is clipped to norm C, and noise of standard deviation σ·C is added to
the sum (user-level-dp-finetuning, algorithm 1). If all of a labeler's records vanish, the sum moves
by at most Binomial(records, q) clip norms, so that a step is dominated by the pair (its theorem 3)

    Σ_k Binomial(records, q)[k] · N(k, σ²)    and    N(0, σ²),

in both orders. This is `zero_out` adjacency. For `replace_labels` it is converted: let M(D) and
M(D') be runs whose labels differ for one labeler, and M(D₀) the run without that labeler's records.
If zero-out gives (a, d) then, for every event S,

    P[M(D) ∈ S] ≤ e^a · P[M(D₀) ∈ S] + d ≤ e^a · (e^a · P[M(D') ∈ S] + d) + d,

which is (2a, (1 + e^a)·d). So (ε, δ) under `replace_labels` takes (ε/2, δ/(1 + e^(ε/2))) under
zero-out: in a joint price a run counts as no more than an (ε, δ)-private event.

The loss is discretized pessimistically ("connect the dots" of `dp_accounting.pld`) and composed as
that of `subsampled`, with the same margin. Every function concerns ONE labeler; ε is in nats.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from labelguard.accounting import _numbers, gaussian, subsampled
from labelguard.accounting.losses import Floats, choose_interval, compose_steps

MOST_RECORDS = 2**10
_FARTHEST = 10.2  # the normal tail beyond is 1e-24
_TABLE = 2**12  # points of a table by which losses are inverted
_ENTRIES = 2**21  # losses × components that are evaluated together


def delta(
    noise_multiplier: float, sampling_probability: float, steps: int, records: int, epsilon: float
) -> float:
    """Return the δ at which a run is (epsilon, δ)-private under `replace_labels`, by the
    conversion.

    In (0, 1], never below the true value of what the conversion gives. Raises ValueError unless
    noise_multiplier is finite and > 0, sampling_probability in (0, 1], steps and records integers
    >= 1 and epsilon finite and >= 0.
    """
    _numbers.nonnegative(epsilon=epsilon)
    check(noise_multiplier, sampling_probability, steps, records)
    return _to_replace_labels(
        _zero_out_delta(noise_multiplier, sampling_probability, steps, records, epsilon / 2),
        epsilon,
    )


@lru_cache(maxsize=2**10, typed=True)
def calibrate(
    epsilon: float, delta: float, sampling_probability: float, steps: int, records: int
) -> float:
    """Return the noise multiplier, in clip norms, at which a run is (epsilon, delta)-private.

    Under `replace_labels`, after the conversion. A multiple of 2^-20, rounded up; the computed
    `delta` at it is at most delta. Kept for the process.

    Raises ValueError unless epsilon is finite and > 0, `gaussian.SMALLEST_DELTA` <= delta < 1, and
    as `delta`; and where the margin for rounding leaves nothing of delta.
    """
    _numbers.positive(epsilon=epsilon)
    gaussian.check_attainable(delta)
    check(1.0, sampling_probability, steps, records)
    # Of numpy's they may have less precision.
    epsilon, delta, sampling_probability = map(float, (epsilon, delta, sampling_probability))
    steps, records = int(steps), int(records)

    def price(noise_multiplier: float, coarse: bool) -> float:
        zero_out = _zero_out_delta(
            noise_multiplier, sampling_probability, steps, records, epsilon / 2, coarse=coarse
        )
        return _to_replace_labels(zero_out, epsilon)

    # With many steps the mean number of records counts.
    alone = gaussian.calibrate(epsilon / 2, delta / (1 + math.exp(min(epsilon / 2, 600.0))), steps)
    return _numbers.find_noise_multiplier(price, delta, sampling_probability * records * alone)


def check(noise_multiplier: float, sampling_probability: float, steps: int, records: int) -> None:
    """Raise ValueError for numbers that a run cannot have."""
    subsampled.check(noise_multiplier, sampling_probability, steps)
    _numbers.at_least_one(records=records)
    _numbers.within(1, MOST_RECORDS, records=records)


def _to_replace_labels(zero_out_at_half: float, epsilon: float) -> float:
    """Return δ at ε from that of `zero_out` at ε/2, δ': (1 + e^(ε/2))·δ', rounded up."""
    return min(1.0, (1 + math.exp(min(epsilon / 2, 700.0))) * zero_out_at_half * (1 + 2.0**-48))


# --- the pair ------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _zero_out_delta(
    noise_multiplier: float,
    sampling_probability: float,
    steps: int,
    records: int,
    epsilon: float,
    *,
    coarse: bool = False,
) -> float:
    """Return the δ at which a run is (epsilon, δ)-private under `zero_out`: the larger of two
    orders.
    """
    mixture = _Mixture(noise_multiplier, sampling_probability, records)
    interval = mixture.grid_interval(steps) * (subsampled.COARSER if coarse else 1)
    return max(
        compose_steps(mixture.step_loss(interval, removed), steps).delta(epsilon)
        for removed in (True, False)
    )


class _Mixture:
    """One step's pair, with noise of deviation 1: N(s_k, 1) at probability p_k, and N(0, 1).

    The loss at v is h(v) = ln Σ_k p_k e^(s_k·v − s_k²/2), rising and convex, so that the loss is
    large where v is and the two orders have, with v(x) the inverse of h,

        δ(ε) = Σ_k p_k·Φ(s_k − v(ε)) − e^ε·Φ(−v(ε))            (records there, then removed)
        δ(ε) = Φ(v(−ε)) − e^ε·Σ_k p_k·Φ(v(−ε) − s_k)            (added)

    An error of v enters by its square only: v is where the difference is largest.
    """

    def __init__(self, noise_multiplier: float, sampling_probability: float, records: int) -> None:
        from scipy.stats import binom

        counts = np.arange(records + 1)
        probabilities = binom.pmf(counts, records, sampling_probability)
        some = probabilities > 0
        self.shifts: Floats = counts[some] / noise_multiplier
        self.probabilities: Floats = probabilities[some] / float(np.sum(probabilities))
        none = float(probabilities[0])
        self.least = math.log(none) if none else -math.inf

    def grid_interval(self, steps: int) -> float:
        """Of a grid that suits so many steps."""
        mean = float(np.dot(self.probabilities, self.shifts))
        square = float(np.dot(self.probabilities, self.shifts**2))
        return choose_interval(
            deviation=mean,
            span=self.loss(self._upper_end()) - self.loss(-_FARTHEST),
            mean=square / 2,
            steps=steps,
        )

    def step_loss(self, interval: float, removed: bool) -> Any:
        """Return the loss of a step in one of the orders: a pmf of dp-accounting's."""
        from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap

        least, most = self.loss(-_FARTHEST), self.loss(self._upper_end())
        if not removed:
            least, most = -self.loss(_FARTHEST), -least
        lowest, highest = math.floor(least / interval), math.ceil(most / interval)
        epsilons = interval * np.arange(lowest, highest + 1, dtype=np.float64)
        deltas = self.deltas(epsilons, removed)
        falling = np.maximum.accumulate(deltas[::-1])[::-1]  # they differ by rounding only
        return create_pmf_pessimistic_connect_dots_fixed_gap(interval, lowest, highest, falling)

    def deltas(self, epsilons: Floats, removed: bool) -> Floats:
        """δ of a step at every ε, ascending and of any sign."""
        from scipy.special import log_ndtr, ndtr

        deltas = np.where(removed, -np.expm1(np.minimum(epsilons, 0.0)), 0.0)
        inside = (epsilons if removed else -epsilons) > self.least
        part = max(1, _ENTRIES // self.shifts.size)
        for at in np.array_split(np.flatnonzero(inside), 1 + int(inside.sum()) // part):
            each = epsilons[at]
            if removed:
                v = self._inverse(each)
                upper = ndtr(self.shifts - v[:, np.newaxis]) @ self.probabilities
                deltas[at] = upper - np.exp(each + log_ndtr(-v))
            else:
                v = self._inverse(-each)
                lower = ndtr(v[:, np.newaxis] - self.shifts) @ self.probabilities
                deltas[at] = ndtr(v) - np.exp(each) * lower
        return np.clip(deltas, 0.0, 1.0)

    def loss(self, v: float) -> float:
        """h at one point."""
        return float(self._loss_and_slope(np.array([v]))[0][0])

    def _loss_and_slope(self, v: Floats) -> tuple[Floats, Floats]:
        """h and its derivative at every v."""
        exponents = self.shifts * (v[:, np.newaxis] - self.shifts / 2)
        largest = exponents.max(axis=1)
        weights = np.exp(exponents - largest[:, np.newaxis]) * self.probabilities
        total = weights.sum(axis=1)
        return largest + np.log(total), (weights @ self.shifts) / total

    def _inverse(self, losses: Floats) -> Floats:
        """v at every loss: from a table, then by Newton's method."""
        low, high = -_FARTHEST - 1, self._upper_end() + 1
        table = np.linspace(low, high, _TABLE)
        v: Floats = np.interp(losses, self._loss_and_slope(table)[0], table)
        for _ in range(4):
            value, slope = self._loss_and_slope(v)
            v = np.clip(v - (value - losses) / np.maximum(slope, 1e-300), low, high)
        return v

    def _upper_end(self) -> float:
        """Return the point above which the mixture has next to no mass."""
        from scipy.special import ndtr

        table = np.linspace(_FARTHEST, self.shifts[-1] + _FARTHEST, _TABLE)
        beyond = ndtr(self.shifts - table[:, np.newaxis]) @ self.probabilities
        return float(table[int(np.argmax(beyond <= ndtr(-_FARTHEST)))])
