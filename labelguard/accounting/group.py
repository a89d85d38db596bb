"""Group privacy, the baseline: what example-level DP-SGD costs a labeler with so many records.

Every labeler keeps G records at most, and each is its own unit of a run of `subsampled`: drawn with
probability q, its gradient clipped to norm C, noise of deviation σ·C. If one replaced record costs
(ε', δ'), replacing all G, one after the other, costs (Vadhan, "The complexity of differential
privacy", 2017, lemma 2.2)

    ε = G·ε',    δ = δ'·(1 + e^ε' + … + e^((G−1)ε')) = δ'·(e^(Gε') − 1)/(e^ε' − 1).

`replace_labels` adjacency. A run counts as no more than an (ε, δ)-private event in a joint price.
Every function concerns ONE labeler; ε is in nats.
"""

from __future__ import annotations

import math

from labelguard.accounting import _numbers, gaussian, subsampled


def delta(
    noise_multiplier: float, sampling_probability: float, steps: int, records: int, epsilon: float
) -> float:
    """Return the δ at which a run is (epsilon, δ)-private for a labeler, from ε' = epsilon/records.

    In (0, 1]. Raises ValueError unless noise_multiplier is finite and > 0, sampling_probability in
    (0, 1], steps and records integers >= 1 and epsilon finite and >= 0.
    """
    _numbers.nonnegative(epsilon=epsilon)
    check(noise_multiplier, sampling_probability, steps, records)
    each = epsilon / records
    one = subsampled.delta(noise_multiplier, sampling_probability, steps, each)
    return min(1.0, one * _delta_factor(each, records) * (1 + 2.0**-40))


def calibrate(
    epsilon: float, delta: float, sampling_probability: float, steps: int, records: int
) -> float:
    """Return the noise multiplier, in clip norms, at which a run is (epsilon, delta)-private.

    A multiple of 2^-20, rounded up; the computed `delta` at it is at most delta.

    Raises ValueError unless epsilon is finite and > 0, `gaussian.SMALLEST_DELTA` <= delta < 1, and
    as `delta`; and where the margin for rounding leaves nothing of δ'.
    """
    _numbers.positive(epsilon=epsilon)
    gaussian.check_attainable(delta)
    check(1.0, sampling_probability, steps, records)
    each = epsilon / records
    one = delta / _delta_factor(each, records) * (1 - 2.0**-39)
    return subsampled.calibrate(each, one, sampling_probability, steps)


def check(noise_multiplier: float, sampling_probability: float, steps: int, records: int) -> None:
    """Raise ValueError for numbers that a run cannot have."""
    subsampled.check(noise_multiplier, sampling_probability, steps)
    _numbers.at_least_one(records=records)


def _delta_factor(epsilon: float, records: int) -> float:
    """1 + e^ε' + … + e^((G−1)ε'), ε' = epsilon; infinite beyond every float."""
    if epsilon == 0:
        return float(records)
    if records * epsilon > 700:
        return math.inf
    return math.expm1(records * epsilon) / math.expm1(epsilon)
