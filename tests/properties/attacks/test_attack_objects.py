"""Who can read and write the bucket that a project is kept in, and has no key."""

import json
import re
import shutil
from contextlib import suppress
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileSelector, FileType
from support.leaving import WHO, labels_table, names
from support.lives import PRICE
from support.preferences import ASKED, TABLE
from support.stored import (
    KINDS,
    begin,
    contents,
    lose_disk,
    move_to_new_machine,
    put_back,
    serve,
)

import labelguard as lg
from labelguard.errors import KeyProblem, LedgerError, ProjectError
from labelguard.keys.keyring import KeyRing
from labelguard.ledger.charges import ReleaseRepository
from labelguard.ledger.ledger import Ledger
from labelguard.project import erasure
from labelguard.project.opening import OpenProject
from labelguard.project.private_map import PrivateMap
from labelguard.report import overview

SOME = TABLE.slice(0, 50)
NAMES = re.compile(
    r"released/r\d{4}-[0-9a-f]{8}/[0-9a-f]{32}/(bucket=\d{4}-of-\d{4}\.parquet|nonce)|"
    r"releases/r\d{4}-[0-9a-f]{8}/[0-9a-f]{64}/(card\.json|CARD\.md|SHA256SUMS|data\.parquet)|"
    r"witness/\d{18}"
)


class Stopped(Exception):
    """A job that ends here."""


@pytest.fixture(params=KINDS)
def store(request, tmp_path, monkeypatch):
    with serve(request.param, tmp_path, monkeypatch) as objects:
        yield objects


@pytest.fixture
def home(store, tmp_path, monkeypatch):
    """A project of two releases that is kept there."""
    home = begin(tmp_path / "a", monkeypatch)
    lg.privatize(labels_table().slice(0, 50), **PRICE, project=home)
    lg.privatize(labels_table(), **PRICE, project=home)
    return home


def test_objects_and_their_names_hold_no_label_no_row_and_no_labeler(home, store):
    """What is released is there as it is released, and nowhere else."""
    objects = contents(store)
    assert all(NAMES.fullmatch(name) for name in objects)
    opened = OpenProject.open(home)
    maps = [pq.read_table(path, partitioning=None) for path in home.private_maps.rglob("*.parquet")]
    keys = {key for table in maps for name in ("row_key", "labeler") for key in table[name]}
    secrets = {key.as_py() for key in keys} | {name.encode() for name in names(ASKED)}
    secrets |= {digest.encode() for digest in opened.map_digests.values()}
    secrets |= {secret.hex().encode() for secret in secrets}
    assert len(secrets) > 100
    for name, data in objects.items():
        assert not [secret for secret in secrets if secret in name.encode()]
        if name.startswith("releases/"):
            continue
        assert not [secret for secret in secrets if secret in data] and b"PAR1" not in data
        assert name.startswith("witness/") or (len(data) - 48) % 4096 == 0


def _maps(objects, number):
    return [name for name in objects if name.startswith(f"released/r000{number}")]


def _swap(objects, older, foreign):
    first, second = _maps(objects, 2)[:2]
    objects[first], objects[second] = objects[second], objects[first]
    return first


def _take_from_other_release(objects, older, foreign):
    [name, *_] = _maps(objects, 2)
    objects[name] = objects[_maps(objects, 1)[0]]
    return name


def _take_from_other_project(objects, older, foreign):
    [name, *_] = _maps(objects, 2)
    objects[name] = foreign
    return name


def _take_older(objects, older, foreign):
    """The map from before somebody left, under the name of the one that counts."""
    tag = _maps(objects, 2)[0].split("/")[2]
    before = {name: data for name, data in older.items() if name.startswith("released/r0002")}
    for name in _maps(objects, 2):
        objects[name] = next(
            data for old, data in before.items() if old.endswith(name.rpartition("/")[2])
        )
    return f"released/{_maps(objects, 2)[0].split('/')[1]}/{tag}"


def _delete(objects, older, foreign):
    name = _maps(objects, 2)[0]
    del objects[name]
    return name.rpartition("/")[0]


def _delete_map(objects, older, foreign):
    folder = _maps(objects, 2)[0].rpartition("/")[0]
    for name in _maps(objects, 2):
        del objects[name]
    return folder


def _cut(objects, older, foreign):
    [name, *_] = _maps(objects, 2)
    objects[name] = objects[name][:20]
    return name


def _add(objects, older, foreign):
    name = f"{_maps(objects, 2)[0].rpartition('/')[0]}/bucket=0000-of-0001.parquet"
    objects[name] = objects[_maps(objects, 2)[0]]
    return name


def _alter_public(objects, older, foreign):
    name = next(n for n in objects if n.startswith("releases/r0001") and n.endswith("data.parquet"))
    objects[name] = next(
        data for n, data in objects.items() if n.startswith("releases/r0002") and "data." in n
    )
    return name


def _delete_public(objects, older, foreign):
    name = next(n for n in objects if n.startswith("releases/r0001") and n.endswith("card.json"))
    del objects[name]
    return name


def _alter_witness(objects, older, foreign):
    name = next(n for n in objects if n.startswith("witness/"))
    objects[name] = foreign
    return name


def _rename_witness(objects, older, foreign):
    name = next(n for n in objects if n.startswith("witness/"))
    renamed = f"witness/{int(name[8:]) + 7:018}"
    objects[renamed] = objects[name]
    return renamed


ATTACKS = (_swap, _take_from_other_release, _take_from_other_project, _take_older, _delete)
ATTACKS += (_delete_map, _cut, _add, _alter_public, _delete_public, _alter_witness, _rename_witness)


def test_an_object_that_is_another_or_gone_stops_the_project_and_is_named(
    home, store, tmp_path, monkeypatch
):
    older = contents(store)
    erasure.remove_labeler(WHO, "erased", home)
    ledger = home.ledger_url
    with monkeypatch.context() as patch:
        foreign = begin(tmp_path / "b", patch, address=f"{store.address}/foreign")
        lg.privatize(SOME, **PRICE, project=foreign)
    monkeypatch.setenv("LABELGUARD_LEDGER_URL", ledger)
    [piece, *_] = [name for name in store.list() if name.startswith("foreign/released/")]
    good, theirs = contents(store), store.read(piece)
    before = overview.list_releases(home)
    for number, attack in enumerate(ATTACKS):
        objects = dict(good)
        blamed = attack(objects, older, theirs)
        put_back(store, objects)
        there = move_to_new_machine(home, f"machine {number}", monkeypatch)
        with pytest.raises(ProjectError, match=re.escape(store.uri(blamed))):
            lg.privatize(labels_table(seed=5), **PRICE, project=there)
        assert not (there.private_maps / before[-1].id).exists()
        assert overview.list_releases(home) == before
    put_back(store, good)
    assert overview.verify(move_to_new_machine(home, "last", monkeypatch)).ok


def test_an_older_ledger_is_refused_by_what_the_store_has_seen(home, store, tmp_path, monkeypatch):
    """A backup of the database was put back."""
    database = home.ledger_url.removeprefix("sqlite:///")
    shutil.copy(database, tmp_path / "older")
    lg.privatize(labels_table().slice(0, 30), **PRICE, again=True, exhausted="drop", project=home)
    newest = contents(store)
    there = lose_disk(home, "second", monkeypatch)
    shutil.copy(database, tmp_path / "newest")
    shutil.copy(tmp_path / "older", database)
    with pytest.raises(LedgerError, match="not what this project last saw"):
        lg.privatize(TABLE, **PRICE, project=there)
    assert contents(store) == newest
    shutil.copy(tmp_path / "newest", database)
    assert overview.verify(there).ok


def test_a_job_asks_the_store_though_its_disk_remembers_less(home, store, tmp_path, monkeypatch):
    """The disk was put back together with the ledger."""
    database = home.ledger_url.removeprefix("sqlite:///")
    shutil.copy(database, tmp_path / "ledger")
    shutil.copytree(home.state, tmp_path / "state")
    lg.privatize(labels_table().slice(0, 30), **PRICE, again=True, exhausted="drop", project=home)
    shutil.rmtree(home.state)
    shutil.copytree(tmp_path / "state", home.state)
    shutil.copy(tmp_path / "ledger", database)
    with pytest.raises(LedgerError, match=f"in {store.uri('witness')}"):
        lg.privatize(TABLE, **PRICE, project=home)


def test_what_an_attempt_drew_that_lost_is_opened_by_no_key_and_no_ledger(home, store, monkeypatch):
    """A bucket may keep every version: a second draw of a label would tell more than was paid."""

    def stop(*_, **__):
        raise Stopped

    before, asked = store.list().keys(), labels_table(seed=9)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "mark_drawn", stop)
        with suppress(Stopped):
            lg.privatize(asked, **PRICE, again=True, exhausted="drop", project=home)
    kept = {name: store.read(name) for name in store.list().keys() - before}
    maps = {name: data for name, data in kept.items() if name.startswith("released/")}
    there = lose_disk(home, "second", monkeypatch)
    lg.privatize(asked, **PRICE, again=True, exhausted="drop", project=there)
    opened = OpenProject.open(there)
    known = re.findall(r"[0-9a-f]{64}", json.dumps([e.body for e in opened.ledger.read_journal()]))
    known += [digest for digest in opened.map_digests.values() if digest]
    assert maps and set(opened.map_digests.values()) <= set(known)
    counted = [name for name in store.list() if name.startswith("released/")]

    def is_open(name, data):
        for digest in known:
            with suppress(KeyProblem):
                return bool(KeyRing(there.keys).unseal(f"object/{digest}", data, name.encode()))
        return False

    assert not any(is_open(name, data) for name, data in maps.items())
    assert all(is_open(name, store.read(name)) for name in counted)
    assert not _find_empty_folders(store)


def _find_empty_folders(store):
    """Folders of attempts that the store remembers without an object in them."""
    infos = store._filesystem.get_file_info(
        FileSelector(store.address.removeprefix("s3://"), recursive=True)
    )
    folders = {info.path for info in infos if info.type == FileType.Directory}
    folders = {folder for folder in folders if re.search(r"/released/[^/]+/", folder)}
    files = [info.path for info in infos if info.type == FileType.File]
    return [
        folder for folder in folders if not any(path.startswith(f"{folder}/") for path in files)
    ]


def test_the_draw_of_an_attempt_that_lost_cannot_be_guessed_by_its_name(
    home, store, tmp_path, monkeypatch
):
    """Its rows are those of the one that counts; with few of them, every choice of values can be
    tried, as here the true one is by whoever has the key.
    """

    def stop(*_, **__):
        raise Stopped

    few = labels_table(seed=9).slice(0, 3)
    names, drawn = [], tmp_path / "drawn"
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "mark_drawn", stop)
        with suppress(Stopped):
            lg.privatize(few, **PRICE, again=True, exhausted="drop", project=home)
        [lost] = (path for path in home.private_maps.iterdir() if path.name.startswith("r0003"))
        names = {name.split("/")[2] for name in _maps(store.list(), 3)}
        shutil.copytree(lost, drawn / lost.name)
    keys = KeyRing(home.keys)

    def tag():
        digest = PrivateMap(drawn, keys).digest(lost.name)
        return keys.mac("object-name", digest.encode()).hex()[:32]

    assert names == {tag()}
    for path in (drawn / lost.name).iterdir():
        if path.suffix != ".parquet":
            path.write_bytes(bytes(path.stat().st_size))
    assert names != {tag()}


def test_a_name_in_the_ledger_writes_nothing_elsewhere(home, store, tmp_path, monkeypatch):
    there = lose_disk(home, "second", monkeypatch)
    whole = ReleaseRepository.all

    for values in ({"files": {"../../x": "0"}}, {"id": "../../x"}, {"files": {"/tmp/x": "0"}}):

        def tell(own, values=values):
            return [replace(record, **values) for record in whole(own)]

        with monkeypatch.context() as patch:
            patch.setattr(ReleaseRepository, "all", tell)
            with pytest.raises(ProjectError, match="which no file may be called"):
                OpenProject.open(there)
    assert not [*there.state.rglob("r0*")]
    assert overview.verify(there).ok


def test_two_projects_do_not_share_a_place(home, store, tmp_path, monkeypatch):
    before = contents(store)
    monkeypatch.setenv("LABELGUARD_LEDGER_URL", "")
    other = begin(tmp_path / "b", monkeypatch)
    with pytest.raises(ProjectError, match=r"witness/.*another project"):
        lg.privatize(TABLE, **PRICE, project=other)
    assert contents(store) == before and not overview.list_releases(other)
