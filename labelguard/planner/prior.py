"""Labels simulated over the real public pairs: what tuning and planning look at instead of labels.

A labeler's utility gap on a pair is a part that is linear in the features, a part of the item that
all labelers share but no feature shows, and a deviation of their own,

    z = scale · ( √e · x·θ* + √(1 − e) · g_item + √τ · deviation ),    e the `explained` share,

and the label follows Davidson (1970): Bradley-Terry with ties where the gap is small. `scale` and
the strength of ties are set so that two labelers' strict labels on one item agree as often, and
ties occur as often, as the prior says. Of what it says a range of, every world has another value.
On principal axes θ* shrinks with the axis's standard deviation, so that few axes carry most of it.

Nothing here has an argument that could hold labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelguard.errors import PolicyError
from labelguard.mechanisms.statistic import Rows
from labelguard.simulation import calibrate_scale_and_ties, tie_probability

Floats = NDArray[np.float64]

Range: TypeAlias = tuple[float, float]

# The range of agreements that labels are simulated for, and that of one which nobody knows.
AGREEMENTS = (0.55, 0.9)
UNKNOWN = (0.6, 0.85)
# The share of the shared utility that features explain: of many features that tell pairs apart, and
# of others, such as length, style or sources alone (docs/results/calibration.md).
MANY_EXPLAIN, FEW_EXPLAIN = (0.65, 0.8), (0.1, 0.5)
MANY = 64
TIES = (0.05, 0.35)
_TASTES = 8  # directions in which labelers deviate
_MEETINGS = 2_000  # pairs at which agreement is calibrated; standard error about .003 a world
_PRECISION = 1e-3  # of the scale of gaps
_TINY = np.finfo(np.float64).tiny
# Additive recurrence (Roberts 2018): steps g^-1, …, g^-4 fill a cube evenly, where g⁵ = g + 1.
_STEPS = 1.1673039783 ** -np.arange(1.0, 5.0)
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(5)


@dataclass(frozen=True)
class Prior:
    """Beliefs about labelers before any label is seen.

    agreement: how often two labelers' strict labels on one item agree, in [0.55, 0.9]; None: not
        known, most likely in the middle of .6 to .85.
    explained: share of the shared utility's variance that is linear in the features, from and to,
        in (0, 1]; None: as `guess_explained_share` says.
    tie_rate: share of labels that are ties, from and to, in [0, 0.9].
    seed: the same seed gives the same simulated labels.
    """

    agreement: float | None = None
    explained: Range | None = None
    tie_rate: Range = TIES
    seed: int = 0

    def __post_init__(self) -> None:
        if self.agreement is not None:
            _check_within("agreement", self.agreement, *AGREEMENTS)
        for share in self.explained or ():
            _check_within("explained", share, 0.01, 1)
        for share in self.tie_rate:
            _check_within("tie-rate", share, 0, 0.9)
        if self.seed < 0:
            raise PolicyError(f"seed must be at least 0, found {self.seed}")

    def describe_world(self, world: int, explained: Range) -> tuple[float, float, float]:
        """Return agreement, explained share and tie rate of one world."""
        at = (0.5 + (world + 1) * _STEPS) % 1
        known = self.agreement
        ranges = (UNKNOWN if known is None else (known, known), explained, self.tie_rate)
        shares = ((at[0] + at[3]) / 2, *at[1:3])
        values = [low + (high - low) * u for (low, high), u in zip(ranges, shares, strict=True)]
        return values[0], values[1], values[2]


def guess_explained_share(z: NDArray[np.float32]) -> Range:
    """Return what share of the shared utility features explain, from and to.

    `z` (pairs, axes) are principal coordinates. Few directions, or what most pairs share with
    others as sources do, explain less.
    """
    if z.shape[1] < MANY:
        return FEW_EXPLAIN
    distinct = len(np.unique(z[:, :2].round(5), axis=0))
    return MANY_EXPLAIN if 2 * distinct > len(z) else FEW_EXPLAIN


@dataclass(frozen=True)
class Draw:
    """One simulated world.

    `half` (n,) is the label of each row less ½, 0 for a tie. `gain` and `strict` (pairs,) are what
    a fresh labeler does: E[label − ½] and P(no tie).
    """

    half: NDArray[np.float32]
    gain: Floats
    strict: Floats


def compute_margin_variance(explained: Range) -> float:
    """Return the variance of margins of a head that knows what features explain, in log-odds.

    Labels are close to signs of normal utilities with logistic noise: two labelers who agree as
    often as a have correlated ones, by ρ = sin(π(a − ½)), of which R² = ρ · share is the head's.
    """
    correlation = math.sin(math.pi * (sum(UNKNOWN) / 2 - 0.5))
    share = correlation * sum(explained) / 2
    return math.pi**2 / 3 * share / (1 - share)


class Population:
    """Simulated labelers who label the pairs of `rows`.

    `z` (pairs, components) are principal coordinates, and `variances` (components,) what each axis
    varies by.
    """

    def __init__(self, z: NDArray[np.float32], variances: Floats, rows: Rows, prior: Prior) -> None:
        self._z, self._rows, self._prior = z, rows, prior
        self._variances = variances / variances[0]
        self._counts = np.bincount(rows.pair, minlength=len(z)).astype(np.float64)
        self._explained = prior.explained or guess_explained_share(z)

    def draws(self, number: int, skip: int = 0) -> Iterator[Draw]:
        """Simulated worlds but for the first few.

        Each has a random stream of its own, so that a world is the same however many there are.
        """
        streams = np.random.SeedSequence(self._prior.seed).spawn(number)
        for index, stream in enumerate(streams[skip:], skip):
            yield self._draw(index, np.random.default_rng(stream))

    def _draw(self, world: int, rng: np.random.Generator) -> Draw:
        rows = self._rows
        agreement, explained, tie_rate = self._prior.describe_world(world, self._explained)
        axes = len(self._variances)
        theta = rng.standard_normal((axes, 1)) * np.sqrt(self._variances)[:, None]
        linear = self._scale_to_unit(self._z @ theta.astype(np.float32))[:, 0]
        hidden = rng.standard_normal(len(self._z))
        shared = np.sqrt(explained) * linear + np.sqrt(1 - explained) * hidden
        tastes = rng.standard_normal((axes, _TASTES))
        own = self._scale_to_unit(self._z @ tastes.astype(np.float32))
        own *= np.sqrt((1 - agreement) / 3 / _TASTES)  # labelers who agree more differ less
        spread = np.sqrt(np.einsum("ij,ij->i", own, own))
        # Two fresh labelers meet at the pairs of random rows.
        met = rows.pair[rng.integers(len(rows), size=_MEETINGS)]
        gaps = shared[met] + spread[met] * rng.standard_normal((2, _MEETINGS))
        scale, ties = calibrate_scale_and_ties(gaps, agreement, tie_rate, _PRECISION)

        fresh = scale * (shared[:, None] + spread[:, None] * _NODES)
        strict = 1 - tie_probability(fresh, ties)
        gain = strict * np.tanh(fresh / 2) / 2

        taste = rng.standard_normal((rows.units, _TASTES))
        gap = np.einsum("ij,ij->i", own[rows.pair], taste[rows.unit]) + shared[rows.pair]
        half = _simulate_labels(scale * gap, ties, rng)
        if rows.choices and rows.size is not None:
            # Of the pairs of a choice those tell something that hold the chosen one, 2 of K; given
            # that, which of the two it is has the odds of a comparison.
            half = np.where(rng.random(len(half)) < 2 / rows.size, half, 0)
        weights = _WEIGHTS / _WEIGHTS.sum()
        return Draw(half, gain @ weights, strict @ weights)

    def _scale_to_unit(self, values: NDArray[np.float32]) -> Floats:
        """Columns scaled to mean square 1 over rows."""
        squares = self._counts @ np.square(values, dtype=np.float64) / self._counts.sum()
        return np.asarray(values / np.sqrt(np.maximum(squares, _TINY)), np.float64)


def _simulate_labels(gap: Floats, ties: float, rng: np.random.Generator) -> NDArray[np.float32]:
    """Labels less ½, 0 for a tie, of labelers with these utility gaps."""
    first = rng.random(len(gap)) < 1 / (1 + np.exp(-gap))
    tied = rng.random(len(gap)) < tie_probability(gap, ties)
    return np.where(tied, 0, first - 0.5).astype(np.float32)


def _check_within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # also refuses NaN
        raise PolicyError(f"{name} must be between {low} and {high}, found {value}")
