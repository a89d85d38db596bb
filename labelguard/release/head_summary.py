"""What a released head says of itself: its columns, what each carries, and how sure it is.

All of it is public, and in `head.npz`, so that who has the release alone can read coefficients and
leaderboards with their intervals. How far coefficients may be off follows from public columns and
the noise, never from labels.

The variance of an estimate θ̂ = gain · S̃ is gain (V + N) gainᵀ: N is that of the noise, V what
labels scatter by. V comes from simulated labelers, or from the information matrix times their
design effect; both take labelers to differ as public worlds do. Beside it stands a bound that takes
nothing for granted: each labeler's labels may hang together in any way (`sampling_bound`).

Quantiles are those of simulated errors, with a fixed seed, or of `mechanisms.tails`: ball noise is
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

from labelguard.learning.features import Group
from labelguard.mechanisms.noise import DIMENSION_LIMIT
from labelguard.mechanisms.tails import ReleasedNoise, reach

# Nominal coverage of intervals.
LEVEL = 0.95

DRAWS = 20_000
_FEWEST_DRAWS, _MANY = 4_000, 32
_SEED = 19520601
_MEMBERS = ("gain", "scatter", "bound", "prior", "drift")


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


_PREFIX = "described/"
_GROUPS, _ERRORS, _BOARD = "groups", "errors/", "standings/"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Standings:
    """Coefficients without ridge and clip, for a leaderboard of sources.

    `theta` (components,) is in the head's coordinates, `errors` its own. `edges` (edges, 3) tell
    which two columns of sources met in how many comparisons.
    """

    theta: Floats
    errors: Errors
    edges: NDArray[np.int64]


@dataclass(frozen=True)
class Described:
    """Of a head on d columns, in `groups`.

    `spread` (d,) is the root mean square of each column over the release's pairs, and `share` (d,)
    what share of the decision it carries: Cov(x_j θ_j, margin) / Var(margin); `units` (groups,) are
    the largest values of each group's columns, of indicators what they are scaled by. `errors` are
    None for heads of choices, and `standings` for heads without sources. `unknown` is in how many
    comparisons a source is that the first window did not know.
    """

    groups: tuple[Group, ...]
    spread: Floats
    share: Floats
    units: Floats
    errors: Errors | None = None
    standings: Standings | None = None
    unknown: int = 0

    def arrays(self) -> dict[str, NDArray[Any]]:
        """As arrays with names, for a file; `of_arrays` is the inverse."""
        groups = json.dumps([asdict(group) for group in self.groups]).encode()
        found: dict[str, NDArray[Any]] = {
            _GROUPS: np.frombuffer(groups, np.uint8),
            "spread": self.spread,
            "share": self.share,
            "units": self.units,
            "unknown": np.array(self.unknown),
        }
        found |= self.errors.arrays(_ERRORS) if self.errors else {}
        if board := self.standings:
            found |= {_BOARD + "theta": board.theta, _BOARD + "edges": board.edges}
            found |= board.errors.arrays(_BOARD)
        return {_PREFIX + name: values for name, values in found.items()}

    @classmethod
    def of_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], columns: int, components: int
    ) -> Described | None:
        """The inverse of `arrays`, of a head on so many columns and components; None if there are
        none.

        Raises `KeyError`, `TypeError` or `ValueError` for anything else.
        """
        found = {
            name.removeprefix(_PREFIX): values
            for name, values in arrays.items()
            if name.startswith(_PREFIX)
        }
        if not found:
            return None
        groups = _groups(found[_GROUPS], columns)
        spread, share = (numbers(found[name], (columns,)) for name in ("spread", "share"))
        units = numbers(found["units"], (len(groups),))
        if units.min() < 0 or spread.min() < 0:
            raise ValueError("sizes of columns are below 0")
        errors, standings = Errors.of_arrays(found, _ERRORS, components), None
        if own := Errors.of_arrays(found, _BOARD, components):
            theta = numbers(found[_BOARD + "theta"], (components,))
            standings = Standings(theta, own, _edges(found[_BOARD + "edges"], columns))
        unknown = found["unknown"]
        if unknown.shape or unknown.dtype.kind not in "iu" or unknown < 0:
            raise ValueError("the comparisons of unknown sources are no count")
        return cls(groups, spread, share, units, errors, standings, int(unknown))


def _edges(edges: NDArray[Any], columns: int) -> NDArray[np.int64]:
    if edges.ndim != 2 or edges.shape[1] != 3 or edges.dtype.kind not in "iu":
        raise ValueError("edges are not of three integers each")
    if len(edges) and not (edges.min() >= 0 and edges[:, :2].max() < columns):
        raise ValueError("edges name columns that are not there")
    return edges.astype(np.int64)


def _groups(text: NDArray[Any], columns: int) -> tuple[Group, ...]:
    """The groups that a JSON text holds, which are one after the other all columns."""
    try:
        listed = json.loads(bytes(text))
    except RecursionError:
        raise ValueError("groups are no list") from None
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise ValueError("groups are no list")
    groups = tuple(map(_group, listed))
    starts, stops = [one.start for one in groups], [one.stop for one in groups]
    if [*starts, columns] != [0, *stops] or any(one.start >= one.stop for one in groups):
        raise ValueError("groups are not one after the other all columns")
    return groups


def _group(found: Mapping[str, Any]) -> Group:
    name, start, stop = found["name"], found["start"], found["stop"]
    if not isinstance(name, str) or type(start) is not int or type(stop) is not int:
        raise TypeError("a group is no name and two integers")
    names, strata = (_texts(found[key], stop - start) for key in ("names", "strata"))
    if strata is not None and names is None:
        raise ValueError("a group has strata and no names")
    return Group(name, start, stop, names, strata)


def _texts(found: Any, columns: int) -> tuple[str, ...] | None:
    if found is None:
        return None
    if not isinstance(found, list) or len(found) != columns:
        raise ValueError("a group has another number of names than of columns")
    if not all(isinstance(one, str) for one in found):
        raise TypeError("names are no texts")
    return tuple(found)
