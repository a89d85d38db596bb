"""Labels simulated over the real public pairs: what tuning and planning look at instead of labels.

A labeler's utility gap on a pair is a part that is linear in the features, a part of the item that
all labelers share but no feature shows, and a deviation of their own,

    z = scale · ( √e · x·θ* + √(1 − e) · g_item + √τ · deviation ),    e the `explained` share,

and the label follows Davidson (1970): Bradley-Terry with ties where the gap is small. `scale` and
the strength of ties are set so that two labelers' strict labels on one item agree as often, and
ties occur as often, as the prior says. Directions θ* come in three kinds, because how utility is
spread over principal axes decides how many of them are worth their noise:

- `even`: θ* isotropic in feature space, so that an axis counts by its variance;
- `leading`: θ* shrinks with the axis's standard deviation, so that few axes carry most;
- `steep`: θ* shrinks with the axis's variance, so that hardly more than the first ones matter.

Nothing here has an argument that could hold labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelguard.errors import PolicyError
from labelguard.mechanisms.statistic import Rows
from labelguard.simulation import calibrate, tie_probability
from labelguard.text import DEFAULT_AGREEMENT

Floats = NDArray[np.float64]

# The range of agreements that labels are simulated for.
AGREEMENTS = (0.55, 0.9)
KINDS = ("even", "leading", "steep")
_TASTES = 8  # directions in which labelers deviate
_MEETINGS = 2_000  # pairs at which agreement is calibrated; standard error about .003 a world
_TINY = np.finfo(np.float64).tiny
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(5)


@dataclass(frozen=True)
class Prior:
    """Beliefs about labelers before any label is seen.

    agreement: how often two labelers' strict labels on one item agree, in [0.55, 0.9].
    explained: share of the shared utility's variance that is linear in the features, in (0, 1].
    tie_rate: share of labels that are ties, in [0, 0.9].
    seed: the same seed gives the same simulated labels.

    `explained` is ½ by default: on public sets of arguments and of short jokes, with agreement .73
    and .76, linear heads on sentence embeddings, with and without length, reach the held-out
    accuracy of .66 to .74 that shares from .4 to .7 imply. It is the same for all features, so
    forecasts compare mechanisms and budgets, not features.
    """

    agreement: float = DEFAULT_AGREEMENT
    explained: float = 0.5
    tie_rate: float = 0.15
    seed: int = 0

    def __post_init__(self) -> None:
        _within("agreement", self.agreement, *AGREEMENTS)
        _within("explained", self.explained, 0.01, 1)
        _within("tie-rate", self.tie_rate, 0, 0.9)
        if self.seed < 0:
            raise PolicyError(f"seed must be at least 0, found {self.seed}")

    @property
    def deviation(self) -> float:
        """τ, the variance of a labeler's deviation: labelers who agree more differ less."""
        return (1 - self.agreement) / 3


@dataclass(frozen=True)
class Draw:
    """One simulated world.

    `half` (n,) is the label of each row less ½, 0 for a tie. `gain` and `strict` (pairs,) are what
    a fresh labeler does: E[label − ½] and P(no tie). `twin` (n,), where it was asked for, is what
    other labelers of the same world would have labeled in place of these.
    """

    half: NDArray[np.float32]
    gain: Floats
    strict: Floats
    twin: NDArray[np.float32] | None = None


class Population:
    """Simulated labelers who label the pairs of `rows`.

    `z` (pairs, components) are principal coordinates, and `variances` (components,) what each axis
    varies by.
    """

    def __init__(self, z: NDArray[np.float32], variances: Floats, rows: Rows, prior: Prior) -> None:
        self._z, self._rows, self._prior = z, rows, prior
        self._variances = variances / variances[0]
        self._counts = np.bincount(rows.pair, minlength=len(z)).astype(np.float64)

    def draws(self, number: int, skip: int = 0, twins: bool = False) -> Iterator[Draw]:
        """Simulated worlds but for the first few, the kinds of direction in turn.

        Each has a random stream of its own, so that a world is the same however many there are, and
        whether or not it has `twins`.
        """
        streams = np.random.SeedSequence(self._prior.seed).spawn(number)
        for index, stream in enumerate(streams[skip:], skip):
            yield self._draw(KINDS[index % len(KINDS)], np.random.default_rng(stream), twins)

    def _draw(self, kind: str, rng: np.random.Generator, twins: bool) -> Draw:
        prior, rows = self._prior, self._rows
        linear = self._unit(self._z @ self._directions(kind, 1, rng))[:, 0]
        hidden = rng.standard_normal(len(self._z))
        shared = np.sqrt(prior.explained) * linear + np.sqrt(1 - prior.explained) * hidden
        own = self._unit(self._z @ self._directions("even", _TASTES, rng))
        own *= np.sqrt(prior.deviation / _TASTES)
        spread = np.sqrt(np.einsum("ij,ij->i", own, own))
        # Two fresh labelers meet at the pairs of random rows.
        met = rows.pair[rng.integers(len(rows), size=_MEETINGS)]
        gaps = shared[met] + spread[met] * rng.standard_normal((2, _MEETINGS))
        scale, ties = calibrate(gaps, prior.agreement, prior.tie_rate)

        fresh = scale * (shared[:, None] + spread[:, None] * _NODES)
        strict = 1 - tie_probability(fresh, ties)
        gain = strict * np.tanh(fresh / 2) / 2

        def draw_labels() -> NDArray[np.float32]:
            taste = rng.standard_normal((rows.units, _TASTES))
            gap = np.einsum("ij,ij->i", own[rows.pair], taste[rows.unit]) + shared[rows.pair]
            half = _labels(scale * gap, ties, rng)
            if not rows.choices or rows.size is None:
                return half
            # Of the pairs of a choice those tell something that hold the chosen one, 2 of K; given
            # that, which of the two it is has the odds of a comparison.
            return np.where(rng.random(len(half)) < 2 / rows.size, half, 0)

        half = draw_labels()
        twin = draw_labels() if twins else None
        weights = _WEIGHTS / _WEIGHTS.sum()
        return Draw(half, gain @ weights, strict @ weights, twin)

    def _directions(self, kind: str, number: int, rng: np.random.Generator) -> NDArray[np.float32]:
        """Random coefficients on principal axes, shape (components, number)."""
        axes = len(self._variances)
        theta = rng.standard_normal((axes, number))
        if kind == "leading":
            theta *= np.sqrt(self._variances)[:, None]
        elif kind == "steep":
            theta *= self._variances[:, None]
        return theta.astype(np.float32)

    def _unit(self, values: NDArray[np.float32]) -> Floats:
        """Columns scaled to mean square 1 over rows."""
        squares = self._counts @ np.square(values, dtype=np.float64) / self._counts.sum()
        return np.asarray(values / np.sqrt(np.maximum(squares, _TINY)), np.float64)


def _labels(gap: Floats, ties: float, rng: np.random.Generator) -> NDArray[np.float32]:
    """Labels less ½, 0 for a tie, of labelers with these utility gaps."""
    first = rng.random(len(gap)) < 1 / (1 + np.exp(-gap))
    tied = rng.random(len(gap)) < tie_probability(gap, ties)
    return np.where(tied, 0, first - 0.5).astype(np.float32)


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # also refuses NaN
        raise PolicyError(f"{name} must be between {low} and {high}, found {value}")
