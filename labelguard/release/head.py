"""A released head: the linear teacher, how its features are computed, and the statistic behind it.

`head.npz` in a release holds arrays only (no pickle). The noisy statistic is in it, so that other
ridges can be fitted from the same release at no further price.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard.errors import LabelguardError, ProjectError
from labelguard.learning.heads import fit_statistic
from labelguard.mechanisms import choices
from labelguard.mechanisms.choices import Choices
from labelguard.mechanisms.geometry import Basis, Shape
from labelguard.mechanisms.statistic import noise_aware_ridge
from labelguard.release.coordinates import Coordinates
from labelguard.storage import arrays

FILE = "head.npz"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Window:
    """One noisy statistic and the public pairs it is about.

    `statistic` (components,) has noise of standard deviation `noise`; `z` (pairs, components) and
    `weight` (pairs,) are the pairs' coordinates and weights in the likelihood. Of choices, `z` are
    the responses of sets of `sizes` (sets,), and `weight` (sets,) is that of the sets. `sampling`
    (components, components) bounds what labels beside the noise scatter by, where that is asked
    (see `mechanisms.statistic.sampling_bound`).
    """

    statistic: Floats
    noise: float
    z: NDArray[np.float32]
    weight: Floats
    clip: float
    sensitivity: float
    sizes: NDArray[np.int64] | None = None
    sampling: Floats | None = None

    def save(self, path: Path) -> None:
        """Write the window as arrays."""
        path.write_bytes(
            arrays.packed({n: np.asarray(v) for n, v in vars(self).items() if v is not None})
        )

    @classmethod
    def load(cls, path: Path) -> Window:
        """The inverse of `save`; `ProjectError` for anything else."""
        try:
            found = arrays.load(path)
            return cls(
                found["statistic"],
                float(found["noise"]),
                found["z"],
                found["weight"],
                float(found["clip"]),
                float(found["sensitivity"]),
                found.get("sizes"),
                found.get("sampling"),
            )
        except (OSError, ValueError, KeyError, TypeError):
            raise ProjectError(f"{path} is damaged; restore it from a backup") from None


@dataclass(frozen=True)
class Head:
    """A linear scorer of pairs on named features; `coefficients` (d,) apply to raw features.

    `statistic` is the noisy statistic it was fitted from, if it was, with its `noise`.
    """

    features: str
    identity: str
    state: Mapping[str, NDArray[Any]]
    shape: Shape
    basis: Basis
    coefficients: Floats
    statistic: Floats | None = None
    noise: float = math.nan

    @property
    def coordinates(self) -> Coordinates:
        """In which it was fitted."""
        return Coordinates(self.features, self.identity, self.state, self.shape, self.basis)

    def margins(self, x: NDArray[np.float32]) -> Floats:
        """Log-odds that the first side of each pair is preferred, shape (pairs,)."""
        return (x @ self.coefficients.astype(np.float32)).astype(np.float64)

    def probability(self, x: NDArray[np.float32]) -> Floats:
        """Probability that the first side of each pair is preferred, shape (pairs,)."""
        probability: Floats = 0.5 * (1 + np.tanh(self.margins(x) / 2))
        return probability

    def to_bytes(self) -> bytes:
        """The file that `load` reads."""
        return arrays.packed(
            {
                **self.coordinates.arrays(),
                "coefficients": self.coefficients,
                "statistic": np.zeros(0) if self.statistic is None else self.statistic,
                "noise": np.array(self.noise),
            }
        )

    @classmethod
    def load(cls, release: Path) -> Head:
        """The head of a release directory; `ProjectError` if it holds none."""
        try:
            found = arrays.load(release / FILE)
            return cls(
                **vars(Coordinates.of_arrays(found)),
                coefficients=found["coefficients"],
                statistic=found["statistic"] if len(found["statistic"]) else None,
                noise=float(found["noise"]),
            )
        except FileNotFoundError:
            raise ProjectError(
                f"{release} holds no head; heads come with --mechanism statistic and props"
            ) from None
        except (OSError, ValueError, KeyError, TypeError):
            raise ProjectError(f"{release / FILE} is damaged; restore it from a backup") from None


def fit(windows: Sequence[Window], basis: Basis, shape: Shape) -> tuple[Floats, Floats, float]:
    """The teacher of all windows: coefficients on raw features, the summed statistic, its noise.

    The windows are all of pairs (and rankings), or all of choices. Post-processing of released
    statistics: nothing is charged.
    """
    total = np.sum([window.statistic for window in windows], axis=0)
    noise = float(np.sqrt(np.sum([window.noise**2 for window in windows])))
    learn = _from_pairs if windows[0].sizes is None else _from_choices
    try:
        beta = learn(windows, total, shape.ridge * basis.metric**2, noise)
    except (ValueError, ArithmeticError) as error:
        raise LabelguardError(f"the head cannot be fitted ({error}); take another ridge") from None
    return basis.projection @ beta, total, noise


def _from_pairs(windows: Sequence[Window], total: Floats, penalty: Floats, noise: float) -> Floats:
    """Logistic regression on comparisons, shape (components,)."""
    z = np.concatenate([window.z for window in windows])
    weight = np.concatenate([window.weight for window in windows])
    return fit_statistic(z, weight, total, noise_aware_ridge(z, weight, penalty, noise))


def _from_choices(
    windows: Sequence[Window], total: Floats, penalty: Floats, noise: float
) -> Floats:
    """Conditional logit among the responses of every choice, shape (components,)."""
    z = np.concatenate([window.z for window in windows])
    weight = np.concatenate([window.weight for window in windows])
    sizes = np.concatenate([window.sizes for window in windows if window.sizes is not None])
    offsets = np.append(0, np.cumsum(sizes)).astype(np.intp)
    asked = Choices(offsets, np.zeros(len(sizes), np.intp), 1)
    # H = Σ (w/K) φ φᵀ over responses: as of pairs that weigh 4w/K.
    ridge = noise_aware_ridge(z, np.repeat(4 * weight / sizes, sizes), penalty, noise)
    return choices.fit(z, asked, weight, total, ridge)
