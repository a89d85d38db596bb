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

The file that a backup is: a compressed tar whose first member lists the others with SHA-256.

`manifest.json` comes first, `manifest.mac`, its HMAC under a key of the project, second, then the
other members in the manifest's order. So the manifest can be
authenticated before anything is unpacked, and from then on it bounds what is. Reading takes nothing
else: no other names, no links, no member that is not listed, none of another length or content.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import sqlalchemy as sa

from labelguard import clock
from labelguard._version import __version__
from labelguard.errors import LedgerError, ProjectError
from labelguard.ledger import database, journal, schema
from labelguard.ledger.journal import Anchor
from labelguard.ledger.ledger import Ledger
from labelguard.project.opening import OpenProject, Where, remove_leftovers
from labelguard.project.verification import find_ledger_fault, find_release_fault
from labelguard.storage.files import PART, fsync_path, hash_file

FORMAT = 1
LEDGER, CONFIG = "ledger.sqlite3", "labelguard.toml"
DIRECTORIES = ("releases", "released", "labels")
_NAME = re.compile(rf"labelguard\.toml|ledger\.sqlite3|(?:{'|'.join(DIRECTORIES)})(?:/{PART})+")
_MANIFEST, _MAC = "manifest.json", "manifest.mac"
_LARGEST = {_MANIFEST: 1 << 27, _MAC: 32}
# Bytes of a member beside its content, at most: headers, padding, the end of the archive.
_OVERHEAD = 1 << 13
_CHUNK = 1 << 20


def write_archive(
    path: Path, members: Mapping[str, Path], facts: Mapping[str, Any], mac: Callable[[bytes], bytes]
) -> None:
    """Write an archive of the files `members`, by their names in it; mode 0600, whole or not.

    A name that ends in .gz makes a gzip file, any other a zstd one. Raises `ProjectError` if `path`
    exists, or for a file that has no place in a project.
    """
    check_new_backup_path(path)
    listed = {name: _describe_member(name, source) for name, source in members.items()}
    manifest = json.dumps({"format": FORMAT} | dict(facts) | {"members": listed}, indent=1).encode()
    if len(manifest) > _LARGEST[_MANIFEST]:
        raise ProjectError("the project has too many files for one backup")
    codec = "gzip" if path.suffix == ".gz" else "zstd"
    descriptor, name = tempfile.mkstemp(".partial", f".{path.name}.", path.absolute().parent)
    temporary = Path(name)
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            pa.CompressedOutputStream(pa.PythonFile(file, "w"), codec) as stream,
            tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            for name, data in ((_MANIFEST, manifest), (_MAC, mac(manifest))):
                tar.addfile(_make_tar_header(name, len(data)), io.BytesIO(data))
            for name, source in members.items():
                with source.open("rb") as content:
                    tar.addfile(_make_tar_header(name, listed[name]["bytes"]), content)
        fsync_path(temporary)
        check_new_backup_path(path)
        temporary.replace(path)
        fsync_path(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def check_new_backup_path(path: Path) -> None:
    """Raise `ProjectError` if there is something at `path`, or no directory to put it in."""
    if path.exists():
        raise ProjectError(f"{path} exists; a backup never replaces a file: choose another name")
    if not path.absolute().parent.is_dir():
        raise ProjectError(f"{path.parent} is no directory; make it or choose another place")


class Reader:
    """An open archive, of which only the head was read: `manifest` and `mac`."""

    def __init__(self, path: Path, stream: _Bounded, tar: tarfile.TarFile) -> None:
        self._path, self._stream, self._tar = path, stream, tar
        self._member = tar.next()
        self.manifest, self.mac = self._read_head_member(_MANIFEST), self._read_head_member(_MAC)

    def _read_head_member(self, name: str) -> bytes:
        member = self._member
        expected = member is not None and member.name == name and member.size <= _LARGEST[name]
        content = self._tar.extractfile(member) if member and expected else None
        if content is None:
            raise ProjectError(f"{self._path} is not a backup made by labelguard")
        data = content.read()
        self._member = self._tar.next()
        return data

    def extract(self, directory: Path) -> dict[str, Any]:
        """Put the members into the empty `directory`, as the manifest lists them; the manifest.

        To be called once the manifest is known to be one's own: it says how much there may be.
        Raises `ProjectError` for anything else that the archive holds.
        """
        path, manifest = self._path, json.loads(self.manifest)
        if manifest["format"] != FORMAT:
            raise ProjectError(
                f"{path} has format {manifest['format']!r}; this labelguard reads {FORMAT}"
            )
        awaited: dict[str, dict[str, Any]] = dict(manifest["members"])
        self._stream.left = sum(member["bytes"] + _OVERHEAD for member in awaited.values())
        while member := self._member:
            name, expected = member.name, awaited.pop(member.name, None)
            if not (member.isreg() and _NAME.fullmatch(name) and expected):
                raise ProjectError(
                    f"{path} holds {name!r}, which is no part of a backup; do not trust it"
                )
            content = self._tar.extractfile(member)
            assert content is not None
            public = name.startswith("releases/")
            digest = _write_and_hash(content, directory / name, 0o644 if public else 0o600)
            if (expected["bytes"], expected["sha256"]) != (member.size, digest):
                raise ProjectError(f"{path}: {name} is damaged; use another backup")
            self._member = self._tar.next()
        if awaited:
            raise ProjectError(f"{path}: {min(awaited)} is missing; use another backup")
        return dict(manifest)


@contextlib.contextmanager
def open_archive(path: Path) -> Iterator[Reader]:
    """Open an archive and read its head; whatever is wrong with it comes as `ProjectError`.

    However much it would unpack to, no more than 130 MB of it are read before `extract`.
    """
    try:
        with path.open("rb") as file:
            codec = "gzip" if file.read(2) == b"\x1f\x8b" else "zstd"
            file.seek(0)
            with pa.CompressedInputStream(pa.PythonFile(file, "r"), codec) as unpacked:
                stream = _Bounded(path, unpacked, sum(_LARGEST.values()) + 4 * _OVERHEAD)
                with tarfile.open(fileobj=stream, mode="r|") as tar:
                    yield Reader(path, stream, tar)
    except FileNotFoundError:
        raise ProjectError(f"there is no file {path}") from None
    except (tarfile.TarError, ValueError, KeyError, TypeError, EOFError) as error:
        raise ProjectError(f"{path} is damaged, or no backup: {error}") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise ProjectError(f"{path} cannot be read or unpacked: {why}") from None


class _Bounded(io.RawIOBase):
    """A stream that gives `left` bytes at most: a header of a tar may ask for any number."""

    def __init__(self, path: Path, stream: Any, left: int) -> None:
        self._path, self._stream, self.left = path, stream, left

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise ProjectError(f"{self._path} holds more than a backup would; do not trust it")
        return data


def _write_and_hash(content: IO[bytes], target: Path, mode: int) -> str:
    """Write a new file, and make its SHA-256 on the way."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest = hashlib.sha256()
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


def _describe_member(name: str, source: Path) -> dict[str, Any]:
    if not _NAME.fullmatch(name) or source.is_symlink():
        raise ProjectError(f"{source} does not belong into a project; move it away")
    return {"sha256": hash_file(source), "bytes": source.stat().st_size}


def _make_tar_header(name: str, size: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size, header.mode = size, 0o600
    return header


_ROWS = 50_000


@dataclass(frozen=True)
class Backup:
    """A backup that was written."""

    # the file
    path: str
    # its size
    bytes: int
    # the journal's newest entry in it, as `budget verify` prints it
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
    check_new_backup_path(target)
    with OpenProject.hold_for_job(project) as opened:
        try:
            return _write_backup(opened, target)
        except OSError as error:
            raise ProjectError(f"cannot write {target}: {error.strerror}") from None


def _write_backup(opened: OpenProject, target: Path) -> Backup:
    home, keys, ledger = opened.project, opened.keys, opened.ledger
    records = ledger.releases.all()
    if broken := find_ledger_fault(opened, records):
        raise LedgerError(f"the ledger does not hold, so it is not backed up: {broken}")
    # Labels of a map that does not count will be drawn anew: nobody may have them twice.
    remove_leftovers(opened, records)
    opened.private_map.finish_rewriting(opened.map_digests)
    opened.answers.recover_segments()
    home.work.mkdir(mode=0o700, parents=True)
    anchor = _copy_ledger(ledger, home.work / LEDGER)
    members = {CONFIG: home.state / CONFIG}
    members[LEDGER] = home.work / LEDGER
    unfinished = [record.id for record in records if record.is_unfinished]
    for name in DIRECTORIES:
        for source in sorted((home.state / name).rglob("*")):
            if source.is_symlink() or not source.is_dir():
                members[source.relative_to(home.state).as_posix()] = source
    facts = {"labelguard": __version__, "created_at": clock.now(), "anchor": str(anchor)}
    write_archive(target, members, facts, lambda data: keys.mac("backup", data))
    return Backup(
        str(target),
        target.stat().st_size,
        str(anchor),
        anchor.number,
        releases=sum(record.state == "committed" for record in records),
        unfinished=unfinished,
        left_out=[
            "keys",
            "quarantine",
            *(["inbox"] if opened.answers.count_stored().waiting else []),
        ],
        fault=find_release_fault(opened, records),
    )


def _copy_ledger(ledger: Ledger, path: Path) -> Anchor:
    """Copy one snapshot of the ledger to a new SQLite file; return its anchor."""
    engine = database.connect(f"sqlite:///{path}")
    try:
        with ledger.snapshot() as source, database.begin_writing(engine) as copy:
            copy_tables(source, copy)
            return Anchor(*journal.read_head(source))
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
