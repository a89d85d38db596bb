"""Lower bounds on ε from what an attacker saw in two worlds, and the result of an audit.

If every event has P(E) ≤ e^ε P'(E) + δ in neighbouring worlds, then ε ≥ ln((P(E) − δ) / P'(E)).
Every function takes `alpha`, the probability with which its bound may be too large.

Noise of the right size and the wrong shape can cost a multiple of the claim in events too rare to
be counted, so `check_fit` tests its distribution: the largest distance between the empirical and
the stated distribution function exceeds √(ln(2/α) / 2n) with a probability of at most α, whatever
the law is (Dvoretzky, Kiefer and Wolfowitz 1956; Massart 1990). Noise beyond that is not the noise
that was priced: the bound is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import (
    betainc,
    betainccinv,
    betaincinv,
    gammainc,
    gammaincinv,
    gammaln,
    ndtri,
    xlogy,
)

from labelguard.accounting import ball, gaussian
from labelguard.errors import PolicyError

Floats = NDArray[np.float64]

# Probability that an audit condemns a mechanism that keeps its claim, over noise and coins.
FALSE_ALARM = 1e-6
FEWEST_RUNS = 100

Verdict = Literal["holds", "violated"]


@dataclass(frozen=True)
class Check:
    """One distinguisher: the ε that it proves the canary to lose at the audit's δ, and how."""

    # what it looks at
    name: str
    # 0 if the worlds look alike; infinite (null) if they differ in what no noise touches
    lower_bound: float
    # what was seen
    detail: str


@dataclass(frozen=True)
class AuditResult:
    """A claim (ε, δ) of one labeler under `replace_labels`, and the largest lower bound on ε.

    All bounds hold at once with probability `confidence`; where a check takes the stated noise as
    given, its detail says so.
    """

    # what was attacked
    mechanism: str
    # the ε that it claims
    claim_epsilon: float
    # at this δ
    delta: float
    # the largest ε that was proven
    lower_bound: float
    # how likely no bound is wrong
    confidence: float
    # how often each world was run
    runs: int
    # holds if and only if the lower bound is at most the claim
    verdict: Verdict
    # each bound
    checks: tuple[Check, ...]

    @classmethod
    def from_checks(
        cls, mechanism: str, epsilon: float, delta: float, runs: int, checks: Sequence[Check]
    ) -> AuditResult:
        """Return the result of `checks` whose false alarms add up to FALSE_ALARM."""
        bound = max(check.lower_bound for check in checks)
        verdict: Verdict = "holds" if bound <= epsilon else "violated"
        confidence = 1 - FALSE_ALARM
        return cls(mechanism, epsilon, delta, bound, confidence, runs, verdict, tuple(checks))

    @property
    def holds(self) -> bool:
        """Return True if no check contradicts the claim."""
        return self.verdict == "holds"

    @property
    def violated_checks(self) -> tuple[str, ...]:
        """Return the names of the checks that contradict the claim."""
        return tuple(check.name for check in self.checks if check.lower_bound > self.claim_epsilon)


def check_sizes(*, labels: int, runs: int, pipeline_runs: int) -> None:
    """Raise `PolicyError` for sizes with which an audit could not prove anything."""
    if labels < 1:
        raise PolicyError(f"labels must be at least 1, found {labels}")
    if runs < FEWEST_RUNS:
        raise PolicyError(f"runs must be at least {FEWEST_RUNS}, found {runs}")
    if pipeline_runs < 0:
        raise PolicyError(f"pipeline-runs must be at least 0, found {pipeline_runs}")


# Standard deviations beyond which two worlds are as good as known apart.
_MOST_SEPARATE = 1e6
# Scales of ball noise, likewise.
_MOST_SCALES = 1e4


def bound_probabilities(hits: ArrayLike, runs: int, alpha: float) -> tuple[Floats, Floats]:
    """Return lower and upper limits of probabilities, each wrong with probability `alpha`.

    Both have the shape of `hits`. Source: Clopper and Pearson 1934; exact for any probability and
    any number of runs.
    """
    counts = np.asarray(hits, np.float64)
    missed = runs - counts
    low = np.where(counts > 0, betaincinv(np.maximum(counts, 1), missed + 1, alpha), 0.0)
    high = np.where(missed > 0, betainccinv(counts + 1, np.maximum(missed, 1), alpha), 1.0)
    return low, high


def epsilon_of_events(
    first: ArrayLike, second: ArrayLike, runs: int, delta: float, alpha: float
) -> float:
    """Return the largest ε that events chosen beforehand prove, from any distribution; 0 if none.

    `first` and `second` (events,) count how often each event occurred in `runs` runs of either
    world. Each event and its complement are tried in both directions.
    """
    share = alpha / (4 * np.size(first))
    low, high = bound_probabilities(first, runs, share)
    second_low, second_high = bound_probabilities(second, runs, share)
    largest = 0.0
    for likely, unlikely in (
        (low, second_high),
        (second_low, high),
        (1 - high, 1 - second_low),
        (1 - second_high, 1 - low),
    ):
        excess = likely - delta
        proves = (excess > 0) & (unlikely > 0)
        ratio = np.divide(excess, unlikely, out=np.ones_like(excess), where=proves)
        largest = max(largest, float(np.log(ratio).max()))
    return largest


def epsilon_of_thresholds(
    first: NDArray[Any], second: NDArray[Any], thresholds: Floats, delta: float, alpha: float
) -> float:
    """Return the ε proven by how often values (runs,) of two worlds exceed each threshold."""
    hits, second_hits = (
        len(values) - np.searchsorted(np.sort(values), thresholds, side="right")
        for values in (first, second)
    )
    return epsilon_of_events(hits, second_hits, len(first), delta, alpha)


def epsilon_of_means(
    first: Floats, second: Floats, delta: float, alpha: float, noise: float | None = None
) -> float:
    """Return the ε proven by two samples (runs,) of normal variables of one standard deviation.

    The Gaussian mechanism is exactly priced by their distance (Balle and Wang 2018).
    """
    return epsilon_of_distance(bound_distance_of_means(first, second, alpha, noise), delta)


def bound_distance_of_means(
    first: Floats, second: Floats, alpha: float, noise: float | None = None
) -> float:
    """Return a lower limit of the distance of two normal samples' means, in standard deviations.

    The standard deviation is `noise` if that is known; else both it and the distance of the means
    are bounded, each with half of `alpha`. Below 0 if the means may be equal.
    """
    if noise is None:
        # An upper limit of the common standard deviation, by the chi-square law.
        alpha /= 2
        freedom = len(first) + len(second) - 2
        squares = sum(float(((sample - sample.mean()) ** 2).sum()) for sample in (first, second))
        noise = math.sqrt(squares / (2 * float(gammaincinv(freedom / 2, alpha))))
    if noise == 0:
        return math.inf
    distance = abs(float(first.mean() - second.mean()))
    standard_error = math.sqrt(1 / len(first) + 1 / len(second))
    # The distance has no sign: its error goes in one direction or the other.
    return distance / noise + float(ndtri(alpha / 2)) * standard_error


def epsilon_of_distance(distance: float, delta: float) -> float:
    """Return the ε of Gaussian noise whose worlds are `distance` standard deviations apart."""
    if distance <= 0:
        return 0.0
    if distance > _MOST_SEPARATE:
        return math.inf
    return gaussian.epsilon(1 / distance, delta)


def bound_exponential_scale(total: float, count: int, alpha: float) -> float:
    """Return an upper limit of s, for `count` exponentials of scale s that sum up to `total`.

    The sum is Gamma(count, s), as that of radii of ball noise is with d for each.
    """
    return total / float(gammaincinv(count, alpha))


def epsilon_of_ball(distance: float, delta: float, components: int) -> float:
    """Return the ε of ball noise whose worlds are `distance` scales apart."""
    if distance == 0:
        return 0.0
    if distance > _MOST_SCALES:
        return math.inf
    return ball.epsilon(1 / distance, delta, components)


# With so many coordinates of ball noise beyond those released, the law of radii is a formula.
SURPLUS = 2

_ROUNDING = 1e-6  # what rounding to a grid, and to doubles, may move a distribution function


def check_fit(name: str, uniforms: Mapping[str, Floats], alpha: float) -> Check:
    """Return a bound of 0 if each of `uniforms`, (n,), can be uniform in [0, 1], else infinity.

    They are the drawn values under the stated distribution function.
    """
    details, fits = [], True
    for what, sample in uniforms.items():
        chance = math.sqrt(math.log(2 * len(uniforms) / alpha) / (2 * len(sample))) + _ROUNDING
        values, steps = np.sort(sample), np.arange(len(sample) + 1) / len(sample)
        distance = float(np.maximum(steps[1:] - values, values - steps[:-1]).max())
        fits &= distance <= chance
        details.append(f"{what} {distance:.4f} off the stated law, up to {chance:.4f} by chance")
    wrong = "" if fits else ": not the noise that is priced"
    return Check(name, 0.0 if fits else math.inf, "; ".join(details) + wrong)


def map_ball_to_uniforms(noise: Floats, direction: Floats) -> dict[str, Floats]:
    """Return the uniforms of radii, and of cosines with a `direction` of length 1.

    `noise` (n, components) is in scales. Radii are Gamma(d, 1); (1 + cosine)/2 is
    Beta((d−1)/2, (d−1)/2), in one dimension a sign.
    """
    radii, components = np.linalg.norm(noise, axis=1), noise.shape[1]
    if components == 1:
        along = np.sign(noise[:, 0])
        return {"noise": (1 + along * gammainc(1, radii)) / 2}  # Laplace
    half = (components - 1) / 2
    cosines = noise @ direction / np.maximum(radii, np.finfo(float).tiny)
    angles = betainc(half, half, np.clip((1 + cosines) / 2, 0, 1))
    return {"radii": gammainc(components, radii), "angles": angles}


def map_surplus_ball_to_uniforms(noise: Floats) -> dict[str, Floats]:
    """Return the uniforms of radii of c coordinates of ball noise in c + SURPLUS dimensions.

    `noise` (n, c) is in scales. c coordinates of a direction in c + 2 dimensions are uniform in the
    ball (Archimedes), so their length is U^(1/c) of the radius R ~ Gamma(c + 2), and
    P(R U^(1/c) <= r) = P(R <= r) + r^c E[R^(−c); R > r],
    where the last is (1 + r) e^(−r) / Γ(c + 2).
    """
    radii, components = np.linalg.norm(noise, axis=1), noise.shape[1]
    beyond = xlogy(components, radii) + np.log1p(radii) - radii - gammaln(components + SURPLUS)
    return {"radii": gammainc(components + SURPLUS, radii) + np.exp(beyond)}
