"""The coefficients of a released head for people: signed, with intervals, by what each carries.

A coefficient is stated per typical difference of its column (its root mean square over the
release's pairs), in log-odds, so that columns compare. Post-processing of a release: nothing is
charged.

What lies outside of the released directions is not known (`find_unreleased`). They are
chosen by public columns alone, so that before the release nothing distinguishes them from others:
coefficients along all of them are taken to be normal, of one variance. Of few of them that variance
is hardly known. An upper bound of it is taken, at 95% (the chi-square distribution of the sum of
squares), between a small variance and that of the wide prior of `mechanisms.moments`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelguard.errors import ProjectError
from labelguard.learning.features import Group, left_out_note
from labelguard.mechanisms.moments import WIDE
from labelguard.release.head import Head
from labelguard.release.head_summary import (
    DRAWS,
    LEVEL,
    HeadSummary,
    SourceScores,
    compute_half_widths,
    draw_normal_errors,
)
from labelguard.text import pluralize

# Of a coefficient along a principal axis, on features of mean squared norm 1.
LEAST_VARIANCE = 1 / 3
# Share of a direction's length below which what is outside is rounding.
NEGLIGIBLE = 1e-3
# Columns that are listed; of more, those that carry most.
MOST = 40
# The headings of `format_coefficient_rows`.
COLUMNS = ("column", "log-odds", "interval", "worst case", "of the decision")
_IN_WORDS = 4
# The preference where a coefficient is above 0, and below.
_PHRASES = {
    "length": ("longer responses", "shorter responses"),
    "sentence-length": ("longer sentences", "shorter sentences"),
    "word-length": ("longer words", "shorter words"),
    "reading-ease": ("easier reading", "harder reading"),
    "overlap": ("more of the prompt's words", "fewer of the prompt's words"),
}

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NamedColumn:
    """A column of features: its index, its group and its name."""

    index: int
    group: Group
    name: str


@dataclass(frozen=True)
class UnreleasedDirections:
    """The part of directions (columns, n) that is outside of what was released.

    `rest` (columns, n) is what is left of each direction, `share` (n,) its length as a share of
    the direction's, and `known` (components,) are coefficients along the released principal axes.
    """

    rest: Floats
    share: Floats
    known: Floats

    def simulate_errors(self) -> Floats:
        """Return simulated errors along the directions, shape (DRAWS, n); always the same ones."""
        if not (self.share > NEGLIGIBLE).any():
            return np.zeros((DRAWS, self.rest.shape[1]))
        from scipy.special import chdtri

        bound = float((self.known**2).sum()) / chdtri(len(self.known), LEVEL)
        variance = min(max(bound, LEAST_VARIANCE), WIDE**2)
        return draw_normal_errors(variance * self.rest.T @ self.rest)


def find_unreleased(head: Head, directions: Floats, beta: Floats) -> UnreleasedDirections:
    """Return the unreleased part of `directions` (columns, n) of raw features.

    `beta` (components,) are the coefficients that are known, in the head's coordinates.
    """
    projection, metric = head.basis.projection, head.basis.metric
    rest = directions - projection @ (np.linalg.pinv(projection) @ directions)
    length = np.maximum(np.linalg.norm(directions, axis=0), np.finfo(float).tiny)
    share = np.linalg.norm(rest, axis=0) / length
    rest[:, share <= NEGLIGIBLE] = 0
    return UnreleasedDirections(rest, share, np.asarray(metric * beta))


def select_group_edges(
    edges: NDArray[np.int64], group: Group
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the edges of a group: two columns of it, and how often they met."""
    inside = edges[(edges[:, 0] >= group.start) & (edges[:, 0] < group.stop)]
    return inside[:, 0] - group.start, inside[:, 1] - group.start, inside[:, 2]


def find_connected_sources(scores: SourceScores, group: Group) -> NDArray[np.intp]:
    """Return numbers, shape (sources,), that are equal where comparisons connect sources.

    Directly, or through other sources of the group.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    size = group.stop - group.start
    first, second, _ = select_group_edges(scores.edges, group)
    graph = coo_array((np.ones(len(first)), (first, second)), shape=(size, size))
    return np.asarray(connected_components(graph, directed=False)[1], np.intp)


@dataclass(frozen=True)
class Coefficient:
    """The contribution of one column to a decision."""

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
    """The contribution of one group of features to a decision."""

    # the part of the features' specification
    group: str
    # how many columns it has
    columns: int
    # share of the decision that it carries
    share: float


@dataclass(frozen=True)
class Coefficients:
    """The coefficients of a head, with intervals and notes."""

    # its features
    features: str
    # how many were released
    components: int
    # columns that there are; more than components: the rest is held at 0
    column_count: int
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


def format_coefficient_rows(
    columns: Iterable[Coefficient],
) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield cells under `COLUMNS`: log-odds of a typical difference, intervals and share."""
    for column in columns:
        yield (
            column.name,
            f"{column.value:+z.3f}",
            "–" if column.low is None else f"{column.low:+z.3f} to {column.high:+z.3f}",
            "–" if column.clustered is None else f"± {column.clustered:.3f}",
            f"{column.share:z.0%}",
        )


def load_summarized_head(release: Path) -> Head:
    """Return the head of a release directory, which has a summary.

    Raises `ProjectError` if there is none, or one of another mechanism.
    """
    head = Head.load(release)
    if head.summary is None:
        raise ProjectError(
            f"the head in {release} does not say what its columns are: expected one of --mechanism "
            "statistic; release anew, which the policy has to pay"
        )
    return head


def summarize_coefficients(head: Head) -> Coefficients:
    """Return the coefficients of a head that has a summary."""
    summary = head.summary
    assert summary is not None
    columns = [
        NamedColumn(index, group, name)
        for group in summary.groups
        for index, name in enumerate(group.names or (), group.start)
        if summary.spread[index] > 0
    ]
    columns.sort(key=lambda column: (-abs(summary.share[column.index]), column.index))
    words = _describe_preferences(head, summary, columns)
    columns = columns[:MOST]
    values = [float(head.coefficients[c.index] * summary.spread[c.index]) for c in columns]
    intervals: list[tuple[float | None, float | None, float | None]]
    intervals = [(None, None, None)] * len(columns)
    if summary.errors is not None and columns:
        contrasts = _build_contrasts(summary, columns)
        errors, unreleased = _simulate_errors(head, contrasts)
        wide = compute_half_widths(errors).tolist()
        bound = summary.errors.compute_conservative_half_widths(head.basis.projection.T @ contrasts)
        clustered = np.hypot(bound, compute_half_widths(unreleased)).tolist()
        intervals = [
            (value - width, value + width, limit)
            for value, width, limit in zip(values, wide, clustered, strict=True)
        ]
    groups = tuple(
        GroupShare(g.name, g.stop - g.start, float(summary.share[g.start : g.stop].sum()))
        for g in summary.groups
    )
    return Coefficients(
        head.features,
        head.basis.projection.shape[1],
        len(head.coefficients),
        LEVEL,
        groups,
        tuple(
            Coefficient(
                column.group.name, column.name, value, *interval, float(summary.share[column.index])
            )
            for column, value, interval in zip(columns, values, intervals, strict=True)
        ),
        words,
        tuple(_list_coefficient_notes(head, summary)),
    )


def _build_contrasts(summary: HeadSummary, columns: list[NamedColumn]) -> Floats:
    """Return the directions of raw features (d, n) whose coefficients are reported.

    Of sources only the difference from those that they were compared with means anything.
    """
    contrasts = np.zeros((len(summary.spread), len(columns)))
    for at, column in enumerate(columns):
        spread, group = summary.spread[column.index], column.group
        contrasts[column.index, at] = spread
        if group.has_sources:
            members = np.arange(group.start, group.stop)
            if summary.source_scores:
                island = find_connected_sources(summary.source_scores, group)
                members = members[island == island[column.index - group.start]]
            contrasts[members, at] -= spread / len(members)
    return contrasts


def _simulate_errors(head: Head, contrasts: Floats) -> tuple[Floats, Floats]:
    """Return simulated errors (draws, n) along contrasts (d, n), and their unreleased part."""
    assert head.summary and head.summary.errors
    projection = head.basis.projection
    known = np.asarray(np.linalg.lstsq(projection, head.coefficients, rcond=None)[0], np.float64)
    unreleased = find_unreleased(head, contrasts, known).simulate_errors()
    return head.summary.errors.simulate() @ (projection.T @ contrasts) + unreleased, unreleased


def _describe_preferences(head: Head, summary: HeadSummary, columns: list[NamedColumn]) -> str:
    """Return a sentence on preferences that hold all together with probability `LEVEL`.

    Of sources it only names the command that ranks them; those that carry most come first.
    """
    words = []
    named = [column for column in columns if not column.group.has_sources]
    if summary.errors is None:
        words.append("No column can be singled out: these coefficients have no intervals.")
    elif named and (phrases := _list_sure_phrases(head, summary, named)):
        start, last = ", ".join(phrases[:-1]), phrases[-1]
        words.append(f"These labelers prefer {f'{start} and {last}' if start else last}.")
    elif any(group.names and not group.has_sources for group in summary.groups):
        words.append("No named column stands out: all intervals together leave room for 0.")
    if any(group.has_sources for group in summary.groups):
        words.append("`labelguard leaderboard` ranks the sources.")
    return " ".join(words) or "No column has a name."


def _list_sure_phrases(head: Head, summary: HeadSummary, columns: list[NamedColumn]) -> list[str]:
    """Return a phrase for each of the first columns whose interval, of all at once, excludes 0."""
    contrasts = _build_contrasts(summary, columns)
    errors = _simulate_errors(head, contrasts)[0]
    spread = np.maximum(errors.std(axis=0), np.finfo(float).tiny)
    factor = np.quantile(np.abs(errors / spread).max(axis=1), LEVEL)
    values = head.coefficients @ contrasts
    sure = np.flatnonzero(np.abs(values) > factor * spread)[:_IN_WORDS]
    return [_phrase_preference(columns[at].name, float(values[at])) for at in sure]


def _phrase_preference(name: str, value: float) -> str:
    """Return the preference that a column's value means."""
    name = " ".join(name.split())
    fewer = "fewer" if name.endswith("s") else "less"
    more, less = _PHRASES.get(name, (f"more {name}", f"{fewer} {name}"))
    return more if value > 0 else less


def describe_unused_comparisons(comparisons: int) -> str:
    """Return the note on comparisons that a sum could not use."""
    many = "1 comparison" if comparisons == 1 else f"{comparisons:,} comparisons"
    return (
        f"{many} of this sum were with sources that its first window did not know, and say nothing "
        "of any source: begin a new sum with --again to rank them"
    )


def _list_coefficient_notes(head: Head, summary: HeadSummary) -> Iterator[str]:
    silent = [g.name for g in summary.groups if not summary.spread[g.start : g.stop].any()]
    if silent:
        yield left_out_note(silent)
    if summary.errors is None:
        yield "heads of choices have no intervals yet"
    else:
        yield (
            "intervals hold the noise and the scatter of labels around what the fit, which "
            "shrinks toward 0, gives on average; each holds by itself, not all of them at once; "
            "the summary above holds jointly"
        )
    if summary.unknown:
        yield describe_unused_comparisons(summary.unknown)
    components, columns = head.basis.projection.shape[1], len(head.coefficients)
    if components < columns:
        yield (
            f"{pluralize(components, 'component')} of {columns:,} columns: those that go together "
            "share what is known of them, and intervals are wider for what was not released"
        )
