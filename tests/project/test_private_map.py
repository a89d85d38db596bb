"""The private map is what was drawn or the project stops; only who leaves is taken out of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.commands import run
from support.deaths import Killed, killed_in
from support.preferences import STATISTIC, TABLE, files
from support.releases import make_release

from labelguard.errors import ProjectError
from labelguard.keys.keyring import KeyRing
from labelguard.ledger.ledger import Ledger
from labelguard.project import attempts, erasure, private_map
from labelguard.project.private_map import PrivateMap
from labelguard.report import overview
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks

BUDGET: dict[str, Any] = {"mechanism": "rr", "epsilon": 3.0, "delta": 1e-5, "workers": 1}
RR = BUDGET | {"mechanism": "rr", "uses": 3}
WINDOWS = BUDGET | STATISTIC | {"uses": 3}


class Crash(BaseException):
    """The process ended here."""


def maps(project):
    return sorted(project.private_maps.iterdir())


# ---------------------------------------------------------------- as it was drawn, or not at all


def flip_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def shorten(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [flip_bit, shorten, Path.unlink])
def test_a_map_that_differs_in_any_one_file_is_found(damage, kept, tmp_path):
    found, digest = kept
    for path in sorted((tmp_path / "released" / "r1").iterdir()):
        whole = path.read_bytes()
        damage(path)
        with pytest.raises(ProjectError, match="is not as it was drawn; restore it from a backup"):
            found.check({"r1": digest})
        path.write_bytes(whole)
    found.check({"r1": digest})


def added_file(drawn):
    (drawn / "bucket=0099-of-0128.parquet").write_bytes(b"")


def added_directory(drawn):
    (drawn / "bucket=0099-of-0128.parquet").mkdir()


def removed(drawn):
    drawn.rename(drawn.parents[1] / "away")


def of_another(drawn):
    """A map that is whole, but another release's."""
    other = next(path for path in drawn.parent.iterdir() if path != drawn)
    away = drawn.rename(drawn.parents[1] / "away")
    other.rename(drawn)
    away.rename(other)


@pytest.mark.quick("added_file")
@pytest.mark.parametrize("change", [added_file, added_directory, removed, of_another])
def test_what_is_not_the_map_of_its_release_is_found_by_all_who_need_it(change, project):
    for rows in (50, 60):
        make_release(TABLE.slice(0, rows), project=project, **RR)
    change(maps(project)[0])
    before = files(project.state)
    with pytest.raises(ProjectError, match=r"^release r0001-.*private map.*restore it"):
        make_release(TABLE, project=project, **RR)
    with pytest.raises(ProjectError, match=r"^release r0001-.*private map.*restore it"):
        erasure.remove_labeler("worker 1", "erased", project)
    assert "private map" in overview.verify(project.state).fault
    assert "private map" in run("doctor", project=project, code=1).output
    # Jobs are counted, and attempts that fail.
    ledgers = ("lock", "ledger.sqlite3", attempts.FILE)
    assert {k: v for k, v in files(project.state).items() if k not in ledgers} == {
        k: v for k, v in before.items() if k not in ledgers
    }


@pytest.mark.quick("rr")
@pytest.mark.parametrize("options", [RR, WINDOWS], ids=["rr", "statistic"])
def test_a_map_of_a_release_that_was_not_marked_as_drawn_counts_for_nothing(
    options, project, monkeypatch
):
    """Not for its own command, not for others, and whoever put it there."""
    with killed_in(Ledger, "mark_drawn"):
        make_release(TABLE, project=project, **options)
    [begun] = maps(project)
    if options is RR:
        for path in begun.glob("*.parquet"):
            table = pq.read_table(path, partitioning=None)
            planted = pa.array(np.ones(len(table), np.uint8))
            pq.write_table(table.set_column(3, "value", planted), path)
    planted_files = files(begun)
    other = make_release(TABLE.slice(0, 50), project=project, **options)
    assert "stays charged" in other.notes[0] and other.card["counts"]["released_before"] == 0
    assert not begun.exists()
    assert make_release(TABLE, project=project, **options).id == begun.name
    assert files(begun) != planted_files
    assert overview.verify(project.state).ok


def test_a_map_of_the_same_rows_has_another_digest_and_one_without_a_nonce_is_whole(kept, tmp_path):
    """Who knows all rows but their values confirms no guess by the digest, nor by its hashes."""
    found, digest = kept
    (tmp_path / "released" / "r1" / private_map.NONCE).unlink()
    without = found.digest("r1")
    found.check({"r1": without})  # it was drawn before there was one
    drawn = found.begin("r1")
    for path in (tmp_path / "released" / "r1").iterdir():
        (drawn / path.name).write_bytes(path.read_bytes())
    again = found.complete("r1", drawn)
    assert len({digest, without, again}) == 3
    digests = set()
    for _ in range(2):  # the first attempt crashed before the ledger knew of it
        assert found.rewrite_without("r1", ME)
        digests.add(found.digest("r1", rewritten=True))
    assert len(digests) == 2
    assert not found.rewrite_without("r1", np.array([[8, 8]], np.uint64))


def test_the_size_of_a_map_follows_from_its_number_of_rows(tmp_path):
    rng, sizes = np.random.default_rng(3), set[int]()
    keys = np.arange(6000, dtype=np.uint64).reshape(-1, 2)
    for most in (1, 2, 3000):
        columns = {
            name: rng.integers(0, most, 3000)
            for name in ("version", "threshold", "block_labels", "content")
        }
        value = rng.integers(0, min(most, 3), 3000)
        private_map.write_bucket(tmp_path, 0, 16, keys, keys % most, value=value, **columns)
        sizes.add((tmp_path / "bucket=0000-of-0016.parquet").stat().st_size)
    assert len(sizes) == 1


# ---------------------------------------------------------------- who leaves is taken out


ME: Blocks = np.array([[7, 7]], np.uint64)
OTHERS: Blocks = np.array([[1, 1], [2, 2]], np.uint64)


@pytest.fixture
def kept(tmp_path):
    """A map of three buckets, each with a row of mine and two of others, and its digest."""
    found = PrivateMap(tmp_path / "released", KeyRing.create(tmp_path / "keys"))
    directory = found.begin("r1")
    for bucket in range(3):
        keys = np.array([[bucket, number] for number in range(3)], np.uint64)
        labelers = np.concatenate([ME, OTHERS])
        columns = dict.fromkeys(("version", "value", "threshold", "content"), np.arange(3))
        private_map.write_bucket(directory, bucket, 16, keys, labelers, **columns)
    return found, found.complete("r1", directory)


def rows(found):
    """Mine and others'."""
    return len(found.find_row_keys("r1", ME)), len(found.find_row_keys("r1", OTHERS))


def test_leaving_out_takes_effect_with_the_digest_that_the_ledger_has(kept):
    found, before = kept
    assert found.rewrite_without("r1", ME)
    after = found.digest("r1", rewritten=True)
    assert before != after and rows(found) == (3, 6)
    for digest in (before, after):  # as long as both are there, either may be what counts
        found.check({"r1": digest})
    found.finish_rewriting({"r1": after})
    assert rows(found) == (0, 6) and found.digest("r1") == after
    assert not found.rewrite_without("r1", ME)
    with pytest.raises(ProjectError, match="not as it was drawn"):
        found.check({"r1": before})


@pytest.mark.quick("1")
@pytest.mark.parametrize("moment", range(1, 4))
def test_a_rewriting_that_crashed_before_the_ledger_knew_of_it_is_undone(moment, kept, tmp_path):
    found, before = kept
    whole = files(tmp_path / "released")
    with killed_in(private_map, "fsync_path", call=moment):
        found.rewrite_without("r1", ME)
    with killed_in(Path, "unlink", call=moment):
        found.finish_rewriting({"r1": before})
        raise Killed  # it had fewer files to remove
    found.finish_rewriting({"r1": before})
    assert files(tmp_path / "released") == whole


@pytest.mark.quick("1")
@pytest.mark.parametrize("moment", range(1, 4))
def test_a_rewriting_that_crashed_once_the_ledger_knew_of_it_is_completed(moment, kept):
    found, _ = kept
    found.rewrite_without("r1", ME)
    after = found.digest("r1", rewritten=True)
    with killed_in(Path, "replace", call=moment):
        found.finish_rewriting({"r1": after})
    found.check({"r1": after})
    found.finish_rewriting({"r1": after})
    assert rows(found) == (0, 6) and found.digest("r1") == after


def by_labeler(project):
    """All rows of all maps, with the release and the bucket they are in."""
    found: dict[bytes, list[dict[str, Any]]] = {}
    for path in sorted(project.private_maps.rglob("*.parquet")):
        for row in pq.read_table(path, partitioning=None).to_pylist():
            place = str(path.relative_to(project.private_maps))
            found.setdefault(row["labeler"], []).append(row | {"place": place})
    return found


def test_an_erased_labeler_is_in_none_of_three_maps_and_everybody_else_is(project):
    make_release(TABLE.slice(0, 50), project=project, **RR)
    make_release(TABLE, project=project, **RR)
    make_release(TABLE, project=project, again=True, **RR)
    assert len(maps(project)) == 3
    before, windows = by_labeler(project), [len(list(path.iterdir())) for path in maps(project)]
    keys = KeyRing(project.keys)
    name = blocks.to_bytes(keys.hash_labelers(project.namespace, ["worker 2"]))
    theirs = before.pop(name)
    assert {row["place"].split("/")[0] for row in theirs} == {path.name for path in maps(project)}
    told = run("labeler", "erase", "worker 2", "--yes", project=project)
    assert f"{len(theirs)} rows of theirs forgotten" in told.output
    assert by_labeler(project) == before
    assert [len(list(path.iterdir())) for path in maps(project)] == windows  # none is left over
    assert overview.verify(project.state).ok
    assert overview.read_journal(project.state)[-1].kind == "rewritten"
    again = make_release(TABLE, project=project, **RR)
    assert again.card["counts"]["charged"] == 0 and by_labeler(project) == before
