"""A backup holds what it says, and a project restored from one never forgets what was spent."""

import io
import json
import shutil
import signal
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support import databases
from support.commands import run
from support.crashes import crash
from support.crashing import perform
from support.databases import EACH, on
from support.lives import PRICE, TABLE
from support.preferences import files
from support.releases import make_release
from support.rounds import MORE_ROUNDS

import labelguard as lg
from labelguard.errors import KeyProblem, LedgerError, PolicyError, ProjectError
from labelguard.keys.keyring import KeyRing
from labelguard.ledger.journal import Anchor
from labelguard.project import backup as backups
from labelguard.project import policies
from labelguard.project.backup import backup
from labelguard.project.opening import OpenProject
from labelguard.project.project import find
from labelguard.project.restore import restore
from labelguard.report import overview


@pytest.fixture
def project(used_project):
    """A project with one release of 50 labels."""
    return used_project


@pytest.fixture
def made(project, tmp_path):
    """What a backup of it, at `backup.tar.zst`, said."""
    return backup(tmp_path / "backup.tar.zst", project=project)


@pytest.fixture
def copied(project, tmp_path):
    """A copy of the keys, as they are when the test begins."""
    return Path(shutil.copytree(project.keys, tmp_path / "copy of the keys"))


def restore_beside(made, project, **options):
    """The project again, in a directory beside it, with a copy of its keys."""
    target = project.state.parents[1] / "restored"
    restore(made.path, target, **{"keys": project.keys} | options)
    return find(target)


def lifetime(project):
    total = overview.read_budget(project.state).lifetime
    return total.epsilon, total.delta


def members(path):
    """What the tar holds, seen with nothing of labelguard."""
    codec = "gzip" if path.suffix == ".gz" else "zstd"
    with pa.input_stream(str(path), compression=codec) as stream:
        data = io.BytesIO(stream.read())
    with tarfile.open(fileobj=data) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]


def rewrite(path, act):
    """Change the members of a backup behind labelguard's back."""
    listed = []
    for name, content in members(path).items():
        header = tarfile.TarInfo(name)
        header.size = len(content)
        listed.append((header, content))
    act(listed)
    with (
        pa.output_stream(str(path), compression="zstd") as stream,
        tarfile.open(fileobj=stream, mode="w|") as tar,
    ):
        for header, content in listed:
            tar.addfile(header, io.BytesIO(content))


def relist(listed, act):
    """Change the manifest of a backup."""
    header, manifest = listed[0]
    fields = json.loads(manifest)
    act(fields)
    manifest = json.dumps(fields).encode()
    header.size = len(manifest)
    listed[0] = (header, manifest)


def sign(listed, project):
    """Make its manifest the project's own."""
    listed[1] = (listed[1][0], KeyRing(project.keys).mac("backup", listed[0][1]))


@pytest.mark.parametrize(
    ("kind", "to"),
    [
        ("sqlite", "sqlite"),
        pytest.param("sqlite", "postgresql", marks=pytest.mark.slow),
        pytest.param("postgresql", "sqlite", marks=pytest.mark.slow),
        pytest.param("postgresql", "postgresql", marks=pytest.mark.slow),
    ],
)
def test_a_restored_ledger_has_every_row(kind, to, tmp_path, monkeypatch):
    with on(kind, tmp_path, monkeypatch) as url:
        home = lg.init(tmp_path / "project")
        make_release(TABLE.slice(0, 50), **PRICE, project=home)
        before = databases.dump(url or home.ledger_url)
        made = backup(tmp_path / "backup.tar.zst", project=home)
    with on(to, tmp_path, monkeypatch) as url:
        again = restore_beside(made, home, nothing_since=True)
        after = databases.dump(url or again.ledger_url)
        assert bool(url) != (again.state / "ledger.sqlite3").exists()
        assert set(before["journal"]) < set(after["journal"])
        assert len(after["journal"]) == len(before["journal"]) + 1
        for table in before.keys() - {"journal", "meta"}:
            assert after[table] == before[table], table
        assert overview.verify(again.state).ok
        second = make_release(TABLE, **PRICE, project=again)
        assert second.reused is False and overview.verify(again.state).ok


def test_everything_private_of_a_restored_project_is_readable_by_its_owner_alone(made, project):
    again = restore_beside(made, project)
    for name in ("releases", "released"):
        assert files(again.state / name) == files(project.state / name)
    assert [path.name for path in again.state.parent.iterdir()] == [".labelguard"]
    assert Path(made.path).stat().st_mode & 0o777 == 0o600
    for path in (again.state, *again.state.rglob("*")):
        if again.releases not in path.parents:
            assert path.stat().st_mode & 0o077 == 0, path


def test_a_release_that_drew_nothing_new_is_restored_too(project, tmp_path):
    again = make_release(TABLE.slice(0, 20), **PRICE, project=project)
    assert again.card["counts"]["charged"] == 0
    made = backup(tmp_path / "backup.tar.zst", project=project)
    restored = restore_beside(made, project, nothing_since=True)
    assert overview.verify(restored.state).ok
    make_release(TABLE, **PRICE, project=restored)


def test_an_anchor_that_a_restore_made_void_is_told_from_a_cut_journal(made, project):
    make_release(TABLE, **PRICE, project=project)
    after = OpenProject.open(project).ledger.read_head()
    restored = restore_beside(made, project)
    for name in "abc":
        policies.new(name, epsilon=1, delta=1e-6, allow=["rr:uses=1,block=1"], project=restored)
    said = overview.verify(restored.state, anchor=str(Anchor(*after))).fault
    assert "cut or changed, unless the anchor is from before 20" in said
    cut = str(Anchor(1, "0" * 64))
    assert overview.verify(restored.state, anchor=cut).fault.endswith("it was cut or changed")


def test_a_backup_is_not_restored_into_the_state_of_a_project(made, project, tmp_path):
    with pytest.raises(ProjectError, match=rf"name {tmp_path}$"):
        restore(made.path, tmp_path / ".labelguard", keys=project.keys)


def test_what_may_have_followed_is_paid_in_full(tmp_path):
    home = lg.init(tmp_path / "project")
    options: dict[str, Any] = {"delta": 1e-5, "allow": ["rr:uses=64,block=1"], "project": home}
    policies.new("old", epsilon=4, **options)
    policies.activate("old", project=home)
    make_release(TABLE.slice(0, 20), mechanism="rr", project=home)
    policies.new("new", epsilon=2, **options)
    made = backup(tmp_path / "backup.tar.zst", project=home)
    again = restore_beside(made, home)
    assert overview.read_budget(again.state).policy is None
    with pytest.raises(PolicyError, match="no policy is in force"):
        make_release(TABLE, mechanism="rr", project=again)
    policies.activate("new", project=again)
    make_release(TABLE, mechanism="rr", project=again)
    assert lifetime(again) == (6.0, 2e-5)
    assert overview.verify(again.state).ok


def test_an_older_anchor_refutes_no_word_that_nothing_followed(project, tmp_path):
    old = Anchor(*OpenProject.open(project).ledger.read_head())
    make_release(TABLE, **PRICE, project=project)
    made = backup(tmp_path / "backup.tar.zst", project=project)
    again = restore_beside(made, project, anchor=str(old), nothing_since=True)
    make_release(TABLE, **PRICE, again=True, exhausted="drop", project=again)
    assert lifetime(again) == (3.0, 1e-5)
    second = backup(tmp_path / "second.tar.zst", project=again)
    restore(second.path, tmp_path / "third", keys=again.keys, nothing_since=True)
    assert overview.verify(find(tmp_path / "third").state).ok


def test_an_anchor_newer_than_the_backup_shows_that_it_is_old(made, project):
    """With the backup's own anchor, only the word of whoever restores tells."""
    make_release(TABLE, **PRICE, project=project)
    newest = str(Anchor(*OpenProject.open(project).ledger.read_head()))
    with pytest.raises(PolicyError, match="something followed"):
        restore_beside(made, project, nothing_since=True, anchor=newest)
    again = restore_beside(made, project, anchor=made.anchor)
    assert overview.read_budget(again.state).policy is None


def test_an_anchor_of_another_history_is_refused(made, project):
    anchor = Anchor.parse(made.anchor)
    other = Anchor(anchor.number, "0" * 64)
    with pytest.raises(LedgerError, match="another history"):
        restore_beside(made, project, anchor=str(other))


def test_what_is_no_anchor_is_refused():
    for text in ("", "labelguard-anchor:1:05:" + "0" * 64, "labelguard-anchor:2:5:" + "0" * 64):
        with pytest.raises(LedgerError, match="no anchor"):
            Anchor.parse(text)
    anchor = Anchor(5, "ab" * 32)
    assert Anchor.parse(f" {anchor}\n") == anchor


@pytest.mark.parametrize("suffix", [".tar.zst", ".tar.gz"])
def test_no_secret_is_in_a_backup(suffix, project, tmp_path):
    path = tmp_path / f"backup{suffix}"
    assert "keys" in backup(path, project=project).left_out
    everything = b"".join(members(path).values())
    for secret in files(project.keys).values():
        assert secret[-32:] not in everything


def test_the_keys_of_another_project_are_refused(made, project, tmp_path):
    with pytest.raises(KeyProblem, match="never regenerated"):
        restore_beside(made, project, keys=None)
    assert not [*(tmp_path / "restored").rglob("project.key")]
    other = lg.init(tmp_path / "other")
    with pytest.raises(ProjectError, match="the keys are another project's"):
        restore_beside(made, project, keys=other.keys)
    assert not [*(tmp_path / "restored").iterdir()]


def test_a_project_is_restored_with_keys_in_place(tmp_path, monkeypatch):
    keys = tmp_path / "apart" / "keys"
    monkeypatch.setenv("LABELGUARD_KEYS", str(keys))
    home = lg.init(tmp_path / "a project")
    make_release(TABLE.slice(0, 50), **PRICE, project=home)
    made = backup(tmp_path / "backup.tar.zst", project=home)
    make_release(TABLE, **PRICE, project=home)
    before = files(keys)
    again = restore_beside(made, home, keys=None)
    assert again.keys == home.keys and not (again.state / "keys").exists()
    assert files(keys) == before
    assert overview.verify(again.state).ok and overview.verify(home.state).ok


def test_an_unfinished_release_is_given_up_and_stays_charged(project, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("labelguard.release.privatize.Run.draw", _fails)
        with pytest.raises(ProjectError):
            make_release(TABLE, **PRICE, project=project)
    made = backup(tmp_path / "backup.tar.zst", project=project)
    [unfinished] = made.unfinished
    found = restore(made.path, tmp_path / "restored", keys=project.keys, nothing_since=True)
    assert found.abandoned == [unfinished] and found.complete
    again = find(tmp_path / "restored")
    assert [r.state for r in overview.list_releases(again.state)] == ["committed", "abandoned"]
    places = [overview.read_budget(p.state).allowances[0].used for p in (project, again)]
    assert places[0] == places[1] == 14
    assert overview.verify(again.state).ok


def _fails(*_):
    raise OSError("no space left")


def test_a_backup_replaces_no_file(made, project):
    before = Path(made.path).read_bytes()
    with pytest.raises(ProjectError, match="exists"):
        backup(made.path, project=project)
    assert Path(made.path).read_bytes() == before
    with pytest.raises(ProjectError, match="without a project"):
        restore(made.path, project.state.parent, keys=project.keys)


def test_a_backup_of_an_altered_release_is_written_and_says_so(made, project, tmp_path):
    [data] = project.releases.glob("*/data.parquet")
    whole = data.read_bytes()
    data.write_bytes(whole[:-1])
    later = run("project", "backup", tmp_path / "later.tar.zst", project=project, code=1)
    text = " ".join(later.output.split())
    assert "FAULT" in text and "data.parquet was altered" in text
    assert "keep earlier ones" in text and (tmp_path / "later.tar.zst").exists()
    # What the message says: the true copy is in an earlier backup.
    assert made.fault is None
    earlier = restore_beside(made, project)
    shutil.rmtree(data.parent)
    shutil.copytree(earlier.releases / data.parent.name, data.parent)
    assert data.read_bytes() == whole and overview.verify(project.state).ok
    run("project", "backup", tmp_path / "last.tar.zst", project=project)


@pytest.mark.quick("/etc/x", "releases/../../x")
@pytest.mark.parametrize("name", ["/etc/x", "../x", "releases/../../x", "releases/a/.x", "lock"])
def test_a_member_that_is_no_part_of_a_project_is_refused(name, made, project, tmp_path):
    """Also where the manifest lists it, and is the project's own."""
    member = {"sha256": "", "bytes": 1}

    def add(listed):
        relist(listed, lambda manifest: manifest["members"].update({name: member}))
        sign(listed, project)
        extra = tarfile.TarInfo(name)
        extra.size = 1
        listed.insert(2, (extra, b"x"))

    rewrite(Path(made.path), add)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ProjectError, match="no part of a backup"):
        restore_beside(made, project)
    assert sorted(tmp_path.iterdir()) == [*before, tmp_path / "restored"]


@pytest.mark.quick("2")
@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE])
def test_links_and_directories_are_refused(kind, made, project):
    def link(listed):
        header = tarfile.TarInfo("labelguard.toml")
        header.type, header.linkname = kind, "/etc/passwd"
        listed[2] = (header, b"")

    rewrite(Path(made.path), link)
    with pytest.raises(ProjectError, match="no part of a backup"):
        restore_beside(made, project)


def _alter(listed):
    header, content = listed[-1]
    listed[-1] = (header, bytes([content[0] ^ 1]) + content[1:])


def _relist(listed):
    """A manifest that fits an altered file: only its HMAC tells."""
    removed, _ = listed.pop()
    relist(listed, lambda manifest: manifest["members"].pop(removed.name))


@pytest.mark.quick("pop-is missing", "_alter-is damaged")
@pytest.mark.parametrize(
    ("act", "found"),
    [(list.pop, "is missing"), (_alter, "is damaged"), (_relist, "was altered after it was made")],
)
def test_an_altered_backup_is_refused(act, found, made, project, tmp_path):
    rewrite(Path(made.path), act)
    with pytest.raises(ProjectError, match=found):
        restore_beside(made, project)
    assert not (tmp_path / "restored" / ".labelguard").exists()


def test_a_cut_backup_is_refused(made, project):
    path = Path(made.path)
    whole = path.read_bytes()
    for damaged in (b"", b"x", b"x" * 2000, whole[:100], whole[:-1], whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(ProjectError):
            restore_beside(made, project)
    path.unlink()
    with pytest.raises(ProjectError, match="there is no file"):
        restore_beside(made, project)


@pytest.mark.slow
@pytest.mark.parametrize("every", [max(1, 17 // MORE_ROUNDS)])
@pytest.mark.parametrize("kind", EACH)
def test_a_restore_that_crashed_anywhere_can_be_run_again(
    kind, every, project, copied, tmp_path, monkeypatch
):
    made = backup(tmp_path / "backup.tar.zst", project=project)
    monkeypatch.setenv("LABELGUARD_KEYS", str(tmp_path / "keys"))
    target = tmp_path / "restored"
    job = {"do": "restore", "source": made.path, "project": str(target), "copied": str(copied)}
    step, died = every, True
    while died:
        with on(kind, tmp_path, monkeypatch) as url:
            [end] = crash(job | {"ledger": url, "kill_at": step, "keys": str(tmp_path / "keys")})
            died = end["signal"] == signal.SIGKILL
            assert died or not end["error"], end
            if died:
                assert (
                    not (target / ".labelguard").exists()
                    or (target / ".labelguard" / "labelguard.toml").exists()
                )
            if not (target / ".labelguard").exists():
                perform(job, target)
            again = find(target)
            assert overview.verify(again.state).ok
            kinds = [entry.kind for entry in overview.read_journal(again.state)]
            assert kinds.count("restored") == kinds.count("closed") == 1
        shutil.rmtree(target)
        shutil.rmtree(tmp_path / "keys")
        step += every
    assert step > 40


@pytest.mark.slow  # on PostgreSQL
def test_a_database_that_holds_a_ledger_takes_no_other(made, project, tmp_path, monkeypatch):
    with on("postgresql", tmp_path, monkeypatch) as url:
        lg.init(tmp_path / "other")
        before = databases.dump(url)
        with pytest.raises(LedgerError, match=r"holds a ledger already.*or remove .*\.partial"):
            restore_beside(made, project)
        assert databases.dump(url) == before
    assert not (tmp_path / "restored" / ".labelguard").exists()


def test_a_backup_of_another_format_is_refused(made, project):
    def newer(listed):
        relist(listed, lambda manifest: manifest.update(format=2))
        sign(listed, project)

    rewrite(Path(made.path), newer)
    with pytest.raises(ProjectError, match="format 2; this labelguard reads 1"):
        restore_beside(made, project)
    assert backups.FORMAT == 1
