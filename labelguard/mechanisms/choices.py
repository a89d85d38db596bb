"""Choices of the best of K responses (K may vary): the likelihood of a statistic of theirs.

For a conditional logit (McFadden 1974; the first place of Plackett-Luce) with linear utility φ·θ

    −log P(k is chosen) = log Σ_l exp(φ_l·θ) − φ_k·θ,

so the likelihood touches the labels only through S = Σ_u w_u Σ_j (φ(chosen_j) − mean of Φ_j), where
Φ_j holds the K_j responses of choice j. A release, which stages choices as their pairs, sums it
from these: φ_c − mean of Φ = (1/K) Σ_k (φ_c − φ_k), so that S is the sum over all pairs of a
choice, of weight 2/K, that hold the chosen response (`Rows.row_weights` of
`mechanisms.statistic`, whose guarantee it has). `recover_responses` finds Φ again, for the fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelguard.errors import InvalidLabels
from labelguard.learning.heads import broadcast_column
from labelguard.learning.newton import Point, Preconditioner, minimise

_CHUNK = 1 << 15

Floats = NDArray[np.float64]


def recover_responses(
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
    one, other = locate_pairs(number, size)
    part = z.astype(np.float64) / size[:, None]
    responses = np.zeros((int(offsets[-1]), z.shape[1]))
    np.add.at(responses, offsets[group] + one, part)
    np.subtract.at(responses, offsets[group] + other, part)
    return responses.astype(np.float32), offsets.astype(np.intp)


def locate_pairs(
    number: NDArray[np.int64], size: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """i and j, from 0, of the pairs with these numbers among K responses: the inverse of
    number = i (2K − i − 1) / 2 + j − i − 1.
    """
    twice = 2 * size - 1
    one = ((twice - np.sqrt(twice**2 - 8.0 * number)) / 2).astype(np.int64)
    one += number >= (one + 1) * (twice - one - 1) // 2  # where the root was rounded down
    return one, number - one * (twice - one) // 2 + one + 1


def fit_choices(
    features: NDArray[np.float32],
    sizes: NDArray[np.int64],
    weight: ArrayLike,
    statistic: ArrayLike,
    ridge: ArrayLike,
) -> Floats:
    """θ, shape (components,), of a conditional logit from a (noisy) statistic.

    `features` (responses, components) are those of one choice after the other, and `sizes`
    (choices,) how many each is among. Minimises
    Σ_j w_j log Σ_k exp(φ_k·θ) − θ·(S + Σ_j w_j mean of Φ_j) + ½ Σ ridge θ² by Newton's method, to a
    relative gradient of 1e-8. `weight`, a scalar or (choices,), is at least 0; `statistic` is S,
    (components,); `ridge`, a scalar or (components,), is above 0. Post-processing of the
    statistic: nothing is charged.

    Raises ValueError for values that are not finite, shapes that do not match, weight < 0 or
    ridge <= 0; ArithmeticError if no minimum is reached; `InvalidLabels` for choices among less
    than 2.
    """
    if (sizes < 2).any() or len(features) != sizes.sum():
        raise InvalidLabels("expected the features of at least 2 responses in every choice")
    components = features.shape[1]
    objective = _ChoiceObjective(
        _center(features, sizes),
        sizes,
        broadcast_column(weight, len(sizes), "weight", "choice"),
        broadcast_column(statistic, components, "statistic", "component"),
        broadcast_column(ridge, components, "ridge", "component"),
    )
    bend = objective.at(np.zeros(components)).curvature - np.diag(objective.ridge)
    return minimise(objective, Preconditioner(objective.ridge, bend), None)


@dataclass(frozen=True, eq=False, repr=False)
class _ChoiceObjective:
    """The function that `fit_choices` minimises; `curvature` of a point is the Hessian there."""

    z: NDArray[np.float32]
    sizes: NDArray[np.int64]
    weight: Floats
    linear: Floats
    ridge: Floats

    def at(self, theta: Floats) -> Point:
        """Value, gradient and Hessian in one pass over the responses."""
        value = 0.0
        gradient, hessian = self.ridge * theta - self.linear, np.diag(self.ridge)
        for sets, responses, starts in _iterate_chunks(self.sizes):
            part, weight = self.z[responses].astype(np.float64), self.weight[sets]
            size = self.sizes[sets]
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
        penalty, reward = float(self.ridge @ theta**2) / 2, float(self.linear @ theta)
        magnitude = abs(value) + penalty + abs(reward)
        return Point(theta, value + penalty - reward, magnitude, gradient, hessian)

    def hessian_product(self, point: Point, direction: Floats) -> Floats:
        return np.asarray(point.curvature @ direction)


def _center(features: NDArray[np.float32], sizes: NDArray[np.int64]) -> NDArray[np.float32]:
    """Features less their mean over the responses of each choice, shape (responses, components)."""
    z = np.empty(features.shape, np.float32)
    for sets, responses, starts in _iterate_chunks(sizes):
        part, size = features[responses].astype(np.float64), sizes[sets]
        mean = np.add.reduceat(part, starts, axis=0) / size[:, None]
        z[responses] = part - np.repeat(mean, size, axis=0)
    return z


def _iterate_chunks(
    sizes: NDArray[np.int64],
) -> Iterator[tuple[slice, slice, NDArray[np.int64]]]:
    """Consecutive choices, their responses, and where each begins in these: about _CHUNK responses
    at a time.
    """
    offsets, first = np.append(0, np.cumsum(sizes)), 0
    while first < len(sizes):
        full = np.searchsorted(offsets, offsets[first] + _CHUNK, side="right")
        last = max(first + 1, int(full) - 1)
        responses = slice(int(offsets[first]), int(offsets[last]))
        yield slice(first, last), responses, offsets[first:last] - offsets[first]
        first = last
