"""Whether noise follows the law that its price rests on: a test of goodness of fit.

Noise of the right size and the wrong shape can cost a multiple of the claim in events too rare to
be counted. The largest distance between the empirical and the stated distribution function exceeds
√(ln(2/α) / 2n) with a probability of at most α, whatever the law is (Dvoretzky, Kiefer and
Wolfowitz 1956; Massart 1990). Noise beyond that is not the noise that was priced: the bound is
infinite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from labelguard.audit.result import Check

Floats = NDArray[np.float64]

SURPLUS = 2
"""Of ball noise with so many coordinates more than are released the law of radii is a formula."""

_ROUNDING = 1e-6  # what rounding to a grid, and to doubles, may move a distribution function


def check(name: str, uniforms: Mapping[str, Floats], alpha: float) -> Check:
    """0 or infinity: whether each of `uniforms`, (n,) each, can be uniform in [0, 1].

    They are what the stated law makes of what was drawn, by its distribution function.
    """
    seen, fits = [], True
    for what, values in uniforms.items():
        chance = math.sqrt(math.log(2 * len(uniforms) / alpha) / (2 * len(values))) + _ROUNDING
        distance = _distance(values)
        fits &= distance <= chance
        seen.append(f"{what} {distance:.4f} off the stated law, by chance up to {chance:.4f}")
    wrong = "" if fits else ": not the noise that is priced"
    return Check(name, 0.0 if fits else math.inf, "; ".join(seen) + wrong)


def _distance(uniforms: Floats) -> float:
    """sup |F_n − F|, of values that F has made uniform."""
    values, steps = np.sort(uniforms), np.arange(len(uniforms) + 1) / len(uniforms)
    return float(np.maximum(steps[1:] - values, values - steps[:-1]).max())


def of_gaussian(projections: Floats) -> dict[str, Floats]:
    """Projections on one direction, in standard deviations, (n,)."""
    from scipy.special import ndtr

    return {"projections": ndtr(projections)}


def of_ball(noise: Floats, direction: Floats) -> dict[str, Floats]:
    """Radii, and cosines with a direction of length 1; `noise` (n, components) is in scales.

    Radii are Gamma(d, 1); (1 + cosine)/2 is Beta((d−1)/2, (d−1)/2), in one dimension a sign.
    """
    from scipy.special import betainc, gammainc

    radii, components = np.linalg.norm(noise, axis=1), noise.shape[1]
    if components == 1:
        along = np.sign(noise[:, 0])
        return {"noise": (1 + along * gammainc(1, radii)) / 2}  # Laplace
    half = (components - 1) / 2
    cosines = noise @ direction / np.maximum(radii, np.finfo(float).tiny)
    angles = betainc(half, half, np.clip((1 + cosines) / 2, 0, 1))
    return {"radii": gammainc(components, radii), "angles": angles}


def of_surplus(noise: Floats) -> dict[str, Floats]:
    """Radii of c coordinates of ball noise in c + SURPLUS dimensions; `noise` (n, c) is in scales.

    c coordinates of a direction in c + 2 dimensions are uniform in the ball (Archimedes), so their
    length is U^(1/c) of the radius R ~ Gamma(c + 2), and P(R U^(1/c) <= r) = P(R <= r) + r^c
    E[R^(−c); R > r], where the last is (1 + r) e^(−r) / Γ(c + 2).
    """
    from scipy.special import gammainc, gammaln, xlogy

    radii, components = np.linalg.norm(noise, axis=1), noise.shape[1]
    beyond = xlogy(components, radii) + np.log1p(radii) - radii - gammaln(components + SURPLUS)
    return {"radii": gammainc(components + SURPLUS, radii) + np.exp(beyond)}
