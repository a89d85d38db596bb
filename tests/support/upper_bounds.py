"""Upper bounds of the joint price by other theorems, Rényi and basic: the exact one is below both.

ONE labeler under `replace_labels` adjacency, ε in nats.
"""

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelguard.accounting import joint
from labelguard.accounting.components import Balls, Gaussians, RandomizedBlocks

Floats: TypeAlias = NDArray[np.float64]

_EXCESSES = np.geomspace(1e-6, 1e8, 4096)  # the orders less 1: neighbours differ by 0.8%
_LARGEST_EXPONENT = 30.0


def rdp(components, delta):
    """ε by Rényi divergences, in nats, at the best order α of a grid.

    The divergences of order α of the components add up (Mironov 2017): αR/(2σ²) of R Gaussians,
    and for each coin ln((e^(αε0) + e^((1−α)ε0) + c − 1)/(e^ε0 + c))/(α−1) with c = 1 for binary
    and c = K − 1 for choices among K. Ball noise counts as the binary coin of
    its largest loss, which dominates it. Their sum τ(α) gives, by proposition 12 of Canonne, Kamath
    and Steinke (2020), ε = τ(α) + (ln(1/δ) − ln α)/(α−1) + ln(1 − 1/α). Σ k·ε0 for delta = 0.
    Infinite with runs of gradient methods, which have no such bound here.
    """
    if delta == 0:
        return joint.pure_epsilon(components)
    total = np.zeros_like(_EXCESSES)
    for component in components:
        total += component.count * _divergence(component)
    log_orders = np.log1p(_EXCESSES)
    conversion = (-math.log(delta) - log_orders) / _EXCESSES + np.log(_EXCESSES) - log_orders
    return max(0.0, float(np.min(total + conversion)))


def basic(components, delta):
    """The sum of each component's own exact ε at delta/n, in nats, n the number of components."""
    share = delta / max(1, len(components))
    return math.fsum(joint.epsilon([component], share) for component in components)


def _divergence(component):
    """The Rényi divergence of one event at each order 1 + _EXCESSES.

    The numerator of the formula is that of order 1 plus 4·e^(ε0/2)·sinh(αε0/2)·sinh((α−1)ε0/2),
    which does not cancel where ε0 is small. Where it would overflow, e^(αε0) is taken out of the
    logarithm.
    """
    orders = 1 + _EXCESSES
    if isinstance(component, Gaussians):
        return np.asarray(orders / 2 / component.noise_multiplier**2)
    if not isinstance(component, RandomizedBlocks | Balls):
        return np.full_like(orders, math.inf)
    epsilon0 = component.epsilon0
    with np.errstate(over="ignore"):
        product = np.sinh(orders * epsilon0 / 2) * np.sinh(_EXCESSES * epsilon0 / 2)
        small = np.log1p(4 * math.exp(epsilon0 / 2) * product / (math.exp(epsilon0) + 1))
    rest = np.log1p(np.exp((1 - 2 * orders) * epsilon0))
    large = orders * epsilon0 + rest - epsilon0 - math.log1p(math.exp(-epsilon0))
    return np.asarray(np.where(orders * epsilon0 > _LARGEST_EXPONENT, large, small) / _EXCESSES)
