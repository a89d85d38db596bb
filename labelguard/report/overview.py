"""Results of the commands that read a project."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa

from labelguard import clock
from labelguard.budget import pricing
from labelguard.budget.policy import AnyUnit
from labelguard.budget.pricing import Total
from labelguard.errors import LabelguardError, LedgerError
from labelguard.keys.prf import Split
from labelguard.ledger import charges, schema
from labelguard.ledger.journal import Anchor
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.people import Departure
from labelguard.ledger.policies import Ceiling
from labelguard.ledger.records import ReleaseRecord
from labelguard.project import policies
from labelguard.project.opening import OpenProject, Where
from labelguard.project.policy_facts import PolicyDetails
from labelguard.project.verification import (
    FilesVerification,
    Verification,
    find_release_fault,
    verify_records,
)
from labelguard.storage import blocks
from labelguard.storage.files import check_new_output_file

if TYPE_CHECKING:
    from labelguard.project.erasure import ReleaseUse

# Weeks from the first release until use has a rate.
_RATE_WEEKS = 2


@dataclass(frozen=True)
class Lifetime(Total):
    """The cost of all policies of a project to a labeler."""

    # how many were or are in force
    policies: int


@dataclass(frozen=True)
class Usage:
    """The use of one allowance of a policy."""

    # the kind of event: rr or statistic
    event: str
    # units that were charged
    labelers: int
    # what they may use in all
    allowed: int
    # how much of it they used
    used: int
    # how much is left
    left: int
    # units with nothing left
    exhausted_labelers: int
    # min, quartiles and max over units; empty before the first charge
    left_per_labeler: Mapping[str, int]
    # the same of what was used
    used_per_labeler: Mapping[str, int]
    # weeks until the median unit has nothing left, at the rate of the median unit since the first
    # release under this policy, its week included; null: nothing was charged, that was less than
    # two weeks ago, or contents are protected, which are labelled once and have no rate
    weeks_left: int | None


@dataclass(frozen=True)
class Budget:
    """The budget of a project."""

    # the policy in force
    policy: PolicyDetails | None
    # what all policies together may cost
    ceiling: Ceiling
    # what they cost so far
    lifetime: Lifetime
    # those of the policy in force
    allowances: list[Usage]


@dataclass(frozen=True)
class JournalEntry:
    """One entry of the journal."""

    # from 1 on, without gaps
    number: int
    # when it was written, UTC
    at: str
    # what happened
    kind: str
    # what it is about: counts, settings and digests, never labels
    body: Mapping[str, Any]
    # digest of the entry before
    previous: str
    # SHA-256 of this one
    digest: str


@dataclass(frozen=True)
class ReleaseLine:
    """A release in a few words."""

    # its id
    id: str
    # reserved, computing, drawn, committed or abandoned
    state: str
    # when it was begun, UTC
    created_at: str
    # rr, props, statistic or evaluation
    mechanism: str
    # whose labels it has: training, or held-out
    part: Split
    # how much it charged, over all labelers
    charged: int
    # rows of its file; null before it is committed
    rows: int | None
    # its directory
    path: str


@dataclass(frozen=True)
class Exported:
    """A ledger that was written out."""

    # the file
    path: str
    # how many rows each table has
    rows: Mapping[str, int]


@dataclass(frozen=True)
class Simulated:
    """A simulated table that was written."""

    # the file
    path: str
    # its labels
    rows: int
    # its columns
    columns: list[str]


def read_budget(project: Where) -> Budget:
    """Return the policy in force, the cost of all policies, and the use of each allowance."""
    ledger = OpenProject.open(project).ledger
    active, every = ledger.policies.active(), ledger.policies.history()
    total = pricing.sum_budgets(every)
    return Budget(
        policies.describe_policy(active) if active else None,
        ledger.policies.ceiling(),
        Lifetime(total.epsilon, total.delta, len(every)),
        [
            _summarize_usage(event, rows, _count_weeks_in_use(ledger, event))
            for event, rows in ledger.releases.usage().items()
        ],
    )


def _count_weeks_in_use(ledger: Ledger, event: str) -> int | None:
    """Return the weeks begun since the first release under the policy in force.

    None where two are not over, or there is no rate at all.
    """
    active = ledger.policies.active()
    if active is None or active.policy.unit == "item":
        return None
    mine = (
        one for one in ledger.releases.all() if (one.policy_id, one.event) == (active.id, event)
    )
    first = next((clock.parse_time(one.created_at) for one in mine), None)
    if first is None:
        return None
    over = (clock.parse_time(clock.now()) - first) // timedelta(weeks=1)
    return over + 1 if over >= _RATE_WEEKS else None


def _summarize_usage(event: str, rows: list[tuple[int, int, int]], weeks: int | None) -> Usage:
    """Use of one kind of event in so many weeks, from how many units have (capacity, used)."""
    table = np.array(rows, np.int64).reshape(-1, 3)
    capacity, used, count = table.T
    left, spent = find_quartiles(capacity - used, count), find_quartiles(used, count)
    pace = spent.get("median", 0)
    return Usage(
        event,
        labelers=int(count.sum()),
        allowed=int(capacity @ count),
        used=int(used @ count),
        left=int((capacity - used) @ count),
        exhausted_labelers=int(count[capacity == used].sum()),
        left_per_labeler=left,
        used_per_labeler=spent,
        weeks_left=-(-left["median"] * weeks // pace) if weeks and pace else None,
    )


def find_quartiles(
    values: np.ndarray[Any, np.dtype[np.int64]], count: np.ndarray[Any, np.dtype[np.int64]]
) -> dict[str, int]:
    """Minimum, quartiles and maximum of values that occur `count` times; empty without values."""
    if not len(values):
        return {}
    order = np.argsort(values)
    reached = np.cumsum(count[order])
    names = {"min": 0.0, "25%": 0.25, "median": 0.5, "75%": 0.75, "max": 1.0}
    return {
        name: int(values[order][np.searchsorted(reached, max(1, share * reached[-1]))])
        for name, share in names.items()
    }


def read_journal(project: Where) -> list[JournalEntry]:
    """Return the journal's entries, oldest first."""
    return [
        JournalEntry(e.number, e.at, e.kind, json.loads(e.body), e.previous, e.digest)
        for e in OpenProject.open(project).ledger.read_journal()
    ]


def list_releases(project: Where) -> list[ReleaseLine]:
    """Return all releases, oldest first."""
    opened = OpenProject.open(project)
    return [
        ReleaseLine(
            *(r.id, r.state, r.created_at, r.settings["mechanism"], r.part, r.charged, r.rows),
            path=str(opened.project.releases / r.id),
        )
        for r in opened.ledger.releases.all()
    ]


def find_release_directory(release_id: str | None, project: Where) -> Path:
    """Return the directory of a committed release, by default the newest."""
    opened = OpenProject.open(project)
    return opened.project.releases / _find_release_or_all(opened.ledger, release_id)[-1].id


def verify(project: Where, anchor: str | None = None) -> Verification:
    """Check journal, charges and the files of all releases; return the first fault, if any.

    `anchor` is a line of `anchor`, from whenever: the journal must still hold its entry.
    """
    return verify_records(OpenProject.open(project), Anchor.parse(anchor) if anchor else None)


def verify_releases(release_id: str | None, project: Where) -> FilesVerification:
    """Check that the files of releases are what was committed; return the first fault, if any."""
    opened = OpenProject.open(project)
    chosen = _find_release_or_all(opened.ledger, release_id)
    broken = find_release_fault(opened, chosen)
    return FilesVerification(broken is None, broken, len(chosen))


def verify_copy(directory: Path) -> tuple[FilesVerification, bool]:
    """Check a copy of a release by its own sums, or its project's ledger; say whether by that."""
    from labelguard.release.writer import check_committed_and_unchanged, is_in_project

    try:
        check_committed_and_unchanged(directory)
        broken = None
    except LabelguardError as error:
        broken = str(error)
    return FilesVerification(broken is None, broken, 1), is_in_project(directory)


def write_simulated_labels(path: Path, **options: Any) -> Simulated:
    """Write a simulated table to a Parquet file."""
    import pyarrow.parquet as pq

    from labelguard.simulation import simulate

    check_new_output_file(path, "labels.parquet")
    try:
        table = simulate(**options)
    except ValueError as error:
        raise LabelguardError(str(error)) from None
    pq.write_table(table, path, compression="zstd")
    return Simulated(str(path), table.num_rows, table.column_names)


def _find_release_or_all(ledger: Ledger, release_id: str | None) -> list[ReleaseRecord]:
    """Return the committed release of an id, or all of them; raise `LedgerError` for none."""
    if release_id is not None:
        return [ledger.releases.find_committed(release_id)]
    if not (records := ledger.releases.list_committed()):
        raise LedgerError("no committed release in this project; see: labelguard release list")
    return records


_EXPORTED = (
    *("policies", "allowances", "prices", "releases", "counters", "charges", "sources"),
    *("identities", "links", "tombstones", "segments", "journal"),
)
# Keyed digests that mean nothing outside the project.
_SECRET = ("map", "idempotency_key", "mac")
_JSON = ("settings", "quote", "columns", "files", "body", "price")


def export_ledger(output: Path, project: Where = None) -> Exported:
    """Write every table of the ledger to a JSON file, of one moment: an object a line.

    Pseudonyms are hexadecimal; only the file's owner may read it. Returns how many rows each table
    has. Raises `LabelguardError` if `output` exists or cannot be made.
    """
    check_new_output_file(output, "ledger.json")
    ledger = OpenProject.open(project).ledger
    counts: dict[str, int] = {}
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with ledger.snapshot() as connection, os.fdopen(descriptor, "w", encoding="utf-8") as file:
        for table in _EXPORTED:
            file.write(f"{',' if counts else '{'}\n{json.dumps(table)}: [")
            counts[table] = 0
            for row in _read_exported_rows(connection, schema.metadata.tables[table]):
                text = json.dumps(row, ensure_ascii=False)
                file.write(f"{',' if counts[table] else ''}\n{text}")
                counts[table] += 1
            file.write("]")
        file.write("\n}\n")
    return Exported(str(output), counts)


def _read_exported_rows(connection: sa.Connection, table: sa.Table) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table in the order of its key, never all in memory."""
    columns = (column for column in table.c if column.name not in _SECRET)
    query = sa.select(*columns).order_by(*table.primary_key.columns)
    for row in connection.execution_options(yield_per=10_000).execute(query).mappings():
        yield {name: _to_json_value(name, value) for name, value in row.items()}


def _to_json_value(name: str, value: Any) -> Any:
    """Return a value for JSON; settings of a release are without the place of its input."""
    if isinstance(value, bytes):
        return value.hex()
    if value is None or name not in _JSON:
        return value
    parsed = json.loads(value)
    return {n: v for n, v in parsed.items() if n != "request"} if name == "settings" else parsed


@dataclass(frozen=True)
class LabelerAllowance:
    """A labeler's part of one allowance of a policy."""

    # the policy's name
    policy: str
    # the kind of event: rr or statistic
    event: str
    # how many they may use
    allowed: int
    # how many they used
    used: int
    # how many are left; 0 once the policy is closed
    left: int
    # of the policy: active or closed
    state: str


@dataclass(frozen=True)
class LabelerFacts:
    """A labeler as the project knows them, without their labels.

    What was charged, is left and was taken is that of all ids which are linked with theirs.
    """

    # 32 hexadecimal digits
    pseudonym: str
    # what the project protects as a whole; null before its first policy
    unit: AnyUnit | None
    # whether they left, how and when; null if they did not
    departure: Departure | None
    # pseudonyms of linked ids that have not left
    linked: list[str]
    # under every policy that charged them; none if nothing was charged
    allowances: list[LabelerAllowance]
    # what all policies, at their full price, may have told of them; 0 if nothing was charged. Of
    # whom all ids have left: no policy that was put into force later and never charged them. Where
    # contents are protected: of each content
    epsilon: float
    # and with which δ
    delta: float
    # what each release took of them; none where contents are protected
    releases: list[ReleaseUse]
    # rows of theirs in private maps: one for each label and release
    rows_remembered: int
    # raw rows of theirs: set aside, ingested, waiting in the inbox
    rows_set_aside: int


def read_labeler(labeler_id: str, project: Where = None) -> LabelerFacts:
    """Return the facts of a labeler, by `ID`, `SOURCE:ID` or a pseudonym (32 digits).

    Raises `LedgerError` for an id that was never seen.
    """
    from labelguard.project import erasure, linking  # they load what reads inputs

    report = erasure.preview_removal(labeler_id, "erased", project, never_seen=True)
    opened = OpenProject.open(project)
    ledger = opened.ledger
    if not report.known:
        raise LedgerError(linking.explain_unknown_id(labeler_id, opened))
    key = blocks.from_bytes(bytes.fromhex(report.labeler))
    [unit] = blocks.to_list(ledger.people.links().unit_of(key))
    policies = ledger.policies.history()
    with ledger.snapshot() as connection:
        uses = charges.read_uses(connection, unit)
    of = policies[-1].unit if policies else None
    is_charged = bool(uses) or of == "item"
    departures = ledger.people.departures()
    return LabelerFacts(
        report.labeler,
        of,
        next((one for one in departures if one.pseudonym == report.labeler), None),
        report.linked,
        [
            LabelerAllowance(
                *(row.name, row.event, row.capacity, row.used),
                row.capacity - row.used if row.state == "active" else 0,
                row.state,
            )
            for row in uses
        ],
        report.epsilon if is_charged else 0.0,
        report.delta if is_charged else 0.0,
        report.releases,
        report.rows_remembered,
        report.rows_set_aside,
    )
