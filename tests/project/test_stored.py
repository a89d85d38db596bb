"""A project on object storage goes on where the last job ended, on a machine without its disk."""

import json
import shutil
import tomllib
from collections import Counter
from contextlib import suppress

import pytest
from support import databases
from support.commands import run
from support.leaving import WHO, labels_table, remembered
from support.lives import PRICE
from support.preferences import TABLE, files
from support.stored import (
    ADDRESS,
    KINDS,
    begin,
    contents,
    keep_at,
    lose_disk,
    move_to_new_machine,
    serve,
)
from support.tools import connected, take_in

import labelguard as lg
from labelguard.errors import LedgerError, ProjectError
from labelguard.keys.keyring import KeyRing
from labelguard.ledger.ledger import Ledger
from labelguard.project import erasure, ingestion, opening
from labelguard.project.backup import backup
from labelguard.project.opening import OpenProject
from labelguard.project.project import find
from labelguard.project.restore import _detach_storage, restore
from labelguard.project.stored import StoredWitness
from labelguard.report import overview

SOME = TABLE.slice(0, 50)


class Stopped(Exception):
    """A job that ends here."""


@pytest.fixture(params=KINDS)
def store(request, tmp_path, monkeypatch):
    with serve(request.param, tmp_path, monkeypatch) as objects:
        yield objects


@pytest.fixture
def home(store, tmp_path, monkeypatch):
    """A project of one release that is kept there."""
    home = begin(tmp_path / "a", monkeypatch)
    lg.privatize(SOME, **PRICE, project=home)
    return home


def stop_before_commit(home, monkeypatch):
    """Publish a release on the disk and in the store, and end there."""

    def stop(*_, **__):
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "commit", stop)
        with suppress(Stopped):
            lg.privatize(TABLE, **PRICE, project=home)


def private_and_public(home):
    return {name: files(home.state / name) for name in ("released", "releases")}


def test_another_machine_repeats_no_draw_and_charges_only_what_is_new(home, monkeypatch):
    before = private_and_public(home)
    there = lose_disk(home, "second", monkeypatch)
    again = lg.privatize(SOME, **PRICE, project=there)
    assert again.reused and private_and_public(there) == before
    more = lg.privatize(TABLE, **PRICE, project=there)
    assert more.card["counts"]["charged"] < again.card["counts"]["charged"] * 3
    old, new = (Counter(lg.load(one).select("item_id", "chosen").rows()) for one in (again, more))
    assert old <= new
    assert overview.verify(there).ok
    third = lose_disk(there, "third", monkeypatch)
    assert run("budget", "verify", project=third).exit_code == 0
    assert len(list(third.releases.iterdir())) == 2


def test_a_disk_that_is_there_is_looked_at_without_the_store(home, store):
    store.delete(store.list())
    assert overview.verify(home).ok
    lg.privatize(TABLE, **PRICE, project=home)  # and the next job brings back what lacks
    assert {name.partition("/")[0] for name in store.list()} == {"released", "releases", "witness"}


def test_a_project_is_brought_to_a_store_later_with_all_that_counts(
    store, home, tmp_path, monkeypatch
):
    before = contents(store)
    store.delete(store.list())
    with OpenProject.hold_for_job(home) as opened:
        opened.synchronize(opened.ledger.begin_job())
    after = contents(store)
    assert after.keys() == before.keys()
    public = [name for name in after if name.startswith("releases/")]
    assert public and all(after[name] == before[name] for name in public)


@pytest.mark.parametrize("moment", ["mark_drawn", "commit"])
def test_a_job_that_ended_after_its_upload_is_finished_elsewhere(moment, home, store, monkeypatch):
    def stop(*_, **__):
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, moment, stop)
        with suppress(Stopped):
            lg.privatize(TABLE, **PRICE, project=home)
    drawn = {name for name in store.list() if name.startswith("released/")}
    there = lose_disk(home, "second", monkeypatch)
    release = lg.privatize(TABLE, **PRICE, project=there)
    assert not release.reused and release.id == overview.list_releases(there)[-1].id
    assert len(overview.list_releases(there)) == 2 and overview.verify(there).ok
    # What was drawn by the attempt that lost is gone; what was marked is published as it was.
    assert (drawn <= store.list().keys()) == (moment == "commit")
    there = lose_disk(there, "third", monkeypatch)
    assert overview.verify(there).ok


def test_a_job_that_was_overtaken_deletes_nothing(home, store):
    with OpenProject.hold_for_job(home) as opened:
        epoch = opened.ledger.begin_job()
        store.write("released/r0002-new/tag/bucket=0000-of-0016.parquet", b"of the next job")
        before = contents(store)
        opened.ledger.begin_job()
        with pytest.raises(LedgerError, match="another job has begun"):
            opened.synchronize(epoch)
        assert contents(store) == before
        opened.synchronize(opened.ledger.begin_job())
    assert len(contents(store)) == len(before) - 1


def test_a_release_that_another_machine_made_otherwise_replaces_what_was_never_committed(
    home, store, tmp_path, monkeypatch
):
    stop_before_commit(home, monkeypatch)
    [lost] = (path for path in home.releases.iterdir() if path.name.startswith("r0002"))
    there = move_to_new_machine(home, "second", monkeypatch)
    for path in lost.rglob("*"):  # with another date in the card, for example
        path.write_bytes(path.read_bytes() + b" ")
    assert lg.privatize(TABLE, **PRICE, project=there).id == lost.name
    lg.privatize(TABLE, **PRICE, project=home)
    assert overview.verify(home).ok
    assert files(lost) == files(there.releases / lost.name)


def test_files_of_a_release_that_is_unfinished_are_not_deleted(home, store, monkeypatch):
    """A job that is overtaken while it deletes would take what the next one commits."""

    stop_before_commit(home, monkeypatch)
    before = {name for name in store.list() if name.startswith("releases/r0002")}
    with OpenProject.hold_for_job(home) as opened:
        opened.synchronize(opened.ledger.begin_job())
    assert before and before <= store.list().keys()
    [unfinished] = {name.split("/")[1] for name in before}
    opening.abandon(unfinished, home)
    assert not before & store.list().keys()


def test_what_was_forgotten_when_a_job_ended_is_deleted_by_the_next_ingestion(
    store, tmp_path, monkeypatch
):
    def stop(*_, **__):
        raise Stopped

    home, desk = connected(begin(tmp_path / "a", monkeypatch), tmp_path, monkeypatch)
    told = desk.answer("maria", 1, "left")
    take_in(home, told, desk.answer("otto", 2, "left"))
    [before] = (name for name in store.list() if name.startswith("labels/"))
    with monkeypatch.context() as patch:
        patch.setattr(OpenProject, "synchronize", stop)
        with suppress(Stopped):
            take_in(home, desk.delete(told["record"]))
    assert before in store.list()
    ingestion.ingest(home)
    assert before not in store.list()


def test_what_else_lies_in_the_bucket_stays(home, store):
    store.write("notes/mine.txt", b"mine")
    with OpenProject.hold_for_job(home) as opened:
        opened.synchronize(opened.ledger.begin_job())
    assert store.read("notes/mine.txt") == b"mine"


def test_who_is_erased_is_in_no_object_and_on_no_other_disk(store, tmp_path, monkeypatch):
    home = begin(tmp_path / "a", monkeypatch)
    lg.privatize(labels_table(), **PRICE, project=home)
    other = move_to_new_machine(home, "other", monkeypatch)
    assert overview.verify(other).ok and remembered(other)
    before = contents(store)
    erasure.remove_labeler(WHO, "erased", home)
    assert remembered(home) == 0
    maps = {name for name in before if name.startswith("released/")}
    assert not maps & store.list().keys()  # the new ones have names of their own
    fresh = move_to_new_machine(home, "fresh", monkeypatch)
    assert overview.verify(fresh).ok and not remembered(fresh)
    lg.privatize(labels_table(seed=3), **PRICE, project=other)
    assert not remembered(other) and overview.verify(other).ok


def test_ingested_answers_are_there_too(store, tmp_path, monkeypatch):
    home, desk = connected(begin(tmp_path / "a", monkeypatch), tmp_path, monkeypatch)
    take_in(home, desk.answer("maria", 1, "left"), desk.answer("otto", 2, "left"))
    before = files(home.labels)
    there = lose_disk(home, "second", monkeypatch)
    assert overview.verify(there).ok
    take_in(there, desk.answer("zoe", 3, "left"))
    assert before.items() <= files(there.labels).items()
    assert len([name for name in store.list() if name.startswith("labels/")]) == 2
    assert overview.verify(there).ok


def test_a_restored_project_needs_a_place_of_its_own(home, store, tmp_path, monkeypatch):
    file, keys = tmp_path / "backup.tar.zst", tmp_path / "keys"
    backup(file, project=home)
    shutil.copytree(home.keys, keys)
    lg.privatize(TABLE, **PRICE, project=home)
    before = contents(store)
    url = f"sqlite:///{tmp_path / 'restored.sqlite3'}"
    monkeypatch.setenv("LABELGUARD_LEDGER_URL", url)
    assert restore(file, tmp_path / "restored", keys=keys).left_storage == ADDRESS
    restored = find(tmp_path / "restored")
    assert not restored.storage
    with OpenProject.hold_for_job(restored) as opened:
        opened.synchronize(opened.ledger.begin_job())  # it leaves the bucket alone
    restored = keep_at(restored)
    with pytest.raises(LedgerError, match=f"in {ADDRESS}/witness"):
        lg.privatize(TABLE, **PRICE, project=restored)
    assert contents(store) == before
    restored = keep_at(restored, f"{ADDRESS}/restored")
    with OpenProject.hold_for_job(restored) as opened:
        opened.synchronize(opened.ledger.begin_job())
    assert {name: contents(store)[name] for name in before} == before
    shutil.copy(home.keys / "project.key", tmp_path / "project.key")
    moved = move_to_new_machine(restored, "elsewhere", monkeypatch)
    assert overview.verify(moved).ok


@pytest.mark.integration
def test_a_backup_of_a_project_on_s3_and_postgresql_is_restored_there(tmp_path, monkeypatch):
    with (
        serve("s3", tmp_path, monkeypatch) as store,
        databases.fresh("postgresql", tmp_path) as url,
        databases.fresh("postgresql", tmp_path) as empty,
    ):
        home = begin(tmp_path / "a", monkeypatch, url)
        made = lg.privatize(SOME, **PRICE, project=home)
        there = lose_disk(home, "second", monkeypatch)
        done = run("project", "backup", tmp_path / "b.tar.zst", "--json", project=there)
        assert json.loads(done.stdout)["releases"] == 1
        monkeypatch.setenv("LABELGUARD_LEDGER_URL", empty)
        shutil.rmtree(there.state)
        restore(tmp_path / "b.tar.zst", there.state.parent, nothing_since=True)
        restored = keep_at(find(there.state.parent), f"{ADDRESS}/again")
        assert lg.privatize(SOME, **PRICE, project=restored).reused
        more = lg.privatize(TABLE, **PRICE, project=restored)
        assert made.id != more.id and overview.verify(restored).ok
        assert any(name.startswith("again/released/") for name in store.list())


def test_a_place_that_cannot_be_reached_stops_a_job_before_it_reads(home, store, monkeypatch):
    def fail(*_):
        raise ProjectError(f"{ADDRESS}: no route to host")

    with monkeypatch.context() as patch:
        patch.setattr(type(store), "list", fail)
        with pytest.raises(ProjectError, match="no route to host"):
            lg.privatize(TABLE, **PRICE, project=home)
    assert len(overview.list_releases(home)) == 1


def test_a_witness_that_moves_on_while_it_is_read_is_read_again(home, store, monkeypatch):
    remote = StoredWitness(store, KeyRing(home.keys))
    number, digest = remote.read()
    read = type(store).read

    def read_late(objects, name):
        with monkeypatch.context() as patch:
            patch.setattr(type(store), "read", read)
            remote.write(number + 1, digest)
        return read(objects, name)

    with monkeypatch.context() as patch:
        patch.setattr(type(store), "read", read_late)
        with suppress(ProjectError):
            assert remote.read()[0] > number
    store.delete([f"witness/{number + 1:018}"])
    store.write(f"witness/{number + 2:018}", b"x" * 200)
    with pytest.raises(ProjectError, match="witness"):
        remote.read()


@pytest.mark.parametrize(
    "text",
    [
        '[storage]\nurl = "s3://bucket/p"\n\n[input]\nsource = "files"\n',
        'storage.url = "s3://bucket/p"\n[input]\nsource = "files"\n',
        'storage = {url = "s3://bucket/p"}\n',
        '[input]\nsource = "files"\n[ storage ] # here\n# for us\nurl = "s3://bucket/p"',
    ],
)
def test_a_restored_project_leaves_the_storage_however_it_is_named(text, tmp_path):
    path = tmp_path / "labelguard.toml"
    path.write_text(text)
    assert _detach_storage(path) == "s3://bucket/p"
    told = tomllib.loads(path.read_text())
    assert told == ({"input": {"source": "files"}} if "input" in text else {})
