"""Upper bounds of the joint price, shown beside the exact one: Rényi, advanced, basic, pure.

Each bound is valid for the components of `joint` in any adaptive order and never below
`joint.epsilon`; they are here for comparison with what other accountants report. ONE labeler under
`replace_labels` adjacency, ε in nats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelguard.accounting import _validate, joint
from labelguard.accounting.joint import Answers, Balls, Component, Gaussians

__all__ = ["advanced", "basic", "pure", "rdp"]

Floats: TypeAlias = NDArray[np.float64]

_EXCESSES = np.geomspace(1e-6, 1e8, 4096)  # the orders less 1: neighbours differ by 0.8%
_LARGEST_EXPONENT = 30.0


def rdp(components: Sequence[Component], delta: float) -> float:
    """ε by Rényi divergences, in nats, at the best order α of a grid.

    The divergences of order α of the components add up (Mironov 2017): αR/(2σ²) of R Gaussians,
    and for each coin ln((e^(αε0) + e^((1−α)ε0) + c − 1)/(e^ε0 + c))/(α−1) with c = 1 for binary
    and c = 2 for ternary ones, K − 1 for choices among K. Ball noise counts as the binary coin of
    its largest loss, which dominates it. Their sum τ(α) gives, by proposition 12 of Canonne, Kamath
    and Steinke (2020), ε = τ(α) + (ln(1/δ) − ln α)/(α−1) + ln(1 − 1/α). `pure` for delta = 0.
    Infinite with runs of gradient methods, which have no such bound here.

    Raises ValueError unless 0 <= delta < 1.
    """
    _validate.delta_below_one(delta)
    if delta == 0:
        return pure(components)
    total = np.zeros_like(_EXCESSES)
    for component in components:
        total += component.count * _divergence(component)
    log_orders = np.log1p(_EXCESSES)
    conversion = (-math.log(delta) - log_orders) / _EXCESSES + np.log(_EXCESSES) - log_orders
    return max(0.0, float(np.min(total + conversion)))


def advanced(components: Sequence[Component], delta: float) -> float:
    """Σ k·ε0² + √(2 ln(1/δ) · Σ k·ε0²), in nats; infinite with a Gaussian or a run.

    PROPS, lemma 1, for unlike coins, and for ball noise as well: every log-ratio lies in
    [−ε0, ε0] with a mean of at most ε0²/2, so that Azuma's inequality gives it, and half of the
    first term would do. For many coins at a small ε0; above `pure` for few. `pure` for delta = 0.

    Raises ValueError unless 0 <= delta < 1.
    """
    _validate.delta_below_one(delta)
    if delta == 0 or math.isinf(pure(components)):
        return pure(components)
    squares = math.fsum(
        component.count * component.epsilon0**2
        for component in components
        if isinstance(component, Answers | Balls)
    )
    return squares + math.sqrt(-2 * math.log(delta) * squares)


def basic(components: Sequence[Component], delta: float) -> float:
    """The sum of each component's own exact ε at delta/n, in nats, n the number of components.

    Raises ValueError unless 0 <= delta < 1, and >= n·`gaussian.SMALLEST_DELTA` with Gaussians.
    """
    _validate.delta_below_one(delta)
    share = delta / max(1, len(components))
    return math.fsum(joint.epsilon([component], share) for component in components)


def pure(components: Sequence[Component]) -> float:
    """Σ k·ε0, in nats, at δ = 0; infinite with a Gaussian or a run, which give no pure privacy."""
    return joint.pure_epsilon(components)


def _divergence(component: Component) -> Floats:
    """The Rényi divergence of one event at each order 1 + _EXCESSES.

    The numerator of the formula is that of order 1 plus 4·e^(ε0/2)·sinh(αε0/2)·sinh((α−1)ε0/2),
    which does not cancel where ε0 is small. Where it would overflow, e^(αε0) is taken out of the
    logarithm.
    """
    orders = 1 + _EXCESSES
    if isinstance(component, Gaussians):
        return np.asarray(orders / 2 / component.noise_multiplier**2)
    if not isinstance(component, Answers | Balls):
        return np.full_like(orders, math.inf)
    further = 1 if isinstance(component, Balls) else component.options - 1
    epsilon0 = component.epsilon0
    with np.errstate(over="ignore"):
        product = np.sinh(orders * epsilon0 / 2) * np.sinh(_EXCESSES * epsilon0 / 2)
        small = np.log1p(4 * math.exp(epsilon0 / 2) * product / (math.exp(epsilon0) + further))
    rest = np.log1p(
        np.exp((1 - 2 * orders) * epsilon0) + (further - 1) * np.exp(-orders * epsilon0)
    )
    large = orders * epsilon0 + rest - epsilon0 - math.log1p(further * math.exp(-epsilon0))
    return np.asarray(np.where(orders * epsilon0 > _LARGEST_EXPONENT, large, small) / _EXCESSES)
