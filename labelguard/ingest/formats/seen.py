"""What formats are made of: what they may look at, and what they say of how a part is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from duckdb.sqltypes import DuckDBPyType

from labelguard.ingest.layouts import Reading
from labelguard.ingest.sql import identifier
from labelguard.policy.label_values import LabelValues


@dataclass(frozen=True)
class Seen:
    """What a format may look at: names and types of a part's columns, and what was asked.

    Never a value: so no label can decide how a part is read. A `sparse` part lacks the columns for
    which no row has a value.
    """

    types: Mapping[str, DuckDBPyType]
    reading: Reading
    sparse: bool = False

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

    def sql(self, role: str) -> str:
        """That column in SQL."""
        return identifier(self.reading.columns.get(role, role))

    def without(self, *roles: str) -> str:
        """SELECT list of all columns but those of these roles."""
        dropped = {name for role in roles if (name := self.column(role))}
        return ", ".join(identifier(name) for name in self.types if name not in dropped)


@dataclass(frozen=True)
class Adapted:
    """How a part is read: SQL over `part`, whose columns `made` are called like their roles.

    `columns` names the columns of further roles (a judge is the labeler), and `values` is the
    domain of labels where the format fixes it.
    """

    query: str
    made: frozenset[str]
    columns: Mapping[str, str] = field(default_factory=dict)
    values: LabelValues | None = None


@dataclass(frozen=True)
class Format:
    """One published shape: what it looks like, how it is recognised, how it is read.

    `adapt` returns None where columns are as they should be. `labelers` says which export of a tool
    names its labelers, for those that do not.
    """

    name: str
    about: str
    recognises: Callable[[Seen], bool]
    adapt: Callable[[Seen], Adapted | None] = lambda seen: None
    labelers: str = ""
