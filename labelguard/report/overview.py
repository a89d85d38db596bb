"""What the commands that look at a project show, as plain data."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from labelguard.errors import LabelguardError, LedgerError
from labelguard.ledger import charges, database
from labelguard.ledger.journal import Anchor
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.records import ReleaseRecord
from labelguard.policy import lifetime
from labelguard.project import policies
from labelguard.project.opening import OpenProject, Where
from labelguard.project.verdict import release_fault, verdict
from labelguard.storage import blocks


def budget(project: Where) -> dict[str, Any]:
    """The policy in force, what all policies cost together, and how far each allowance is used."""
    ledger = OpenProject.open(project).ledger
    active, chapters = ledger.policy(), policies.life(ledger)
    point = ledger.point_of_use(active) if active else None
    closing = None
    if active and point:
        closing = {"point": point, "epsilon": active.chapter(point).epsilon}
    return {
        "policy": policies.described(active) if active else None,
        "closing": closing,
        "ceiling": asdict(ledger.ceiling()),
        "lifetime": asdict(lifetime.total(chapters)) | {"policies": len(chapters)},
        "allowances": [_allowance(event, rows) for event, rows in ledger.usage().items()],
    }


def _allowance(event: str, rows: list[tuple[int, int, int]]) -> dict[str, Any]:
    """What is used and left of one kind of event, from how many units have (capacity, used)."""
    table = np.array(rows, np.int64).reshape(-1, 3)
    capacity, used, count = table.T
    return {
        "event": event,
        "labelers": int(count.sum()),
        "allowed": int(capacity @ count),
        "used": int(used @ count),
        "left": int((capacity - used) @ count),
        "exhausted_labelers": int(count[capacity == used].sum()),
        "left_per_labeler": quantiles(capacity - used, count),
        "used_per_labeler": quantiles(used, count),
    }


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


def labeler(labeler_id: str, project: Where) -> dict[str, Any]:
    """One labeler's allowances under every policy, by `ID`, `SOURCE:ID` or a pseudonym (32 digits).

    Of a labeler in a group, the group's. Raises `LedgerError` if nothing was ever charged.
    """
    from labelguard.ledger.groups import Groups
    from labelguard.project import linking

    opened = OpenProject.open(project)
    ledger, names = opened.ledger, opened.keys.pseudonyms()
    candidates, _ = linking.by_id([labeler_id], opened)
    if re.fullmatch("[0-9a-f]{32}", labeler_id):
        given = blocks.from_bytes(bytes.fromhex(labeler_id))
        candidates = np.concatenate([candidates, names.reveal(given)])
    units = names.hide(Groups(*ledger.members()).unit_of(candidates))
    with ledger.snapshot() as connection:
        rows = [row for unit in database.stored(units) for row in charges.uses(connection, unit)]
    if not rows:
        raise LedgerError(f"no labeler {labeler_id!r} in this project has been charged")
    return {
        "pseudonym": rows[0].labeler.hex(),
        "allowances": [
            {
                "policy": row.name,
                "event": row.event,
                "allowed": row.capacity,
                "used": row.used,
                "left": row.capacity - row.used if row.state == "active" else 0,
            }
            for row in rows
        ],
    }


def journal(project: Where) -> list[dict[str, Any]]:
    """The journal's entries, oldest first."""
    ledger = OpenProject.open(project).ledger
    entries = [vars(entry) | {"body": json.loads(entry.body)} for entry in ledger.journal()]
    return [{k: v for k, v in entry.items() if k != "mac"} for entry in entries]


def releases(project: Where) -> list[dict[str, Any]]:
    """All releases, oldest first."""
    opened = OpenProject.open(project)
    home, ledger = opened.project, opened.ledger
    return [
        {
            "id": record.id,
            "state": record.state,
            "created_at": record.created_at,
            "mechanism": record.settings["mechanism"],
            "charged": record.charged,
            "rows": record.rows,
            "path": str(home.releases / record.id),
        }
        for record in ledger.releases()
    ]


def card(release_id: str | None, project: Where) -> dict[str, Any]:
    """The card of a committed release, by default the newest."""
    from labelguard.release.writer import read_card

    opened = OpenProject.open(project)
    home, ledger = opened.project, opened.ledger
    committed = _committed(ledger, release_id)
    return read_card(home.releases / committed[-1].id)


def release_path(release_id: str | None, project: Where) -> Path:
    """The directory of a committed release, by default the newest."""
    opened = OpenProject.open(project)
    home, ledger = opened.project, opened.ledger
    return home.releases / _committed(ledger, release_id)[-1].id


def verify(project: Where, anchor: str | None = None) -> dict[str, Any]:
    """Whether journal, charges and the files of all releases hold; the first fault if not.

    `anchor` is a line of `anchor`, from whenever: the journal must still hold its entry.
    """
    return verdict(OpenProject.open(project), Anchor.parse(anchor) if anchor else None)


def anchor(project: Where) -> dict[str, Any]:
    """The journal's newest entry as a line to keep elsewhere (see `labelguard.anchors`)."""
    ledger = OpenProject.open(project).ledger
    number, digest = ledger.head()
    return {"anchor": str(Anchor(number, digest)), "number": number, "digest": digest}


def verify_releases(release_id: str | None, project: Where) -> dict[str, Any]:
    """Whether the files of releases are what was committed; the first fault if not."""
    opened = OpenProject.open(project)
    records = _committed(opened.ledger, release_id)
    chosen = records if release_id is None else records[-1:]
    broken = release_fault(opened, chosen)
    return {"ok": broken is None, "fault": broken, "releases": len(chosen)}


def simulate_to(path: Path, **options: Any) -> dict[str, Any]:
    """Write a simulated table to a Parquet file."""
    import pyarrow.parquet as pq

    from labelguard.simulation import SimulationConfig, simulate

    if path.exists():
        raise LabelguardError(f"{path} exists; choose another -o")
    if not path.absolute().parent.is_dir():
        raise LabelguardError(f"{path.parent} is no directory; make it or choose another -o")
    try:
        table = simulate(SimulationConfig(**options))
    except ValueError as error:
        raise LabelguardError(str(error)) from None
    pq.write_table(table, path, compression="zstd")
    return {"path": str(path), "rows": table.num_rows, "columns": table.column_names}


def _committed(ledger: Ledger, release_id: str | None) -> list[ReleaseRecord]:
    records = [record for record in ledger.releases() if record.state == "committed"]
    if release_id is not None:
        records = [record for record in records if record.id.startswith(release_id)]
        if len(records) > 1:
            raise LedgerError(f"{release_id} names {len(records)} releases; give more of the id")
    if not records:
        which = f"release {release_id}" if release_id else "release"
        raise LedgerError(f"no committed {which} in this project; see: labelguard release list")
    return records
