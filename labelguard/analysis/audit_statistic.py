"""The audit of the statistic: a canary whose labels move the clipped sum as far as they may.

All labels of the canary compare pairs that differ in one direction, so that its clipped part is
+C in that direction in one world and −C in the other: the sum moves by the sensitivity. Both shapes
of noise are attacked, each at the price of its own policy. Checks:

- `sensitivity`: how far the exact sum moves if any labeler changes all labels, against the noise;
- `separation`: mean and spread of noisy sums, projected on the direction in which they move, which
  is the likelihood ratio of two Gaussians; it takes them to be Gaussian;
- `events`: how often the projection passes thresholds, whatever its distribution;
- `ball separation`: the scale, from the radii of the noise, which it takes to be that of the ball;
- `ball events`: how often the likelihood ratio (‖y−v‖ − ‖y‖)/s of two balls passes thresholds;
- `fit`, `ball fit`, `surplus fit`: whether the noise follows the law that is priced; the last for
  ball noise of which only some coordinates are released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelguard.analysis import audit_bounds as bounds
from labelguard.analysis import audit_releases as whole
from labelguard.analysis.audit_bounds import FALSE_ALARM, AuditResult, Check, check_sizes
from labelguard.budget import pricing
from labelguard.budget.events import STATISTIC_RELEASES
from labelguard.budget.policy import Allowance, Policy
from labelguard.keys import keyring
from labelguard.mechanisms import statistic
from labelguard.mechanisms.noise import NONCE_BYTES, Noise, noise_of_price
from labelguard.mechanisms.statistic import Bounds, Grid, Rows
from labelguard.text import LABEL_A, LABEL_B, Progress, no_progress

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Labels = NDArray[np.uint8]

_LABELERS = 9
_CANARY = 0
_REPORTS = 50
_THRESHOLDS = 17


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
    def random(cls, labels: int, components: int, noise: Noise, seed: int) -> World:
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
        return cls(z, rows, chosen, limits, statistic.grid(limits, components, noise))

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
    progress: Progress = no_progress,
) -> AuditResult:
    """Attack one statistic release, at the price of (epsilon, delta), by a canary with `labels`.

    For each shape of noise, each world is run `runs` times with fresh noise on the same exact sum,
    and `pipeline_runs` times as a whole release of synthetic labels (0 for none). `seed` decides
    the world, never the noise.

    False alarms: each of nine checks with noise gets a ninth of FALSE_ALARM, by the union bound.
    Raises `PolicyError` for values that are no budget, or too few runs or labels.
    """
    check_sizes(labels=labels, runs=runs, pipeline_runs=pipeline_runs)
    gaussian = World.random(labels, components, _noise(epsilon, delta, None), seed)
    balls = World.random(labels, components, _noise(epsilon, delta, components), seed)
    more = _noise(epsilon, delta, components + bounds.SURPLUS)
    surplus = World.random(labels, components, more, seed)
    alpha = FALSE_ALARM / 9
    checks = [_sensitivity(gaussian, balls, epsilon, delta)]
    checks += _gaussian(gaussian, epsilon, delta, runs, alpha, progress)
    checks += _ball(balls, delta, runs, alpha, progress)
    checks.append(_surplus(surplus, runs, alpha, progress))
    if pipeline_runs:
        survey = whole.Survey.of_statistic(labels, seed)
        sizes = epsilon, delta, pipeline_runs, alpha, progress
        checks += [*whole.check_statistic(survey, *sizes), whole.check_ball(survey, *sizes)]
    return AuditResult.of(statistic.NAME, epsilon, delta, runs, checks)


def _noise(epsilon: float, delta: float, least: int | None) -> Noise:
    """What a policy of one release buys: Gaussian noise, or that of the ball."""
    allowance = Allowance(STATISTIC_RELEASES.name, 1, ball=least)
    policy = Policy(epsilon, delta, (allowance,), ties="zero")
    [price] = pricing.prices(policy, STATISTIC_RELEASES.name, np.array([1])).values()
    return noise_of_price(price)


def _sensitivity(gaussian: World, balls: World, epsilon: float, delta: float) -> Check:
    """Whether the noise as stated pays for the largest movement over labelers; nothing is drawn.

    It gives a bound only where it does not: that the noise is as stated is for other checks.
    """
    # Both worlds are the same but for their noise.
    moved = max(_length(*gaussian.sums(labeler)) for labeler in range(gaussian.rows.units))
    needed = max(
        bounds.epsilon_of_distance(moved / gaussian.grid.scale, delta),
        bounds.epsilon_of_ball(moved / balls.grid.scale, delta, balls.z.shape[1]),
    )
    bound = needed if needed > epsilon else 0.0
    ratios = f"{moved / gaussian.grid.scale:.4f} (ball: {moved / balls.grid.scale:.4f})"
    return Check("sensitivity", bound, f"{ratios} of the noise at most, taken as stated")


def _gaussian(
    world: World, epsilon: float, delta: float, runs: int, alpha: float, progress: Progress
) -> list[Check]:
    """`separation`, `events` and `fit`, from one drawing of each world."""
    # Noisy sums of both worlds on the line between the exact ones, in standard deviations of the
    # stated noise, from the exact sum of the other world.
    second, first = world.sums(_CANARY)
    along = _direction(first, second) / world.grid.scale
    drawn = _drawn(world, (first, second), runs, progress)
    one, other = ((sums - second) @ along for sums in drawn)
    expected = _length(first, second) / world.grid.scale
    # Beyond ε/μ + μ/2 the likelihood ratio of two Gaussians, μ apart, exceeds e^ε.
    thresholds = np.linspace(0, epsilon / expected + expected / 2 + 1, _THRESHOLDS)

    hits, others = (
        np.concatenate([_above(seen, thresholds), _above(expected - seen, thresholds)])
        for seen in (one, other)
    )
    separated = bounds.epsilon_of_means(one, other, delta, alpha)
    passed = bounds.epsilon_of_events(hits, others, runs, delta, alpha)
    spread = np.sqrt((one.var() + other.var()) / 2)
    seen = f"means {one.mean() - other.mean():.4f}, deviation {spread:.4f} of the stated noise"
    return [
        Check("separation", separated, seen),
        Check("events", passed, _tried(runs)),
        bounds.check_law(
            "fit", bounds.gaussian_uniforms(np.concatenate([one - expected, other])), alpha
        ),
    ]


def _ball(world: World, delta: float, runs: int, alpha: float, progress: Progress) -> list[Check]:
    """`ball separation`, `ball events` and `ball fit`, from one drawing of each world."""
    other, one = world.sums(_CANARY)
    drawn = _drawn(world, (one, other), runs, progress)
    noise = np.concatenate([d - own for d, own in zip(drawn, (one, other), strict=True)])
    radii = _lengths(noise)
    # A rounded vector is shorter than what was rounded by at most half a cell's diagonal.
    components = len(one)
    longest = float(radii.sum()) + len(radii) * math.sqrt(components) / 2
    scale = bounds.largest_scale(longest, len(radii) * components, alpha)
    separated = bounds.epsilon_of_ball(_length(one, other) / scale, delta, components)
    ratios = [(_lengths(d - other) - _lengths(d - one)) / world.grid.scale for d in drawn]
    largest = _length(one, other) / world.grid.scale  # of the likelihood ratio's logarithm
    thresholds = np.linspace(0, largest, _THRESHOLDS, endpoint=False)
    hits, others = (np.concatenate([_above(r, thresholds), _above(-r, thresholds)]) for r in ratios)
    passed = bounds.epsilon_of_events(hits, others, runs, delta, alpha)
    mean = radii.mean() / components / world.grid.scale
    return [
        Check("ball separation", separated, f"scale {mean:.4f} of the stated noise"),
        Check("ball events", passed, _tried(runs)),
        bounds.check_law(
            "ball fit",
            bounds.ball_uniforms(noise / world.grid.scale, _direction(one, other)),
            alpha,
        ),
    ]


def _surplus(world: World, runs: int, alpha: float, progress: Progress) -> Check:
    """`surplus fit`: noise in more dimensions than there are components."""
    total = world.sums(_CANARY)[0]
    drawn = _noisy(total, world.grid, runs, "drawing surplus noise", progress)
    return bounds.check_law(
        "surplus fit", bounds.surplus_uniforms((drawn - total) / world.grid.scale), alpha
    )


def _tried(runs: int) -> str:
    return f"{2 * _THRESHOLDS} thresholds, {runs:,} runs of each world"


def _drawn(
    world: World, totals: tuple[Integers, Integers], runs: int, progress: Progress
) -> list[Integers]:
    """The statistics of both worlds as they may be released, (runs, components) each."""
    steps = (f"drawing {world.grid.kind} noise in {which} world" for which in ("one", "the other"))
    return [
        _noisy(total, world.grid, runs, step, progress)
        for total, step in zip(totals, steps, strict=True)
    ]


def _direction(one: Integers, other: Integers) -> Floats:
    return (one - other).astype(np.float64) / _length(one, other)


def _length(one: Integers, other: Integers) -> float:
    return float(np.linalg.norm((one - other).astype(np.float64)))


def _lengths(vectors: Integers) -> Floats:
    return np.asarray(np.linalg.norm(vectors.astype(np.float64), axis=1))


def _noisy(total: Integers, grid: Grid, runs: int, step: str, progress: Progress) -> Integers:
    """The statistic as it may be released, `runs` times, shape (runs, components)."""
    drawn = np.empty((runs, len(total)), np.int64)
    for run in range(runs):
        if run % -(-runs // _REPORTS) == 0:
            progress(step, run / runs)
        drawn[run] = statistic.add_noise(total, grid, keyring.random_bytes(NONCE_BYTES))
    return drawn


def _above(values: Floats, thresholds: Floats) -> Integers:
    """How many values exceed each threshold."""
    below = np.searchsorted(np.sort(values), thresholds, side="right")
    return np.asarray(len(values) - below, np.int64)
