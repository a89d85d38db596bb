"""The coefficients of a released head for people: signed, with intervals, by what each carries.

A coefficient is told per typical difference of its column (its root mean square over the release's
pairs), in log-odds, so that columns compare. Post-processing of a release: nothing is charged.

What lies outside of the released directions is not known (`unseen`). They are chosen by public
columns alone, so that before the release nothing tells them from the others: coefficients along all
of them are taken to be normal, of one variance. Of few of them that variance is hardly known. An
upper bound of it is taken, at 95% (the chi-square distribution of the sum of squares), between a
small variance and that of the wide prior of `mechanisms.moments`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.stats import chi2

from labelguard.errors import ProjectError
from labelguard.learning.features import Group
from labelguard.mechanisms.moments import WIDE
from labelguard.release.head import Head
from labelguard.release.head_summary import (
    DRAWS,
    LEVEL,
    Described,
    Standings,
    half_widths,
    normal_draws,
)

# Of a coefficient along a principal axis, on features of mean squared norm 1.
LEAST_VARIANCE = 1 / 3
# Share of a direction's length below which what is outside is rounding.
NEGLIGIBLE = 1e-3


@dataclass(frozen=True)
class Unseen:
    """The part of directions (columns, n) that is outside of what was released."""

    # what is left of each direction, shape (columns, n)
    rest: Floats
    # its length as a share of the direction's, shape (n,)
    share: Floats
    # coefficients along the principal axes that were released, shape (components,)
    known: Floats

    def draws(self) -> Floats:
        """Simulated errors along the directions, shape (DRAWS, n); always the same ones."""
        if not (self.share > NEGLIGIBLE).any():
            return np.zeros((DRAWS, self.rest.shape[1]))
        bound = float((self.known**2).sum()) / chi2.ppf(1 - LEVEL, len(self.known))
        variance = min(max(bound, LEAST_VARIANCE), WIDE**2)
        return normal_draws(variance * self.rest.T @ self.rest)


def unseen(head: Head, directions: Floats, beta: Floats) -> Unseen:
    """What is not known along `directions` (columns, n) of raw features.

    `beta` (components,) are the coefficients that are known, in the head's coordinates.
    """
    projection, metric = head.basis.projection, head.basis.metric
    rest = directions - projection @ (np.linalg.pinv(projection) @ directions)
    length = np.maximum(np.linalg.norm(directions, axis=0), np.finfo(float).tiny)
    share = np.linalg.norm(rest, axis=0) / length
    rest[:, share <= NEGLIGIBLE] = 0
    return Unseen(rest, share, np.asarray(metric * beta))


def own_edges(
    edges: NDArray[np.int64], group: Group
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The edges of a group: two columns of it, and how often they met."""
    own = edges[(edges[:, 0] >= group.start) & (edges[:, 0] < group.stop)]
    return own[:, 0] - group.start, own[:, 1] - group.start, own[:, 2]


def islands(standings: Standings, group: Group) -> NDArray[np.intp]:
    """Which sources of a group comparisons connect, directly or through others, shape (sources,).

    Equal numbers are connected.
    """
    size = group.stop - group.start
    one, other, _ = own_edges(standings.edges, group)
    graph = coo_array((np.ones(len(one)), (one, other)), shape=(size, size))
    return np.asarray(connected_components(graph, directed=False)[1], np.intp)


# Columns that are told one by one; of more, those that carry most.
MOST = 40
_IN_WORDS = 4
# What is preferred where a coefficient is above 0, and below.
_PHRASES = {
    "length": ("longer responses", "shorter responses"),
    "sentence-length": ("longer sentences", "shorter sentences"),
    "word-length": ("longer words", "shorter words"),
    "reading-ease": ("easier reading", "harder reading"),
    "overlap": ("more of the prompt's words", "fewer of the prompt's words"),
}

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Coefficient:
    """What one column adds to a decision."""

    # the group of features that it is of
    group: str
    # what it is
    name: str
    # log-odds for the first side, for a typical difference of this column
    value: float
    # lower end of its interval; null without one
    low: float | None
    # upper end
    high: float | None
    # half-width that holds however the labels of one labeler hang together
    clustered: float | None
    # share of the decision that it carries; below 0 where it works against the rest
    share: float


@dataclass(frozen=True)
class GroupShare:
    """What one group of features adds to a decision."""

    # the part of the features' specification
    group: str
    # how many columns it has
    columns: int
    # share of the decision that it carries
    share: float


@dataclass(frozen=True)
class Coefficients:
    """What a head decides by."""

    # its features
    features: str
    # directions that were released
    components: int
    # columns that there are; more than components: the rest is held at 0
    directions: int
    # nominal coverage of each interval
    level: float
    # its groups, in order
    groups: tuple[GroupShare, ...]
    # the columns that have names, by the share that they carry
    columns: tuple[Coefficient, ...]
    # what stands out, in a sentence
    words: str
    # what intervals take for granted
    notes: tuple[str, ...]

    def told(self) -> dict[str, Any]:
        """For a card."""
        return asdict(self)


# The headings of `rows`.
COLUMNS = ("column", "log-odds", "interval", "whatever labels are", "share")


def rows(columns: Iterable[Coefficient]) -> Iterator[tuple[str, str, str, str, str]]:
    """Columns as cells: a typical difference's log-odds, its intervals, and what it carries."""
    for one in columns:
        yield (
            one.name,
            f"{one.value:+z.3f}",
            "–" if one.low is None else f"{one.low:+z.3f} to {one.high:+z.3f}",
            "–" if one.clustered is None else f"± {one.clustered:.3f}",
            f"{one.share:z.0%}",
        )


def described_head(release: Path) -> Head:
    """The head of a release directory with what it says of itself.

    Raises `ProjectError` if there is none, or one of an older version, or of another mechanism.
    """
    head = Head.load(release)
    if head.about is None:
        raise ProjectError(
            f"the head in {release} does not say what its columns are: expected one of --mechanism "
            "statistic by this version or a later one; release anew, which the policy has to pay"
        )
    return head


def coefficients_of(head: Head) -> Coefficients:
    """The coefficients of a head that says what its columns are."""
    about = head.about
    assert about is not None
    columns: list[tuple[int, Group, str]] = []
    for group in about.groups:
        names = group.names or ()
        columns += [(group.start + at, group, name) for at, name in enumerate(names)]
    columns = [one for one in columns if about.spread[one[0]] > 0]
    columns.sort(key=lambda one: (-abs(about.share[one[0]]), one[0]))
    stated = _stated(head, about, columns)
    columns = columns[:MOST]
    index = np.array([column for column, _, _ in columns], np.intp)
    value = (head.coefficients * about.spread)[index]
    wide: Floats | None = None
    clustered: Floats | None = None
    if about.errors is not None and len(index):
        contrasts = _contrasts(about, columns)
        errors, hidden = _errors(head, contrasts)
        wide = half_widths(errors)
        bound = about.errors.clustered(head.basis.projection.T @ contrasts)
        clustered = np.hypot(bound, half_widths(hidden))
    told = tuple(
        Coefficient(
            group.name,
            name,
            float(value[at]),
            None if wide is None else float(value[at] - wide[at]),
            None if wide is None else float(value[at] + wide[at]),
            None if clustered is None else float(clustered[at]),
            float(about.share[column]),
        )
        for at, (column, group, name) in enumerate(columns)
    )
    groups = tuple(
        GroupShare(one.name, one.stop - one.start, float(about.share[one.start : one.stop].sum()))
        for one in about.groups
    )
    components, d = head.basis.projection.shape[1], len(head.coefficients)
    return Coefficients(
        head.features,
        components,
        d,
        LEVEL,
        groups,
        told,
        _words(head, about, stated),
        tuple(_notes(head, components, d)),
    )


def _contrasts(about: Described, columns: list[tuple[int, Group, str]]) -> Floats:
    """Directions of raw features (d, n) whose coefficients are told of columns.

    Of sources only what tells them from those that they were compared with means anything.
    """
    found = np.zeros((len(about.spread), len(columns)))
    for at, (column, group, _) in enumerate(columns):
        found[column, at] = about.spread[column]
        if _of_sources(group):
            own = np.arange(group.start, group.stop)
            if about.standings:
                island = islands(about.standings, group)
                own = own[island == island[column - group.start]]
            found[own, at] -= about.spread[column] / len(own)
    return found


def _errors(head: Head, contrasts: Floats) -> tuple[Floats, Floats]:
    """Simulated errors along contrasts (d, n), shape (draws, n), and the part that is of what was
    not released.
    """
    assert head.about and head.about.errors
    projection = head.basis.projection
    known = np.asarray(np.linalg.lstsq(projection, head.coefficients, rcond=None)[0], np.float64)
    hidden = unseen(head, contrasts, known).draws()
    return head.about.errors.draws() @ (projection.T @ contrasts) + hidden, hidden


def _stated(
    head: Head, about: Described, columns: list[tuple[int, Group, str]]
) -> list[tuple[str, float]] | None:
    """Columns, not of sources, and values whose signs are right all together with probability
    `LEVEL`; those that carry most first. None without intervals.
    """
    if about.errors is None:
        return None
    asked = [one for one in columns if not _of_sources(one[1])]
    if not asked:
        return []
    contrasts = _contrasts(about, asked)
    errors = _errors(head, contrasts)[0]
    spread = np.maximum(errors.std(axis=0), np.finfo(float).tiny)
    factor = np.quantile(np.abs(errors / spread).max(axis=1), LEVEL)
    value = head.coefficients @ contrasts
    sure = np.flatnonzero(np.abs(value) > factor * spread)
    return [(asked[at][2], float(value[at])) for at in sure]


def _of_sources(group: Group) -> bool:
    return group.name.partition(":")[0] == "source"


def _words(head: Head, about: Described, stated: list[tuple[str, float]] | None) -> str:
    """What labelers prefer, of columns whose intervals exclude 0 all at once; of sources only
    where that is told.
    """
    words = []
    if stated is None:
        words.append("Nothing is said of what stands out: these coefficients have no intervals.")
    elif stated:
        said = [_phrase(name, value) for name, value in stated[:_IN_WORDS]]
        listed = said[0] if len(said) == 1 else f"{', '.join(said[:-1])} and {said[-1]}"
        words.append(f"These labelers prefer {listed}.")
    elif any(one.names and not _of_sources(one) for one in about.groups):
        words.append("No named column stands out: all intervals together leave room for 0.")
    if any(map(_of_sources, about.groups)):
        words.append("`labelguard leaderboard` tells which sources are ahead of others.")
    return " ".join(words) or "No column has a name."


def _phrase(name: str, value: float) -> str:
    """One preference."""
    name = " ".join(name.split())
    more, less = _PHRASES.get(name, (f"more {name}", f"less {name}"))
    if name.endswith("s") and name not in _PHRASES:
        less = f"fewer {name}"
    return more if value > 0 else less


def unknown_sources(comparisons: int) -> str:
    """What is said of comparisons that a sum could not use."""
    many = "1 comparison" if comparisons == 1 else f"{comparisons:,} comparisons"
    return (
        f"{many} of this sum were with sources that its first window did not know, and say nothing "
        "of any source: begin a new sum with --again to rank them"
    )


def _notes(head: Head, components: int, d: int) -> list[str]:
    found = []
    assert head.about
    if head.about.errors is None:
        found.append("heads of choices have no intervals yet")
    else:
        found.append(
            "intervals hold the noise and the scatter of labels around what the fit, which "
            "shrinks toward 0, gives on average; each holds by itself, not all of them at once; "
            "the sentence on preferences holds as a whole"
        )
    if head.about.unknown:
        found.append(unknown_sources(head.about.unknown))
    if components < d:
        found.append(
            f"{components:,} directions of {d:,} columns were released: columns that go together "
            "share what is known of them, and intervals are wider for what was not released"
        )
    return found
