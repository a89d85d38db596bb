"""Nobody else's project is taken for the user's own, whoever left it lying about."""

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from support.commands import run
from support.preferences import TABLE
from support.releases import make_release

import labelguard
from labelguard.errors import KeyProblem, LabelguardError, ProjectError
from labelguard.keys import keyring
from labelguard.keys.keyring import KeyRing
from labelguard.project.project import _read_registry, find

PRICE = {"mechanism": "rr", "epsilon": 3, "delta": 1e-5}
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
NOBODY = 65534


def check_refused(project, error, match):
    with pytest.raises(error, match=match):
        make_release(TABLE, **PRICE, project=project.state)


def doctor(project):
    return run("doctor", project=project, code=None)


def packed_by_somebody_else(project, target, monkeypatch):
    """An archive with a project in it, unpacked by the user: every file is the user's own."""
    archive = target.with_suffix(".tar")
    with tarfile.open(archive, "w") as tar:
        tar.add(project.state, ".labelguard")
    shutil.rmtree(project.state)
    target.mkdir()
    with tarfile.open(archive) as tar:
        tar.extractall(target, filter="tar")
    # Of the machine where it was packed this user's list knows nothing.
    monkeypatch.setenv("XDG_STATE_HOME", str(target.with_suffix(".home")))


def test_a_project_from_an_archive_is_not_picked_up_from_a_parent_directory(
    project, tmp_path, monkeypatch
):
    packed_by_somebody_else(project, tmp_path / "unpacked", monkeypatch)
    (tmp_path / "unpacked/data").mkdir()
    monkeypatch.chdir(tmp_path / "unpacked/data")
    with pytest.raises(ProjectError, match="was not made by you on this machine"):
        make_release(TABLE, **PRICE)
    assert "was not made by you" in run("doctor", code=1).output
    assert find(tmp_path / "unpacked")  # whoever names it has it
    monkeypatch.setenv("LABELGUARD_PROJECT", str(tmp_path / "unpacked"))
    assert find()


def test_a_project_made_here_is_found_upwards_also_after_it_was_moved(
    project, tmp_path, monkeypatch
):
    moved = project.state.parent.rename(tmp_path / "elsewhere")
    (moved / "a/b").mkdir(parents=True)
    monkeypatch.chdir(moved / "a/b")
    assert find().state == moved / ".labelguard"
    for identity in ("", "\n", "0" * 32):  # it cannot claim to be known
        (moved / ".labelguard" / "id").write_text(identity)
        with pytest.raises(ProjectError, match="not made by you"):
            find()


def test_a_plain_copy_does_not_spend_the_budget_a_second_time(project, tmp_path, monkeypatch):
    copy = Path(shutil.copytree(project.state.parent, tmp_path / "copy", symlinks=True))
    make_release(TABLE, **PRICE, project=project.state.parent)
    monkeypatch.chdir(copy)
    for named in (None, copy, copy / ".labelguard"):
        with pytest.raises(ProjectError, match=f"is a copy of {project.state}"):
            make_release(TABLE, **PRICE, project=named)
    first = project.state.parent.rename(tmp_path / "gone")
    assert find(copy).state == copy / ".labelguard"  # which was moved, as far as one can see
    with pytest.raises(ProjectError, match=f"is a copy of {copy / '.labelguard'}"):
        find(first)
    shutil.rmtree(first)
    assert find(copy)


def test_a_project_by_another_name_of_its_directory_is_no_copy(project, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(project.state.parent)
    monkeypatch.chdir(project.state.parent)
    for name in (tmp_path / "link", ".", project.state, None):
        assert find(name).state == project.state
    moved = project.state.parent.rename(tmp_path / "moved")
    (tmp_path / "link").unlink()
    for _ in range(2):
        assert find(moved).state == moved / ".labelguard"
    assert _read_registry()[-1][1] == moved / ".labelguard"
    places = _read_registry()
    find(moved)
    assert _read_registry() == places  # said once


def test_init_says_where_a_project_cannot_be_recorded(tmp_path, monkeypatch):
    (tmp_path / "state").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    result = run("init", tmp_path / "made")
    where = tmp_path / "state/labelguard/projects"
    assert f"note: could not record this project in {where}: name it by --project" in result.stderr


@pytest.mark.quick(".", "keys/project.key")
@root_only
@pytest.mark.parametrize("name", [".", "keys", "keys/project.key", "labelguard.toml"])
def test_what_belongs_to_another_user_is_refused(project, name):
    os.chown(project.state / name, NOBODY, -1)
    check_refused(project, LabelguardError, r"belongs to another user \(uid 65534, you are 0\)")
    assert doctor(project).exit_code == 1


@pytest.mark.quick("511-.", "488-keys")
@pytest.mark.parametrize("name", [".", "keys"])
@pytest.mark.parametrize("mode", [0o777, 0o750, 0o701])
def test_directories_that_others_can_enter_are_refused_and_the_doctor_says_so(project, name, mode):
    (project.state / name).chmod(mode)
    check_refused(project, LabelguardError, rf"readable by others \(mode {mode:o}\); chmod 700 ")
    seen = doctor(project)
    assert seen.exit_code == 1
    assert "chmod 700" in seen.output


@pytest.mark.quick(".", "keys/project.key")
@pytest.mark.parametrize("name", [".", "keys", "keys/project.key", "labelguard.toml", "lock"])
def test_links_are_not_followed(project, tmp_path, name):
    (project.state / "lock").touch()
    path = project.state if name == "." else project.state / name
    real = path.rename(tmp_path / "real")
    path.symlink_to(real)
    before = (tmp_path / "real/id" if real.is_dir() and name == "." else real).stat()
    check_refused(project, LabelguardError, "symbolic link")
    assert (tmp_path / "real/id" if name == "." else real).stat() == before


def test_a_pipe_in_place_of_a_key_does_not_hang(project):
    (project.keys / "project.key").unlink()
    os.mkfifo(project.keys / "project.key", 0o600)
    check_refused(project, KeyProblem, "is not a file")


def test_git_adds_nothing_of_a_project(tmp_path, monkeypatch):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    project = labelguard.init(tmp_path)
    (tmp_path / "readme").touch()
    subprocess.run(["git", "-C", tmp_path, "add", "-A"], check=True)
    listed = subprocess.run(["git", "-C", tmp_path, "ls-files"], capture_output=True, text=True)
    assert listed.stdout == "readme\n"
    assert doctor(project).exit_code == 0
    (project.state / ".gitignore").unlink()
    seen = doctor(project)
    assert seen.exit_code == 1
    assert ".gitignore" in seen.output


@pytest.fixture
def handed_over(project, tmp_path):
    """The project key in a directory like a mounted secret, and no longer beside the project."""
    mounted = tmp_path / "mounted"
    (mounted / "..2030").mkdir(parents=True)
    (mounted / "..data").symlink_to("..2030")
    (mounted / "project.key").symlink_to("..data/project.key")
    (project.keys / "project.key").rename(mounted / "..2030/project.key")
    (mounted / "..2030/project.key").chmod(0o444)
    mounted.chmod(0o1777)
    return mounted / "project.key"


def test_a_mounted_secret_is_the_project_key(project, handed_over, monkeypatch):
    monkeypatch.setenv("LABELGUARD_KEY_FILE", str(handed_over))
    assert make_release(TABLE, **PRICE, project=project.state).id.startswith("r0001")
    assert not (project.keys / "project.key").exists()
    project.keys.rmdir()
    make_release(TABLE, **PRICE, again=True, exhausted="drop", project=project.state)
    assert doctor(project).exit_code == 0
    handed_over.unlink()
    handed_over.symlink_to("project.key")
    check_refused(project, KeyProblem, "levels of symbolic links")


@pytest.mark.quick("mounted", "project.key-owner")
@pytest.mark.parametrize(
    ("weak", "change"),
    [
        *((name, "mode") for name in ("mounted", "..2030", "..2030/project.key")),
        *(pytest.param(n, "owner", marks=root_only) for n in ("project.key", "..data", "..2030")),
    ],
)
def test_a_mounted_secret_that_others_can_replace_is_refused(
    project, handed_over, weak, change, monkeypatch
):
    monkeypatch.setenv("LABELGUARD_KEY_FILE", str(handed_over))
    place = handed_over.parent if weak == "mounted" else handed_over.parent / weak
    if change == "mode":
        place.chmod(0o777)
    else:
        os.chown(place, NOBODY, -1, follow_symlinks=False)
    check_refused(project, KeyProblem, "others can write")


def test_a_command_hands_the_key_over_once(project, handed_over, tmp_path, monkeypatch):
    log = tmp_path / "log"
    script = tmp_path / "fetch it"
    script.write_text(f"#!/bin/sh\necho run >> '{log}'\ncat '{handed_over}'\n")
    script.chmod(0o700)
    monkeypatch.setenv("LABELGUARD_KEY_COMMAND", f"'{script}' --now")
    assert make_release(TABLE, **PRICE, project=project.state).id.startswith("r0001")
    assert KeyRing(project.keys).key_fingerprint()
    assert log.read_text() == "run\n"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("sh -c 'echo SECRET; exit 7'", "failed with exit code 7"),
        ("sh -c 'echo SECRET; sleep 60'", "took more than"),
        ("sh -c 'echo SECRET'", "not a labelguard key file"),
        ("/nowhere/SECRET", "cannot be run"),
        ("echo 'SECRET", "cannot be run"),
    ],
)
def test_a_command_that_fails_says_so_and_nothing_of_its_output(
    project, handed_over, command, message, monkeypatch
):
    monkeypatch.setattr(keyring, "_PATIENCE", 1)
    monkeypatch.setenv("LABELGUARD_KEY_COMMAND", command)
    with pytest.raises(KeyProblem, match=message) as caught:
        make_release(TABLE, **PRICE, project=project.state)
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_init_takes_no_key_from_elsewhere(project, handed_over, tmp_path, monkeypatch):
    monkeypatch.setenv("LABELGUARD_KEY_FILE", str(handed_over))
    with pytest.raises(KeyProblem, match="LABELGUARD_KEY_FILE"):
        labelguard.init(tmp_path / "another")
    monkeypatch.setenv("LABELGUARD_KEY_COMMAND", "true")
    check_refused(project, KeyProblem, "unset one")


def test_init_makes_no_key_in_a_directory_that_others_can_enter(tmp_path, monkeypatch):
    (tmp_path / "keys").mkdir(mode=0o755)
    monkeypatch.setenv("LABELGUARD_KEYS", str(tmp_path / "keys"))
    with pytest.raises(KeyProblem, match="chmod 700"):
        labelguard.init(tmp_path / "another")
    assert not [*(tmp_path / "keys").iterdir()]


def test_a_copy_of_a_project_that_came_from_elsewhere_is_refused_too(tmp_path, monkeypatch):
    came = labelguard.init(tmp_path / "came").state.parent
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user's"))
    assert find(came)
    copy = Path(shutil.copytree(came, tmp_path / "copy", symlinks=True))
    with pytest.raises(ProjectError, match="is a copy of"):
        find(copy)
    monkeypatch.chdir(came)
    with pytest.raises(ProjectError, match="not made by you"):  # to be named makes it nobody's own
        find()


def test_an_id_that_is_none_plants_nothing_in_the_list(project, tmp_path, monkeypatch):
    other = labelguard.init(tmp_path / "other").state
    for planted in (b"x\n" + b"0" * 32 + b" /tmp/x", b"\xff" * 32, b"0" * 31 + b"\n1"):
        (other / "id").write_bytes(planted)
        assert find(other)
        monkeypatch.chdir(other.parent)
        with pytest.raises(ProjectError, match="not made by you"):
            find()
