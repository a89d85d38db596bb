"""The inbox: answers that a hook received wait here until `ingest` puts them into segments.

A file of its own beside the ledger (SQLite), or a schema of the ledger's PostgreSQL server, so that
a hook never waits for a job. What is stored is sealed under the project's key, and pruned before by
the connector that heard it. A row is one state of one answer, and its name is a hash of what is
public of that: connector, record, version, whether it was deleted. What is said in it names
nothing, so that neither the number of rows nor a count of deliveries tells whether a label changed.

A state is stored once, however often it comes, and the first that came counts; that it came is
remembered for a week. Of several saves that a tool stamps with one time, the first that came may
not be the last that was made: so it is remembered which states came more than once, whatever they
said, and of those a pull takes what the tool lists (`find_repeated`, `forget_repeated`).

A drain names the events that it takes (`claim`) by the segment they will be in. If it crashes, the
ledger knows whether that segment counts: then its events are done, else they wait as before
(`settle`). Nothing rests on the order of their numbers, which is not that of their commits.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from labelguard.answers.connector import Answer
from labelguard.errors import ConnectorError, KeyProblem
from labelguard.keys import keyring
from labelguard.keys.keyring import KeyRing
from labelguard.ledger import database

FILE = "inbox.sqlite3"
_SECOND = 1_000_000
# Seconds for which a delivery is known again; no tool delivers later.
_REMEMBERED = 7 * 86_400
# The advisory lock (PostgreSQL) of who makes an inbox.
_MAKING = 0x6C61_6265_6C69
# Events, and letters, are sealed as so many bytes or a multiple.
_BLOCK, _LETTER_BLOCK = 1_024, 16_384
# What a check of the disk writes: more than most deliveries, which are to fail after it.
_CHECK_BYTES = 65_536
# The most dead letters there are, and their bytes: no tool, and nobody, fills the disk.
LETTERS, LETTERS_BYTES = 10_000, 1 << 30
_WHICH = re.compile(r"^answer \S+: |(?<=\[)\d+(?=\])")
_EVENT, _LETTER = "inbox event", "inbox letter"

_metadata = sa.MetaData(schema="inbox")


def _make_number_column() -> sa.Column[int]:
    integer = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    return sa.Column("number", integer, primary_key=True)


_events = sa.Table(
    "events",
    _metadata,
    _make_number_column(),
    sa.Column("delivery", sa.LargeBinary(16), nullable=False, unique=True),
    sa.Column("connector", sa.String(64), nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    # The segment that a drain puts it into; null: it waits.
    sa.Column("segment", sa.String(32), index=True),
    # Sealed; null once it is in a segment that counts.
    sa.Column("body", sa.LargeBinary),
)
_WAITING = sa.select(_events).where(_events.c.body.is_not(None))
# States that came more than once (last `at`, µs), until a pull lists them or they are forgotten.
_repeats = sa.Table(
    "repeats",
    _metadata,
    sa.Column("delivery", sa.LargeBinary(16), primary_key=True),
    sa.Column("at", sa.BigInteger, nullable=False),
)
_checks = sa.Table(
    "checks", _metadata, _make_number_column(), sa.Column("body", sa.LargeBinary, nullable=False)
)
_letters = sa.Table(
    "letters",
    _metadata,
    _make_number_column(),
    sa.Column("connector", sa.String(64), nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("why", sa.String(400), nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)


@dataclass(frozen=True)
class Event:
    """Answers of one delivery to a webhook of a connector."""

    connector: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Letter:
    """A delivery that could not be understood; what is in it stays sealed."""

    # its number
    number: int
    # to whom it was addressed
    connector: str
    # when it came, seconds since 1970 UTC
    received_at: int
    # how much room it takes: its size, rounded up
    bytes: int
    # what was wrong with it
    why: str

    @property
    def shared_cause(self) -> str:
        """The same without which answer, or which of several, is meant; letters share a cause."""
        return _WHICH.sub("", self.why)


class Inbox:
    """The inbox of one project; any number of processes may use it at once. Its repr shows nothing.

    Every method raises `ConnectorError` where the database is busy, full or cannot be reached.
    """

    def __init__(self, url: str, keys: KeyRing) -> None:
        self._keys = keys
        self._engine = _engine(url)

    def __repr__(self) -> str:
        return "Inbox(…)"

    @classmethod
    def open(cls, state: Path, ledger_url: str, keys: KeyRing) -> Self:
        """Return that of the project in `state`: beside its ledger, wherever this is; made if need
        be.
        """
        url = f"sqlite:///{state / FILE}" if ledger_url.startswith("sqlite") else ledger_url
        inbox = cls(url, keys)
        inbox._create_tables()
        if inbox._engine.dialect.name == "sqlite":
            (state / FILE).chmod(0o600)
        return inbox

    @classmethod
    def open_if_exists(cls, state: Path, ledger_url: str, keys: KeyRing) -> Self | None:
        """Return the same if there may be one: a project without a hook has no file."""
        beside = ledger_url.startswith("sqlite") and not (state / FILE).exists()
        return None if beside else cls.open(state, ledger_url, keys)

    def store_events(self, events: Sequence[Event]) -> int:
        """Store the answers of events in one transaction, on disk when this returns.

        Return how many were new. Which of several states of one identity counts does not depend on
        what they say: it is the first.
        """
        now = int(time.time() * _SECOND)
        rows, repeats = dict[bytes, dict[str, Any]](), set[bytes]()
        for event in events:
            for answer in event.answers:
                name = _hash_answer_state(event.connector, answer)
                if name in rows:
                    repeats.add(name)
                    continue
                body = self._seal_event((answer,), event.connector, name)
                row = {"connector": event.connector, "at": now // _SECOND, "body": body}
                rows[name] = {"delivery": name, **row}
        if not rows:
            return 0
        given = [rows[name] for name in sorted(rows)]  # two writers never wait in a circle
        insert = database.build_resolving_insert(self._engine, _events)
        insert = insert.on_conflict_do_nothing(index_elements=["delivery"])
        with self._writing() as connection:
            new = set(connection.scalars(insert.returning(_events.c.delivery), given))
            repeats |= rows.keys() - new
            if repeats:
                again = database.build_resolving_insert(self._engine, _repeats)
                again = again.on_conflict_do_update(index_elements=["delivery"], set_={"at": now})
                connection.execute(again, [{"delivery": r, "at": now} for r in sorted(repeats)])
        return len(new)

    def find_repeated(self, connector: str, answers: Sequence[Answer]) -> list[bool]:
        """Return for each answer whether its state came more than once, whatever was in it."""
        with self._reading() as connection:
            names = set(connection.scalars(sa.select(_repeats.c.delivery)))
        return [_hash_answer_state(connector, answer) in names for answer in answers]

    def forget_repeated(self, connector: str, answers: Sequence[Answer], before: int) -> None:
        """Forget that these came more than once, as far as that was `before` (µs, UTC)."""
        names = {_hash_answer_state(connector, answer) for answer in answers}
        with self._writing() as connection:
            for name in names & set(connection.scalars(sa.select(_repeats.c.delivery))):
                own = sa.and_(_repeats.c.delivery == name, _repeats.c.at < before)
                connection.execute(sa.delete(_repeats).where(own))

    def check_writable(self) -> None:
        """Write a record and flush it, as a delivery is; raise `ConnectorError` if it cannot be."""
        with self._writing() as connection:
            row = {"body": keyring.random_bytes(_CHECK_BYTES)}
            new = connection.scalar(sa.insert(_checks).returning(_checks.c.number), row)
            connection.execute(sa.delete(_checks).where(_checks.c.number != new))

    def count_waiting(self, connector: str | None = None) -> int:
        """Return how many events wait, or how many of a connector."""
        own = _WAITING.where(_events.c.connector == connector) if connector else _WAITING
        return self._count(own)

    def count_dead_letters(self) -> int:
        """Return how many dead letters there are."""
        return self._count(sa.select(_letters.c.number))

    def _count(self, rows: sa.Select[Any]) -> int:
        with self._reading() as connection:
            return connection.scalar(sa.select(sa.func.count()).select_from(rows.subquery())) or 0

    def list_connectors(self) -> list[str]:
        """Of which connectors events wait."""
        with self._reading() as connection:
            query = sa.select(_events.c.connector).where(_events.c.body.is_not(None)).distinct()
            return sorted(connection.scalars(query))

    def claim_events(self, connector: str, segment: str, most: int) -> int:
        """Take up to `most` waiting events of a connector for a segment; how many there were."""
        waiting = sa.and_(
            _events.c.connector == connector,
            _events.c.segment.is_(None),
            _events.c.body.is_not(None),
        )
        oldest = sa.select(_events.c.number).where(waiting).order_by(_events.c.number).limit(most)
        with self._writing() as connection:
            update = sa.update(_events).where(_events.c.number.in_(oldest))
            return connection.execute(update.values(segment=segment)).rowcount

    def read_claimed(self, segment: str) -> list[Event]:
        """Return the events that were taken for a segment, in the order in which they came."""
        with self._reading() as connection:
            own = _WAITING.where(_events.c.segment == segment).order_by(_events.c.number)
            rows = connection.execute(own).all()
        return [self._open_event(row.delivery, row.connector, row.body) for row in rows]

    def finish_claims(self, counted: Collection[str]) -> None:
        """Forget events in segments that count, and let those wait that a crash left claimed."""
        claimed = sa.select(_events.c.segment).where(
            _events.c.segment.is_not(None), _events.c.body.is_not(None)
        )
        with self._writing() as connection:
            for segment in connection.scalars(claimed.distinct()).all():
                own = sa.update(_events).where(_events.c.segment == segment)
                left = {"body": None} if segment in counted else {"segment": None}
                connection.execute(own.values(left))
            since = int(time.time()) - _REMEMBERED
            old = sa.and_(_events.c.body.is_(None), _events.c.at < since)
            connection.execute(sa.delete(_events).where(old))
            connection.execute(sa.delete(_repeats).where(_repeats.c.at < since * _SECOND))
        self._truncate_write_ahead_log()

    def store_dead_letter(self, connector: str, body: bytes, why: str) -> None:
        """Keep a delivery that could not be understood, sealed as it came, if there is room.

        It is filled up with blanks, for its length might tell a label.
        """
        body = body.ljust(max(1, -(-len(body) // _LETTER_BLOCK)) * _LETTER_BLOCK)
        sealed = self._keys.seal(_LETTER, body, connector.encode())
        values = {"connector": connector, "at": int(time.time()), "why": why[:400]}
        with self._writing() as connection:
            size = sa.func.coalesce(sa.func.sum(_letters.c.bytes), 0)
            there, held = connection.execute(sa.select(sa.func.count(), size)).one()
            if there >= LETTERS or held + len(body) > LETTERS_BYTES:
                raise ConnectorError(
                    f"there are {there:,} dead letters, the most that are kept; see their causes "
                    "(labelguard hook dead-letters), fix them and retry"
                )
            row = values | {"bytes": len(body), "body": sealed}
            connection.execute(sa.insert(_letters).values(row))

    def record_omissions(self, connector: str, reasons: Sequence[str], *, whole: bool) -> None:
        """Let there be a letter without a body for each reason why a pull left out an answer.

        Those of earlier pulls stay, or after a `whole` one go. There are at most so many.
        """
        own = sa.and_(_letters.c.connector == connector, _letters.c.bytes == 0)
        with self._writing() as connection:
            known = set(connection.scalars(sa.select(_letters.c.why).where(own)))
            if whole:
                gone = own & _letters.c.why.in_(known - set(reasons))
                connection.execute(sa.delete(_letters).where(gone))
            there = connection.scalar(sa.select(sa.func.count()).select_from(_letters)) or 0
            new = [one for one in dict.fromkeys(reasons) if one not in known]
            sealed = self._keys.seal(_LETTER, b"", connector.encode())
            row = {"connector": connector, "at": int(time.time()), "bytes": 0, "body": sealed}
            for reason in new[: max(LETTERS - there, 0)]:
                connection.execute(sa.insert(_letters).values({**row, "why": reason[:400]}))

    def list_dead_letters(self) -> list[Letter]:
        """Return the dead letters, oldest first."""
        own = _letters.c
        query = sa.select(own.number, own.connector, own.at, own.bytes, own.why)
        with self._reading() as connection:
            return [Letter(*row) for row in connection.execute(query.order_by(own.number))]

    def read_dead_letter(self, number: int) -> bytes:
        """Return what is in a dead letter; `ConnectorError` if there is none of that number."""
        query = sa.select(_letters.c.connector, _letters.c.body).where(_letters.c.number == number)
        with self._reading() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            raise ConnectorError(f"there is no dead letter {number}")
        return self._keys.unseal(_LETTER, row.body, row.connector.encode())

    def delete_dead_letter(self, number: int) -> None:
        """Forget a dead letter."""
        with self._writing() as connection:
            connection.execute(sa.delete(_letters).where(_letters.c.number == number))
        self._truncate_write_ahead_log()

    def filter_events(self, keep: Callable[[Event], Event | None]) -> int:
        """Put every waiting event through `keep`, and forget those that become None.

        How many answers there are fewer then.
        """
        fewer = 0
        with self._writing() as connection:
            for row in connection.execute(_WAITING).all():
                event = self._open_event(row.delivery, row.connector, row.body)
                rest = keep(event)
                gone = len(event.answers) - (len(rest.answers) if rest else 0)
                if gone:
                    given = (row.connector, row.delivery)
                    body = self._seal_event(rest.answers, *given) if rest else None
                    update = sa.update(_events).where(_events.c.number == row.number)
                    connection.execute(update.values(body=body))
                    fewer += gone
        self._truncate_write_ahead_log()
        return fewer

    def find_fault(self) -> str | None:
        """Return what cannot be read of it, or None."""
        try:
            with self._reading() as connection:
                for row in connection.execute(_WAITING):
                    self._open_event(row.delivery, row.connector, row.body)
        except (ConnectorError, KeyProblem) as error:
            return f"the inbox: {error}"
        return None

    def close(self) -> None:
        """Give its connections back."""
        self._engine.dispose()

    def _seal_event(self, answers: Sequence[Answer], connector: str, name: bytes) -> bytes:
        # In base64, where a quote takes no more than what else is said: connectors fill bodies up.
        rows = [(a.record, a.version, a.labeler, a.body.encode()) for a in answers]
        data = json.dumps(rows, default=lambda body: b64encode(body).decode()).encode()
        padded = data.ljust(-(-len(data) // _BLOCK) * _BLOCK)
        return self._keys.seal(_EVENT, padded, connector.encode() + name)

    def _open_event(self, name: bytes, connector: str, body: bytes) -> Event:
        rows = json.loads(self._keys.unseal(_EVENT, body, connector.encode() + name))
        answers = [Answer(r, v, who, b64decode(body).decode()) for r, v, who, body in rows]
        return Event(connector, tuple(answers))

    def _create_tables(self) -> None:
        with self._writing() as connection:
            _lock_creation(connection)
            _metadata.create_all(connection)

    def _truncate_write_ahead_log(self) -> None:
        """Remove what was deleted from the files too, unless somebody reads at this moment."""
        if self._engine.dialect.name == "sqlite":
            with contextlib.suppress(ConnectorError), self._reading() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with _translate_errors(self._engine), self._engine.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        own = self._engine.execution_options(writing=True)
        with _translate_errors(self._engine), own.begin() as connection:
            yield connection


def _hash_answer_state(connector: str, answer: Answer) -> bytes:
    """Return the name of a state in the database: a hash, for tools choose ids; of what is public.

    What is said in an answer would be known by its hash to whoever knows what may be said.
    """
    public = [connector, answer.record, answer.version, answer.is_deleted]
    return hashlib.sha256(json.dumps(public).encode()).digest()[:16]


def _engine(url: str) -> sa.Engine:
    engine = database.connect(url)
    if engine.dialect.name == "sqlite":

        @sa.event.listens_for(engine, "connect")
        def _configure(connection: Any, _: Any) -> None:
            # One fsync a commit, and readers do not stop writers.
            connection.execute("PRAGMA busy_timeout = 10000")
            database.enable_write_ahead_log(connection, 10)
            connection.execute("PRAGMA synchronous = FULL")

        return engine.execution_options(schema_translate_map={"inbox": None})

    @sa.event.listens_for(engine, "connect")
    def _set_timeouts(connection: Any, _: Any) -> None:
        # As long as on SQLite; and what is committed is on disk, whatever the server's default.
        connection.execute("SET lock_timeout = 10000")
        connection.execute("SET synchronous_commit = on")
        connection.commit()

    with _translate_errors(engine), engine.begin() as connection:
        _lock_creation(connection)
        # Two projects of one server differ in their search path.
        schema = f"{connection.scalar(sa.select(sa.func.current_schema()))}_inbox"
        connection.execute(sa.schema.CreateSchema(schema, if_not_exists=True))
    return engine.execution_options(schema_translate_map={"inbox": schema})


def _lock_creation(connection: sa.Connection) -> None:
    """Wait until nobody else makes an inbox: PostgreSQL refuses the second of two at once."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MAKING)))


@contextlib.contextmanager
def _translate_errors(engine: sa.Engine) -> Iterator[None]:
    """Raise the database's errors as `ConnectorError`; they name no event."""
    try:
        yield
    except sa.exc.SQLAlchemyError as error:
        cause = type(getattr(error, "orig", None) or error).__name__
        first = str(getattr(error, "orig", "")).partition("\n")[0]
        known = [word for word in ("locked", "full", "readonly", "disk I/O") if word in first]
        why = f"{cause} ({', '.join(known)})" if known else cause
        where = database.format_address(engine.url)
        raise ConnectorError(f"the inbox at {where} cannot be used now: {why}") from None
