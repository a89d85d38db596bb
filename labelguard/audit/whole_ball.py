"""Whole releases with ball noise in more dimensions than there are components: `ball end to end`.

The policy pays for ball noise in LEAST dimensions; one coordinate of it is released, the others are
surplus. The noise is once taken as the release states it, which finds sums that move too far for
it, and once looked at, which finds noise that is not there: of k releases of one world the
statistics are nearly the same, where noise of the stated scale would seldom let them be.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from labelguard.audit import bounds, whole
from labelguard.audit.result import Check
from labelguard.mechanisms.noise import Noise
from labelguard.terms import Progress

LEAST = 4
_ALLOW = f"statistic:releases=1,ball={LEAST}"

Floats = NDArray[np.float64]


def check(
    survey: whole.Survey, epsilon: float, delta: float, runs: int, alpha: float, progress: Progress
) -> Check:
    """Both worlds released `runs` times; noise is looked at from two runs on."""
    options = {"mechanism": "statistic", "epsilon": epsilon, "delta": delta, **whole.SHAPE}
    worlds = []
    for number, world in enumerate(whole.WORLDS[:2]):
        progress("releasing synthetic labels with ball noise", number / 2)
        worlds.append([whole.released(survey, world, _ALLOW, **options) for _ in range(runs)])
    one, other = (np.array([seen.statistic for seen in found]) for found in worlds)
    scale = worlds[0][0].noise / Noise("ball", 1.0, LEAST).deviation(1)
    apart = distance(one, other, scale, alpha / 2)
    close = chance_of_closeness((one, other), scale)
    missing = close < alpha / 2
    bound = math.inf if missing else bounds.epsilon_of_ball(apart, delta, LEAST)
    detail = (
        f"means {abs(one.mean() - other.mean()) / scale:.2f} of the scale apart, taken as stated; "
        f"{runs} of each world" + (": noise of the stated scale is missing" if missing else "")
    )
    return Check("ball end to end", bound, detail)


def distance(one: Floats, other: Floats, scale: float, alpha: float) -> float:
    """How far the sums of two worlds are apart at least, in scales; 0 if they may be equal.

    No coordinate is longer than its radius, and the radii of all releases sum up to a Gamma
    variable, LEAST for each.
    """
    from scipy.special import gammainccinv

    radii = float(gammainccinv(LEAST * (len(one) + len(other)), alpha))
    return max(abs(float(one.mean() - other.mean())) / scale - radii / len(one), 0.0)


def chance_of_closeness(worlds: tuple[Floats, ...], scale: float) -> float:
    """How likely, at most, releases of each world are as close to its first one as they are.

    Given the first, the others fall into an interval of 2x with a probability of at most 2x times
    the peak of the density, each on its own; that of a coordinate of ball noise in d dimensions has
    its peak at 0: Γ(d/2) / (2 √π Γ((d+1)/2) s), as it is a normal variable of variance 2W, W of law
    Gamma((d+1)/2, s²).
    """
    peak = math.gamma(LEAST / 2) / (2 * math.sqrt(math.pi) * math.gamma((LEAST + 1) / 2))
    away = np.concatenate([np.abs(found[1:] - found[0]) for found in worlds])
    if not len(away):
        return 1.0
    return float(min(2 * peak * away.max() / scale, 1.0) ** len(away))
