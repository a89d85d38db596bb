"""The audit of the statistic: a canary whose labels move the clipped sum as far as they may.

All labels of the canary compare pairs that differ in one direction, so that its clipped part is
+C in that direction in one world and −C in the other: the sum moves by the sensitivity. Checks:

- `sensitivity`: how far the exact sum moves if any labeler changes all labels, against the noise;
- `separation`: mean and spread of noisy sums, projected on the direction in which they move, which
  is the likelihood ratio of two Gaussians; it takes them to be Gaussian;
- `events`: how often the projection passes thresholds, whatever its distribution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelguard.audit import bounds, whole
from labelguard.audit.arguments import check_sizes
from labelguard.audit.result import FALSE_ALARM, AuditResult, Check
from labelguard.keys import keyring
from labelguard.mechanisms import statistic
from labelguard.mechanisms.statistic import Bounds, Grid, Rows
from labelguard.policy import pricing
from labelguard.policy.events import STATISTIC_RELEASES
from labelguard.policy.policy import Allowance, Policy
from labelguard.terms import LABEL_A, LABEL_B, Progress, silent

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Labels = NDArray[np.uint8]

_LABELERS = 9
_CANARY = 0
_REPORTS = 50


@dataclass(frozen=True)
class World:
    """Synthetic labelers: z (pairs, components), who labelled what, and labels (rows,).

    Labeler 0 is the canary: all its pairs are one direction, and nobody has more labels.
    """

    z: NDArray[np.float32]
    rows: Rows
    labels: Labels
    bounds: Bounds
    grid: Grid

    @classmethod
    def random(cls, labels: int, components: int, noise_multiplier: float, seed: int) -> World:
        """A world of pairs that differ by 1 in random directions."""
        rng = np.random.default_rng(seed)
        counts = np.concatenate([[labels], rng.integers(1, labels + 1, _LABELERS - 1)])
        unit = np.repeat(np.arange(_LABELERS), counts)
        z = rng.standard_normal((len(unit), components))
        z[unit == _CANARY] = z[0]
        z = (z / np.linalg.norm(z, axis=1, keepdims=True)).astype(np.float32)
        rows = Rows(np.arange(len(unit)), unit, _LABELERS)
        chosen = rng.integers(0, 3, len(unit)).astype(np.uint8)
        limits = statistic.bounds(z, rows, clip_quantile=0.5)
        return cls(z, rows, chosen, limits, statistic.grid(limits, components, noise_multiplier))

    def sums(self, labeler: int) -> tuple[Integers, Integers]:
        """The exact sums if a labeler's labels all favour one direction, and if all oppose it."""
        own = self.rows.unit == labeler
        along = self.z[self.rows.pair[own]]
        direction = np.linalg.svd(along.astype(np.float64), full_matrices=False)[2][0]
        favour = np.where(along @ direction > 0, LABEL_A, LABEL_B).astype(np.uint8)
        return self._sum(own, favour), self._sum(own, LABEL_A + LABEL_B - favour)

    def _sum(self, own: NDArray[np.bool_], labels: Labels) -> Integers:
        changed = self.labels.copy()
        changed[own] = labels
        return statistic.exact_sum(self.z, self.rows, changed, self.bounds, self.grid.step)


def audit_statistic(
    epsilon: float,
    delta: float,
    *,
    labels: int = 20,
    runs: int = 20_000,
    seed: int = 0,
    components: int = 2,
    pipeline_runs: int = 3,
    progress: Progress = silent,
) -> AuditResult:
    """Attack one statistic release, at the price of (epsilon, delta), by a canary with `labels`.

    Each world is run `runs` times with fresh noise on the same exact sum, and `pipeline_runs` times
    as a whole release of synthetic labels (0 for none). `seed` decides the world, never the noise.

    False alarms: each of three checks with noise gets a third of FALSE_ALARM, by the union bound.
    Raises `PolicyError` for values that are no budget, or too few runs or labels.
    """
    check_sizes(labels=labels, runs=runs, pipeline_runs=pipeline_runs)
    policy = Policy(epsilon, delta, (Allowance(STATISTIC_RELEASES.name, 1),), ties="zero")
    [price] = pricing.prices(policy, STATISTIC_RELEASES.name, np.array([1])).values()
    noise_multiplier = price["noise_multiplier"]
    world = World.random(labels, components, noise_multiplier, seed)
    alpha = FALSE_ALARM / 3
    checks = [_sensitivity(world, epsilon, delta)]
    checks += _separation(world, epsilon, delta, runs, alpha, progress)
    if pipeline_runs:
        survey = whole.Survey.of_statistic(labels, seed)
        checks += whole.check_statistic(survey, epsilon, delta, pipeline_runs, alpha, progress)
    return AuditResult.of(statistic.NAME, epsilon, delta, runs, checks)


def _sensitivity(world: World, epsilon: float, delta: float) -> Check:
    """Whether the noise as stated pays for the largest movement over labelers; nothing is drawn.

    It gives a bound only where it does not: that the noise is as stated is for `separation`.
    """
    moved = [
        float(np.linalg.norm((one - other).astype(np.float64))) / world.grid.scale
        for one, other in map(world.sums, range(world.rows.units))
    ]
    needed = bounds.epsilon_of_distance(max(moved), delta)
    bound = needed if needed > epsilon else 0.0
    return Check("sensitivity", bound, f"{max(moved):.4f} of the noise at most, taken as stated")


def _separation(
    world: World, epsilon: float, delta: float, runs: int, alpha: float, progress: Progress
) -> list[Check]:
    """`separation` and `events`, from one drawing of each world."""
    one, other, expected = _projected(world, runs, progress)
    # Beyond ε/μ + μ/2 the likelihood ratio of two Gaussians, μ apart, exceeds e^ε.
    thresholds = np.linspace(0, epsilon / expected + expected / 2 + 1, 17, dtype=np.float64)

    def hits(values: Floats) -> Integers:
        farther = _above(values, thresholds), _above(expected - values, thresholds)
        return np.concatenate(farther)

    separated = bounds.epsilon_of_means(one, other, delta, alpha)
    passed = bounds.epsilon_of_events(hits(one), hits(other), runs, delta, alpha)
    spread = np.sqrt((one.var() + other.var()) / 2)
    seen = f"means {one.mean() - other.mean():.4f}, deviation {spread:.4f} of the stated noise"
    return [
        Check("separation", separated, seen),
        Check("events", passed, f"{2 * len(thresholds)} thresholds, {runs:,} runs of each world"),
    ]


def _projected(world: World, runs: int, progress: Progress) -> tuple[Floats, Floats, float]:
    """Noisy sums of both worlds on the line between the exact ones, (runs,) each, and its length.

    In standard deviations of the stated noise, from the exact sum of the other world.
    """
    other, one = world.sums(_CANARY)
    direction = (one - other).astype(np.float64)
    distance = float(np.linalg.norm(direction))

    def project(total: Integers, step: str) -> Floats:
        drawn = _noisy(total, world.grid, runs, step, progress) - other
        return np.asarray(drawn @ (direction / distance) / world.grid.scale)

    first = project(one, "drawing noise in one world")
    return first, project(other, "drawing noise in the other"), distance / world.grid.scale


def _noisy(total: Integers, grid: Grid, runs: int, step: str, progress: Progress) -> Integers:
    """The statistic as it may be released, `runs` times, shape (runs, components)."""
    drawn = np.empty((runs, len(total)), np.int64)
    for run in range(runs):
        if run % -(-runs // _REPORTS) == 0:
            progress(step, run / runs)
        drawn[run] = statistic.noisy(total, grid, keyring.random_bytes(32))
    return drawn


def _above(values: Floats, thresholds: Floats) -> Integers:
    """How many values exceed each threshold."""
    below = np.searchsorted(np.sort(values), thresholds, side="right")
    return np.asarray(len(values) - below, np.int64)
