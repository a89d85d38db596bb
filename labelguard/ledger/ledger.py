"""The ledger: what every labeler has spent, and every release. No labels, no prompts.

One transaction checks allowances and writes charges together with the release as `reserved`; only
this yields a `Grant`, and only a grant opens a release writer. States of a release: `reserved`
(charged, no label read), `computing`, `drawn` (the private map is complete; what follows comes from
it alone), `committed`, `abandoned`, `refunded` (from `reserved` only).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import sqlalchemy as sa

from labelguard.budget.event_kind import Price
from labelguard.budget.policy import Policy
from labelguard.errors import LedgerError, PolicyError
from labelguard.ledger import (
    charges,
    database,
    journal,
    meta,
    people,
    policies,
    schema,
    sourcebook,
    verification,
)
from labelguard.ledger.policies import IMPLICIT, Ceiling, PolicyRecord
from labelguard.ledger.records import Charge, LabelerTable, ReleaseRecord
from labelguard.ledger.sourcebook import SourceRecord
from labelguard.ledger.witness import Witness
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks

if TYPE_CHECKING:
    from labelguard.keys.identities import Identities
    from labelguard.keys.keyring import KeyRing
    from labelguard.ledger.records import Admission

P = ParamSpec("P")
R = TypeVar("R")
_SEAL = object()


class Grant:
    """The right to compute one release: it was charged. Only the ledger makes grants."""

    def __init__(self, record: ReleaseRecord, prices: Mapping[int, Price], seal: object) -> None:
        if seal is not _SEAL:
            raise LedgerError("a grant comes from Ledger.charge only: charge before release")
        self.release = record
        self.prices = dict(prices)

    def __repr__(self) -> str:
        return f"Grant({self.release.id})"


class Ledger:
    """The ledger of one project, on SQLite or PostgreSQL.

    Labelers go by their keys, keyed hashes of their ids, which are their pseudonyms.
    """

    def __init__(
        self,
        url: str,
        keys: KeyRing,
        witnesses: Sequence[Path] = (),
    ) -> None:
        """Open an existing ledger.

        The project key must be the one it was made with. Raises `LedgerError` if it is missing,
        damaged, has the tables of another version, was written by others, or is older than what
        `witnesses` have seen.
        """
        self._engine = self._snapshots = journal.signing(database.connect(url), keys)
        if self._engine.dialect.name == "postgresql":
            self._snapshots = self._engine.execution_options(isolation_level="REPEATABLE READ")
        self._witness = Witness(witnesses)
        with self.snapshot() as connection:
            meta.check(connection, keys, self.address)
            self._guard(connection)

    @classmethod
    def create(
        cls,
        url: str,
        keys: KeyRing,
        witnesses: Sequence[Path] = (),
        ceiling: Ceiling = policies.DEFAULT,
    ) -> Ledger:
        """Make the tables, unless they exist, and the witnesses."""
        with database.writing(journal.signing(database.connect(url), keys)) as connection:
            if meta.create(connection, keys):
                body = ceiling.to_journal() | {"schema": schema.VERSION}
                journal.append(connection, "created", body)
        number, digest = cls(url, keys).head()
        if number == 1:  # nothing was charged: an earlier attempt may have crashed here
            Witness(witnesses).note(number, digest)
        ledger = cls(url, keys, witnesses)
        found = ledger.ceiling()
        if found != ceiling:
            raise PolicyError(
                f"the ledger at {ledger.address} was made with the ceiling {found}, "
                f"asked: {ceiling}"
            )
        return ledger

    @property
    def address(self) -> str:
        """Where the ledger lives, without a password."""
        return database.address(self._engine.url)

    def ceiling(self) -> Ceiling:
        """What all policies together may cost a labeler, for life."""
        return self.read(policies.ceiling)

    def begin_job(self) -> int:
        """A new epoch: a job of an older one can no longer charge or commit."""
        with self.transaction() as connection:
            database.check_pages(connection, self.address)
            return meta.next_epoch(connection)

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        """Hold the ledger for one job, on whichever machine it runs; else `ProjectBusy`."""
        return database.exclusive(self._engine, meta.EXCLUSIVE)

    def policies(self) -> list[PolicyRecord]:
        """All policies, oldest first."""
        return self.read(policies.records)

    def policy(self) -> PolicyRecord | None:
        """The policy in force, or None."""
        return self.read(policies.in_force)

    def prices(self, event: str) -> dict[int, Price]:
        """Stored price of every k, for one kind of event, under the policy in force."""
        active = self.policy()
        return dict(active.prices.get(event, {})) if active else {}

    def find(self, idempotency_key: str) -> ReleaseRecord | None:
        """The release (not given back or abandoned) that this very request made before."""
        condition = sa.and_(
            schema.releases.c.idempotency_key == idempotency_key,
            schema.releases.c.state.in_(charges.LIVE),
        )
        return next(iter(self._records(condition)), None)

    def release(self, release_id: str) -> ReleaseRecord | None:
        """One release by its id."""
        return next(iter(self._records(schema.releases.c.id == release_id)), None)

    def releases(self) -> list[ReleaseRecord]:
        """All releases, oldest first."""
        return self._records(sa.true())

    def labelers(self, event: str, excluding: ReleaseRecord | None = None) -> LabelerTable:
        """What all units may use, and have used, of a kind of event under the policy in force.

        `excluding` takes one release's charges back out.
        """
        with self.snapshot() as connection:
            active = policies.in_force(connection)
            allowance = active.allowance_ids.get(event) if active else None
            counters = schema.counters.c
            query = (
                sa.select(counters.labeler, counters.capacity, counters.used)
                .where(counters.allowance_id == allowance)
                .order_by(counters.labeler)
            )
            labelers, (capacity, used) = database.keyed(connection, query)
            if (
                active
                and excluding
                and (excluding.policy_id, excluding.event) == (active.id, event)
            ):
                who, labels = charges.of_release(connection, excluding.number)
                used[blocks.positions(labelers, who)] -= labels
        return LabelerTable(labelers, capacity, used)

    def usage(self) -> dict[str, list[tuple[int, int, int]]]:
        """Under the policy in force, by kind of event: how many units have (capacity, used)."""
        with self.snapshot() as connection:
            active = policies.in_force(connection)
            return charges.usage(connection, active.allowance_ids) if active else {}

    def near(self, event: str, percent: int, most: int) -> list[tuple[str, int, int]]:
        """Under the policy in force, who used so much of an allowance (see `charges.near`)."""
        with self.snapshot() as connection:
            active = policies.in_force(connection)
            if active is None or event not in active.allowance_ids:
                return []
            return charges.near(connection, active.allowance_ids[event], percent, most)

    def charged(self) -> Blocks:
        """All units that were ever charged, by whichever policy, shape (n, 2)."""
        return self.read(people.charged)

    def charge(
        self, asked: Charge, policy: Policy, epoch: int, resumed: ReleaseRecord | None = None
    ) -> Grant:
        """Charge and reserve a release in one transaction; or take up a crashed one.

        Raises `LedgerError` if a labeler lacks allowance: the caller must select within it.
        """
        if resumed:
            return self._grant_again(asked, epoch, resumed)
        with self.transaction(epoch) as connection:
            active = policies.in_force(connection) or policies.add(
                connection, IMPLICIT, policy, "active"
            )
            if active.policy != policy:
                raise LedgerError("the policy in force is not the one this job was planned with")
            policies.check_ceiling(connection)
            self._check_terms(connection)
            allowance = active.allowance_ids[asked.event]
            prices = charges.store_prices(connection, allowance, asked.prices)
            release_id = charges.reserve(connection, active.id, allowance, asked, prices)
        granted = self.release(release_id)
        assert granted is not None
        return Grant(granted, self.prices(asked.event), _SEAL)

    def start(self, grant: Grant, epoch: int, reads: Admission | None = None) -> None:
        """Mark that labels are about to be read; from here on there is no refund.

        What it reads, and whom it is the first to meet, is kept from here on too.
        """
        release, told = grant.release, dict[str, Any]()
        with self.transaction(epoch) as connection:
            if release.state != "reserved":
                return
            if reads:
                told |= sourcebook.note(connection, reads.source, reads.columns)
                told |= people.meet(connection, release.number, reads.newcomers)
            charges.advance(connection, release.id, ["reserved"], "computing", told)

    def mark_drawn(self, grant: Grant, epoch: int, digest: str, labels: int) -> Grant:
        """The private map is complete, with this keyed digest: from here on it is never redrawn.

        Returns the grant as it then stands.
        """
        values = {"map": digest, "drawn": labels}
        release = grant.release.id
        self.write(epoch, charges.advance, release, ["computing"], "drawn", values, values)
        record = self.release(release)
        assert record is not None
        return Grant(record, grant.prices, _SEAL)

    def commit(self, grant: Grant, epoch: int, rows: int, files: Mapping[str, str]) -> None:
        """The release is complete on disk; `files` maps public file names to SHA-256."""
        told, release = {"rows": rows, "files": dict(files)}, grant.release.id
        values = {"rows": rows, "files": json.dumps(told["files"])}
        self.write(epoch, charges.advance, release, ["drawn"], "committed", told, values)

    def abandon(self, release_id: str, epoch: int) -> None:
        """Give up a release that read labels and was never finished: it stays charged."""
        self.write(epoch, charges.advance, release_id, charges.UNFINISHED, "abandoned")

    def refund_reserved(self, epoch: int, resumed: str | None) -> list[str]:
        """Give back what crashed jobs charged before they read a label; their release ids.

        `resumed` is the release that is about to be resumed, if any.
        """
        reserved = self._records(schema.releases.c.state == "reserved")
        refunded = [record for record in reserved if record.id != resumed]
        for record in refunded:
            self.write(epoch, charges.refund, record)
        return [record.id for record in refunded]

    def sources(self) -> list[SourceRecord]:
        """The sources of labels, oldest first (see `sourcebook`)."""
        return self.read(sourcebook.records)

    def identities(self) -> Identities:
        """Everybody whom a release or a list of groups has named, and the forms of their ids."""
        return self.read(people.identities)

    def known(self) -> Identities:
        """Whom releases have met, and who was put into a group, linked, or left before any did."""
        unmet = np.concatenate([self.members()[0], self.tombstones()])
        return self.identities().with_keys(unmet)

    def distinct(self) -> tuple[Blocks, Blocks]:
        """Pairs who are two people, though their ids have one form; both (n, 2)."""
        return self.read(people.distinct)

    def members(self) -> tuple[Blocks, Blocks]:
        """Labelers in groups, sorted, and the group of each; both (n, 2)."""
        return self.read(people.members)

    def tombstones(self) -> Blocks:
        """Labelers who were retired or erased, sorted, shape (n, 2)."""
        return self.read(people.tombstones)

    def journal(self) -> list[journal.Entry]:
        """All journal entries, oldest first."""
        return self.read(journal.entries)

    def head(self) -> tuple[int, str]:
        """Number and digest of the newest journal entry."""
        return self.read(journal.head)

    def fault(self) -> str | None:
        """The first thing in the ledger that does not hold, or None."""
        with self.snapshot() as connection:
            database.check_pages(connection, self.address)
            return verification.first_fault(connection, journal.entries(connection))

    def _grant_again(self, asked: Charge, epoch: int, crashed: ReleaseRecord) -> Grant:
        """The grant of a release that was charged and not finished, if it needs no more."""
        with self.transaction(epoch) as connection:
            self._check_terms(connection)
            record = self.release(crashed.id)
        if (
            record is None
            or record.state not in ("reserved", *charges.UNFINISHED)
            or record.idempotency_key != asked.idempotency_key
        ):
            raise LedgerError(f"release {crashed.id} is not one that this command can resume")
        with self.snapshot() as connection:
            who, labels = charges.of_release(connection, record.number)
        new = np.flatnonzero(asked.charged)
        at = blocks.positions(who, asked.labelers[new])
        if (at < 0).any() or (asked.charged[new] > labels[at]).any():
            raise LedgerError(
                f"release {record.id} cannot be resumed: it would need more than it was charged"
            )
        return Grant(record, self.prices(asked.event), _SEAL)

    def _check_terms(self, connection: sa.Connection) -> None:
        """Refuse to charge by policies or prices that others wrote."""
        broken = verification.terms_fault(connection, journal.entries(connection))
        if broken:
            raise LedgerError(
                f"the ledger at {self.address} does not hold: {broken}; nothing was charged; put a "
                "true copy back"
            )

    def _records(self, condition: sa.ColumnElement[bool]) -> list[ReleaseRecord]:
        return self.read(charges.releases, condition)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sa.Connection]:
        """One transaction that sees one state of the ledger."""
        with database.translated(self._engine), self._snapshots.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def transaction(self, epoch: int | None = None) -> Iterator[sa.Connection]:
        """One transaction that writes; with `epoch`, refused if another job has begun since."""
        with database.writing(self._engine) as connection:
            current = meta.epoch(connection)  # writers stand in line here
            if epoch is not None and current != epoch:
                raise LedgerError("another job has begun in this project; this one cannot go on")
            self._guard(connection)
            yield connection
            head = journal.head(connection)
        self._witness.note(*head)

    def read(
        self, statement: Callable[Concatenate[sa.Connection, P], R], *args: P.args, **kw: P.kwargs
    ) -> R:
        """Return what a statement finds, in a snapshot of its own."""
        with self.snapshot() as connection:
            return statement(connection, *args, **kw)

    def write(
        self,
        epoch: int | None,
        statement: Callable[Concatenate[sa.Connection, P], R],
        *args: P.args,
        **kw: P.kwargs,
    ) -> R:
        """Run a statement in a transaction of its own; return what it returns."""
        with self.transaction(epoch) as connection:
            return statement(connection, *args, **kw)

    def _guard(self, connection: sa.Connection) -> None:
        """Refuse a ledger that others wrote, or that fell back."""
        journal.check_head(connection, self.address)
        self._witness.check(connection, self.address)
