"""What the commands that look at a project show."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from labelguard import clock
from labelguard.budget import pricing
from labelguard.budget.pricing import Total
from labelguard.errors import LabelguardError, LedgerError
from labelguard.keys.parts import Part
from labelguard.ledger import charges, people, schema
from labelguard.ledger.journal import Anchor
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.people import Departure
from labelguard.ledger.policies import Ceiling
from labelguard.ledger.records import ReleaseRecord
from labelguard.project import policies
from labelguard.project.opening import OpenProject, Where
from labelguard.project.policy_facts import PolicyDetails
from labelguard.project.verdict import FilesVerdict, Verdict, release_fault, verdict
from labelguard.storage import blocks
from labelguard.storage.files import check_new_file


@dataclass(frozen=True)
class Lifetime(Total):
    """What all policies of a project cost a labeler together."""

    policies: int
    """how many were or are in force"""


@dataclass(frozen=True)
class Usage:
    """How far one allowance of a policy is used."""

    event: str
    """the kind of event: rr or statistic"""
    labelers: int
    """units that were charged"""
    allowed: int
    """what they may use in all"""
    used: int
    """how much of it they used"""
    left: int
    """how much is left"""
    exhausted_labelers: int
    """units with nothing left"""
    left_per_labeler: Mapping[str, int]
    """min, quartiles and max over units; empty before the first charge"""
    used_per_labeler: Mapping[str, int]
    """the same of what was used"""
    weeks_left: int | None
    """weeks until the median unit has nothing left, at the rate of the median unit since the first
    release under this policy, its week included; null: nothing was charged, or contents are
    protected, which are labelled once and have no rate"""


@dataclass(frozen=True)
class Budget:
    """The budget of a project."""

    policy: PolicyDetails | None
    """the policy in force"""
    ceiling: Ceiling
    """what all policies together may cost"""
    lifetime: Lifetime
    """what they cost so far"""
    allowances: list[Usage]
    """those of the policy in force"""


@dataclass(frozen=True)
class LabelerAllowance:
    """One labeler's part of one allowance."""

    policy: str
    """the policy's name"""
    event: str
    """the kind of event: rr or statistic"""
    allowed: int
    """how many they may use"""
    used: int
    """how many they used"""
    left: int
    """how many are left; 0 once the policy is closed"""
    state: str
    """of the policy: active or closed"""


@dataclass(frozen=True)
class LabelerBudget:
    """What one labeler, or their group, has spent."""

    pseudonym: str
    """32 hexadecimal digits; of a labeler in a group, the group's"""
    departure: Departure | None
    """whether they left, how and when; null if they did not"""
    allowances: list[LabelerAllowance]
    """under every policy that charged them; none if they left before any did"""


@dataclass(frozen=True)
class JournalEntry:
    """One entry of the journal."""

    number: int
    """from 1 on, without gaps"""
    at: str
    """when it was written, UTC"""
    kind: str
    """what happened"""
    body: Mapping[str, Any]
    """what it is about: counts, settings and digests, never labels"""
    previous: str
    """digest of the entry before"""
    digest: str
    """SHA-256 of this one"""


@dataclass(frozen=True)
class ReleaseLine:
    """A release in a few words."""

    id: str
    """its id"""
    state: str
    """reserved, computing, drawn, committed or abandoned"""
    created_at: str
    """when it was begun, UTC"""
    mechanism: str
    """rr, props, statistic or evaluation"""
    part: Part
    """whose labels it has: training, or held-out"""
    charged: int
    """how much it charged, over all labelers"""
    rows: int | None
    """rows of its file; null before it is committed"""
    path: str
    """its directory"""


@dataclass(frozen=True)
class AnchorLine:
    """The journal's newest entry."""

    anchor: str
    """the line to keep elsewhere"""
    number: int
    """the entry's number"""
    digest: str
    """and its digest"""


@dataclass(frozen=True)
class Exported:
    """A ledger that was written out."""

    path: str
    """the file"""
    rows: Mapping[str, int]
    """how many rows each table has"""


@dataclass(frozen=True)
class Simulated:
    """A simulated table that was written."""

    path: str
    """the file"""
    rows: int
    """its labels"""
    columns: list[str]
    """its columns"""


def budget(project: Where) -> Budget:
    """The policy in force, what all policies cost together, and how far each allowance is used."""
    ledger = OpenProject.open(project).ledger
    active, every = ledger.policies.active(), ledger.policies.history()
    total = pricing.total(every)
    return Budget(
        policies.described(active) if active else None,
        ledger.policies.ceiling(),
        Lifetime(total.epsilon, total.delta, len(every)),
        [
            _usage(event, rows, _weeks(ledger, event))
            for event, rows in ledger.releases.usage().items()
        ],
    )


def _weeks(ledger: Ledger, event: str) -> int | None:
    """Return the weeks begun since the first release under the policy in force, or None."""
    active = ledger.policies.active()
    if active is None or active.policy.unit == "item":
        return None
    mine = (
        one for one in ledger.releases.all() if (one.policy_id, one.event) == (active.id, event)
    )
    first = next((clock.parse_time(one.created_at) for one in mine), None)
    if first is None:
        return None
    return max(0, (clock.parse_time(clock.now()) - first) // timedelta(weeks=1)) + 1


def _usage(event: str, rows: list[tuple[int, int, int]], weeks: int | None) -> Usage:
    """Use of one kind of event in so many weeks, from how many units have (capacity, used)."""
    table = np.array(rows, np.int64).reshape(-1, 3)
    capacity, used, count = table.T
    left, spent = quantiles(capacity - used, count), quantiles(used, count)
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


def quantiles(
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


def labeler(labeler_id: str, project: Where) -> LabelerBudget:
    """One labeler's allowances under every policy, by `ID`, `SOURCE:ID` or a pseudonym (32 digits).

    Of a labeler in a group, the group's. Raises `LedgerError` for somebody who was neither ever
    charged nor left.
    """
    from labelguard.ledger.records import Groups
    from labelguard.project import linking

    opened = OpenProject.open(project)
    ledger = opened.ledger
    candidates, _ = linking.by_id([labeler_id], opened)
    if re.fullmatch("[0-9a-f]{32}", labeler_id):
        given = blocks.from_bytes(bytes.fromhex(labeler_id))
        candidates = np.concatenate([candidates, given])
    units = Groups(*ledger.people.members()).unit_of(candidates)
    own = {one.hex() for one in blocks.to_list(candidates)}
    with ledger.snapshot() as connection:
        rows = [
            row for unit in blocks.to_list(units) for row in charges.read_uses(connection, unit)
        ]
        gone = next(
            (one for one in people.read_departures(connection) if one.pseudonym in own), None
        )
    if not rows and gone is None:
        raise LedgerError(
            f"no labeler {labeler_id!r} in this project has been charged, and none has left"
        )
    return LabelerBudget(
        rows[0].labeler.hex() if rows or gone is None else gone.pseudonym,
        gone,
        [
            LabelerAllowance(
                *(row.name, row.event, row.capacity, row.used),
                row.capacity - row.used if row.state == "active" else 0,
                row.state,
            )
            for row in rows
        ],
    )


def journal(project: Where) -> list[JournalEntry]:
    """The journal's entries, oldest first."""
    return [
        JournalEntry(e.number, e.at, e.kind, json.loads(e.body), e.previous, e.digest)
        for e in OpenProject.open(project).ledger.journal()
    ]


def releases(project: Where) -> list[ReleaseLine]:
    """All releases, oldest first."""
    opened = OpenProject.open(project)
    return [
        ReleaseLine(
            *(r.id, r.state, r.created_at, r.settings["mechanism"], r.part, r.charged, r.rows),
            path=str(opened.project.releases / r.id),
        )
        for r in opened.ledger.releases.all()
    ]


def card(release_id: str | None, project: Where) -> dict[str, Any]:
    """The card of a committed release, by default the newest."""
    from labelguard.release.writer import read_card

    return read_card(release_path(release_id, project))


def release_path(release_id: str | None, project: Where) -> Path:
    """The directory of a committed release, by default the newest."""
    opened = OpenProject.open(project)
    return opened.project.releases / _committed(opened.ledger, release_id)[-1].id


def verify(project: Where, anchor: str | None = None) -> Verdict:
    """Whether journal, charges and the files of all releases hold; the first fault if not.

    `anchor` is a line of `anchor`, from whenever: the journal must still hold its entry.
    """
    return verdict(OpenProject.open(project), Anchor.parse(anchor) if anchor else None)


def anchor(project: Where) -> AnchorLine:
    """The journal's newest entry as a line to keep elsewhere (see `labelguard.ledger.journal`)."""
    number, digest = OpenProject.open(project).ledger.head()
    return AnchorLine(str(Anchor(number, digest)), number, digest)


def verify_releases(release_id: str | None, project: Where) -> FilesVerdict:
    """Whether the files of releases are what was committed; the first fault if not."""
    opened = OpenProject.open(project)
    chosen = _committed(opened.ledger, release_id)
    broken = release_fault(opened, chosen)
    return FilesVerdict(broken is None, broken, len(chosen))


def simulate_to(path: Path, **options: Any) -> Simulated:
    """Write a simulated table to a Parquet file."""
    import pyarrow.parquet as pq

    from labelguard.simulation import simulate

    check_new_file(path, "labels.parquet")
    try:
        table = simulate(**options)
    except ValueError as error:
        raise LabelguardError(str(error)) from None
    pq.write_table(table, path, compression="zstd")
    return Simulated(str(path), table.num_rows, table.column_names)


def _committed(ledger: Ledger, release_id: str | None) -> list[ReleaseRecord]:
    records = [record for record in ledger.releases.all() if record.state == "committed"]
    if release_id is not None:
        records = [record for record in records if record.id.startswith(release_id)]
        if len(records) > 1:
            raise LedgerError(f"{release_id} names {len(records)} releases; give more of the id")
    if not records:
        which = f"release {release_id}" if release_id else "release"
        raise LedgerError(f"no committed {which} in this project; see: labelguard release list")
    return records


_EXPORTED = (
    *("policies", "allowances", "prices", "releases", "counters", "charges", "sources"),
    *("identities", "distinct_people", "members", "tombstones", "segments", "journal"),
)
_SECRET = ("map", "idempotency_key", "mac")
"""Keyed digests that mean nothing outside the project."""
_JSON = ("settings", "quote", "columns", "files", "body", "price")


def export(output: Path, project: Where = None) -> Exported:
    """Write every table of the ledger to a JSON file, of one moment: an object a line.

    Pseudonyms are hexadecimal. Returns how many rows each table has. Raises `LabelguardError` if
    `output` exists or cannot be made.
    """
    check_new_file(output, "ledger.json")
    ledger = OpenProject.open(project).ledger
    counts: dict[str, int] = {}
    with ledger.snapshot() as connection, output.open("x", encoding="utf-8") as file:
        for table in _EXPORTED:
            file.write(f"{',' if counts else '{'}\n{json.dumps(table)}: [")
            counts[table] = 0
            for row in _rows(connection, schema.metadata.tables[table]):
                text = json.dumps(row, ensure_ascii=False)
                file.write(f"{',' if counts[table] else ''}\n{text}")
                counts[table] += 1
            file.write("]")
        file.write("\n}\n")
    return Exported(str(output), counts)


def _rows(connection: sa.Connection, table: sa.Table) -> Iterator[dict[str, Any]]:
    """The rows of a table in the order of its key, never all in memory."""
    columns = (column for column in table.c if column.name not in _SECRET)
    query = sa.select(*columns).order_by(*table.primary_key.columns)
    for row in connection.execution_options(yield_per=10_000).execute(query).mappings():
        yield {name: _exported(name, value) for name, value in row.items()}


def _exported(name: str, value: Any) -> Any:
    """A value for JSON; settings of a release are without the place of its input."""
    if isinstance(value, bytes):
        return value.hex()
    if value is None or name not in _JSON:
        return value
    parsed = json.loads(value)
    if name == "settings":
        parsed.pop("request", None)
    return parsed
