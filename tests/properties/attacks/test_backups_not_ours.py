"""A backup is authenticated and bounded before anything of it is unpacked or opened."""

import io
import json
import shutil
import sqlite3
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support import bounded, world
from support.commands import run
from support.deaths import killed_in
from support.preferences import TABLE
from support.releases import make_release

import labelguard as lg
from labelguard.errors import LabelguardError, PolicyError, ProjectError
from labelguard.ledger.charges import ReleaseRepository
from labelguard.ledger.ledger import Ledger
from labelguard.project import backup as backups
from labelguard.project import erasure, policies
from labelguard.project.backup import backup
from labelguard.project.project import find
from labelguard.project.restore import restore
from labelguard.report import overview

LARGE = 600 << 20
# Memory that Python with its libraries, and 130 MB of a manifest, may take.
MODEST = 400 << 20


class Zeros(io.RawIOBase):
    """A file of zeros."""

    def read(self, size=-1):
        return bytes(size)


def forge(path, *members):
    """An archive of any members, compressed."""
    with (
        pa.CompressedOutputStream(str(path), "zstd") as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for member, content in members:
            tar.addfile(member, content)
    return path


def member(name, data):
    header = tarfile.TarInfo(name)
    header.size = len(data)
    return header, io.BytesIO(data)


def large(name, kind=tarfile.REGTYPE):
    header = tarfile.TarInfo(name)
    header.size, header.type = LARGE, kind
    return header, Zeros()


def listing(*names):
    members = {name: {"sha256": "0" * 64, "bytes": LARGE} for name in names}
    manifest = json.dumps({"format": 1, "members": members}).encode()
    return member("manifest.json", manifest), member("manifest.mac", bytes(32))


def restoring(project, path, tmp_path):
    target = tmp_path / "restored"
    return bounded.run(tmp_path, "project", "restore", path, target, "--keys", project.keys)


@pytest.mark.quick("ledger.sqlite3")
@pytest.mark.parametrize("name", ["ledger.sqlite3", "releases/r0001/data.parquet"])
def test_a_forged_backup_puts_nothing_on_the_disk(project, tmp_path, name):
    path = forge(tmp_path / "forged", *listing(name), large(name))
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
def test_a_header_or_a_head_that_never_ends_takes_no_memory(project, tmp_path, name, before, kind):
    path = forge(tmp_path / "forged", *listing()[:before], large(name, kind))
    seen = restoring(project, path, tmp_path)
    assert seen.refused_in_one_line()
    assert seen.peak < MODEST


def test_the_database_of_a_forged_backup_is_never_opened(project, tmp_path, monkeypatch):
    made = Path(backup(tmp_path / "backup", project=project).path)
    with backups.open_archive(made) as file:
        manifest, ledger = file.manifest, tmp_path / "unpacked"
        file.extract(ledger)
    content = (ledger / backups.LEDGER).read_bytes()
    forge(
        tmp_path / "forged",
        member("manifest.json", manifest),
        member("manifest.mac", bytes(32)),
        member(backups.CONFIG, (ledger / backups.CONFIG).read_bytes()),
        member(backups.LEDGER, content),
    )
    opened = world.note_calls(monkeypatch, sqlite3, "connect")
    with pytest.raises(ProjectError, match="was altered"):
        restore(tmp_path / "forged", tmp_path / "again", keys=project.keys)
    assert not opened


def test_a_backup_removes_no_file_beside_it(project, tmp_path):
    (tmp_path / "backup.partial").write_text("mine")
    backup(tmp_path / "backup", project=project)
    assert (tmp_path / "backup.partial").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.glob("*backup*")) == ["backup", "backup.partial"]


def release_a_copy(project, output):
    price = {"mechanism": "rr", "epsilon": 3, "delta": 1e-5}
    make_release(TABLE, project=project, output=output, **price)


def test_a_copy_of_a_release_removes_no_directory_beside_it(project, tmp_path):
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial/mine").write_text("mine")
    release_a_copy(project, tmp_path / "out")
    assert (tmp_path / "out.partial/mine").read_text() == "mine"
    assert (tmp_path / "out/card.json").exists()
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o755
    assert sorted(p.name for p in tmp_path.glob("*out*")) == ["out", "out.partial"]


def test_what_appears_in_the_place_of_a_copy_is_not_removed(project, tmp_path, monkeypatch):
    def appear(*_):
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out/mine").write_text("mine")

    world.note_calls(monkeypatch, shutil, "copy2", appear)
    with pytest.raises(LabelguardError, match="the release is safe in"):
        release_a_copy(project, tmp_path / "out")
    assert (tmp_path / "out/mine").read_text() == "mine"
    assert [p.name for p in tmp_path.glob("*out*")] == ["out"]


# Attacks on private maps: one that does not count is kept in a backup, or one is being rewritten.
#
# A map that was complete when its release crashed, but not yet marked as drawn, is drawn anew: who
# has both sees two answers to one question, for one charge.


BUDGET: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-5}


def test_a_backup_holds_no_answer_that_will_be_given_again(project, tmp_path, monkeypatch):
    with killed_in(Ledger, "mark_drawn"):
        make_release(TABLE, project=project, **BUDGET)
    backup(tmp_path / "backup.tar.zst", project=project)
    restore(tmp_path / "backup.tar.zst", tmp_path / "copy", keys=project.keys)
    make_release(TABLE, project=project, **BUDGET)
    assert list(project.private_maps.rglob("*.parquet"))
    assert not list(find(tmp_path / "copy").private_maps.rglob("*.parquet"))


def test_a_map_that_is_not_as_it_was_drawn_is_not_backed_up(project, tmp_path):
    """Else nobody would know of it before the backup is needed."""
    make_release(TABLE, project=project, **BUDGET)
    next(project.private_maps.rglob("*.parquet")).unlink()
    with pytest.raises(ProjectError, match="not as it was drawn"):
        backup(tmp_path / "backup.tar.zst", project=project)
    assert not (tmp_path / "backup.tar.zst").exists()


def test_whoever_looks_while_somebody_is_erased_spoils_nothing(project, monkeypatch):
    def look(*_):
        """The new files are written, and the ledger is about to be told of them."""
        typed = ("doctor", "budget verify", "release verify")
        return [run(*text.split(), project=project, code=None).exit_code for text in typed]

    make_release(TABLE, project=project, **BUDGET)
    looked = world.note_calls(monkeypatch, ReleaseRepository, "replace_map_digests", look)
    assert erasure.remove_labeler("worker 2", "erased", project).rows_remembered == 12
    assert looked == [[0, 0, 0]]
    assert overview.verify(project.state).ok
    assert erasure.preview_removal("worker 2", "erased", project).rows_remembered == 0


# A restore never forgets a budget: policies of every kind are closed, lost, paid and followed.


KINDS: list[dict[str, Any]] = [
    {"unit": "item"},
    {"skips": "tie"},
    {"assignment_reactive": True},
]


@pytest.mark.quick("kind0")
@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_policy_is_paid_for_whatever_its_kind(kind, tmp_path):
    project = lg.init(tmp_path / "project")
    price: dict[str, Any] = {"delta": 1e-5, "allow": ["rr:uses=1"]}
    policies.new("one", epsilon=1, **price, **kind, project=project)
    policies.activate("one", project)
    made = backup(tmp_path / "backup.tar.zst", project=project)
    restore(made.path, tmp_path / "again", keys=project.keys)
    again = find(tmp_path / "again")
    assert overview.read_budget(again.state).lifetime.epsilon == 1
    policies.new("lost", epsilon=2, **price, **kind, project=again)
    policies.activate("lost", again)
    policies.close(project=again)
    assert overview.read_budget(again.state).lifetime.epsilon == 3
    policies.new("two", epsilon=1, **price, **kind, project=again)
    policies.activate("two", again)
    assert overview.read_budget(again.state).lifetime.epsilon == 4
    if "assignment_reactive" not in kind:
        return
    policies.new("three", epsilon=1, **price, project=again)
    with pytest.raises(PolicyError, match="assignment reacts"):
        policies.activate("three", again)
