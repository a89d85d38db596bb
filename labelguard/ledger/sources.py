"""The sources in the ledger: whose ids are read, and which column plays which role.

A source is a namespace of labelers' ids: worker 7 of one tool is not worker 7 of another. Another
namespace or another labeler column would make everybody new, with a new budget; swapped responses
would turn every label around. So both are kept from a source's first release on.

Segments are here too: which files of ingested answers count, and how far pulls have come. A file of
answers counts from the transaction on that lists it, with a keyed digest of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa

from labelguard import clock
from labelguard.errors import PolicyError
from labelguard.ledger import journal, schema

# Whether a source's people have labels under no other source, or some have: these are to be linked
# before its first release, and are `linked` then.
People = Literal["new", "known", "linked"]
# Roles whose column can neither come nor go: they say whose label it is, and of what.
FIXED = ("labeler_id", "item_id")
# What stands among a source's columns for the coding of its labels, which is fixed with them.
CODING = "label values"


@dataclass(frozen=True)
class SourceRecord:
    """A source of labelers' ids."""

    # the source's name
    name: str
    # as it was declared: new, known, linked, or first (nobody came before)
    people: str
    # roles, and the columns that its releases read; none before the first
    columns: Mapping[str, str]
    # when it came in, UTC
    at: str

    @property
    def is_held(self) -> bool:
        """True while some of its people would be charged under two ids: nothing is released."""
        return self.people == "known"


def read_sources(connection: sa.Connection) -> list[SourceRecord]:
    """Return all sources, oldest first."""
    own = schema.sources.c
    query = sa.select(own.name, own.people, own.columns, own.at).order_by(own.at, own.name)
    return [
        SourceRecord(row.name, row.people, json.loads(row.columns), row.at)
        for row in connection.execute(query)
    ]


def check_columns(sources: Sequence[SourceRecord], name: str, columns: Mapping[str, str]) -> None:
    """Raise `PolicyError` if a source was not added, is held, or has other columns than before."""
    if not sources:
        return
    record = next((source for source in sources if source.name == name), None)
    if record is None:
        raise PolicyError(
            f"source {name!r} is not among this project's "
            f"({', '.join(repr(source.name) for source in sources)}): under another name "
            "everybody would have a new budget; use one of these (--source), or add it: "
            f"labelguard source add {name}"
        )
    if record.is_held:
        raise PolicyError(explain_held(name))
    if not record.columns:
        return
    differing = list(_describe_differences(record.columns, columns))
    if differing:
        raise PolicyError(
            f"source {name!r} (taken for the one of these labels, unless --source says otherwise) "
            f"differs in {'; in '.join(differing)}; for the same people call the columns as before"
            f"{_columns_option(record.columns, columns)}, renaming them in the file if need be; "
            "for other people or another tool add a source (labelguard source add NAME) and say "
            "--source NAME"
        )


def find_columns(sources: Sequence[SourceRecord], name: str) -> Mapping[str, str]:
    """Return the columns that a source's releases read, by role; none before the first."""
    return next((source.columns for source in sources if source.name == name), {})


def recall_reading(
    sources: Sequence[SourceRecord], name: str, question: str | None
) -> tuple[dict[str, str], str | None]:
    """Return the columns that a source's releases named by role, and its coding of labels under
    this question; none before its first release.
    """
    columns = {}
    for key, column in find_columns(sources, name).items():
        role, _, one = key.partition(" of ")
        if one in ("", question) and column != role:
            columns[role] = column
    return columns, columns.pop(CODING, None)


def explain_held(name: str) -> str:
    """Return why nothing of a held source is released, and what to do."""
    return (
        f"source {name!r} is held: some of its people have labels under another source, and must "
        "be linked before they are charged as two: labelguard people link FILE; once all are "
        f"linked, or if none is known: labelguard source add {name} --people linked (or new)"
    )


def _columns_option(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return the option that names the columns as they were."""
    roles = {role: role.partition(" of ")[0] for role in _changed_roles(before, now)}
    named = {role: short for role, short in roles.items() if role in before}
    columns = [f"{n}={before[role]}" for role, n in named.items() if n != CODING]
    codings = [before[role] for role, n in named.items() if n == CODING]
    options = [f"--columns {','.join(columns)}"] if columns else []
    options += [f"--label-values {coding or chr(39) * 2}" for coding in codings]
    return f" ({' '.join(options)})" if options else ""


def _changed_roles(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the roles that have another column than before."""
    roles = dict.fromkeys((*FIXED, *sorted(before.keys() & now.keys())))
    return [role for role in roles if before.get(role) != now.get(role)]


def _describe_differences(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Yield roles that have another column than before, and columns that play another part."""
    for role in _changed_roles(before, now):
        was, is_now = (
            repr(columns[role]) if role in columns else "none" for columns in (before, now)
        )
        yield f"{role}: was {was}, found {is_now}"
    for role in sorted(now.keys() - before.keys() - set(FIXED)):
        parts = _roles_of_column(before, now[role])
        if parts and not parts & _roles_of_column(now, now[role]):
            yield f"{role}: its column {now[role]!r} was {' and '.join(sorted(parts))}"


def _roles_of_column(columns: Mapping[str, str], column: str) -> set[str]:
    """Return the parts that a column plays, whatever question it answers."""
    return {role.partition(" of ")[0] for role, name in columns.items() if name == column}


def add_source(connection: sa.Connection, name: str, people: str) -> SourceRecord:
    """Add a source, or end that it is held. Raises `PolicyError` where there is nothing to add."""
    before = next((source for source in read_sources(connection) if source.name == name), None)
    if before is None and people == "linked":
        raise PolicyError(f"{name!r} is no source of this project: add it, with --people known")
    if before is not None and (people == "known" or not before.is_held):
        raise PolicyError(f"{name!r} is a source of this project already")
    at, columns = (before.at, before.columns) if before else (clock.now(), {})
    record = SourceRecord(name, people, columns, at)
    journal.append_entry(connection, "source", _write_source(connection, record))
    return record


def end_holds(connection: sa.Connection, names: Collection[str]) -> None:
    """Let sources be released of these names that were held."""
    for source in read_sources(connection):
        if source.name in names and source.is_held:
            add_source(connection, source.name, "linked")


def record_source_use(
    connection: sa.Connection, name: str, columns: Mapping[str, str]
) -> dict[str, Any]:
    """Record what a release reads: the first source as such, and roles that are new.

    Returns the facts for the journal's entry.
    """
    present = next((source for source in read_sources(connection) if source.name == name), None)
    before = present or SourceRecord(name, "first", {}, clock.now())
    together = {**columns, **before.columns}
    if present is not None and together == before.columns:
        return {"source": name}
    return _write_source(connection, SourceRecord(name, before.people, together, before.at))


def digest_sources(connection: sa.Connection) -> str:
    """Return the SHA-256 of the table of sources."""
    text = json.dumps([vars(record) for record in read_sources(connection)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _write_source(connection: sa.Connection, record: SourceRecord) -> dict[str, Any]:
    """Write a source; return the facts for the journal's entry."""
    columns = json.dumps(dict(record.columns), sort_keys=True)
    connection.execute(sa.delete(schema.sources).where(schema.sources.c.name == record.name))
    connection.execute(sa.insert(schema.sources).values(vars(record) | {"columns": columns}))
    body = {"source": record.name, "people": record.people, "columns": dict(record.columns)}
    return body | {"sources": digest_sources(connection)}


_DELETING, _PRUNED, _DROPPED = "withdrawn", "pruned", "forgotten"


# The cursor of a connector whose tool no longer has what it is about.
GONE = "gone"


@dataclass(frozen=True)
class Segment:
    """A segment that counts.

    `connector` told its answers, whose labelers' ids are of `source`, and `reading` is how it said
    that they are read; "" where the segment holds none. `pulled`: it holds what the tool listed,
    not what it announced. `rows` is how many it has, deletions among them, and
    `digest_sources` that of its file. After a pull, `cursor` is from where the next one goes on.
    """

    number: int
    name: str
    connector: str
    source: str
    reading: str
    pulled: bool
    rows: int
    digest: str
    cursor: str | None = None
    at: str = ""


def read_segments(connection: sa.Connection) -> list[Segment]:
    """Return all segments that count, oldest first."""
    query = sa.select(schema.segments).order_by(schema.segments.c.number)
    return [Segment(**row._mapping) for row in connection.execute(query)]


def add_segment(connection: sa.Connection, segment: Segment, deleted: int) -> None:
    """Let a segment count, whose file is on disk, and with so many deletions."""
    values = vars(segment) | {"at": clock.now()}
    connection.execute(sa.insert(schema.segments).values(values))
    entry = {name: values[name] for name in ("name", "connector", "source", "rows")}
    entry |= {"deleted": deleted, "segments": digest_segments(connection)}
    journal.append_entry(connection, _DELETING if deleted else "ingested", entry)


def has_unpruned_deletions(connection: sa.Connection) -> bool:
    """Return whether deletions came since segments were pruned last."""
    own = schema.journal.c
    query = sa.select(own.kind).where(own.kind.in_((_DELETING, _PRUNED)))
    return connection.scalar(query.order_by(own.number.desc()).limit(1)) == _DELETING


def record_rewritten_segments(
    connection: sa.Connection, changed: Mapping[str, tuple[str, int]]
) -> list[Segment]:
    """Record that segments were rewritten: their new digests and numbers of rows.

    Returns all segments, as they count from now on.
    """
    for name, (new, rows) in changed.items():
        _update_segment(connection, name, digest=new, rows=rows)
    journal.append_entry(connection, _PRUNED, {"segments": digest_segments(connection)})
    return read_segments(connection)


def record_dropped_answers(
    connection: sa.Connection,
    connector: str,
    changed: Mapping[str, tuple[str, int]],
    emptied: Collection[str],
) -> list[Segment]:
    """Record that segments of a connector were rewritten, of which some were `emptied`: these bind
    nobody to their reading. The next pull reads everything.

    Returns all segments, as they count from now on.
    """
    for name, (new, rows) in changed.items():
        _update_segment(connection, name, digest=new, rows=rows)
    for name in emptied:
        _update_segment(connection, name, reading="")
    segments = [one for one in read_segments(connection) if one.connector == connector]
    cursors = [one.cursor for one in segments if one.cursor is not None]
    is_gone = cursors[-1:] == [GONE] and len(emptied) < len(segments)
    own = schema.segments.c.connector == connector
    connection.execute(sa.update(schema.segments).where(own).values(cursor=None))
    if is_gone:
        _update_segment(connection, segments[-1].name, cursor=GONE)
    body = {"connector": connector, "segments": digest_segments(connection)}
    journal.append_entry(connection, _DROPPED, body)
    return read_segments(connection)


def count_drops(connection: sa.Connection, connector: str) -> int:
    """Return how often a connector's unreleased answers were dropped."""
    own = schema.journal.c
    bodies = connection.scalars(sa.select(own.body).where(own.kind == _DROPPED))
    return sum(json.loads(body)["connector"] == connector for body in bodies)


def _update_segment(connection: sa.Connection, name: str, **values: object) -> None:
    own = sa.update(schema.segments).where(schema.segments.c.name == name)
    connection.execute(own.values(**values))


def record_pull_cursor(connection: sa.Connection, name: str, cursor: str) -> None:
    """Record at a connector's segment that a pull came as far as `cursor`, with nothing new."""
    _update_segment(connection, name, cursor=cursor)
    journal.append_entry(connection, "pulled", {"segments": digest_segments(connection)})


def digest_segments(connection: sa.Connection) -> str:
    """SHA-256 of the table of segments."""
    text = json.dumps([vars(segment) for segment in read_segments(connection)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
