"""The ledger: what every labeler has spent, and every release. No labels, no prompts.

One transaction checks allowances and writes charges together with the release as `reserved`; only
this yields a `Grant`, and only a grant opens a release writer. States of a release: `reserved`
(charged, no label read), `computing`, `drawn` (the private map is complete; what follows comes from
it alone), `committed`, `abandoned`, `refunded` (from `reserved` only).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import sqlalchemy as sa

from labelguard.budget.event_kind import Price
from labelguard.budget.policy import Policy
from labelguard.errors import KeyProblem, LedgerError, PolicyError
from labelguard.ledger import (
    charges,
    database,
    journal,
    people,
    policies,
    schema,
    sources,
    verification,
)
from labelguard.ledger.charges import ReleaseRepository
from labelguard.ledger.people import PeopleRepository
from labelguard.ledger.policies import IMPLICIT, Ceiling, PolicyRepository
from labelguard.ledger.records import Charge, ReleaseRecord
from labelguard.storage import blocks

if TYPE_CHECKING:
    from labelguard.keys.keyring import KeyRing
    from labelguard.ledger.records import Admission

P = ParamSpec("P")
R = TypeVar("R")
_SEAL = object()
_JOB = "labelguard ledger"  # one at a time


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

    `policies`, `releases` and `people` read and change its tables, each call in a transaction of
    its own. Labelers go by their keys, keyed hashes of their ids, which are their pseudonyms.
    """

    def __init__(self, url: str, keys: KeyRing) -> None:
        """Open an existing ledger.

        The project key must be the one it was made with. Raises `LedgerError` if it is missing,
        damaged, has the tables of another version, or was written by others.
        """
        self._engine = self._snapshots = journal.add_signer(database.connect_existing(url), keys)
        if self._engine.dialect.name == "postgresql":
            self._snapshots = self._engine.execution_options(isolation_level="REPEATABLE READ")
        self.policies = PolicyRepository(self.snapshot, self.transaction)
        self.releases = ReleaseRepository(self.snapshot, self.transaction)
        self.people = PeopleRepository(self.snapshot, self.transaction)
        with self.snapshot() as connection:
            schema.check_tables(connection, keys, self.address)
            journal.check_newest_signature(connection, self.address)

    @classmethod
    def create(cls, url: str, keys: KeyRing, ceiling: Ceiling = policies.DEFAULT) -> Ledger:
        """Make the tables, unless they exist."""
        with database.begin_writing(journal.add_signer(database.connect(url), keys)) as connection:
            if schema.create_tables(connection, keys):
                # A name that only this project has: anchors of two never agree.
                name = keys.mac("journal", b"project").hex()[:32]
                body = ceiling.to_journal() | {"schema": schema.VERSION, "project": name}
                journal.append_entry(connection, "created", body)
        try:
            ledger = cls(url, keys)
        except KeyProblem:
            raise LedgerError(
                f"{database.format_address(sa.make_url(url))} holds the ledger of another project; "
                "a new one needs a database of its own: check LABELGUARD_LEDGER_URL"
            ) from None
        present = ledger.policies.ceiling()
        if present != ceiling:
            raise PolicyError(
                f"the ledger at {ledger.address} was made with the ceiling {present}, "
                f"not with {ceiling}"
            )
        return ledger

    @property
    def address(self) -> str:
        """The ledger's URL without a password."""
        return database.format_address(self._engine.url)

    def begin_job(self) -> int:
        """Begin a new epoch: a job of an older one can no longer charge or commit."""
        with self.transaction() as connection:
            database.check_pages(connection, self.address)
            return schema.begin_epoch(connection)

    def hold_exclusively(self) -> contextlib.AbstractContextManager[None]:
        """Hold the ledger for one job, on whichever machine it runs; else `ProjectBusy`."""
        return database.hold_exclusively(self._engine, _JOB)

    def charge(
        self, charge: Charge, policy: Policy, epoch: int, resumed: ReleaseRecord | None = None
    ) -> Grant:
        """Charge and reserve a release in one transaction; or take up a crashed one.

        Raises `LedgerError` if a labeler lacks allowance: the caller must select within it.
        """
        if resumed:
            return self._grant_unfinished(charge, epoch, resumed)
        with self.transaction(epoch) as connection:
            active = policies.find_active(connection) or policies.add_policy(
                connection, IMPLICIT, policy, "active"
            )
            if active.policy != policy:
                raise LedgerError("the policy in force is not the one this job was planned with")
            policies.check_ceiling(connection)
            entries = journal.read_entries(connection)
            self._refuse_fault(
                verification.find_terms_fault(connection, entries)
                or verification.find_total_uses_fault(connection, entries, active.id, charge.event)
            )
            allowance = active.allowance_ids[charge.event]
            prices = policies.store_prices(connection, allowance, charge.prices)
            release_id = charges.reserve_release(connection, active.id, allowance, charge, prices)
        return self._grant(release_id, self.policies.prices(charge.event))

    def mark_reading(self, grant: Grant, epoch: int, reads: Admission | None = None) -> None:
        """Mark that labels are about to be read; from here on there is no refund.

        Also record what the release reads, and the labelers it is the first to meet.
        """
        release, facts = grant.release, dict[str, Any]()
        with self.transaction(epoch) as connection:
            if release.state != "reserved":
                return
            if reads:
                facts |= sources.record_source_use(connection, reads.source, reads.columns)
                facts |= people.add_identities(connection, release.number, reads.newcomers)
            charges.change_state(connection, release.id, ["reserved"], "computing", facts)

    def mark_drawn(self, grant: Grant, epoch: int, digest: str, labels: int) -> Grant:
        """Record the keyed digest of the complete private map: it is never redrawn from here on.

        Returns the grant with the release as it then is.
        """
        values = {"map": digest, "drawn": labels}
        release = grant.release.id
        self.write(epoch, charges.change_state, release, ["computing"], "drawn", values, values)
        return self._grant(release, grant.prices)

    def commit(self, grant: Grant, epoch: int, rows: int, files: Mapping[str, str]) -> None:
        """Record that the release is complete on disk; `files` maps public files to SHA-256."""
        facts, release = {"rows": rows, "files": dict(files)}, grant.release.id
        values = {"rows": rows, "files": json.dumps(facts["files"])}
        self.write(epoch, charges.change_state, release, ["drawn"], "committed", facts, values)

    def abandon(self, release_id: str, epoch: int) -> None:
        """Give up a release that read labels and was never finished: it stays charged."""
        self.write(epoch, charges.change_state, release_id, charges.UNFINISHED, "abandoned")

    def refund_reserved(self, epoch: int, resumed: str | None) -> list[str]:
        """Give back what crashed jobs charged before they read a label; return their release ids.

        `resumed` is the release that is about to be resumed, if any.
        """
        reserved = [record for record in self.releases.all() if record.state == "reserved"]
        refunded = [record for record in reserved if record.id != resumed]
        for record in refunded:
            self.write(epoch, charges.refund_release, record)
        return [record.id for record in refunded]

    def read_journal(self) -> list[journal.Entry]:
        """Return all journal entries, oldest first."""
        return self.read(journal.read_entries)

    def read_head(self) -> tuple[int, str]:
        """Return number and digest of the newest journal entry."""
        return self.read(journal.read_head)

    def find_fault(self) -> str | None:
        """Return the first thing in the ledger that does not hold, or None."""
        with self.snapshot() as connection:
            database.check_pages(connection, self.address)
            return verification.find_fault(connection, journal.read_entries(connection))

    def _grant(self, release_id: str, prices: Mapping[int, Price]) -> Grant:
        record = self.releases.get(release_id)
        assert record is not None
        return Grant(record, prices, _SEAL)

    def _grant_unfinished(self, charge: Charge, epoch: int, crashed: ReleaseRecord) -> Grant:
        """Return the grant of a release that was charged and not finished, if it needs no more."""
        with self.transaction(epoch) as connection:
            entries = journal.read_entries(connection)
            self._refuse_fault(verification.find_terms_fault(connection, entries))
            record = self.releases.get(crashed.id)
        if (
            record is None
            or record.state not in ("reserved", *charges.UNFINISHED)
            or record.idempotency_key != charge.idempotency_key
        ):
            raise LedgerError(f"release {crashed.id} is not one that this command can resume")
        who, labels = self.releases.charges(record.number)
        new = np.flatnonzero(charge.charged)
        at = blocks.find_positions(who, charge.labelers[new])
        if (at < 0).any() or (charge.charged[new] > labels[at]).any():
            raise LedgerError(
                f"release {record.id} cannot be resumed: it would need more than it was charged"
            )
        return Grant(record, self.policies.prices(charge.event), _SEAL)

    def _refuse_fault(self, broken: str | None) -> None:
        """Refuse to charge by policies, prices or uses that others wrote."""
        if broken:
            raise LedgerError(
                f"the ledger at {self.address} does not hold: {broken}; nothing was charged; put a "
                "true copy back"
            )

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sa.Connection]:
        """Open one transaction that sees one state of the ledger."""
        with database.translate_errors(self._engine), self._snapshots.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def transaction(self, epoch: int | None = None) -> Iterator[sa.Connection]:
        """Open one transaction that writes; with `epoch`, refused if another job began since."""
        with database.begin_writing(self._engine) as connection:
            current = schema.lock_epoch(connection)  # writers stand in line here
            if epoch is not None and current != epoch:
                raise LedgerError("another job has begun in this project; this one cannot go on")
            journal.check_newest_signature(connection, self.address)
            yield connection

    def read(
        self, statement: Callable[Concatenate[sa.Connection, P], R], *args: P.args, **kw: P.kwargs
    ) -> R:
        """Return the result of a statement, in a snapshot of its own."""
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
