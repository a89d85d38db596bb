"""The whole ledger as JSON, for auditors: pseudonyms, counts and prices, never a label."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from labelguard.ledger import schema
from labelguard.project.opening import OpenProject, Where
from labelguard.storage.files import check_new_file

TABLES = (
    schema.policies,
    schema.allowances,
    schema.prices,
    schema.releases,
    schema.counters,
    schema.charges,
    schema.sources,
    schema.identities,
    schema.distinct,
    schema.members,
    schema.tombstones,
    schema.segments,
    schema.journal,
)
_SECRET = ("map", "idempotency_key", "mac")
"""Keyed digests that mean nothing outside the project."""
_JSON = ("settings", "quote", "columns", "files", "body", "price")


@dataclass(frozen=True)
class Exported:
    """A ledger that was written out."""

    path: str
    """the file"""
    rows: Mapping[str, int]
    """how many rows each table has"""


def export(output: Path, project: Where = None) -> Exported:
    """Write every table of the ledger to a JSON file, of one moment.

    Pseudonyms are hexadecimal. Returns how many rows each table has. Raises `LabelguardError` if
    `output` exists or cannot be made.
    """
    check_new_file(output, "ledger.json")
    ledger = OpenProject.open(project).ledger
    counts: dict[str, int] = {}
    with ledger.snapshot() as connection:
        found = {table.name: _rows(connection, table, counts) for table in TABLES}
        _write_json(output, found)
    return Exported(str(output), counts)


def _names(table: sa.Table) -> list[str]:
    return [column.name for column in table.c if column.name not in _SECRET]


def _rows(
    connection: sa.Connection, table: sa.Table, counts: dict[str, int]
) -> Iterator[list[Any]]:
    """The rows of a table in the order of its key, and how many there were."""
    names = _names(table)
    query = sa.select(*(table.c[name] for name in names)).order_by(*table.primary_key.columns)
    nested = [name in _JSON for name in names]
    counts[table.name] = 0
    for row in connection.execution_options(yield_per=10_000).execute(query):
        counts[table.name] += 1
        yield [
            value.hex()
            if isinstance(value, bytes)
            else _parsed(name, value)
            if parse and value is not None
            else value
            for name, value, parse in zip(names, row, nested, strict=True)
        ]


def _parsed(name: str, value: str) -> Any:
    """A value of JSON; settings of a release are without the place of its input."""
    found = json.loads(value)
    if name == "settings":
        found.pop("request", None)
    return found


def _write_json(path: Path, found: dict[str, Iterator[list[Any]]]) -> None:
    """One object with a list of objects for each table, one a line; never whole in memory."""
    with path.open("x", encoding="utf-8") as file:
        file.write("{")
        for index, (name, rows) in enumerate(found.items()):
            names = _names(schema.metadata.tables[name])
            file.write(f"{',' if index else ''}\n{json.dumps(name)}: [")
            for number, row in enumerate(rows):
                text = json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False)
                file.write(f"{',' if number else ''}\n{text}")
            file.write("]")
        file.write("\n}\n")
