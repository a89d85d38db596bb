"""How far released coefficients may be off: from public columns and the noise, never from labels.

The variance of an estimate θ̂ = gain · S̃ is gain (V + N) gainᵀ: N is that of the noise, V what
labels scatter by. V comes from simulated labelers, or from the information matrix times their
design effect; both take labelers to differ as public worlds do. Beside it stands a bound that takes
nothing for granted: each labeler's labels may hang together in any way (`sampling_bound`).

Quantiles are those of simulated errors, with a fixed seed, or of `mechanisms.tails`: ball noise is
not normal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard.mechanisms.noise import DIMENSION_LIMIT
from labelguard.mechanisms.tails import ReleasedNoise, reach

__all__ = [
    "LEVEL",
    "Errors",
    "half_widths",
    "noises_of",
    "normal_draws",
    "numbers",
    "of_noises",
    "simultaneous",
]

LEVEL = 0.95
"""Nominal coverage of intervals."""

DRAWS = 20_000
_FEWEST_DRAWS, _MANY = 4_000, 32
_SEED = 19520601
_MEMBERS = ("gain", "scatter", "bound", "prior", "drift")

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Errors:
    """What makes the error of coefficients, in coordinates; matrices (components, components).

    error = gain · (scatter + noises) + prior + u · drift, u in [−1, 1]. `scatter`, `bound`
    (of the scatter, whatever labels are) and `prior` are covariances; `drift` (components,) is how
    far the estimate moves with what is assumed of labelers. `radius` is the root of Σ C² over
    labelers: clipped parts scatter no further, whatever `bound` says. Simulated errors have u at
    either end: whatever is true within the range, intervals cover it as often as they say.
    """

    gain: Floats
    scatter: Floats
    bound: Floats
    prior: Floats
    drift: Floats
    radius: float
    noises: tuple[ReleasedNoise, ...]

    def draws(self) -> Floats:
        """Simulated errors, shape (DRAWS, components); always the same ones."""
        rng, components = np.random.default_rng(_SEED), len(self.gain)
        inner = rng.standard_normal((DRAWS, components)) @ _root(self.scatter)
        for noise in self.noises:
            inner += noise.draws(components, rng, DRAWS)
        rest = rng.standard_normal((DRAWS, components)) @ _root(self.prior)
        assumed = rng.choice([-1.0, 1.0], (DRAWS, 1)) * self.drift
        return np.asarray(inner @ self.gain.T + rest + assumed)

    def clustered(self, directions: Floats) -> Floats:
        """Half-widths at `LEVEL` along `directions` (components, n) by the bound, shape (n,).

        What labels scatter by is taken for normal, of at most this variance: a sum over many
        labelers. Noise beside it has its own law (`mechanisms.tails.reach`).
        """
        on_sum = self.gain.T @ directions
        scatter = np.einsum("in,ij,jn->n", on_sum, self.bound, on_sum)
        length = np.einsum("in,in->n", on_sum, on_sum)
        prior = np.einsum("in,ij,jn->n", directions, self.prior, directions)
        variance = np.maximum(np.minimum(scatter, self.radius**2 * length) + prior, 0)
        tail, components = (1 - LEVEL) / 2, len(self.gain)
        far = [
            reach(tail, one, self.noises, math.sqrt(other), components)
            for one, other in zip(variance.tolist(), length.tolist(), strict=True)
        ]
        return np.asarray(far + np.abs(self.drift @ directions))

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """As arrays with names, for a file; `of_arrays` is the inverse."""
        named = {name: getattr(self, name) for name in _MEMBERS}
        named["radius"] = np.array(self.radius)
        named |= of_noises(self.noises)
        return {prefix + name: values for name, values in named.items()}

    @classmethod
    def of_arrays(
        cls, found: Mapping[str, NDArray[Any]], prefix: str, components: int
    ) -> Errors | None:
        """The inverse of `arrays`; None if there are none.

        Raises `KeyError`, `TypeError` or `ValueError` for anything else.
        """
        if prefix + "gain" not in found:
            return None
        values = {
            name: numbers(
                found[prefix + name], (components,) if name == "drift" else (components,) * 2
            )
            for name in _MEMBERS
        }
        noises = noises_of(found, prefix)
        radius = float(found[prefix + "radius"])
        if not radius >= 0:
            raise ValueError("the radius is not a number of at least 0")
        return cls(**values, radius=radius, noises=noises)


def of_noises(noises: Sequence[ReleasedNoise]) -> dict[str, NDArray[Any]]:
    """The noise of every window as arrays with names; `noises_of` is the inverse."""
    return {
        "kinds": np.array([one.kind for one in noises], np.str_),
        "least": np.array([one.least for one in noises], np.int64),
        "deviations": np.array([one.deviation for one in noises]),
    }


def noises_of(found: Mapping[str, NDArray[Any]], prefix: str = "") -> tuple[ReleasedNoise, ...]:
    """The inverse of `of_noises`; `KeyError`, `TypeError` or `ValueError` for anything else."""
    columns = [found[prefix + name] for name in ("kinds", "deviations", "least")]
    if any(one.ndim != 1 for one in columns) or not len(columns[0]):
        raise ValueError("noise is not listed")
    rows = zip(*(column.tolist() for column in columns), strict=True)
    noises = tuple(ReleasedNoise(*row) for row in rows)
    for one in noises:
        if one.kind not in ("gaussian", "ball") or type(one.least) is not int:
            raise ValueError("noise of a kind that is not known")
        if not (0 <= one.deviation < np.inf and 1 <= one.least <= DIMENSION_LIMIT):
            raise ValueError("noise of a size that cannot be")
    return noises


def numbers(found: NDArray[Any], shape: tuple[int, ...]) -> Floats:
    """An array of finite numbers of this shape; raises `TypeError` or `ValueError` otherwise."""
    if found.dtype.kind != "f" or found.shape != shape:
        raise ValueError(f"expected numbers of shape {shape}, found {found.shape}")
    if not np.isfinite(found).all():
        raise ValueError("a number is not finite")
    return np.asarray(found, np.float64)


def half_widths(errors: Floats, level: float = LEVEL) -> Floats:
    """The quantile of |error| at `level`, shape (n,), of simulated `errors` (draws, n)."""
    return np.asarray(np.quantile(np.abs(errors), level, axis=0))


def simultaneous(errors: Floats, level: float = LEVEL) -> tuple[float, Floats]:
    """How far all differences of n estimates may be off at once with this probability.

    `errors` (draws, n) are simulated. Returns a factor and the standard deviations of differences,
    (n, n), by which it goes. Of many estimates some of the draws do.
    """
    centred = errors - errors.mean(axis=0)
    covariance = centred.T @ centred / len(errors)
    own = np.diag(covariance)
    spread = np.sqrt(np.maximum(own[:, None] + own - 2 * covariance, 0))
    some = errors[: max(_FEWEST_DRAWS, DRAWS * _MANY // max(errors.shape[1], _MANY))]
    largest = np.zeros(len(some))
    for at in range(errors.shape[1] - 1):
        gap = np.abs(some[:, at, None] - some[:, at + 1 :])
        scale = np.maximum(spread[at, at + 1 :], np.finfo(float).tiny)
        np.maximum(largest, (gap / scale).max(axis=1), out=largest)
    return float(np.quantile(largest, level)), spread


def normal_draws(covariance: Floats) -> Floats:
    """Normal errors of this covariance (n, n), shape (DRAWS, n); always the same ones."""
    rng = np.random.default_rng([_SEED, 1])
    return np.asarray(rng.standard_normal((DRAWS, len(covariance))) @ _root(covariance))


def _root(covariance: Floats) -> Floats:
    """R with Rᵀ R = covariance; small negative eigenvalues are rounding."""
    values, axes = np.linalg.eigh((covariance + covariance.T) / 2)
    return np.asarray(np.sqrt(np.maximum(values, 0))[:, None] * axes.T)
