"""The statistic release for choices: a labeler picks the best of K responses (K may vary).

For a conditional logit (McFadden 1974; the first place of Plackett-Luce) with linear utility φ·θ

    −log P(k is chosen) = log Σ_l exp(φ_l·θ) − φ_k·θ,

so the likelihood touches the labels only through S = Σ_u w_u Σ_j (φ(chosen_j) − mean of Φ_j), where
Φ_j holds the K_j responses of choice j. It is clipped, rounded and summed as in
`labelguard.mechanisms.statistic`, whose guarantee it shares: `grid` and `noisy` there go on from
`bounds` and `exact_sum` here. With K = 2 both modules compute the same statistic.

The same from pairs. As φ_c − mean of Φ = (1/K) Σ_k (φ_c − φ_k), S is also the sum over all pairs of
a choice, of weight 2/K, that hold the chosen response, and b_u likewise: `Rows.share` there. A
release, which stages choices as their pairs, sums them so, with Δ = 2C ≥ min(2C, D): the ball alone
proves it, whatever pairs of a choice there are. `responses_of_pairs` finds Φ again, for the fit.

Sensitivity. Let p_j say how the choice is spread over its responses: 1 on the chosen one, or 1/t on
each of t that tie for the best; a labeler's part is v = w Σ_j Φ_jᵀ(p_j − 1/K_j). All p_j lie in the
simplex, ties included, and ‖v − v'‖ is convex in (p, p'), so no pair of them moves v further than
some pair of corners, that is of choices without ties. Corners p, p' satisfy
‖Φ_jᵀ(p_j − p_j')‖ ≤ max_{k,l} ‖φ_k − φ_l‖ and ‖p_j − p_j'‖ ≤ √2, hence

    D = min( w Σ_j max_{k,l} ‖φ_k − φ_l‖,  √(2 m Λ) ),    Λ = λ_max(w² Σ_j Φ_jᵀΦ_j),

for m choices, by the triangle inequality and by ‖Φᵀs‖ ≤ ‖Φ‖₂ ‖s‖₂. Projection on the ball of
radius C moves no two points apart, so that clipped parts differ by at most min(2C, D).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelguard.errors import InvalidLabels
from labelguard.mechanisms.geometry import squared_norms
from labelguard.mechanisms.statistic import (
    SLACK,
    Bounds,
    Rows,
    RowsOfUnits,
    clip_and_weights,
    clipped_sum,
    largest_movement,
    top_eigenvalue,
)

__all__ = ["Choices", "bounds", "choice_weights", "exact_sum", "fit", "responses_of_pairs"]

_CHUNK = 1 << 15
_DIAMETER_ELEMENTS = 1 << 22
_RELATIVE_GRADIENT = 1e-8
_ACCEPTED_RELATIVE_GRADIENT = 1e-5
_MOST_STEPS = 200
_MOST_HALVINGS = 60

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Choices:
    """Public: who chose among what.

    Choice j is among the rows offsets[j] to offsets[j+1] of a matrix of responses, at least two;
    `offsets` has shape (choices + 1,). `unit` (choices,) indexes the labelers (or households,
    teams: the unit of protection), of whom there are `units`.

    Raises `InvalidLabels` unless offsets start at 0 and rise by at least 2.
    """

    offsets: NDArray[np.intp]
    unit: NDArray[np.intp]
    units: int

    def __post_init__(self) -> None:
        if self.offsets.shape != (len(self.unit) + 1,) or self.offsets[0] != 0:
            raise InvalidLabels(
                f"expected {len(self.unit) + 1} offsets from 0 for {len(self.unit)} choices, "
                f"found shape {self.offsets.shape}"
            )
        if (self.size < 2).any():
            raise InvalidLabels("expected at least 2 responses in every choice; drop the others")

    def __len__(self) -> int:
        return len(self.unit)

    @property
    def size(self) -> NDArray[np.intp]:
        """How many responses each choice is among, shape (choices,)."""
        return np.diff(self.offsets)


def bounds(features: NDArray[np.float32], choices: Choices, clip_quantile: float) -> Bounds:
    """Weights, clip and sensitivity from the responses' coordinates, (responses, components).

    b_u = √Σ_j (1/K_j) Σ_k ‖φ_k − mean‖² is the norm of a labeler who chooses at random; clip and
    weights follow as for comparisons. Raises `InvalidLabels` if no choice is among responses that
    differ, if a feature is not finite, or if features and offsets do not match.
    """
    z = _centred(features, choices)
    spread = np.add.reduceat(squared_norms(z), choices.offsets[:-1]) / choices.size
    clip, weight = clip_and_weights(np.sqrt(_sum(choices, spread)), clip_quantile)
    return Bounds(clip, weight, _sensitivity(z, choices, weight, clip))


def exact_sum(
    features: NDArray[np.float32],
    choices: Choices,
    best: NDArray[np.bool_],
    bounds: Bounds,
    step: float,
) -> NDArray[np.int64]:
    """PRIVATE: Σ_u clip_C(v_u) on the grid, shape (components,).

    `best` (responses,) marks the chosen responses. Several in one choice tie: the choice counts as
    the mean of them. All, or none, add 0.
    """
    z = _centred(features, choices)
    marked = np.add.reduceat(best.astype(np.intp), choices.offsets[:-1])
    share = np.repeat(1 / np.maximum(marked, 1), choices.size) * best
    even = np.repeat(np.where(marked, 1 / choices.size, 0), choices.size)
    rows = Rows(np.arange(len(z)), np.repeat(choices.unit, choices.size), choices.units)
    return clipped_sum(z, rows, share - even, bounds, step)


def choice_weights(choices: Choices, bounds: Bounds) -> Floats:
    """What each choice weighs in the likelihood, w_u of its labeler, shape (choices,)."""
    return np.asarray(bounds.weight[choices.unit])


def responses_of_pairs(
    z: NDArray[np.float32],
    group: NDArray[np.intp],
    number: NDArray[np.int64],
    size: NDArray[np.int64],
) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Centred responses of sets of responses, from the differences of their pairs.

    Row p of `z` (pairs, components) is φ_i − φ_j of set group[p], of size[p] responses; number[p]
    counts the pairs i < j of a set from 0, by i, then j. Pairs of equal responses may lack. Sets
    are numbered from 0 without gaps. Returns Φ (responses, components), set after set, and the
    offsets of the sets in it, (sets + 1,).
    """
    sets = int(group.max(initial=-1)) + 1
    sizes = np.zeros(sets, np.intp)
    sizes[group] = size
    offsets = np.append(0, np.cumsum(sizes))
    one, other = places(number, size)
    part = z.astype(np.float64) / size[:, None]
    found = np.zeros((int(offsets[-1]), z.shape[1]))
    np.add.at(found, offsets[group] + one, part)
    np.subtract.at(found, offsets[group] + other, part)
    return found.astype(np.float32), offsets.astype(np.intp)


def places(
    number: NDArray[np.int64], size: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """i and j, from 0, of the pairs with these numbers among K responses: the inverse of
    number = i (2K − i − 1) / 2 + j − i − 1.
    """
    twice = 2 * size - 1
    one = ((twice - np.sqrt(twice**2 - 8.0 * number)) / 2).astype(np.int64)
    one += number >= (one + 1) * (twice - one - 1) // 2  # where the root was rounded down
    return one, number - one * (twice - one) // 2 + one + 1


def fit(
    features: NDArray[np.float32],
    choices: Choices,
    weight: ArrayLike,
    statistic: ArrayLike,
    ridge: ArrayLike,
) -> Floats:
    """θ, shape (components,), of a conditional logit from a (noisy) statistic.

    Minimises Σ_j w_j log Σ_k exp(φ_k·θ) − θ·(S + Σ_j w_j mean of Φ_j) + ½ Σ ridge θ² by Newton's
    method, to a relative gradient of 1e-8. `weight`, a scalar or (choices,), is at least 0;
    `statistic` is S, (components,); `ridge`, a scalar or (components,), is above 0.
    Post-processing of the statistic: nothing is charged.

    Raises ValueError for values that are not finite, shapes that do not match, weight < 0 or
    ridge <= 0; ArithmeticError if no minimum is reached.
    """
    components = features.shape[1]
    objective = _Objective(
        _centred(features, choices),
        choices,
        _checked("weight", weight, len(choices)),
        _checked("statistic", statistic, components),
        _checked("ridge", ridge, components),
    )
    if (objective.weight < 0).any() or (objective.ridge <= 0).any():
        raise ValueError("weight must be >= 0 and ridge > 0, found values outside")
    return _minimum(objective)


def _sensitivity(z: NDArray[np.float32], choices: Choices, weight: Floats, clip: float) -> float:
    """Δ = max_u min(2C, D_u), with D_u as in the module's docstring."""
    triangle = weight * _sum(choices, _diameters(z, choices)) * SLACK
    count = np.bincount(choices.unit, minlength=choices.units)
    of_unit = RowsOfUnits(np.repeat(choices.unit, choices.size), choices.units)

    def spectral(unit: int) -> float:
        own = of_unit[unit]
        largest = top_eigenvalue(z, own, np.ones(len(own)))
        return float(weight[unit]) * math.sqrt(2 * int(count[unit]) * largest) * SLACK

    return largest_movement(np.minimum(2 * clip, triangle), spectral)


@dataclass(frozen=True, eq=False, repr=False)
class _Point:
    """The objective at theta, the size of the terms it is a sum of, and the Newton step there."""

    theta: Floats
    value: float
    magnitude: float
    step: Floats
    decrement: float


@dataclass(frozen=True, eq=False, repr=False)
class _Objective:
    z: NDArray[np.float32]
    choices: Choices
    weight: Floats
    statistic: Floats
    ridge: Floats

    def at(self, theta: Floats) -> _Point:
        """Value and Newton step in one pass over the responses."""
        value = 0.0
        gradient, hessian = self.ridge * theta - self.statistic, np.diag(self.ridge)
        for sets, responses in _blocks(self.choices):
            part, weight = self.z[responses].astype(np.float64), self.weight[sets]
            size, starts = self.choices.size[sets], _starts(self.choices, sets)
            score = part @ theta
            top = np.maximum.reduceat(score, starts)
            chance = np.exp(score - np.repeat(top, size))
            total = np.add.reduceat(chance, starts)
            chance /= np.repeat(total, size)
            expected = np.add.reduceat(chance[:, None] * part, starts, axis=0)
            mean = np.add.reduceat(part, starts, axis=0) / size[:, None]
            value += float(weight @ (top + np.log(total) - mean @ theta))
            gradient += weight @ (expected - mean)
            hessian += part.T @ ((np.repeat(weight, size) * chance)[:, None] * part)
            hessian -= expected.T @ (weight[:, None] * expected)
        penalty, reward = float(self.ridge @ theta**2) / 2, float(self.statistic @ theta)
        step: Floats = np.asarray(np.linalg.solve(hessian, -gradient), np.float64)
        return _Point(
            theta,
            value + penalty - reward,
            abs(value) + penalty + abs(reward),
            step,
            math.sqrt(max(-float(gradient @ step), 0)),
        )


def _minimum(objective: _Objective) -> Floats:
    """Newton's method, each step shortened until the value falls."""
    here = objective.at(np.zeros_like(objective.ridge))
    unit = here.decrement
    for _ in range(_MOST_STEPS):
        if here.decrement <= _RELATIVE_GRADIENT * unit:
            return here.theta
        there = _descend(objective, here)
        if there is None:
            break
        here = there
    if not here.decrement <= _ACCEPTED_RELATIVE_GRADIENT * unit:
        raise ArithmeticError("the fit found no minimum: scale the features, or raise ridge")
    return here.theta


def _descend(objective: _Objective, here: _Point) -> _Point | None:
    """The first of step, step/2, step/4, … that lowers the value enough, or None."""
    for halvings in range(_MOST_HALVINGS):
        share = 0.5**halvings
        there = objective.at(here.theta + share * here.step)
        promised = 1e-4 * share * here.decrement**2
        if there.value <= here.value - promised + 1e-14 * here.magnitude:
            return there
    return None


def _centred(features: NDArray[np.float32], choices: Choices) -> NDArray[np.float32]:
    """Features less their mean over the responses of each choice, shape (responses, components).

    Sums, bounds and fits all start from these rounded numbers, so that what they have in common is
    exact however large the mean is.
    """
    if features.ndim != 2 or len(features) != choices.offsets[-1]:
        raise InvalidLabels(
            f"expected features of {choices.offsets[-1]} responses, found shape {features.shape}"
        )
    z = np.empty(features.shape, np.float32)
    for sets, responses in _blocks(choices):
        part = features[responses].astype(np.float64)
        size = choices.size[sets]
        mean = np.add.reduceat(part, _starts(choices, sets), axis=0) / size[:, None]
        z[responses] = part - np.repeat(mean, size, axis=0)
    return z


def _diameters(z: NDArray[np.float32], choices: Choices) -> Floats:
    """max_{k,l} ‖φ_k − φ_l‖ of every choice, shape (choices,), from centred responses."""
    diameters = np.empty(len(choices))
    for size in np.unique(choices.size).tolist():
        of_size = np.flatnonzero(choices.size == size)
        height = max(1, _DIAMETER_ELEMENTS // (size * max(size, z.shape[1])))
        for start in range(0, len(of_size), height):
            sets = of_size[start : start + height]
            members = z[choices.offsets[sets, None] + np.arange(size)].astype(np.float64)
            product = members @ members.transpose(0, 2, 1)
            norms = np.einsum("skk->sk", product)
            squared = norms[:, :, None] + norms[:, None, :] - 2 * product
            diameters[sets] = np.sqrt(np.maximum(squared.max(axis=(1, 2)), 0))
    return diameters


def _blocks(choices: Choices) -> Iterator[tuple[slice, slice]]:
    """Consecutive choices and their responses, about _CHUNK responses at a time."""
    first = 0
    while first < len(choices):
        full = np.searchsorted(choices.offsets, choices.offsets[first] + _CHUNK, side="right")
        last = max(first + 1, int(full) - 1)
        yield slice(first, last), slice(int(choices.offsets[first]), int(choices.offsets[last]))
        first = last


def _starts(choices: Choices, sets: slice) -> NDArray[np.intp]:
    """Where each choice of a block begins in it."""
    return np.asarray(choices.offsets[sets] - choices.offsets[sets.start])


def _sum(choices: Choices, values: Floats) -> Floats:
    """Sums over the choices of each labeler, shape (units,)."""
    return np.bincount(choices.unit, values, choices.units).astype(np.float64)


def _checked(name: str, values: ArrayLike, size: int) -> Floats:
    column = np.asarray(values, np.float64)
    if column.shape not in ((), (size,)) or not np.isfinite(column).all():
        raise ValueError(
            f"{name} must be a finite number or {size} of them, found shape {column.shape}"
        )
    return np.ascontiguousarray(np.broadcast_to(column, (size,)))
