"""Audits of both mechanisms: lower bounds on what they cost, by attacking them with a canary.

An audit runs the code that releases labels in two worlds that differ in the labels of one made-up
labeler, the canary, and measures how well an attacker distinguishes the outputs. Nobody's labels
are read. A bound above the claim proves that the claim is false; a bound below it proves nothing,
but leaves a mistake little room (Jagielski, Ullman and Oprea 2020; Nasr et al. 2023).

Randomized response: canaries with k labels in one block, drawn by real coins, fresh ones for each
release.

- `block`: how many of the k answers say yes (the likelihood ratio grows with that number);
- `reuse`: every block is drawn in two releases, at two prices that the budget covers together, and
  an answer that is lost at the higher noise was given at the lower one;
- `sharing`: whether the answers to two items agree, where the labels do and where they do not.

The statistic: all labels of the canary compare pairs that differ in one direction, so that its
clipped part is +C in that direction in one world and −C in the other: the sum moves by the
sensitivity. Both shapes of noise are attacked, each at the price of its own policy.

- `sensitivity`: how far the exact sum moves if any labeler changes all labels, against the noise;
- `separation`: mean and spread of noisy sums, projected on the direction in which they move, which
  is the likelihood ratio of two Gaussians; it takes them to be Gaussian;
- `events`: how often the projection passes thresholds, whatever its distribution;
- `ball separation`: the scale, from the radii of the noise, which it takes to be that of the ball;
- `ball events`: how often the likelihood ratio (‖y−v‖ − ‖y‖)/s of two balls passes thresholds;
- `fit`, `ball fit`, `surplus fit`: whether the noise follows the law that is priced; the last for
  ball noise of which only some coordinates are released.

Checks of whole releases are in `audit_releases`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from labelguard.accounting.blocks import find_block
from labelguard.analysis import audit_bounds as bounds
from labelguard.analysis.audit_bounds import FALSE_ALARM, AuditResult, Check, check_sizes
from labelguard.analysis.audit_releases import ReleaseAudit
from labelguard.budget import pricing
from labelguard.budget.events import RANDOMIZED_LABELS, STATISTIC_RELEASES
from labelguard.budget.policy import Allowance, Policy
from labelguard.keys import keyring
from labelguard.keys.coins import Coins
from labelguard.mechanisms import randomized_response, statistic
from labelguard.mechanisms.noise import NONCE_BYTES, Noise, noise_of_price
from labelguard.mechanisms.randomized_response import LabelBlocks
from labelguard.mechanisms.statistic import Bounds, Grid, Rows
from labelguard.storage.blocks import from_bytes
from labelguard.text import LABEL_A, LABEL_B, Progress, no_progress

Labels = NDArray[np.uint8]
Integers = NDArray[np.int64]

_ROWS = 1 << 18
_LABELERS = 9
_CANARY = 0
_REPORTS = 50
_THRESHOLDS = 17


def audit_randomized_response(
    epsilon: float,
    delta: float,
    *,
    labels: int = 8,
    runs: int = 100_000,
    seed: int = 0,
    pipeline_runs: int = 1,
    progress: Progress = no_progress,
) -> AuditResult:
    """Attack randomized response of `labels` labels at the price of (epsilon, delta).

    Each world has `runs` canaries with fresh keys; `pipeline_runs` whole releases are made of
    synthetic labels, which `seed` decides (0 for none). Coins are always fresh.

    No check that counts events can prove more than about ln(runs / 17): a claim above that needs
    more runs. False alarms: each of four checks gets a fourth of FALSE_ALARM, by the union bound.
    Raises `PolicyError` for values that are no budget, or too few runs or labels.
    """
    check_sizes(labels=labels, runs=runs, pipeline_runs=pipeline_runs)
    canary = Canary(epsilon, delta, labels, runs)
    alpha = FALSE_ALARM / 4
    progress("drawing coins", 0.0)
    checks = [_check_block(canary, alpha)]
    progress("drawing coins at two prices", 0.5)
    checks.append(_check_reuse(canary, alpha))
    if labels > 1:
        progress("comparing answers of one labeler", 0.8)
        checks.append(_check_coin_sharing(canary, alpha))
    if pipeline_runs:
        releases = ReleaseAudit(labels, seed, epsilon, delta, pipeline_runs, alpha, progress)
        checks += releases.check_randomized_response()
    return AuditResult.from_checks(randomized_response.NAME, epsilon, delta, runs, checks)


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
    gaussian, ball, surplus = (
        World.random(labels, components, _policy_noise(epsilon, delta, dimension), seed)
        for dimension in (None, components, components + bounds.SURPLUS)
    )
    alpha = FALSE_ALARM / 9
    checks = [_check_sensitivity(gaussian, ball, epsilon, delta)]
    checks += _check_gaussian(gaussian, epsilon, delta, runs, alpha, progress)
    checks += _check_ball(ball, delta, runs, alpha, progress)
    checks.append(_check_surplus_dimensions(surplus, runs, alpha, progress))
    if pipeline_runs:
        releases = ReleaseAudit(labels, seed, epsilon, delta, pipeline_runs, alpha, progress)
        checks += [*releases.check_statistic(), releases.check_ball()]
    return AuditResult.from_checks(statistic.NAME, epsilon, delta, runs, checks)


@dataclass(frozen=True)
class Canary:
    """A labeler with `labels` labels in a block, at the price of a budget; `runs` such labelers."""

    epsilon: float
    delta: float
    labels: int
    runs: int

    def find_price_threshold(self, uses: int) -> int:
        """Return the price of a block where the budget is for so many."""
        policy = Policy(self.epsilon, self.delta, (Allowance(RANDOMIZED_LABELS.name, uses),))
        [price] = pricing.compute_prices(policy, RANDOMIZED_LABELS.name).values()
        return int(price["threshold"])

    def randomize_labels(self, labels: Labels, *thresholds: int) -> Iterator[tuple[Labels, ...]]:
        """Yield the answers of fresh canaries whose labels are `labels` (k,), some at a time.

        For each threshold the answers, of shape (canaries, k); all thresholds ask about the same
        labels of the same canaries.
        """
        batch = max(_ROWS // self.labels, 1)
        for start in range(0, self.runs, batch):
            canaries = min(batch, self.runs - start)
            rows = canaries * self.labels
            row_keys = from_bytes(keyring.random_bytes(16 * rows))
            number = np.repeat(np.arange(canaries), self.labels)
            yield tuple(
                randomized_response.randomize(
                    np.tile(labels, canaries).astype(np.uint8),
                    Coins.fresh(),  # a release's own
                    row_keys,
                    LabelBlocks.of_rows(number, threshold),
                ).reshape(canaries, self.labels)
                for threshold in thresholds
            )


def _check_block(canary: Canary, alpha: float) -> Check:
    """Count answers that say yes; as many as a block likes best prove its whole price."""
    k, threshold = canary.labels, canary.find_price_threshold(1)
    yes, no = (
        np.concatenate(
            [
                answers.sum(axis=1, dtype=np.int64)
                for (answers,) in canary.randomize_labels(labels, threshold)
            ]
        )
        for labels in _opposite_labels(k)
    )
    # Besides that number, some up to 4.5 standard deviations above one half of k.
    steps = k / 2 + np.sqrt(k) / 2 * np.arange(0, 5, 0.5)
    likely = k - find_block(threshold, k).likely_change_limit
    levels = np.unique([likely, *np.clip(np.ceil(steps), 1, k)])
    proven = bounds.epsilon_of_thresholds(yes, no, levels - 0.5, canary.delta, alpha)
    return Check("block", proven, f"answers that agree among {k}, {canary.runs:,} made-up labelers")


def _check_reuse(canary: Canary, alpha: float) -> Check:
    """Draw each block twice: at the price of one of two uses and at that of one of four.

    Both together cost at most what two uses cost. One coin for both prices would never give
    "yes" at the lower flip probability and "no" at the higher to a label that is no.
    """
    thresholds = canary.find_price_threshold(2), canary.find_price_threshold(4)

    def is_lost(answers: tuple[Labels, ...]) -> NDArray[np.bool_]:
        clear, noisy = answers
        return np.asarray(((clear == LABEL_A) & (noisy == LABEL_B)).any(axis=1))

    worlds = _opposite_labels(canary.labels)
    bound = _epsilon_of_event(canary, worlds, is_lost, thresholds, alpha)
    return Check("reuse", bound, f"two prices for each label, {canary.runs:,} made-up labelers")


def _check_coin_sharing(canary: Canary, alpha: float) -> Check:
    """Compare two answers: one coin for two items would reveal whether their labels agree."""
    alternating = np.where(np.arange(canary.labels) % 2, LABEL_A, LABEL_B).astype(np.uint8)

    def first_two_agree(answers: tuple[Labels, ...]) -> NDArray[np.bool_]:
        return np.asarray(answers[0][:, 0] == answers[0][:, 1])

    worlds = _opposite_labels(canary.labels)[0], alternating
    bound = _epsilon_of_event(
        canary, worlds, first_two_agree, [canary.find_price_threshold(1)], alpha
    )
    return Check("sharing", bound, f"agreement of two answers, {canary.runs:,} made-up labelers")


def _opposite_labels(count: int) -> tuple[Labels, Labels]:
    """Return labels that all say yes, and labels that all say no, each of shape (count,)."""
    return np.full(count, LABEL_A, np.uint8), np.full(count, LABEL_B, np.uint8)


def _epsilon_of_event(
    canary: Canary,
    worlds: tuple[Labels, Labels],
    event: Callable[[tuple[Labels, ...]], NDArray[np.bool_]],
    thresholds: Sequence[int],
    alpha: float,
) -> float:
    """Return the ε that is proven by how many canaries show an event in each world."""
    first, second = (
        sum(int(event(answers).sum()) for answers in canary.randomize_labels(labels, *thresholds))
        for labels in worlds
    )
    return bounds.epsilon_of_events(first, second, canary.runs, canary.delta, alpha)


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
        """Return a world of pairs that differ by 1 in random directions."""
        rng = np.random.default_rng(seed)
        counts = np.concatenate([[labels], rng.integers(1, labels + 1, _LABELERS - 1)])
        unit = np.repeat(np.arange(_LABELERS), counts)
        z = rng.standard_normal((len(unit), components))
        z[unit == _CANARY] = z[0]
        z = (z / np.linalg.norm(z, axis=1, keepdims=True)).astype(np.float32)
        rows = Rows(np.arange(len(unit)), unit, _LABELERS)
        chosen = rng.integers(0, 3, len(unit)).astype(np.uint8)
        limits = statistic.compute_bounds(z, rows, clip_quantile=0.5)
        return cls(z, rows, chosen, limits, statistic.choose_grid(limits, components, noise))

    def compute_opposite_sums(self, labeler: int) -> tuple[Integers, Integers]:
        """Return the exact sums if a labeler's labels favour one direction, or oppose it."""
        is_theirs = self.rows.unit == labeler
        along = self.z[self.rows.pair[is_theirs]]
        direction = np.linalg.svd(along.astype(np.float64), full_matrices=False)[2][0]
        favour = np.where(along @ direction > 0, LABEL_A, LABEL_B).astype(np.uint8)
        return self._sum_with_labels(is_theirs, favour), self._sum_with_labels(
            is_theirs, LABEL_A + LABEL_B - favour
        )

    def _sum_with_labels(self, is_theirs: NDArray[np.bool_], labels: Labels) -> Integers:
        changed = self.labels.copy()
        changed[is_theirs] = labels
        return statistic.clip_and_sum_labels(
            self.z, self.rows, changed, self.bounds, self.grid.step
        )


def _policy_noise(epsilon: float, delta: float, dimension: int | None) -> Noise:
    """Return the noise that a policy of one release buys: Gaussian, or a ball of `dimension`."""
    allowance = Allowance(STATISTIC_RELEASES.name, 1, ball=dimension)
    policy = Policy(epsilon, delta, (allowance,), ties="zero")
    [price] = pricing.compute_prices(policy, STATISTIC_RELEASES.name).values()
    return noise_of_price(price)


def _check_sensitivity(gaussian: World, ball: World, epsilon: float, delta: float) -> Check:
    """Compare the noise as stated with the largest movement over labelers; nothing is drawn.

    It gives a bound only where the noise is too small: that the noise is as stated is for other
    checks.
    """
    # Both worlds are the same but for their noise.
    sums = map(gaussian.compute_opposite_sums, range(gaussian.rows.units))
    moved = max(float(_norm(favour - oppose)) for favour, oppose in sums)
    needed = max(
        bounds.epsilon_of_distance(moved / gaussian.grid.scale, delta),
        bounds.epsilon_of_ball(moved / ball.grid.scale, delta, ball.z.shape[1]),
    )
    bound = needed if needed > epsilon else 0.0
    ratios = f"{moved / gaussian.grid.scale:.4f} (ball: {moved / ball.grid.scale:.4f})"
    return Check("sensitivity", bound, f"{ratios} of the stated noise at most")


def _check_gaussian(
    world: World, epsilon: float, delta: float, runs: int, alpha: float, progress: Progress
) -> list[Check]:
    """Run `separation`, `events` and `fit`, from one drawing of each world."""
    # Noisy sums of both worlds on the line between the exact ones, in standard deviations of the
    # stated noise, from the exact sum of the other world.
    other, one = world.compute_opposite_sums(_CANARY)
    along = _find_unit_direction(one, other) / world.grid.scale
    first = (_draw_noisy_sums(one, world.grid, runs, "in one world", progress) - other) @ along
    second = (
        _draw_noisy_sums(other, world.grid, runs, "in the other world", progress) - other
    ) @ along
    expected = float(_norm(one - other)) / world.grid.scale
    # Beyond ε/μ + μ/2 the likelihood ratio of two Gaussians, μ apart, exceeds e^ε.
    limits = np.linspace(0, epsilon / expected + expected / 2 + 1, _THRESHOLDS)
    thresholds = np.concatenate([limits, expected - limits])
    passed = bounds.epsilon_of_thresholds(first, second, thresholds, delta, alpha)
    separated = bounds.epsilon_of_means(first, second, delta, alpha)
    spread = np.sqrt((first.var() + second.var()) / 2)
    distance = f"means {first.mean() - second.mean():.4f}, deviation {spread:.4f}"
    centred = np.concatenate([first - expected, second])
    return [
        Check("separation", separated, f"{distance} of the stated noise"),
        Check("events", passed, _describe_threshold_attack(runs)),
        bounds.check_fit("fit", {"projections": ndtr(centred)}, alpha),
    ]


def _check_ball(
    world: World, delta: float, runs: int, alpha: float, progress: Progress
) -> list[Check]:
    """Run `ball separation`, `ball events` and `ball fit`, from one drawing of each world."""
    other, one = world.compute_opposite_sums(_CANARY)
    drawn = (
        _draw_noisy_sums(one, world.grid, runs, "in one world", progress),
        _draw_noisy_sums(other, world.grid, runs, "in the other world", progress),
    )
    noise = np.concatenate([drawn[0] - one, drawn[1] - other])
    radii = _norm(noise)
    # A rounded vector is shorter than what was rounded by at most half a cell's diagonal.
    components = len(one)
    longest = float(radii.sum()) + len(radii) * math.sqrt(components) / 2
    scale = bounds.bound_exponential_scale(longest, len(radii) * components, alpha)
    distance = float(_norm(one - other))
    separated = bounds.epsilon_of_ball(distance / scale, delta, components)
    first, second = ((_norm(sums - other) - _norm(sums - one)) / world.grid.scale for sums in drawn)
    # The logarithm of the likelihood ratio is at most the distance in scales.
    limits = np.linspace(0, distance / world.grid.scale, _THRESHOLDS, endpoint=False)
    thresholds = np.concatenate([limits, -limits])
    passed = bounds.epsilon_of_thresholds(first, second, thresholds, delta, alpha)
    mean = radii.mean() / components / world.grid.scale
    uniforms = bounds.map_ball_to_uniforms(
        noise / world.grid.scale, _find_unit_direction(one, other)
    )
    return [
        Check("ball separation", separated, f"scale {mean:.4f} of the stated noise"),
        Check("ball events", passed, _describe_threshold_attack(runs)),
        bounds.check_fit("ball fit", uniforms, alpha),
    ]


def _check_surplus_dimensions(world: World, runs: int, alpha: float, progress: Progress) -> Check:
    """Run `surplus fit`: noise in more dimensions than there are components."""
    total = world.compute_opposite_sums(_CANARY)[0]
    noise = _draw_noisy_sums(total, world.grid, runs, "in surplus dimensions", progress) - total
    uniforms = bounds.map_surplus_ball_to_uniforms(noise / world.grid.scale)
    return bounds.check_fit("surplus fit", uniforms, alpha)


def _describe_threshold_attack(runs: int) -> str:
    return f"{2 * _THRESHOLDS} thresholds, {runs:,} runs of each world"


def _find_unit_direction(one: Integers, other: Integers) -> NDArray[np.float64]:
    return np.asarray((one - other).astype(np.float64) / _norm(one - other))


def _norm(vectors: Integers) -> Any:
    """Return the Euclidean length of one vector, or of each row."""
    return np.linalg.norm(vectors.astype(np.float64), axis=-1)


def _draw_noisy_sums(
    total: Integers, grid: Grid, runs: int, where: str, progress: Progress
) -> Integers:
    """Return the statistic as it may be released, `runs` times, shape (runs, components)."""
    drawn = np.empty((runs, len(total)), np.int64)
    for run in range(runs):
        if run % -(-runs // _REPORTS) == 0:
            progress(f"drawing {grid.kind} noise {where}", run / runs)
        drawn[run] = statistic.add_noise(total, grid, keyring.random_bytes(NONCE_BYTES))
    return drawn
