"""A leaderboard of sources from a released head: scores, intervals and ranks, at no price.

A head on indicators of which source wrote a response is a Bradley–Terry model. Scores are those of
the statistic without the head's ridge and clip (`mechanisms.moments`), in units of Elo: 400 / ln 10
points a log-odd, with mean 1000 over the sources that were compared with each other, as the
Chatbot Arena counts.

A source is surely ahead of another if the interval of their difference is above 0; these intervals
hold for all pairs of a board at once. Its rank is one more than the number of sources that are
surely ahead of it, so that sources which cannot be told apart share a rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelguard.budget.events import ONE_MORE
from labelguard.errors import LabelguardError
from labelguard.learning.features import Group
from labelguard.notebook import Rows, card, several
from labelguard.release.coefficients import (
    NEGLIGIBLE,
    described_head,
    islands,
    own_edges,
    unknown_sources,
    unseen,
)
from labelguard.release.head import Head
from labelguard.release.head_summary import LEVEL, Described, Standings, half_widths, simultaneous
from labelguard.release.writer import Release, directory_of
from labelguard.spelling import suggest_keywords
from labelguard.text import escape_controls, pluralize

__all__ = [
    "COLUMNS",
    "ELO",
    "MEAN",
    "Board",
    "Leaderboard",
    "Standing",
    "leaderboard",
    "ranked",
    "rows",
]

# Points of a log-odd.
ELO = 400 / math.log(10)
# The mean of a board.
MEAN = 1000.0

# The headings of `rows`.
COLUMNS = ("source", "rank", "ranks", "score", "interval", "whatever labels are", "comparisons")

_SOURCE = "source"
# Sources in a repr, and boards in a card.
_FEW = 3
# Letters of a source in a repr.
_SHORT = 24

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Standing:
    """One source on a board."""

    # its name
    source: str
    # one more than how many are surely ahead of it; equal ranks are ties
    rank: int
    # how many there are, less those that it is surely ahead of
    worst_rank: int
    # points of Elo
    score: float
    # lower end of its interval
    low: float
    # upper end
    high: float
    # half-width that holds however the labels of one labeler hang together
    clustered: float
    # labels that it was part of
    comparisons: int


@dataclass(frozen=True)
class Board:
    """Sources that were compared with each other, directly or through others; by rank, then
    by name."""

    # which public stratum; null without strata
    stratum: str | None
    # its sources
    standings: tuple[Standing, ...]
    # who leads and who shares a rank, in words
    words: str

    @property
    def title(self) -> str:
        """What it is about."""
        return self.stratum or "all comparisons"


@dataclass(frozen=True)
class Leaderboard:
    """The boards of a release."""

    # the features of its head
    features: str
    # nominal coverage: of each score by itself, of all ranks of a board together
    level: float
    # the mean score of a board
    mean: float
    # one for each stratum, and for sources that nothing connects
    boards: tuple[Board, ...]
    # sources that met no other
    alone: tuple[str, ...]
    # how to read it
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        best = [one for board in self.boards for one in board.standings]
        first = [f"{escape_controls(one.source)[:_SHORT]} {one.score:.0f}" for one in best[:_FEW]]
        more = ["…"] if len(best) > _FEW else []
        held = f"{pluralize(len(best), 'source')} on {pluralize(len(self.boards), 'board')}"
        return f"Leaderboard({held}: {', '.join([*first, *more])})"

    def _repr_html_(self) -> str:
        told = [f"{board.title}: {board.words}" for board in self.boards]
        facts = [("features", self.features), *several("found", told)]
        facts += [*several("compared with no other", self.alone), *several("notes", self.notes)]
        tables = [
            Rows((board.stratum or COLUMNS[0], *COLUMNS[1:]), tuple(rows(board)))
            for board in self.boards[:_FEW]
        ]
        return card("Leaderboard", facts, tables=tables)


@suggest_keywords
def leaderboard(release: Release | str | Path, stratum: str | None = None) -> Leaderboard:
    """Rank the systems that wrote the responses, by the head of a release; costs nothing.

    `release` is what `privatize` returned with `mechanism="statistic"` and
    `features="source:COLUMN"`, or the path of a release directory; `stratum` is one of those that
    `by=` in its features tells apart (default: a board for each). Scores are points of Elo.

    Raises `ProjectError` without a head, or one of an older version, `LabelguardError` for a head
    that has no sources, or without that stratum, `TypeError` for what is no release.

    Example:
        >>> board = lg.leaderboard(compared).boards[0]  # of features="source:model"
        >>> sorted(one.source for one in board.standings)
        ['alpha', 'beta', 'delta', 'epsilon', 'gamma']
    """
    return ranked(described_head(directory_of(release)), stratum)


def rows(board: Board) -> Iterator[tuple[str, ...]]:
    """The standings as cells under `COLUMNS`."""
    for one in board.standings:
        ranks = f"{one.rank}" if one.rank == one.worst_rank else f"{one.rank} to {one.worst_rank}"
        yield (
            one.source,
            f"{one.rank}",
            ranks,
            f"{one.score:.0f}",
            f"{one.low:.0f} to {one.high:.0f}",
            f"± {one.clustered:.0f}",
            f"{one.comparisons:,}",
        )


def ranked(head: Head, stratum: str | None = None) -> Leaderboard:
    """The leaderboard of a head that says what its columns are; raises as `leaderboard`."""
    about = head.about
    assert about is not None
    groups = [one for one in about.groups if one.name.partition(":")[0] == _SOURCE and one.names]
    if not groups:
        raise LabelguardError(
            f"this head has the features {head.features}, which do not say which "
            "source wrote a response; a leaderboard needs a release with --features source:COLUMN, "
            f"with --again if these labels are released; if no release is left, {ONE_MORE}"
        )
    if about.standings is None:
        raise LabelguardError(
            "this head has sources, but no leaderboard: it is of choices of the best "
            "of several, or of more than 512 sources; compare pairs, or fewer sources"
        )
    boards: list[Board] = []
    alone: list[tuple[str | None, str]] = []
    for group in groups:
        for found in _boards(head, about, about.standings, group):
            if isinstance(found, Board):
                boards.append(found)
            else:
                alone.append(found)
    if stratum is not None:
        known = ", ".join(sorted({name for g in groups for name in g.strata or ()})) or "none"
        boards = [one for one in boards if one.stratum == stratum]
        alone = [one for one in alone if one[0] == stratum]
        if not boards and not alone:
            raise LabelguardError(f"there is no stratum {stratum!r}; found: {known}")
    notes = (*_limits(boards), *_notes(head, about, groups))
    names = tuple(name for _, name in alone)
    return Leaderboard(head.features, LEVEL, MEAN, tuple(boards), names, notes)


def _names(group: Group) -> Iterator[tuple[str | None, str]]:
    """The stratum and the source that each column of a group is about."""
    names = group.names or ()
    for stratum, name in zip(group.strata or (None,) * len(names), names, strict=True):
        yield stratum, name if stratum is None else name.removeprefix(f"{stratum}: ")


def _boards(
    head: Head, about: Described, standings: Standings, group: Group
) -> Iterator[Board | tuple[str | None, str]]:
    """A board for each set of sources that comparisons connect, or the stratum and the name of one
    that is alone.

    Larger ones come first within a stratum.
    """
    size = group.stop - group.start
    one, other, times = own_edges(standings.edges, group)
    island = islands(standings, group)
    comparisons = np.bincount(one, times, size) + np.bincount(other, times, size)
    score, errors = _points(head, about, standings, group)
    names = list(_names(group))
    connected = [np.flatnonzero(island == number) for number in range(int(island.max()) + 1)]
    for members in sorted(connected, key=lambda m: (names[m[0]][0] or "", -len(m), int(m[0]))):
        if len(members) < 2:
            at = int(members[0])
            yield names[at][0], (group.names or ())[at]
            continue
        yield _board(
            names[int(members[0])][0],
            [names[at][1] for at in members.tolist()],
            score[members],
            errors.of(members),
            comparisons[members].astype(np.int64),
        )


@dataclass(frozen=True)
class _Errors:
    """Simulated errors of all columns of a group (draws, columns), in points; what makes the bound:
    `directions` (components, columns) and `unseen` (draws, columns), which `draws` hold.
    """

    standings: Standings
    draws: Floats
    directions: Floats
    unseen: Floats

    def of(self, members: NDArray[np.intp]) -> tuple[Floats, Floats]:
        """Errors (draws, n) around their mean, and half-widths by the clustered bound (n,)."""
        n = len(members)
        centre = np.eye(n) - 1 / n
        bound = self.standings.errors.clustered(self.directions[:, members] @ centre)
        wide = np.hypot(bound, half_widths(self.unseen[:, members] @ centre))
        return self.draws[:, members] @ centre, np.asarray(wide)


def _points(
    head: Head, about: Described, standings: Standings, group: Group
) -> tuple[Floats, _Errors]:
    """Scores of the columns of a group, in points, and their errors.

    What lies outside of the released directions is held at 0; intervals say what is not known of it
    (`release.coefficients`).
    """
    unit = ELO * float(about.units[about.groups.index(group)])
    columns = unit * np.eye(len(head.basis.projection))[:, group.start : group.stop]
    island = islands(standings, group)
    # Scores are around the mean of an island: what all of it shares is in no comparison.
    same = island[:, None] == island
    columns[group.start : group.stop] -= unit * same / same.sum(axis=0)
    directions = head.basis.projection.T @ columns
    score = standings.theta @ directions
    hidden = unseen(head, columns, standings.theta).draws()
    return score, _Errors(
        standings, standings.errors.draws() @ directions + hidden, directions, hidden
    )


def _board(
    stratum: str | None,
    names: list[str],
    score: Floats,
    found: tuple[Floats, Floats],
    comparisons: NDArray[np.int64],
) -> Board:
    errors, clustered = found
    score = score - score.mean()
    wide = half_widths(errors)
    ahead = surely_ahead(score, errors)
    rank, worst = 1 + ahead.sum(axis=0), len(score) - ahead.sum(axis=1)
    # By score, sources that cannot be told apart would seem to have an order.
    order = sorted(range(len(score)), key=lambda at: (rank[at], names[at]))
    points = MEAN + score
    columns = (rank, worst, points, points - wide, points + wide, clustered, comparisons)
    standings = tuple(
        Standing(names[at], *(column[at].item() for column in columns)) for at in order
    )
    return Board(stratum, standings, ties(standings))


def surely_ahead(score: Floats, errors: Floats) -> NDArray[np.bool_]:
    """Whether row i is ahead of column j, for all pairs at once with probability `LEVEL`: (n, n).

    `errors` (draws, n) are simulated ones of `score` (n,).
    """
    factor, spread = simultaneous(errors)
    return np.asarray(score[:, None] - score > factor * spread)


def ties(standings: tuple[Standing, ...]) -> str:
    """Who leads, and who shares a rank, in words."""
    of_rank: dict[int, list[str]] = {}
    for one in standings:
        of_rank.setdefault(one.rank, []).append(one.source)
    if len(of_rank) == 1:
        return "No two of them can be told apart: they share rank 1."
    said = []
    for rank, names in sorted(of_rank.items()):
        if len(names) > 1:
            said.append(f"{', '.join(names[:-1])} and {names[-1]} share rank {rank}.")
        elif rank == 1:
            all_others = standings[0].worst_rank == 1
            alone = "is surely ahead of all others" if all_others else "has rank 1 alone"
            said.append(f"{names[0]} {alone}.")
    return " ".join(said) or "All of them can be told apart."


def _limits(boards: Sequence[Board]) -> Iterator[str]:
    """What boards do not tell, and what would help."""
    if any(all(row.rank == 1 for row in one.standings) for one in boards):
        yield (
            "to tell systems apart takes more labelers, a larger ε, or fewer systems, which are in "
            "more comparisons each"
        )
    rows, vague = sum(len(one.standings) for one in boards), sum(map(_vague, boards))
    if vague:
        yield (
            f"of {vague:,} of {rows:,} sources ± in the column “whatever labels are” is more than "
            "all scores of their board are apart: that bound says nothing of where they stand; the "
            "interval does, if labelers differ as simulated ones do"
        )


def _vague(board: Board) -> int:
    """Of how many sources the bound without assumptions is wider than the board."""
    scores = [one.score for one in board.standings]
    return sum(one.clustered > max(scores) - min(scores) for one in board.standings)


def _notes(head: Head, about: Described, groups: list[Group]) -> Iterator[str]:
    """How to read it, and what it takes for granted."""
    yield (
        f"scores are points of Elo, 400 / ln 10 a log-odd, with mean {MEAN:,.0f}: 100 points more "
        "are preferred in 64% of comparisons, a tie being half a win"
    )
    yield (
        "intervals hold the noise, the scatter of labels and what is not known of how labelers "
        f"differ; each covers with {LEVEL:.0%} by itself, ranks all together; pairs are as given"
    )
    others = [one.name for one in about.groups if one not in groups]
    if others or len(groups) > 1:
        what = ", ".join(others) if others else "the other column of sources"
        yield f"scores are net of {what}: what sources owe to that is not in them"
    if about.unknown:
        yield unknown_sources(about.unknown)
    if _missing(head, about, groups):
        yield (
            f"only {head.basis.projection.shape[1]} directions were released: what lies outside is "
            "held at 0, and intervals are wider for it: they take strengths along it to be spread "
            "as along those released, of which few say little; ask for more --components"
        )


def _missing(head: Head, about: Described, groups: list[Group]) -> bool:
    """Whether some difference of sources that met is not in the released directions."""
    assert about.standings
    for group in groups:
        one, other, _ = own_edges(about.standings.edges, group)
        contrast = np.zeros((len(head.basis.projection), len(one)))
        contrast[one + group.start, np.arange(len(one))] = 1
        contrast[other + group.start, np.arange(len(one))] = -1
        if (unseen(head, contrast, about.standings.theta).share > NEGLIGIBLE).any():
            return True
    return False
