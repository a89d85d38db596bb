"""What a released head says of itself: its columns, what each carries, and how sure it is.

All of it is public, and in `head.npz`, so that who has the release alone can read coefficients and
leaderboards with their intervals.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard.learning.features import Group
from labelguard.release.uncertainty import Errors, numbers

__all__ = ["Described", "Standings"]

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
