"""`project backup`: all of a project in one file, as it stood between two jobs.

The ledger goes into it as an SQLite file, whichever database it lives in; with it go settings,
public releases, and the PRIVATE maps of released labels, without which labels would be drawn anew.
Answers that were ingested are in it as they lie: sealed. Left out are rows that were set aside
(`quarantine`: they are raw and open), what waits in the inbox, stages of releases that are under
way (none is resumed from a backup), and the keys: whoever holds these and the private maps learns
which released labels are whose.

Where a released file is not what was committed, the backup is written all the same: the ledger in
it tells what was spent, and that must not wait for the file. But the fault is told, so that no
earlier backup, which has the file as it was, is thrown away for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from labelguard import clock
from labelguard._version import __version__
from labelguard.errors import LedgerError, ProjectError
from labelguard.ledger import database, journal, schema
from labelguard.ledger.journal import Anchor
from labelguard.ledger.ledger import Ledger
from labelguard.project import archive, recovery
from labelguard.project.opening import OpenProject, Where
from labelguard.project.verification import ledger_fault, release_fault

_ROWS = 50_000


@dataclass(frozen=True)
class Backup:
    """A backup that was written."""

    # the file
    path: str
    # its size
    bytes: int
    # the journal's newest entry in it, as `budget anchor` prints it
    anchor: str
    # how many it holds
    journal_entries: int
    # committed releases in it
    releases: int
    # releases that were begun, and cannot be resumed from it
    unfinished: list[str]
    # what is not: the keys, quarantine, and the inbox if anything waits in it
    left_out: list[str]
    # the first file of a release that is not what was committed, and is so in the backup; or null
    fault: str | None


def backup(path: str | Path, *, project: Where = None) -> Backup:
    """Write a backup of a project to a new file; what is in it, and its anchor.

    Raises `ProjectBusy` while a job runs, `LedgerError` for a ledger that does not hold,
    `ProjectError` if a private map is not as it was drawn, or the file exists or cannot be written.
    """
    target = Path(path)
    archive.refuse_existing(target)
    with OpenProject.job(project) as opened:
        try:
            return _backup(opened, target)
        except OSError as error:
            raise ProjectError(f"cannot write {target}: {error.strerror}") from None


def _backup(opened: OpenProject, target: Path) -> Backup:
    home, keys, ledger = opened.project, opened.keys, opened.ledger
    records = ledger.releases.all()
    if broken := ledger_fault(opened, records):
        raise LedgerError(f"the ledger does not hold, so it is not backed up: {broken}")
    # Labels of a map that does not count will be drawn anew: nobody may have them twice.
    recovery.tidy(opened, records)
    opened.private_map.settle(opened.maps)
    opened.answers.settle()
    home.work.mkdir(mode=0o700, parents=True)
    anchor = _copy_ledger(ledger, home.work / archive.LEDGER)
    members = {archive.CONFIG: home.state / archive.CONFIG}
    members[archive.LEDGER] = home.work / archive.LEDGER
    unfinished = [record.id for record in records if record.is_unfinished]
    for name in archive.DIRECTORIES:
        for source in sorted((home.state / name).rglob("*")):
            if source.is_symlink() or not source.is_dir():
                members[source.relative_to(home.state).as_posix()] = source
    facts = {"labelguard": __version__, "created_at": clock.now(), "anchor": str(anchor)}
    archive.write(target, members, facts, lambda data: keys.mac("backup", data))
    return Backup(
        str(target),
        target.stat().st_size,
        str(anchor),
        anchor.number,
        releases=sum(record.state == "committed" for record in records),
        unfinished=unfinished,
        left_out=["keys", "quarantine", *(["inbox"] if opened.answers.count().waiting else [])],
        fault=release_fault(opened, records),
    )


def _copy_ledger(ledger: Ledger, path: Path) -> Anchor:
    """Return the ledger as a new SQLite file, all of it from one snapshot; its head."""
    engine = database.connect(f"sqlite:///{path}")
    try:
        with ledger.snapshot() as source, database.begin_writing(engine) as copy:
            copy_tables(source, copy)
            return Anchor(*journal.head(source))
    finally:
        engine.dispose()


def copy_tables(source: sa.Connection, target: sa.Connection) -> None:
    """Make the ledger's tables in an empty database and fill them, a piece at a time."""
    schema.metadata.create_all(target)
    streaming = source.execution_options(yield_per=_ROWS)
    for table in schema.metadata.sorted_tables:
        names = [column.name for column in table.columns]
        query = sa.select(table).order_by(*table.primary_key.columns)
        for rows in streaming.execute(query).partitions():
            database.insert_rows(target, table, names, rows)
