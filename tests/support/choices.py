"""The statistic of choices by its definition, from the responses themselves."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelguard.mechanisms.statistic import choose_clip_and_weights

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Choices:
    """Choice j, of unit[j], is among the rows offsets[j] to offsets[j+1] of a matrix."""

    offsets: NDArray[np.intp]
    unit: NDArray[np.intp]
    units: int

    @property
    def size(self):
        return np.diff(self.offsets)


def centred(features, asked):
    """Features less their mean over the responses of each choice."""
    exact = features.astype(np.float64)
    sums = np.add.reduceat(exact, asked.offsets[:-1], axis=0)
    return np.asarray(exact - np.repeat(sums / asked.size[:, None], asked.size, axis=0))


def clip_of_choices(features, asked, quantile):
    """C and the weights of labelers, from the norms of those who choose at random."""
    squares = (centred(features, asked) ** 2).sum(axis=1)
    of_choice = np.add.reduceat(squares, asked.offsets[:-1]) / asked.size
    return choose_clip_and_weights(
        np.sqrt(np.bincount(asked.unit, of_choice, asked.units)), quantile
    )


def sum_of_choices(features, asked, best, clip, weight):
    """Σ_u clip_C(w_u Σ_j (φ(chosen_j) − mean of Φ_j)); `best` marks one response of each choice."""
    parts = np.zeros((asked.units, features.shape[1]))
    np.add.at(parts, np.repeat(asked.unit, asked.size)[best], centred(features, asked)[best])
    parts *= weight[:, None]
    norms = np.linalg.norm(parts, axis=1, keepdims=True)
    return np.asarray((parts * (clip / np.maximum(norms, clip))).sum(axis=0))
