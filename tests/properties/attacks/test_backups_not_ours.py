"""A backup is authenticated and bounded before anything of it is unpacked or opened."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest
from support import bounded
from support.preferences import TABLE

import labelguard
from labelguard.errors import LabelguardError, ProjectError
from labelguard.project import archive
from labelguard.project.backup import backup
from labelguard.project.project import Project
from labelguard.project.restore import restore

LARGE = 600 << 20
# Memory that Python with its libraries, and 130 MB of a manifest, may take.
MODEST = 400 << 20


class Zeros(io.RawIOBase):
    """A file of zeros."""

    def read(self, size: int = -1) -> bytes:
        return bytes(size)


def forged(path: Path, *members: tuple[tarfile.TarInfo, io.IOBase]) -> Path:
    """An archive of any members, compressed."""
    with (
        pa.CompressedOutputStream(str(path), "zstd") as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for member, content in members:
            tar.addfile(member, content)
    return path


def member(name: str, data: bytes) -> tuple[tarfile.TarInfo, io.IOBase]:
    header = tarfile.TarInfo(name)
    header.size = len(data)
    return header, io.BytesIO(data)


def large(name: str, kind: bytes = tarfile.REGTYPE) -> tuple[tarfile.TarInfo, io.IOBase]:
    header = tarfile.TarInfo(name)
    header.size, header.type = LARGE, kind
    return header, Zeros()


def listing(*names: str) -> tuple[tuple[tarfile.TarInfo, io.IOBase], ...]:
    members = {name: {"sha256": "0" * 64, "bytes": LARGE} for name in names}
    manifest = json.dumps({"format": 1, "members": members}).encode()
    return member("manifest.json", manifest), member("manifest.mac", bytes(32))


def restoring(project: Project, path: Path, tmp_path: Path) -> bounded.Outcome:
    target = tmp_path / "restored"
    return bounded.run(tmp_path, "project", "restore", path, target, "--keys", project.keys)


@pytest.mark.quick("ledger.sqlite3")
@pytest.mark.parametrize("name", ["ledger.sqlite3", "releases/r0001/data.parquet"])
def test_a_forged_backup_puts_nothing_on_the_disk(
    project: Project, tmp_path: Path, name: str
) -> None:
    path = forged(tmp_path / "forged", *listing(name), large(name))
    assert path.stat().st_size < LARGE / 1000
    seen = restoring(project, path, tmp_path)
    assert seen.refused_in_one_line()
    assert "was altered" in seen.err
    assert bounded.size(tmp_path / "restored") < 1 << 20


@pytest.mark.quick("x-0-x", "manifest.json")
@pytest.mark.parametrize(
    ("name", "before", "kind"),
    [
        *(("x", n, k) for n in (0, 2) for k in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME)),
        ("manifest.json", 0, tarfile.REGTYPE),
        ("manifest.mac", 1, tarfile.REGTYPE),
    ],
)
def test_a_header_or_a_head_that_never_ends_takes_no_memory(
    project: Project, tmp_path: Path, name: str, before: int, kind: bytes
) -> None:
    path = forged(tmp_path / "forged", *listing()[:before], large(name, kind))
    seen = restoring(project, path, tmp_path)
    assert seen.refused_in_one_line()
    assert seen.peak < MODEST


def test_the_database_of_a_forged_backup_is_never_opened(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    made = Path(backup(tmp_path / "backup", project=project).path)
    with archive.reading(made) as file:
        manifest, ledger = file.manifest, tmp_path / "unpacked"
        file.extract(ledger)
    content = (ledger / archive.LEDGER).read_bytes()
    forged(
        tmp_path / "forged",
        member("manifest.json", manifest),
        member("manifest.mac", bytes(32)),
        member(archive.CONFIG, (ledger / archive.CONFIG).read_bytes()),
        member(archive.LEDGER, content),
    )
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: opened.append(a) or connect(*a, **k))
    with pytest.raises(ProjectError, match="was altered"):
        restore(tmp_path / "forged", tmp_path / "again", keys=project.keys)
    assert not opened


def test_a_backup_removes_no_file_beside_it(project: Project, tmp_path: Path) -> None:
    (tmp_path / "backup.partial").write_text("mine")
    backup(tmp_path / "backup", project=project)
    assert (tmp_path / "backup.partial").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.glob("*backup*")) == ["backup", "backup.partial"]


def release_a_copy(project: Project, output: Path) -> None:
    price = {"mechanism": "rr", "epsilon": 3, "delta": 1e-5}
    labelguard.privatize(TABLE, project=project, output=output, **price)


def test_a_copy_of_a_release_removes_no_directory_beside_it(
    project: Project, tmp_path: Path
) -> None:
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial/mine").write_text("mine")
    release_a_copy(project, tmp_path / "out")
    assert (tmp_path / "out.partial/mine").read_text() == "mine"
    assert (tmp_path / "out/card.json").exists()
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o755
    assert sorted(p.name for p in tmp_path.glob("*out*")) == ["out", "out.partial"]


def test_what_appears_in_the_place_of_a_copy_is_not_removed(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copy2

    def slow(source: Path, target: Path) -> Path:
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out/mine").write_text("mine")
        return copy(source, target)

    monkeypatch.setattr(shutil, "copy2", slow)
    with pytest.raises(LabelguardError, match="the release is safe in"):
        release_a_copy(project, tmp_path / "out")
    assert (tmp_path / "out/mine").read_text() == "mine"
    assert [p.name for p in tmp_path.glob("*out*")] == ["out"]
