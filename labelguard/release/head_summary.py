"""Summary of a released head: its columns, the share that each carries, and its errors.

All of it is public, and in `head.npz`, so that anyone with the release alone can read coefficients
and leaderboards with their intervals. How far coefficients may be off follows from public columns
and the noise, never from labels.

The variance of an estimate θ̂ = gain · S̃ is gain (V + N) gainᵀ: N is that of the noise, V what
labels scatter by. V comes from simulated labelers, or from the information matrix times their
design effect; both take labelers to differ as public worlds do. Beside it stands a bound that takes
nothing for granted: each labeler's labels may hang together in any way
(`bound_sampling_covariance`).

Quantiles are those of simulated errors, with a fixed seed, or of `mechanisms.noise`: ball noise is
not normal.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from labelguard.learning.features import Group
from labelguard.mechanisms.noise import DIMENSION_LIMIT, ReleasedNoise, bound_quantile

# Nominal coverage of intervals.
LEVEL = 0.95

DRAWS = 20_000
_FEWEST_DRAWS, _MANY = 4_000, 32
_SEED = 19520601
_MEMBERS = ("gain", "scatter", "bound", "prior", "drift")
_PREFIX, _ERRORS, _SCORES = "described/", "errors/", "standings/"
_GROUPS = TypeAdapter(tuple[Group, ...])

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class CoefficientErrors:
    """Sources of the error of coefficients, in coordinates; matrices (components, components).

    error = gain · (scatter + noises) + prior + u · drift, u in [−1, 1]. `scatter`, `bound`
    (of the scatter, whatever labels are) and `prior` are covariances; `drift` (components,) is how
    far the estimate moves with what is assumed of labelers. `radius` is the root of Σ C² over
    labelers: clipped parts scatter no further, whatever `bound` says. Simulated errors have u
    anywhere in its range, the bound takes the worse end.
    """

    gain: Floats
    scatter: Floats
    bound: Floats
    prior: Floats
    drift: Floats
    radius: float
    noises: tuple[ReleasedNoise, ...]

    def simulate(self) -> Floats:
        """Return simulated errors, shape (DRAWS, components); always the same ones."""
        rng, components = np.random.default_rng(_SEED), len(self.gain)
        inner = rng.standard_normal((DRAWS, components)) @ _compute_root(self.scatter)
        for noise in self.noises:
            inner += noise.draws(components, rng, DRAWS)
        rest = rng.standard_normal((DRAWS, components)) @ _compute_root(self.prior)
        assumed = rng.uniform(-1.0, 1.0, (DRAWS, 1)) * self.drift
        return np.asarray(inner @ self.gain.T + rest + assumed)

    def compute_conservative_half_widths(self, directions: Floats) -> Floats:
        """Return half-widths (n,) at `LEVEL` along `directions` (components, n), by the bound.

        What labels scatter by is taken for normal, of at most this variance: a sum over many
        labelers. Noise beside it has its own law (`mechanisms.noise.bound_quantile`).
        """
        on_sum = self.gain.T @ directions
        scatter = np.einsum("in,ij,jn->n", on_sum, self.bound, on_sum)
        square = np.einsum("in,in->n", on_sum, on_sum)
        prior = np.einsum("in,ij,jn->n", directions, self.prior, directions)
        variances = np.maximum(np.minimum(scatter, self.radius**2 * square) + prior, 0)
        tail, components = (1 - LEVEL) / 2, len(self.gain)
        widths = [
            bound_quantile(tail, variance, self.noises, math.sqrt(length), components)
            for variance, length in zip(variances.tolist(), square.tolist(), strict=True)
        ]
        return np.asarray(widths + np.abs(self.drift @ directions))

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Return named arrays for a file; `from_arrays` is the inverse."""
        named = {name: getattr(self, name) for name in _MEMBERS}
        named["radius"] = np.array(self.radius)
        named |= pack_noises(self.noises)
        return {prefix + name: values for name, values in named.items()}

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], prefix: str, components: int
    ) -> CoefficientErrors | None:
        """Invert `arrays`; None if there are none.

        Raises `KeyError`, `TypeError` or `ValueError` for anything else.
        """
        if prefix + "gain" not in arrays:
            return None
        square = (components, components)
        values = {
            name: check_numbers(arrays[prefix + name], (components,) if name == "drift" else square)
            for name in _MEMBERS
        }
        radius = float(arrays[prefix + "radius"])
        if not radius >= 0:
            raise ValueError("the radius is not a number of at least 0")
        return cls(**values, radius=radius, noises=unpack_noises(arrays, prefix))


def pack_noises(noises: Sequence[ReleasedNoise]) -> dict[str, NDArray[Any]]:
    """Return the noise of every window as named arrays; `unpack_noises` is the inverse."""
    return {
        "kinds": np.array([noise.kind for noise in noises], np.str_),
        "least": np.array([noise.least for noise in noises], np.int64),
        "deviations": np.array([noise.deviation for noise in noises]),
    }


def unpack_noises(
    arrays: Mapping[str, NDArray[Any]], prefix: str = ""
) -> tuple[ReleasedNoise, ...]:
    """Invert `pack_noises`; `KeyError`, `TypeError` or `ValueError` for anything else."""
    columns = [arrays[prefix + name] for name in ("kinds", "deviations", "least")]
    if any(column.ndim != 1 for column in columns) or not len(columns[0]):
        raise ValueError("noise is not listed")
    rows = zip(*(column.tolist() for column in columns), strict=True)
    noises = tuple(ReleasedNoise(*row) for row in rows)
    for noise in noises:
        if noise.kind not in ("gaussian", "ball") or type(noise.least) is not int:
            raise ValueError("noise of a kind that is not known")
        if not (0 <= noise.deviation < np.inf and 1 <= noise.least <= DIMENSION_LIMIT):
            raise ValueError("noise of a size that cannot be")
    return noises


def check_numbers(values: NDArray[Any], shape: tuple[int, ...]) -> Floats:
    """Return an array of finite numbers of this shape; `TypeError` or `ValueError` otherwise."""
    if values.dtype.kind != "f" or values.shape != shape:
        raise ValueError(f"expected numbers of shape {shape}, found {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("a number is not finite")
    return np.asarray(values, np.float64)


def compute_half_widths(errors: Floats) -> Floats:
    """Return the quantile of |error| at `LEVEL`, shape (n,), of simulated `errors` (draws, n)."""
    return np.asarray(np.quantile(np.abs(errors), LEVEL, axis=0))


def compute_simultaneous_difference_factor(errors: Floats) -> tuple[float, Floats]:
    """Return a factor and the standard deviations (n, n) of differences of n estimates.

    With probability `LEVEL`, no difference is further off than the factor times its deviation.
    `errors` (draws, n) are simulated; of many estimates, a part of the draws is used.
    """
    centred = errors - errors.mean(axis=0)
    covariance = centred.T @ centred / len(errors)
    variance = np.diag(covariance)
    spread = np.sqrt(np.maximum(variance[:, None] + variance - 2 * covariance, 0))
    draws = errors[: max(_FEWEST_DRAWS, DRAWS * _MANY // max(errors.shape[1], _MANY))]
    largest = np.zeros(len(draws))
    for at in range(errors.shape[1] - 1):
        gap = np.abs(draws[:, at, None] - draws[:, at + 1 :])
        scale = np.maximum(spread[at, at + 1 :], np.finfo(float).tiny)
        np.maximum(largest, (gap / scale).max(axis=1), out=largest)
    return float(np.quantile(largest, LEVEL)), spread


def draw_normal_errors(covariance: Floats) -> Floats:
    """Return normal errors of this covariance (n, n), shape (DRAWS, n); always the same ones."""
    rng = np.random.default_rng([_SEED, 1])
    return np.asarray(rng.standard_normal((DRAWS, len(covariance))) @ _compute_root(covariance))


def _compute_root(covariance: Floats) -> Floats:
    """Return R with Rᵀ R = covariance; small negative eigenvalues are rounding."""
    values, axes = np.linalg.eigh((covariance + covariance.T) / 2)
    return np.asarray(np.sqrt(np.maximum(values, 0))[:, None] * axes.T)


@dataclass(frozen=True)
class SourceScores:
    """Coefficients without ridge and clip, for a leaderboard of sources.

    `theta` (components,) is in the head's coordinates, with its own `errors`. `edges` (edges, 3)
    tell which two columns of sources met in how many comparisons.
    """

    theta: Floats
    errors: CoefficientErrors
    edges: NDArray[np.int64]


@dataclass(frozen=True)
class HeadSummary:
    """The summary of a head on d columns, in `groups`.

    `spread` (d,) is the root mean square of each column over the release's pairs, and `share` (d,)
    the share of the decision it carries: Cov(x_j θ_j, margin) / Var(margin); `units` (groups,) are
    the largest values of each group's columns, of indicators their scale. `errors` are None for
    heads of choices, and `source_scores` for heads without sources. `unknown` is in how many
    comparisons a source is that the first window did not know.
    """

    groups: tuple[Group, ...]
    spread: Floats
    share: Floats
    units: Floats
    errors: CoefficientErrors | None = None
    source_scores: SourceScores | None = None
    unknown: int = 0

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return named arrays for a file; `from_arrays` is the inverse."""
        groups = json.dumps([asdict(group) for group in self.groups]).encode()
        named: dict[str, NDArray[Any]] = {
            "groups": np.frombuffer(groups, np.uint8),
            "spread": self.spread,
            "share": self.share,
            "units": self.units,
            "unknown": np.array(self.unknown),
        }
        if self.errors:
            named |= self.errors.arrays(_ERRORS)
        if scores := self.source_scores:
            named |= {_SCORES + "theta": scores.theta, _SCORES + "edges": scores.edges}
            named |= scores.errors.arrays(_SCORES)
        return {_PREFIX + name: values for name, values in named.items()}

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], columns: int, components: int
    ) -> HeadSummary | None:
        """Invert `arrays`, of a head on so many columns and components; None if there are none.

        Raises `KeyError`, `TypeError` or `ValueError` for anything else.
        """
        named = {
            name.removeprefix(_PREFIX): values
            for name, values in arrays.items()
            if name.startswith(_PREFIX)
        }
        if not named:
            return None
        groups = _parse_groups(named["groups"], columns)
        spread, share = (check_numbers(named[name], (columns,)) for name in ("spread", "share"))
        units = check_numbers(named["units"], (len(groups),))
        if units.min() < 0 or spread.min() < 0:
            raise ValueError("sizes of columns are below 0")
        errors, scores = CoefficientErrors.from_arrays(named, _ERRORS, components), None
        if score_errors := CoefficientErrors.from_arrays(named, _SCORES, components):
            theta = check_numbers(named[_SCORES + "theta"], (components,))
            edges = _check_comparison_edges(named[_SCORES + "edges"], columns)
            scores = SourceScores(theta, score_errors, edges)
        unknown = named["unknown"]
        if unknown.shape or unknown.dtype.kind not in "iu" or unknown < 0:
            raise ValueError("the comparisons of unknown sources are no count")
        return cls(groups, spread, share, units, errors, scores, int(unknown))


def _check_comparison_edges(edges: NDArray[Any], columns: int) -> NDArray[np.int64]:
    if edges.ndim != 2 or edges.shape[1] != 3 or edges.dtype.kind not in "iu":
        raise ValueError("edges are not of three integers each")
    if len(edges) and not (edges.min() >= 0 and edges[:, :2].max() < columns):
        raise ValueError("edges name columns that are not there")
    return edges.astype(np.int64)


def _parse_groups(text: NDArray[Any], columns: int) -> tuple[Group, ...]:
    """Return the groups that a JSON text holds, which are one after the other all columns."""
    groups = _GROUPS.validate_json(bytes(text), strict=True)
    starts, stops = [group.start for group in groups], [group.stop for group in groups]
    if [*starts, columns] != [0, *stops] or any(g.start >= g.stop for g in groups):
        raise ValueError("groups are not one after the other all columns")
    for group in groups:
        for names in (group.names, group.strata):
            if names is not None and len(names) != group.stop - group.start:
                raise ValueError("a group has another number of names than of columns")
        if group.strata is not None and group.names is None:
            raise ValueError("a group has strata and no names")
    return groups
