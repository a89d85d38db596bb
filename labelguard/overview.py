"""What the commands that look at a project show, as plain data."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from labelguard import block128
from labelguard.errors import LabelguardError, LedgerError
from labelguard.keys import KeyRing
from labelguard.ledger import Ledger, ReleaseRecord
from labelguard.project import Project, find
from labelguard.release import fault, read_card
from labelguard.segments import ReleasedMap


def open_ledger(project: Path | None) -> tuple[Project, KeyRing, Ledger]:
    """A project with its keys and ledger, for reading."""
    home = find(project)
    keys = KeyRing(home.keys)
    return home, keys, Ledger(home.ledger_url, keys.check_value())


def budget(project: Path | None) -> dict[str, Any]:
    """The policy and the distribution of used and free places over labelers."""
    _, _, ledger = open_ledger(project)
    stored, table = ledger.policy(), ledger.labelers()
    left = table.capacity - table.used
    return {
        "policy": asdict(stored[1]) if stored else None,
        "labelers": len(table.labelers),
        "places": int(table.capacity.sum()),
        "used": int(table.used.sum()),
        "left": int(left.sum()),
        "exhausted_labelers": int((left == 0).sum()),
        "left_per_labeler": quantiles(left),
        "used_per_labeler": quantiles(table.used),
    }


def quantiles(values: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, float]:
    """Minimum, quartiles and maximum; empty without values."""
    if not len(values):
        return {}
    names = ("min", "25%", "median", "75%", "max")
    return {
        name: float(value)
        for name, value in zip(names, np.quantile(values, (0, 0.25, 0.5, 0.75, 1)), strict=True)
    }


def labeler(labeler_id: str, project: Path | None) -> dict[str, Any]:
    """One labeler's places; the id as in the files, or a pseudonym of 32 hexadecimal digits."""
    home, keys, ledger = open_ledger(project)
    table = ledger.labelers()
    candidates = keys.labeler_keys(home.namespace, [labeler_id])
    if re.fullmatch("[0-9a-f]{32}", labeler_id):
        candidates = np.concatenate([candidates, block128.from_bytes(bytes.fromhex(labeler_id))])
    where = block128.positions(table.labelers, candidates)
    found = where[where >= 0]
    if not len(found):
        raise LedgerError(f"no labeler {labeler_id!r} in this project has been charged")
    index = int(found[0])
    capacity, used = int(table.capacity[index]), int(table.used[index])
    return {
        "pseudonym": block128.to_hex(table.labelers[index]),
        "places": capacity,
        "used": used,
        "left": capacity - used,
    }


def journal(project: Path | None) -> list[dict[str, Any]]:
    """The journal's entries, oldest first."""
    _, _, ledger = open_ledger(project)
    return [vars(entry) | {"body": json.loads(entry.body)} for entry in ledger.journal()]


def releases(project: Path | None) -> list[dict[str, Any]]:
    """All releases, oldest first."""
    home, _, ledger = open_ledger(project)
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


def card(release_id: str | None, project: Path | None) -> dict[str, Any]:
    """The card of a committed release, by default the newest."""
    home, _, ledger = open_ledger(project)
    committed = _committed(ledger, release_id)
    return read_card(home.releases / committed[-1].id)


def release_path(release_id: str | None, project: Path | None) -> Path:
    """The directory of a committed release, by default the newest."""
    home, _, ledger = open_ledger(project)
    return home.releases / _committed(ledger, release_id)[-1].id


def verify(project: Path | None) -> dict[str, Any]:
    """Whether journal, charges and the files of all releases hold; the first fault if not."""
    home, _, ledger = open_ledger(project)
    records = [record for record in ledger.releases() if record.state == "committed"]
    broken = ledger.fault() or _release_fault(home, records)
    return {
        "ok": broken is None,
        "fault": broken,
        "journal_entries": len(ledger.journal()),
        "releases": len(records),
    }


def verify_releases(release_id: str | None, project: Path | None) -> dict[str, Any]:
    """Whether the files of releases are what was committed; the first fault if not."""
    home, _, ledger = open_ledger(project)
    records = _committed(ledger, release_id)
    chosen = records if release_id is None else records[-1:]
    broken = _release_fault(home, chosen)
    return {"ok": broken is None, "fault": broken, "releases": len(chosen)}


def simulate_to(path: Path, **options: Any) -> dict[str, Any]:
    """Write a simulated table to a Parquet file."""
    import pyarrow.parquet as pq

    from labelguard.simulate import SimulationConfig, simulate

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


def _release_fault(project: Project, records: list[ReleaseRecord]) -> str | None:
    for record in records:
        broken = fault(project.releases / record.id, record.files)
        broken = broken or ReleasedMap(project.released).fault(record.id)
        if broken:
            return f"release {record.id}: {broken}"
    return None
