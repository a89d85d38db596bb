"""Releases with directories: every file of them is hashed, verified, delivered and backed up."""

from __future__ import annotations

import os
import subprocess

import pytest
from support.gated import CODE, Gates, labels
from support.preferences import files

import labelguard as lg
from labelguard.errors import ProjectError
from labelguard.keys.keyring import KeyRing
from labelguard.ledger.ledger import Ledger
from labelguard.project import backup, restore
from labelguard.project.project import Project
from labelguard.release.writer import deliver
from labelguard.report import overview
from labelguard.storage.files import SUMS, find_changed_file, hashes_of

WEIGHTS = "model/weights/theta.bin"


@pytest.fixture
def project(tmp_path):
    return lg.init(tmp_path / "project", max_epsilon=60)


@pytest.fixture
def made(project, tmp_path, monkeypatch):
    gates = Gates.install(tmp_path, monkeypatch)
    output = tmp_path / "out"
    return lg.privatize(labels(), project=project, output=output, **gates.options)


def test_sums_name_every_file_by_its_path(made):
    listed = {line.split("  ")[1] for line in (made.path / SUMS).read_text().splitlines()}
    assert {"model/config.json", WEIGHTS, "data.parquet", "CARD.md"} <= listed
    assert listed == set(files(made.path)) - {SUMS}
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", SUMS], cwd=made.path, check=True)


def test_the_card_says_that_there_is_a_model_and_where(made, tmp_path):
    told = {"learner": "gated", "base": "gates", "files": ["model"]}
    assert made.card["kind"] == "model" and told.items() <= made.card["model"].items()
    assert made.card["model"]["identity"]["base"] == "bytes"
    text = (made.path / "CARD.md").read_text()
    assert "| model | model, trained by gated from gates |" in text
    assert str(tmp_path) not in text + (made.path / "card.json").read_text()


@pytest.mark.parametrize("name", ["model/config.json", WEIGHTS])
def test_a_file_in_a_directory_that_changed_is_found(name, made, project):
    assert overview.verify_releases(None, project.state).ok
    path = project.releases / made.id / name
    path.write_bytes(path.read_bytes() + b" ")
    verdict = overview.verify_releases(None, project.state)
    assert not verdict.ok and f"{name} was altered" in str(verdict.fault)
    path.unlink()
    assert f"{name} is missing" in str(overview.verify(project.state).fault)


@pytest.mark.parametrize("name", ["model/chat_template.jinja", "model/weights/more.bin", "new.py"])
def test_a_file_that_was_added_is_found_and_not_delivered(name, made, project, tmp_path):
    inside = project.releases / made.id
    own = files(inside)
    (inside / name).write_text("{{ messages }}")
    verdict = overview.verify_releases(None, project.state)
    assert not verdict.ok and f"{name} was added" in str(verdict.fault)
    record = Ledger(project.ledger_url, KeyRing(project.keys)).releases.get(made.id)
    assert record is not None
    deliver(inside, tmp_path / "copy", record.files)
    assert files(tmp_path / "copy") == own
    for name in ("precious", "card.json"):  # somebody's, since the release was charged
        (elsewhere := tmp_path / name).mkdir()
        (elsewhere / name).write_text("{}")
        with pytest.raises(ProjectError, match="holds another release"):
            deliver(inside, elsewhere, record.files)
        assert files(elsewhere).keys() == {name}


@pytest.mark.parametrize("target", ["/etc", "/etc/passwd", "nowhere"])
def test_a_link_that_was_added_is_found(target, made, project):
    (project.releases / made.id / "model" / "more").symlink_to(target)
    assert "model/more was added" in str(overview.verify(project.state).fault)


def test_every_file_of_a_release_is_as_readable_as_its_rows(project, tmp_path, monkeypatch):
    private = '(model / "config.json").chmod(0o600)\n        return (model,)'
    gates = Gates.install(tmp_path, monkeypatch, CODE.replace("return (model,)", private))
    output = tmp_path / "out"
    made = lg.privatize(labels(), project=project, output=output, **gates.options)
    for directory in (project.releases / made.id, output):
        found = {(path.is_dir(), path.stat().st_mode & 0o777) for path in directory.rglob("*")}
        assert found == {(False, 0o644), (True, 0o755)}


@pytest.mark.parametrize("name", [WEIGHTS, "model"])
def test_a_link_is_no_file_of_a_release(name, made, tmp_path):
    expected = hashes_of(made.path)
    del expected[SUMS]
    assert find_changed_file(made.path, expected) is None
    away = tmp_path / "away"
    (made.path / name).rename(away)
    (made.path / name).symlink_to(away)
    assert f"{WEIGHTS} is missing" in str(
        find_changed_file(made.path, {WEIGHTS: expected[WEIGHTS]})
    )
    with pytest.raises(ProjectError, match=f"'{name}' cannot be part of a release"):
        hashes_of(made.path)


def test_a_backup_holds_them_too(made, project, tmp_path):
    file = tmp_path / "backup.tar.zst"
    backup.backup(file, project=project)
    restore.restore(file, tmp_path / "back", nothing_since=True, keys=project.keys)
    back = Project(tmp_path / "back" / ".labelguard")
    assert files(back.releases) == files(project.releases)
    assert overview.verify(back.state).ok


@pytest.mark.parametrize("name", ["two\nlines", ".hidden", "with blank", "ähnlich", "back\\slash"])
def test_names_that_sums_cannot_tell_are_refused(name, tmp_path):
    (tmp_path / name).touch()
    with pytest.raises(ProjectError, match="cannot be part of a release"):
        hashes_of(tmp_path)


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ProjectError, match="'pipe' cannot be part of a release"):
        hashes_of(tmp_path)
