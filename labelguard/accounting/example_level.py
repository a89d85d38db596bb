"""ELS, DP-SGD with example-level sampling: one algorithm, whose price is the smaller of two bounds.

Both are valid for every run: mixtures of Gaussians under zero-out adjacency, converted (`mixture`),
and group privacy of one record's price (`group`). The conversion costs more than tight mixtures
gain unless records are very many. Which of them is smaller follows from public numbers, when the
policy is made.
"""

from __future__ import annotations

from labelguard.accounting import group, mixture

check = mixture.check


def delta(
    noise_multiplier: float, sampling_probability: float, steps: int, records: int, epsilon: float
) -> float:
    """Return the δ at which a run is (epsilon, δ)-private for a labeler, in (0, 1].

    Raises ValueError as `mixture.delta`.
    """
    run = noise_multiplier, sampling_probability, steps, records, epsilon
    return min(mixture.delta(*run), group.delta(*run))


def calibrate(
    epsilon: float, delta: float, sampling_probability: float, steps: int, records: int
) -> float:
    """Return the noise multiplier, in clip norms, at which a run is (epsilon, delta)-private.

    The smaller of those of `mixture` and `group`. Raises ValueError as they do, if neither gives
    one.
    """
    target = epsilon, delta, sampling_probability, steps, records
    check(1.0, sampling_probability, steps, records)
    try:
        least = group.calibrate(*target)
    except ValueError:  # of δ nothing is left to one record
        return mixture.calibrate(*target)
    if mixture.delta(least, sampling_probability, steps, records, epsilon) > delta:
        return least
    return mixture.calibrate(*target)
