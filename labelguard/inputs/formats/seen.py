"""What formats are made of: what they may look at, and what they say of how a part is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from duckdb.sqltypes import DuckDBPyType

from labelguard.budget.label_values import WHITE_SPACE, LabelValues
from labelguard.inputs.layouts import Reading, listed_columns
from labelguard.inputs.readers import identifier, literal, nan_to_null


@dataclass(frozen=True)
class Seen:
    """What a format may look at: names and types of a part's columns, and what was asked.

    Never a value: so no label can decide how a part is read. A `sparse` part lacks the columns for
    which no row has a value. `private` columns tell labels: they are in no list of columns. `part`
    is its name in messages. `names` asks the part, in SQL, for what objects within its columns call
    their members (of fields, of questions), which no type tells where they differ from row to row.
    """

    types: Mapping[str, DuckDBPyType]
    reading: Reading
    sparse: bool = False
    private: frozenset[str] = frozenset()
    part: str = ""
    names: Callable[[str], list[tuple[Any, ...]]] = lambda query: []

    @property
    def private_blanks(self) -> bool:
        """Whether blank answers are ties, which nothing may tell from others."""
        return self.reading.skips == "tie"

    @property
    def listed(self) -> list[str]:
        """The columns that messages list: of a sparse part, none of answers (see `layouts`)."""
        return listed_columns(self.types, self.reading, sparse=self.sparse)

    def has(self, *columns: str) -> bool:
        """Whether there are columns of these names."""
        return all(name in self.types for name in columns)

    def column(self, role: str) -> str | None:
        """The column of a role, as it was named or by the role's own name; None if none is."""
        name = self.reading.columns.get(role, role)
        return name if name in self.types else None

    def type(self, role: str) -> DuckDBPyType:
        """The type of that column, which there must be."""
        return self.types[self.reading.columns.get(role, role)]

    def all(self, *roles: str) -> bool:
        """Whether there is a column for each of these roles."""
        return all(self.column(role) for role in roles)

    def any(self, *roles: str) -> bool:
        """Whether there is a column for one of these roles."""
        return any(self.column(role) for role in roles)

    def sql(self, role: str) -> str:
        """That column in SQL."""
        return identifier(self.reading.columns.get(role, role))

    def text(self, name: str) -> str:
        """SQL of a column as text without blanks around it; NULL for NaN, or if it is not there."""
        if name not in self.types:
            return "NULL::VARCHAR"
        column = nan_to_null(identifier(name), self.types[name])
        return f"nullif(trim({column}::VARCHAR, {literal(WHITE_SPACE)}), '')"

    def without(self, *roles: str) -> str:
        """SELECT list of all columns but those of these roles and private ones."""
        dropped = {name for role in roles if (name := self.column(role))} | self.private
        return ", ".join(identifier(name) for name in self.types if name not in dropped)

    def rest(self, *roles: str) -> str:
        """The same before what a format makes: with a comma, unless there is nothing."""
        listed = self.without(*roles)
        return f"{listed}, " if listed else ""


@dataclass(frozen=True)
class Adapted:
    """How a part is read: SQL over `part`, whose columns `made` are called like their roles.

    `columns` names the columns of further roles (a judge is the labeler), `values` is the domain of
    labels where the format fixes it, and `names` is what messages call the roles that were made.
    `usual` values are those where `--label-values` names no others. `left_out` is SQL of why
    answers are left out, by what is public of them, and of how many are; `note` is what to know.
    """

    query: str
    made: frozenset[str]
    columns: Mapping[str, str] = field(default_factory=dict)
    values: LabelValues | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    usual: bool = False
    left_out: str = ""
    note: str = ""


def always(seen: Seen) -> bool:
    """Of formats whose labels are in the same columns as their texts."""
    return True


@dataclass(frozen=True)
class Format:
    """One published shape: what it looks like, how it is recognised, how it is read.

    `recognises` goes by columns that are public. Of several formats that recognise a part, the one
    is taken that finds the columns it reads labels from (`tells`). `private` columns tell labels,
    too: they are read by `adapt` alone, and carried by nothing. `adapt` returns None where columns
    are as they should be. `fits` is what a part must have where the format is named. `labelers`
    says which export of a tool names its labelers, for those that do not. `of_tool` are columns of
    an annotation tool that are no answers, where all others but the fields may be; else None.
    """

    name: str
    about: str
    recognises: Callable[[Seen], bool]
    adapt: Callable[[Seen], Adapted | None] = lambda seen: None
    labelers: str = ""
    tells: Callable[[Seen], bool] = always
    private: tuple[str, ...] = ()
    fits: Callable[[Seen], bool] | None = None
    of_tool: tuple[str, ...] | None = None
