"""Features of who wrote a response: `source:COLUMN`, or `source:COLUMN,by=COLUMN`.

A source is a system, a model, a checkpoint: whatever a public pair of columns (`model_a` and
`model_b`) names. Each has a coordinate: +1 where it wrote the first response, −1 where it wrote the
second. With `by=`, each source has one in every stratum (a language, a domain) that it is in. A
linear head on these is a Bradley–Terry model of the sources.

Names are taken as they are written: `GPT-4` and `gpt-4` are two sources. A name `A+B` is that of
one output that both A and B gave, where each of them is a source by itself in the same stratum:
then it counts half for each. Elsewhere it is a name like any other.

A pair in which either side's source, or a part of it, was not there in `fit` is 0 in all
coordinates: to leave out the unknown side alone would credit the other with the whole difference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.errors import InvalidLabels, LabelguardError
from labelguard.learning.columns import FeatureColumn, parse_source_options
from labelguard.learning.providers import Features, State
from labelguard.text import escape_controls, pluralize

# More names than this are no systems: the column tells something else.
MOST_SOURCES = 4096

# Characters: what is longer is a text, not the name of a system.
LONGEST_NAME = 256

_STRATUM, _SOURCE = "stratum", "source"


def source(options: str, state: State | None) -> SourceFeatures:
    """Return the provider `source:COLUMN[,by=COLUMN]`, fitted earlier if `state` is given."""
    return SourceFeatures(*parse_source_options(options), state)


class SourceFeatures:
    """φ(prompt, response) is the indicator of the response's source; d is the number of sources.

    What is learnt is the sorted list of names, with strata of (stratum, name), and nothing of order
    or sides. The state holds them as UTF-8: `source`, the bytes of all names, and `source_ends`,
    shape (d,), where each ends; with strata also `stratum` and `stratum_ends`.
    """

    def __init__(self, column: str, by: str | None, state: State | None = None) -> None:
        """Raises `LabelguardError` for a state that is not one of `state()`."""
        self._column, self._by = column, by
        self._keys = (_STRATUM, _SOURCE) if by else (_SOURCE,)
        self._known: pl.DataFrame | None = None
        if state is not None:
            self._known = _load_names(self._keys, state)

    def fit(self, pairs: pa.Table) -> None:
        """Learn which sources there are; raises `InvalidLabels` if they are too many, or a name is
        too long to be one.
        """
        names = _drop_joined_names(self._read_side_sources(pairs).unique())
        if len(names) > MOST_SOURCES:
            raise InvalidLabels(
                f"features source:{self._column}: {len(names):,} sources; expected the names of "
                f"systems, {MOST_SOURCES:,} at most: name the column that tells which system wrote "
                "a response"
            )
        for key, column in ((_SOURCE, self._column), (_STRATUM, self._by)):
            longest = max(names[key].str.len_chars().to_list(), default=0) if column else 0
            if longest > LONGEST_NAME:
                raise InvalidLabels(
                    f"features source:{self._column}: a name of {longest:,} characters in column "
                    f"{column}; expected names, {LONGEST_NAME} characters at most: shorten them, "
                    "or name another column"
                )
        self._known = names.sort(names.columns)

    def __call__(self, pairs: pa.Table) -> Features:
        """Return the first side's indicators minus the second's, (n, d); 0 where one is unknown.

        Raises `LabelguardError` before `fit`, `InvalidLabels` for a missing column or name.
        """
        names = self._known_names()
        sides = self._read_side_sources(pairs)
        distinct = sides.unique()
        rows = distinct.with_row_index("row")
        place = sides.join(rows, on=sides.columns, how="left", maintain_order="left")["row"]
        parts = _compute_source_shares(distinct, names).join(
            names.with_row_index("place"), on=distinct.columns, how="left"
        )
        known = np.ones(len(distinct), bool)
        known[parts.filter(pl.col("place").is_null())["row"].to_numpy()] = False
        parts = parts.drop_nulls("place")
        indicators: Features = np.zeros((len(distinct), len(names)), np.float32)
        at = parts["row"].to_numpy(), parts["place"].to_numpy()
        np.add.at(indicators, at, parts["share"].to_numpy())
        first, second = np.split(place.to_numpy(), 2)
        x: Features = indicators[first] - indicators[second]
        x[~(known[first] & known[second])] = 0
        return x

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of names; {} before `fit`."""
        if self._known is None:
            return {}
        return dict(pair for key in self._keys for pair in _pack_names(key, self._known[key]))

    def identity(self) -> str:
        """Return the columns; which sources there were is named by the digest of the state."""
        return f"source {self._column}" + (f" by {self._by}" if self._by else "")

    def names(self) -> tuple[str, ...]:
        """Return `gpt-4`, or with its stratum `de-en: gpt-4`; `LabelguardError` before `fit`."""
        rows = self._known_names().rows()
        return tuple(": ".join(map(escape_controls, row)) for row in rows)

    def _known_names(self) -> pl.DataFrame:
        if self._known is None:
            raise LabelguardError("features source must be fitted on public pairs before use")
        return self._known

    def _read_side_sources(self, pairs: pa.Table) -> pl.DataFrame:
        """Return the sources of all first and then of all second sides, each within its stratum."""
        strata = {}
        if self._by:
            strata[_STRATUM] = _read_names(pairs, *FeatureColumn(self._by, "stratum").pair_columns)
        sides = FeatureColumn(self._column, "source").pair_columns
        return pl.concat(
            [pl.DataFrame({**strata, _SOURCE: _read_names(pairs, column)}) for column in sides]
        )


def _drop_joined_names(names: pl.DataFrame) -> pl.DataFrame:
    """Return the names without those that join several others of their stratum by +."""
    several = names.with_row_index("row").pipe(_split_joined_names)
    known = several.join(names.with_columns(known=True), on=names.columns, how="left")
    shared = known.group_by("row").agg(pl.col("known").count() == pl.len(), parts=pl.len())
    rows = shared.filter(pl.col("known"), pl.col("parts") > 1)["row"]
    return names.with_row_index("row").filter(~pl.col("row").is_in(rows.implode())).drop("row")


def _compute_source_shares(names: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """Return the sources of each row and their shares: all of a known one, else of its parts."""
    rows = names.with_row_index("row")
    whole = rows.join(known, on=names.columns, how="semi").with_columns(share=pl.lit(1.0))
    rest = _split_joined_names(rows.join(known, on=names.columns, how="anti"))
    return pl.concat([whole, rest.with_columns(share=1 / pl.len().over("row"))])


def _split_joined_names(rows: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each part of a name with +."""
    return rows.with_columns(pl.col("source").str.split("+")).explode("source")


def _read_names(pairs: pa.Table, name: str) -> pl.Series:
    """Return a column of names. Raises `InvalidLabels` if it lacks, or a name in it."""
    if name not in pairs.column_names:
        raise InvalidLabels(f"pairs have no column {name}; found {', '.join(pairs.column_names)}")
    column = pl.Series(name, pairs[name])
    missing = column.null_count()
    if missing:
        raise InvalidLabels(f"column {name}: {missing:,} of {len(column):,} pairs have no name")
    return column.cast(pl.String)


def _pack_names(key: str, names: pl.Series) -> tuple[tuple[str, NDArray[Any]], ...]:
    """Return the arrays of names: a padded array would be as wide as the longest for all."""
    ends = names.str.len_bytes().cast(pl.Int64).cum_sum().to_numpy()
    return (key, np.frombuffer("".join(names).encode(), np.uint8)), (f"{key}_ends", ends)


def _load_names(keys: tuple[str, ...], state: State) -> pl.DataFrame:
    """Return the names that a state holds. Raises `LabelguardError` for anything else."""
    expected = {name for key in keys for name in (key, f"{key}_ends")}
    try:
        if set(state) != expected:
            raise ValueError
        names = pl.DataFrame({key: _unpack_names(state[key], state[f"{key}_ends"]) for key in keys})
        if len(names) > MOST_SOURCES or names.is_duplicated().any():
            raise ValueError
    except (ValueError, TypeError, pl.exceptions.PolarsError):
        raise LabelguardError(
            f"expected a state of names, {pluralize(len(keys), 'list')} of distinct ones in UTF-8 "
            f"({', '.join(sorted(expected))}), found {', '.join(sorted(state)) or 'nothing'}"
        ) from None
    return names


def _unpack_names(text: NDArray[Any], ends: NDArray[Any]) -> pl.Series:
    """Invert `_pack_names`; raises `ValueError` for what no names give."""
    if text.dtype != np.uint8 or text.ndim != 1 or ends.dtype != np.int64 or ends.ndim != 1:
        raise ValueError
    if not 0 < len(ends) <= MOST_SOURCES or ends[-1] != len(text):
        raise ValueError
    starts = np.concatenate([[0], ends[:-1]])
    longest = 4 * LONGEST_NAME  # bytes of one character
    if starts.min() < 0 or (ends < starts).any() or (ends - starts).max() > longest:
        raise ValueError
    whole = text.tobytes()
    names = [whole[a:b].decode() for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    return pl.Series(names, dtype=pl.String)
