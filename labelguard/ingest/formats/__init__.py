"""Formats: the shapes in which preference data is published, each turned into columns by role.

A format is recognised by names and types of columns alone, never by a value: what a label says must
not decide how a file is read. Its SQL is laid over a part where the part is opened, so that all
that follows (layouts, canonical pairs, quarantine) sees columns that are called like their roles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import duckdb

from labelguard.errors import InvalidLabels
from labelguard.ingest import scan
from labelguard.ingest.formats.seen import Format, Seen
from labelguard.ingest.formats.transcripts import MIXED, TRANSCRIPTS
from labelguard.ingest.layouts import Reading, closest
from labelguard.ingest.sources import Part
from labelguard.terms import AUTO_FORMAT

__all__ = ["FORMATS", "Understood", "understood"]

PAIRS = Format(
    "pairs",
    "prompt, chosen, rejected; or prompt, response_a, response_b, label",
    lambda seen: (
        seen.all("prompt", "chosen", "rejected") or seen.all("prompt", "response_a", "response_b")
    ),
    MIXED.adapt,
)
RANKINGS = Format(
    "rankings", "prompt, responses, ranks", lambda seen: seen.all("prompt", "responses")
)

FORMATS: Mapping[str, Format] = {one.name: one for one in (PAIRS, RANKINGS, TRANSCRIPTS)}
"""Every format by name. The first that recognises a part is taken, in this order."""


@dataclass(frozen=True)
class Understood:
    """A part under the format it was recognised as; `reading` knows where its roles are."""

    part: Part
    reading: Reading
    format: str


def understood(part: Part, connection: duckdb.DuckDBPyConnection, reading: Reading) -> Understood:
    """A part as its format has it: the one that `reading` names, else the one recognised.

    Raises `InvalidLabels` for a part that is not of the format that was named. A part that no
    format recognises is left as it is; `layouts.layout` says what it lacks.
    """
    seen = Seen(scan.columns(part, connection), reading, part.sparse)
    found = _format(part, seen)
    adapted = found.adapt(seen) if found else None
    if found is None or adapted is None:
        return Understood(part, reading, found.name if found else PAIRS.name)
    kept = {role: name for role, name in reading.columns.items() if role not in adapted.made}
    read = replace(
        reading, columns={**adapted.columns, **kept}, values=adapted.values or reading.values
    )
    laid = replace(part, open=lambda connection: _laid(part.open(connection), adapted.query))
    return Understood(laid, read, found.name)


def _laid(relation: duckdb.DuckDBPyRelation, query: str) -> duckdb.DuckDBPyRelation:
    laid = relation.query("part", query)
    assert laid is not None  # None is for statements without a result
    return laid


def _format(part: Part, seen: Seen) -> Format | None:
    named = seen.reading.format
    if named == AUTO_FORMAT:
        return next((one for one in FORMATS.values() if one.recognises(seen)), None)
    if named not in FORMATS:
        raise InvalidLabels(
            f"--format: unknown format {named!r}{closest(named, FORMATS)}; "
            f"formats: {AUTO_FORMAT}, {', '.join(FORMATS)}"
        )
    found = FORMATS[named]
    if not found.recognises(seen):
        raise InvalidLabels(
            f"{part.name}: not of format {named} ({found.about}); found: {', '.join(seen.types)}"
        )
    return found
