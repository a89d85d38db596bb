"""The ledger: what every labeler has spent, and every release. No labels, no prompts.

One transaction checks allowances and writes charges together with the release as `reserved`; only
this yields a `Grant`, and only a grant opens a release writer. States of a release: `reserved`
(charged, no label read), `computing`, `committed`, `refunded` (from `reserved` only).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from labelguard import block128, clock, database, journal, statements, tables, verification
from labelguard.block128 import Blocks
from labelguard.errors import KeyProblem, LedgerError
from labelguard.policy import Policy
from labelguard.tables import SCHEMA_VERSION


@dataclass(frozen=True)
class ReleaseRecord:
    """One release as the ledger knows it."""

    id: str
    number: int
    idempotency_key: str
    policy_id: int
    state: str
    created_at: str
    settings: Mapping[str, Any]
    charged: int
    rows: int | None
    files: Mapping[str, str]
    seal: str | None = None


@dataclass(frozen=True)
class Event:
    """What a mechanism wants to do to whom, computed from public columns only.

    `labelers` (n, 2) are all labelers of the release with `capacity` k (n,), their places;
    `charged` (n,) is how many new places each of them is asked for: coins, or statistic releases.
    `prices` says for every k what noise a place buys (`labelguard.pricing`).
    """

    mechanism: str
    idempotency_key: str
    settings: Mapping[str, Any]
    labelers: Blocks
    capacity: NDArray[np.int64]
    charged: NDArray[np.int64]
    prices: Mapping[int, int]


_SEAL = object()


class Grant:
    """The right to compute one release: it was charged. Only the ledger makes grants."""

    def __init__(self, record: ReleaseRecord, prices: Mapping[int, int], seal: object) -> None:
        if seal is not _SEAL:
            raise LedgerError("a grant comes from Ledger.charge only: charge before release")
        self.release = record
        self.prices = dict(prices)

    def __repr__(self) -> str:
        return f"Grant({self.release.id})"


class Ledger:
    """The ledger of one project, on SQLite or PostgreSQL."""

    def __init__(self, url: str, key_check: str) -> None:
        """Open an existing ledger; the project key must be the one it was made with."""
        self._engine = self._snapshots = database.connect(url)
        if self._engine.dialect.name == "postgresql":
            self._snapshots = self._engine.execution_options(isolation_level="REPEATABLE READ")
        with self._reading() as connection:
            if not sa.inspect(connection).has_table("meta"):
                raise LedgerError(f"no ledger at {self.place}; a project without one has lost it")
            meta = {row.name: row.value for row in connection.execute(sa.select(tables.meta))}
        if int(meta.get("schema", 0)) != SCHEMA_VERSION:
            raise LedgerError(
                f"the ledger at {self.place} has schema {meta.get('schema')}; this labelguard "
                f"knows {SCHEMA_VERSION}; use the version of labelguard that wrote it"
            )
        if meta["key_check"] != key_check:
            raise KeyProblem(
                f"the project key is not the one the ledger at {self.place} was made with"
            )

    @classmethod
    def create(cls, url: str, key_check: str) -> Ledger:
        """Make the tables, unless they exist."""
        engine = database.connect(url)
        with database.writing(engine) as connection:
            if not sa.inspect(connection).has_table("meta"):
                tables.metadata.create_all(connection)
                rows = {"schema": str(SCHEMA_VERSION), "key_check": key_check, "epoch": "0"}
                connection.execute(
                    sa.insert(tables.meta), [{"name": k, "value": v} for k, v in rows.items()]
                )
                statements.append(connection, "created", {"schema": SCHEMA_VERSION})
        return cls(url, key_check)

    @property
    def place(self) -> str:
        """Where the ledger lives, without a password."""
        return database.place(self._engine.url)

    def begin_job(self) -> int:
        """A new epoch: a job of an older one can no longer charge or commit."""
        with self._writing() as connection:
            return statements.next_epoch(connection)

    def policy(self) -> tuple[int, Policy] | None:
        """The policy in force and its number, or None before the first release."""
        with self._reading() as connection:
            row = connection.execute(
                sa.select(tables.policies).order_by(tables.policies.c.id.desc()).limit(1)
            ).one_or_none()
        return (row.id, Policy.from_json(row.settings)) if row else None

    def prices(self) -> dict[int, int]:
        """Stored price of every k."""
        with self._reading() as connection:
            rows = connection.execute(sa.select(tables.prices.c.k, tables.prices.c.price)).all()
        return {row.k: int(row.price) for row in rows}

    def find(self, idempotency_key: str) -> ReleaseRecord | None:
        """The release (not refunded) that this very request made before."""
        condition = sa.and_(
            tables.releases.c.idempotency_key == idempotency_key,
            tables.releases.c.state != "refunded",
        )
        return next(iter(self._records(condition)), None)

    def release(self, release_id: str) -> ReleaseRecord | None:
        """One release by its id."""
        return next(iter(self._records(tables.releases.c.id == release_id)), None)

    def releases(self) -> list[ReleaseRecord]:
        """All releases, oldest first."""
        return self._records(sa.true())

    def labelers(self, excluding: ReleaseRecord | None = None) -> LabelerTable:
        """Allowances of all labelers; `excluding` takes one release's charges back out."""
        with self._reading() as connection:
            rows = connection.execute(sa.select(tables.labelers)).all()
            own = {}
            if excluding:
                charges = sa.select(tables.charges.c.labeler, tables.charges.c.labels)
                charged = connection.execute(
                    charges.where(tables.charges.c.release_id == excluding.id)
                )
                own = {row.labeler: row.labels for row in charged}
        return LabelerTable.of(
            [(r.labeler, r.capacity, r.used - own.get(r.labeler, 0)) for r in rows]
        )

    def charge(
        self, event: Event, policy: Policy, epoch: int, resumed: ReleaseRecord | None = None
    ) -> Grant:
        """Charge an event and reserve its release in one transaction; or take up a crashed one.

        Raises `LedgerError` if a labeler lacks allowance: the caller must select within it.
        """
        if resumed:
            return self._grant_again(event, epoch, resumed)
        with self._writing(epoch) as connection:
            policy_id = statements.policy_id(connection, policy)
            prices = statements.store_prices(connection, policy_id, event.prices)
            charges = statements.charge_labelers(connection, event)
            number = 1 + (connection.scalar(sa.select(sa.func.max(tables.releases.c.number))) or 0)
            record = {
                "id": f"r{number:04d}-{event.idempotency_key[:8]}",
                "number": number,
                "idempotency_key": event.idempotency_key,
                "policy_id": policy_id,
                "state": "reserved",
                "created_at": clock.now(),
                "settings": json.dumps(dict(event.settings), sort_keys=True),
                "charged": int(event.charged.sum()),
            }
            connection.execute(sa.insert(tables.releases).values(record))
            statements.charge_release(connection, str(record["id"]), charges)
            body = {"release": record["id"], "mechanism": event.mechanism}
            body |= {"labels": record["charged"], "labelers": len(charges)}
            body |= {"charges": verification.charges_digest(charges), "prices": prices}
            statements.append(connection, "charged", body)
        granted = self.release(str(record["id"]))
        assert granted is not None
        return Grant(granted, self.prices(), _SEAL)

    def start(self, grant: Grant, epoch: int) -> None:
        """Mark that labels are about to be read; from here on there is no refund."""
        with self._writing(epoch) as connection:
            if grant.release.state == "reserved":
                statements.set_state(
                    connection, grant.release.id, "reserved", {"state": "computing"}
                )
                statements.append(connection, "computing", {"release": grant.release.id})

    def seal(self, grant: Grant, epoch: int, digest: str) -> None:
        """Keep, until the commit, a keyed digest of the exact value that noise is about to hide.

        Raises `LedgerError` if another was kept: the same noise over two values would tell their
        difference, which is a function of labels without any noise.
        """
        with self._writing(epoch) as connection:
            own = tables.releases.c.id == grant.release.id
            kept = connection.scalar(sa.select(tables.releases.c.seal).where(own))
            if kept is None:
                statements.set_state(connection, grant.release.id, "computing", {"seal": digest})
            elif kept != digest:
                raise LedgerError(
                    f"release {grant.release.id} cannot be resumed: the sum kept for it is not "
                    "the one that was sealed; restore the keys directory from a backup"
                )

    def commit(self, grant: Grant, epoch: int, rows: int, files: Mapping[str, str]) -> None:
        """The release is complete on disk; `files` maps public file names to SHA-256."""
        with self._writing(epoch) as connection:
            values = {"state": "committed", "rows": rows, "files": json.dumps(dict(files))}
            values |= {"seal": None}
            statements.set_state(connection, grant.release.id, "computing", values)
            body = {"release": grant.release.id, "rows": rows, "files": dict(files)}
            statements.append(connection, "committed", body)

    def refund_reserved(self, epoch: int, keep: str | None) -> list[str]:
        """Give back what crashed jobs charged before they read a label; their release ids.

        `keep` is the release that is about to be resumed, if any.
        """
        reserved = [
            record
            for record in self._records(tables.releases.c.state == "reserved")
            if record.id != keep
        ]
        for record in reserved:
            with self._writing(epoch) as connection:
                owed = sa.select(tables.charges.c.labeler, tables.charges.c.labels)
                rows = connection.execute(
                    owed.where(tables.charges.c.release_id == record.id)
                ).all()
                give_back = (
                    sa.update(tables.labelers)
                    .where(tables.labelers.c.labeler == sa.bindparam("who"))
                    .values(used=tables.labelers.c.used - sa.bindparam("count"))
                )
                if rows:
                    charged = [{"who": row.labeler, "count": row.labels} for row in rows]
                    connection.execute(give_back, charged)
                connection.execute(
                    sa.delete(tables.charges).where(tables.charges.c.release_id == record.id)
                )
                # Nobody's k is fixed by a release that did not happen.
                connection.execute(sa.delete(tables.labelers).where(tables.labelers.c.used == 0))
                values = {"state": "refunded", "charged": 0}
                statements.set_state(connection, record.id, "reserved", values)
                statements.append(
                    connection, "refunded", {"release": record.id, "labels": record.charged}
                )
        return [record.id for record in reserved]

    def journal(self) -> list[journal.Entry]:
        """All journal entries, oldest first."""
        with self._reading() as connection:
            return statements.entries(connection)

    def fault(self) -> str | None:
        """The first thing in the ledger that does not hold, or None."""
        with self._reading() as connection:
            return verification.first_fault(connection, statements.entries(connection))

    def _grant_again(self, event: Event, epoch: int, crashed: ReleaseRecord) -> Grant:
        """The grant of a release that was charged and not finished, if it needs no more."""
        with self._writing(epoch):
            record = self.release(crashed.id)
        if (
            record is None
            or record.state not in ("reserved", "computing")
            or record.idempotency_key != event.idempotency_key
        ):
            raise LedgerError(f"release {crashed.id} is not one that this command can resume")
        self._check_same_charge(event, record)
        return Grant(record, self.prices(), _SEAL)

    def _check_same_charge(self, event: Event, record: ReleaseRecord) -> None:
        asked = {
            bytes(key): int(count)
            for key, count in zip(statements.keys(event.labelers), event.charged, strict=True)
            if count
        }
        with self._reading() as connection:
            charges = sa.select(tables.charges.c.labeler, tables.charges.c.labels)
            rows = connection.execute(charges.where(tables.charges.c.release_id == record.id)).all()
        granted = {bytes(row.labeler): row.labels for row in rows}
        if any(count > granted.get(labeler, 0) for labeler, count in asked.items()):
            raise LedgerError(
                f"release {record.id} cannot be resumed: it would need more than it was charged"
            )

    def _records(self, condition: sa.ColumnElement[bool]) -> list[ReleaseRecord]:
        with self._reading() as connection:
            query = sa.select(tables.releases).where(condition).order_by(tables.releases.c.number)
            rows = connection.execute(query).all()
        return [
            ReleaseRecord(
                **row._asdict()
                | {"settings": json.loads(row.settings), "files": json.loads(row.files or "{}")}
            )
            for row in rows
        ]

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        """One transaction that sees one state of the ledger."""
        with database.translated(self._engine), self._snapshots.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def _writing(self, epoch: int | None = None) -> Iterator[sa.Connection]:
        """One transaction; with `epoch`, refused if another job has begun since."""
        with database.writing(self._engine) as connection:
            if epoch is not None and statements.epoch(connection) != epoch:
                raise LedgerError("another job has begun in this project; this one cannot go on")
            yield connection


@dataclass(frozen=True)
class LabelerTable:
    """Labelers sorted by pseudonym, with their capacity k and used places, shape (n,)."""

    labelers: Blocks
    capacity: NDArray[np.int64]
    used: NDArray[np.int64]

    @classmethod
    def of(cls, rows: list[tuple[bytes, int, int]]) -> LabelerTable:
        """From (pseudonym, capacity, used) in any order."""
        rows = sorted(rows)
        return cls(
            block128.from_bytes(b"".join(row[0] for row in rows)),
            np.array([row[1] for row in rows], dtype=np.int64),
            np.array([row[2] for row in rows], dtype=np.int64),
        )
