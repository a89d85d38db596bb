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
from labelguard.release.coefficients import (
    NEGLIGIBLE,
    describe_unused_comparisons,
    find_connected_sources,
    find_unreleased,
    load_summarized_head,
    select_group_edges,
)
from labelguard.release.head import Head
from labelguard.release.head_summary import (
    LEVEL,
    CoefficientErrors,
    HeadSummary,
    SourceScores,
    compute_half_widths,
    compute_simultaneous_difference_factor,
)
from labelguard.release.writer import Release, resolve_release_directory
from labelguard.spelling import suggest_misspelled_keywords
from labelguard.text import escape_controls, pluralize

# Points of a log-odd.
ELO = 400 / math.log(10)
# The mean of a board.
MEAN = 1000.0

# The headings of `format_standings`.
COLUMNS = ("source", "rank", "ranks", "score", "interval", "worst case", "comparisons")

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
        """The stratum, or all comparisons."""
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
        rows = [row for board in self.boards for row in board.standings]
        first = [f"{escape_controls(row.source)[:_SHORT]} {row.score:.0f}" for row in rows[:_FEW]]
        more = ["…"] if len(rows) > _FEW else []
        sizes = f"{pluralize(len(rows), 'source')} on {pluralize(len(self.boards), 'board')}"
        return f"Leaderboard({sizes}: {', '.join([*first, *more])})"

    def __str__(self) -> str:
        lines = []
        for board in self.boards:
            cells = [COLUMNS, *format_standings(board)]
            widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
            lines += [f"{board.title}: {board.words}", ""]
            lines += ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
            lines.append("")
        return "\n".join(map(escape_controls, [*lines, *(f"- {note}" for note in self.notes)]))


@suggest_misspelled_keywords
def leaderboard(release: Release | str | Path, stratum: str | None = None) -> Leaderboard:
    """Rank the systems that wrote the responses, by the head of a release; costs nothing.

    `release` is what `privatize` returned with `mechanism="statistic"` and
    `features="source:COLUMN"`, or the path of a release directory; `stratum` is one of those that
    `by=` in its features names (default: a board for each). Scores are points of Elo.

    Raises `ProjectError` without a head, or one of another mechanism, `LabelguardError` for a head
    that has no sources, or without that stratum, `TypeError` for what is no release.

    Example:
        >>> board = lg.leaderboard(compared).boards[0]  # of features="source:model"
        >>> sorted(one.source for one in board.standings)
        ['alpha', 'beta', 'delta', 'epsilon', 'gamma']
    """
    return rank_sources(load_summarized_head(resolve_release_directory(release)), stratum)


def format_standings(board: Board) -> Iterator[tuple[str, ...]]:
    """Yield the standings as cells under `COLUMNS`."""
    for row in board.standings:
        ranks = f"{row.rank}" if row.rank == row.worst_rank else f"{row.rank} to {row.worst_rank}"
        yield (
            row.source,
            f"{row.rank}",
            ranks,
            f"{row.score:.0f}",
            f"{row.low:.0f} to {row.high:.0f}",
            f"± {row.clustered:.0f}",
            f"{row.comparisons:,}",
        )


def rank_sources(head: Head, stratum: str | None = None) -> Leaderboard:
    """Return the leaderboard of a head that has a summary; raises as `leaderboard`."""
    summary = head.summary
    assert summary is not None
    groups = [group for group in summary.groups if group.has_sources and group.names]
    if not groups:
        raise LabelguardError(
            f"this head has the features {head.features}, which do not say which "
            "source wrote a response; a leaderboard needs a release with --features source:COLUMN, "
            f"with --again if these labels are released; if no release is left, {ONE_MORE}"
        )
    if summary.source_scores is None:
        raise LabelguardError(
            "this head has sources, but no leaderboard: it was fitted on choices of the "
            "best of several, or on more than 512 sources; compare pairs, or fewer sources"
        )
    boards: list[Board] = []
    alone: list[tuple[str | None, str]] = []
    for group in groups:
        scores = _GroupScores.estimate(head, summary, summary.source_scores, group)
        for members in scores.list_connected_members():
            place, name = scores.labels[members[0]]
            if len(members) > 1:
                boards.append(scores.build_board(members))
            else:
                alone.append((place, name if place is None else f"{place}: {name}"))
    if stratum is not None:
        known = ", ".join(sorted({name for g in groups for name in g.strata or ()})) or "none"
        boards = [board for board in boards if board.stratum == stratum]
        alone = [source for source in alone if source[0] == stratum]
        if not boards and not alone:
            raise LabelguardError(f"there is no stratum {stratum!r}; found: {known}")
    notes = (*_board_notes(boards), *_explain_scores(head, summary, groups))
    names = tuple(name for _, name in alone)
    return Leaderboard(head.features, LEVEL, MEAN, tuple(boards), names, notes)


@dataclass(frozen=True)
class _GroupScores:
    """Scores of the sources of a group, in points, and their simulated errors.

    `labels` are the stratum and the name of each source; sources of equal `island` (sources,) are
    connected by comparisons. `errors` and `unreleased` (draws, sources) are simulated, `unreleased`
    being the part of directions that were not released; `directions` (components, sources) are the
    scores' own, for the bound without assumptions.
    """

    labels: list[tuple[str | None, str]]
    island: NDArray[np.intp]
    comparisons: NDArray[np.int64]
    scores: Floats
    errors: Floats
    unreleased: Floats
    directions: Floats
    coefficient_errors: CoefficientErrors

    @classmethod
    def estimate(
        cls, head: Head, summary: HeadSummary, estimate: SourceScores, group: Group
    ) -> _GroupScores:
        """Return the scores of a group of sources.

        What lies outside of the released directions is held at 0; intervals cover what is not
        known of it (`release.coefficients`).
        """
        names = group.names or ()
        strata = group.strata or (None,) * len(names)
        labels = [
            (stratum, name if stratum is None else name.removeprefix(f"{stratum}: "))
            for stratum, name in zip(strata, names, strict=True)
        ]
        first, second, times = select_group_edges(estimate.edges, group)
        ends, size = np.concatenate([first, second]), group.stop - group.start
        comparisons = np.bincount(ends, np.concatenate([times, times]), size)
        island = find_connected_sources(estimate, group)
        unit = ELO * float(summary.units[summary.groups.index(group)])
        columns = unit * np.eye(len(head.basis.projection))[:, group.start : group.stop]
        # Scores are around the mean of an island: what all of it shares is in no comparison.
        same = island[:, None] == island
        columns[group.start : group.stop] -= unit * same / same.sum(axis=0)
        directions = head.basis.projection.T @ columns
        unreleased = find_unreleased(head, columns, estimate.theta).simulate_errors()
        return cls(
            labels,
            island,
            comparisons.astype(np.int64),
            estimate.theta @ directions,
            estimate.errors.simulate() @ directions + unreleased,
            unreleased,
            directions,
            estimate.errors,
        )

    def list_connected_members(self) -> list[NDArray[np.intp]]:
        """Return the indices of each set of connected sources, by stratum, larger ones first."""
        sets = [np.flatnonzero(self.island == number) for number in np.unique(self.island)]
        return sorted(sets, key=lambda m: (self.labels[m[0]][0] or "", -len(m), int(m[0])))

    def build_board(self, members: NDArray[np.intp]) -> Board:
        """Return the board of sources that comparisons connect."""
        names = [self.labels[at][1] for at in members.tolist()]
        # Around the mean of the board.
        centre = np.eye(len(members)) - 1 / len(members)
        errors = self.errors[:, members] @ centre
        bound = self.coefficient_errors.compute_conservative_half_widths(
            self.directions[:, members] @ centre
        )
        clustered = np.hypot(bound, compute_half_widths(self.unreleased[:, members] @ centre))
        scores = self.scores[members] - self.scores[members].mean()
        wide = compute_half_widths(errors)
        ahead = find_significant_leads(scores, errors)
        rank, worst = 1 + ahead.sum(axis=0), len(scores) - ahead.sum(axis=1)
        # By score, sources that cannot be distinguished would seem to have an order.
        order = sorted(range(len(scores)), key=lambda at: (rank[at], names[at]))
        points, comparisons = MEAN + scores, self.comparisons[members]
        columns = (rank, worst, points, points - wide, points + wide, clustered, comparisons)
        standings = tuple(
            Standing(names[at], *(column[at].item() for column in columns)) for at in order
        )
        return Board(self.labels[members[0]][0], standings, describe_ranks(standings))


def find_significant_leads(scores: Floats, errors: Floats) -> NDArray[np.bool_]:
    """Return True where row i is ahead of column j, for all pairs at once at `LEVEL`: (n, n).

    `errors` (draws, n) are simulated ones of `scores` (n,).
    """
    factor, spread = compute_simultaneous_difference_factor(errors)
    return np.asarray(scores[:, None] - scores > factor * spread)


def describe_ranks(standings: tuple[Standing, ...]) -> str:
    """Return sentences that name the leader and the sources that share a rank."""
    of_rank: dict[int, list[str]] = {}
    for row in standings:
        of_rank.setdefault(row.rank, []).append(row.source)
    if len(of_rank) == 1:
        return "No two of them can be told apart: they share rank 1."
    sentences = []
    for rank, names in sorted(of_rank.items()):
        if len(names) > 1:
            sentences.append(f"{', '.join(names[:-1])} and {names[-1]} share rank {rank}.")
        elif rank == 1:
            all_others = standings[0].worst_rank == 1
            alone = "is ahead of all others with confidence" if all_others else "has rank 1 alone"
            sentences.append(f"{names[0]} {alone}.")
    return " ".join(sentences) or "All of them can be told apart."


def _board_notes(boards: Sequence[Board]) -> Iterator[str]:
    """Yield the limits of boards, and what would help."""
    if any(len({row.rank for row in one.standings}) < len(one.standings) for one in boards):
        yield "sources that share a rank are in the order of their names"
    if any(all(row.rank == 1 for row in board.standings) for board in boards):
        yield (
            "distinguishing systems takes more labelers, a larger ε, or fewer systems with more "
            "comparisons each"
        )
    total = vague = 0
    for board in boards:
        scores = [row.score for row in board.standings]
        total += len(scores)
        vague += sum(row.clustered > max(scores) - min(scores) for row in board.standings)
    if vague:
        yield (
            f"for {vague:,} of {total:,} sources the ± of the worst case exceeds the spread of "
            "their board's scores, so that this bound does not rank them; the interval does, if "
            "labelers differ as the simulated ones do"
        )


def _explain_scores(head: Head, summary: HeadSummary, groups: list[Group]) -> Iterator[str]:
    """Yield how to read a leaderboard, and its assumptions."""
    yield (
        f"scores are Elo points, 400 / ln 10 per unit of log-odds, with mean {MEAN:,.0f}: a source "
        "100 points ahead wins 64% of comparisons, a tie counting as half a win"
    )
    yield (
        "intervals cover the noise, the sampling error of labels and unknown differences between "
        f"labelers; each holds with {LEVEL:.0%} by itself, ranks hold jointly; pairs are as given"
    )
    others = [group.name for group in summary.groups if group not in groups]
    if others or len(groups) > 1:
        what = ", ".join(others) if others else "the other column of sources"
        yield f"scores are net of {what}: they exclude its effect"
    if summary.unknown:
        yield describe_unused_comparisons(summary.unknown)
    if any(_has_unreleased_differences(head, summary, group) for group in groups):
        yield (
            f"only {head.basis.projection.shape[1]} components were released: scores are 0 along "
            "the others; intervals include these, assuming that they vary like the released ones, "
            "which is rough if few were released: use more --components"
        )


def _has_unreleased_differences(head: Head, summary: HeadSummary, group: Group) -> bool:
    """Return True if a difference of sources that met is not in the released directions."""
    assert summary.source_scores
    first, second, _ = select_group_edges(summary.source_scores.edges, group)
    contrast = np.zeros((len(head.basis.projection), len(first)))
    contrast[first + group.start, np.arange(len(first))] = 1
    contrast[second + group.start, np.arange(len(first))] = -1
    unreleased = find_unreleased(head, contrast, summary.source_scores.theta)
    return bool((unreleased.share > NEGLIGIBLE).any())
