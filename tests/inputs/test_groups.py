"""Labelers who share places as a group: counted together, drawn one by one."""

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import world, worlds
from support.label_changes import parts
from support.preferences import LAYOUTS, STATISTIC, Public, opinions, pairs, public, rankings, write
from support.scenarios import ALL, SCENARIOS

import labelguard as lg
from labelguard.errors import InvalidLabels
from labelguard.inputs.columns import Reading
from labelguard.inputs.groups import read_groups
from labelguard.inputs.staging import StagingOptions, stage
from labelguard.keys.keyring import KeyRing
from labelguard.ledger.records import UnitGroups
from labelguard.mechanisms import statistic
from labelguard.project import policies
from labelguard.release.mechanisms import statistic as drawing
from labelguard.report.labeler import read_labeler
from labelguard.storage import blocks

MEMBERS = pa.table(
    {"labeler_id": [f"worker {n}" for n in (0, 1, 2, 3)], "group_id": ["a", "a", "b", "b"]}
)
"""Of seven workers, four in two groups; the others are units of their own."""
ALONE = pa.table({"labeler_id": ["nobody"], "group_id": ["none"]})
ASKED = public(labelers=7, per_labeler=12, items=30)
RANKS = opinions(len(ASKED), 1)


PRICE: dict[str, Any] = {"mechanism": "rr", "epsilon": 3.0, "delta": 1e-5, "workers": 1}
PRICE |= {"unit": "group"}


def home_of(here, members=MEMBERS):
    """A project with these groups."""
    home = lg.init(here)
    policies.add_groups(write(members, here / "groups.csv"), home)
    return home


def release(home, table, **options):
    """What a release counts."""
    return lg.privatize(table, project=home, **PRICE | options).card["counts"]


def places(home, worker):
    """Those of a worker's unit: how many it has, how many are taken."""
    [own] = read_labeler(f"worker {worker}", home).allowances
    return own.allowed, own.used


def drawn(home):
    """The private map of all releases, by row key."""
    rows = [
        row | {"bucket": int(path.stem.removeprefix("bucket=")[:4])}
        for path in sorted(home.private_maps.rglob("*.parquet"))
        for row in pq.read_table(path, partitioning=None).to_pylist()
    ]
    return {row["row_key"]: row for row in rows}


@pytest.fixture(autouse=True)
def same_keys_in_every_project(monkeypatch):
    world.fix_randomness(monkeypatch)


@pytest.fixture
def home(tmp_path):
    return home_of(tmp_path / "home")


@pytest.fixture
def keys(home):
    return KeyRing(home.keys)


@pytest.fixture
def groups(keys):
    return read_groups(MEMBERS, keys, "files")[0]


# ---------------------------------------------------------------- who belongs together


def equal(one, other):
    return np.array_equal(one.labelers, other.labelers) and np.array_equal(one.units, other.units)


def test_groups_are_read_from_every_format(keys, groups, tmp_path):
    expected = groups
    for suffix in ("csv", "parquet", "jsonl"):
        path = write(MEMBERS, tmp_path / f"groups.{suffix}")
        assert equal(read_groups(path, keys, "files")[0], expected)
    csv = (tmp_path / "groups.csv").read_bytes()
    (tmp_path / "groups.csv").write_bytes(b"\xef\xbb\xbf" + csv.replace(b"\n", b"\r\n"))
    assert equal(read_groups(tmp_path / "groups.csv", keys, "files")[0], expected)
    pieces = [pl.DataFrame(MEMBERS[3:]), MEMBERS[:3], MEMBERS]
    assert equal(read_groups(pieces, keys, "files")[0], expected)
    assert not equal(read_groups(MEMBERS, keys, "other")[0], expected)
    numbers = pa.table({"labeler_id": [7, 8], "group_id": pa.array([1, 2], pa.uint8())})
    texts = numbers.cast(pa.schema([(name, pa.string()) for name in numbers.column_names]))
    assert equal(*(read_groups(table, keys, "files")[0] for table in (numbers, texts)))
    for column in (pa.array([1.5]), pa.array([[1]]), pa.nulls(1)):
        with pytest.raises(InvalidLabels, match=r"column group_id: expected (text or whole|an id)"):
            read_groups(pa.table({"labeler_id": ["a"], "group_id": column}), keys, "files")


def test_a_group_is_nobody_and_who_is_in_none_is_themselves(keys):
    names = ["a", "b", "worker 0"]
    groups, _ = read_groups(pa.table({"labeler_id": names, "group_id": names[::-1]}), keys, "files")
    labelers = keys.hash_labelers("files", [*names, "other", "another"])
    units = groups.unit_of(labelers)
    assert len(np.unique(np.concatenate([labelers, units]), axis=0)) == 8
    assert np.array_equal(units[3:], labelers[3:])
    nobody = UnitGroups(labelers[:0], labelers[:0])
    assert np.array_equal(nobody.unit_of(labelers), labelers)
    assert repr(groups) == "UnitGroups()"
    with pytest.raises(ValueError, match="distinct labelers"):
        UnitGroups(groups.labelers[::-1], groups.units)


BAD = {
    "labeler,group_id\na,1\n": r"no column labeler_id \(did you mean 'labeler'\?\)",
    "labeler_id\na\n": "no column group_id; expected labeler_id and group_id",
    "labeler_id,group_id\n": "no rows in the input",
    "labeler_id,group_id\na,1\n,1\n": "row 2: column labeler_id: expected an id, found null",
    "labeler_id,group_id\na,1\nb,\n": "row 2: column group_id: expected an id, found null",
    "labeler_id,group_id\na,1\n \u00a0,1\n": "row 2: column labeler_id: expected an id",
    "labeler_id,group_id\na,1\nb,1.0\n": "group ids '1' and '1.0' differ only",
    "labeler_id,group_id\na,1\nb,1\na,2\nb,3\n": (
        r"csv row 1 and .*csv row 3: the same labeler in two groups \(2 such labelers\)"
    ),
}


@pytest.mark.parametrize("text", BAD)
def test_bad_groups_are_refused_with_their_row_and_without_ids(text, keys, tmp_path):
    path = tmp_path / "groups.csv"
    path.write_text(text)
    with pytest.raises(InvalidLabels, match=BAD[text]):
        read_groups(path, keys, "files")[0]


def test_groups_go_with_their_unit_and_need_labelers(keys, groups, tmp_path):
    for unit, joined in (("item", groups), ("group", None)):
        with pytest.raises(InvalidLabels, match="go with --unit group"):
            StagingOptions(Reading({}, unit), "files", groups=joined)
    options = StagingOptions(Reading({}, "group"), "files", groups=groups)
    with pytest.raises(InvalidLabels, match="no column labeler_id"):
        stage(pairs(ASKED, RANKS, labelers=False), tmp_path / "x", keys, options)


# ---------------------------------------------------------------- coins and places


@pytest.mark.quick("pairs")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_who_belongs_together_changes_no_coin(layout, tmp_path):
    table, coins = LAYOUTS[layout](ASKED, RANKS), []
    for number, members in enumerate((MEMBERS, ALONE)):
        home = home_of(tmp_path / str(number), members)
        coins_alone = {"allow": ["rr:uses=128,block=1"], "unit": "group", "project": home}
        policies.new("coins", epsilon=3.0, delta=1e-5, **coins_alone)
        policies.activate("coins", home)
        release(home, table)
        rows = drawn(home).values()
        coins.append({row["row_key"]: (row["value"], row["threshold"]) for row in rows})
    assert coins[0] == coins[1]


def test_labels_lie_with_their_group_under_the_name_and_at_the_price_of_their_labeler(
    home, keys, groups
):
    release(home, pairs(ASKED, RANKS))
    who, bucket = {}, {}
    for worker in range(7):
        labeler = keys.hash_labelers("files", [f"worker {worker}"])
        who[name := blocks.to_bytes(labeler)] = worker
        bucket[name] = blocks.to_bytes(groups.unit_of(labeler))[0] >> 4
    rows = drawn(home).values()
    assert Counter(who[row["labeler"]] for row in rows) == Counter(ASKED.labeler.tolist())
    assert all(row["bucket"] == bucket[row["labeler"]] for row in rows)
    assert len({row["threshold"] for row in rows}) == 1
    # A block holds the labels of all members.
    sizes, given = (
        {who[row["labeler"]]: row["block_labels"] for row in rows},
        Counter(ASKED.labeler),
    )
    of_pairs = [given[0] + given[1]] * 2 + [given[2] + given[3]] * 2
    assert [sizes[n] for n in range(7)] == [*of_pairs, *(given[n] for n in (4, 5, 6))]


def test_two_members_who_label_one_item_give_two_labels(home):
    asked = Public(np.array([0, 1, 0, 4]), np.zeros(4, np.int64))
    counts = release(home, pairs(asked, opinions(4, 1)))
    assert (counts["charged"], counts["rows"], counts["duplicates"]) == (2, 3, 1)
    assert [places(home, worker)[1] for worker in (0, 1, 4)] == [1, 1, 1]


def test_labels_of_all_members_take_the_places_of_their_group(home):
    release(home, pairs(ASKED, RANKS))
    assert [places(home, worker) for worker in range(7)] == [(1, 1)] * 7
    later = release(home, pairs(ASKED, RANKS).slice(1))
    assert (later["charged"], later["rows"]) == (0, len(ASKED) - 1)


@pytest.mark.slow
@given(
    runs=st.lists(st.sets(st.integers(0, 39), min_size=1), min_size=1, max_size=4),
    most=st.integers(1, 12),
    again=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_no_sequence_of_runs_takes_more_than_a_groups_places(runs, most, again, tmp_path_factory):
    asked = Public(np.arange(40) % 2, np.arange(40) // 2)
    home = home_of(tmp_path_factory.mktemp("runs"))
    options = {"max_labels_per_labeler": most, "exhausted": "drop", "again": again}
    for rows in runs:
        index = np.array(sorted(rows))
        release(home, pairs(asked[index], RANKS[index]), **options)
    seen = set().union(*runs)
    allowed, used = places(home, min(seen) % 2)
    assert used == allowed == 1 and (again or len(drawn(home)) <= most)


def test_without_a_group_the_same_labelers_take_their_places_twice(tmp_path):
    asked = Public(np.arange(40) % 2, np.arange(40) // 2)
    home = home_of(tmp_path, ALONE)
    release(home, pairs(asked, RANKS[:40]), max_labels_per_labeler=5)
    assert [places(home, worker) for worker in (0, 1)] == [(1, 1)] * 2
    assert Counter(row["labeler"] for row in drawn(home).values()).most_common()[-1][1] == 5


def test_a_ranking_of_each_member_is_kept_or_dropped_on_its_own(tmp_path):
    """Of n members who rank the same three responses, places for two rankings keep two."""
    members = pa.table({"labeler_id": [f"worker {n}" for n in range(5)], "group_id": ["g"] * 5})
    home = home_of(tmp_path, members)
    asked = Public(np.arange(5), np.zeros(5, np.int64))
    counts = release(home, rankings(asked, opinions(5, 1)), max_labels_per_labeler=8)
    assert (counts["rows"], counts["charged"], counts["dropped_by_bound"]) == (6, 1, 9)


@pytest.mark.quick("pairs")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_but_released_labels_depends_on_raw_labels_of_groups(layout, tmp_path):
    assert worlds.differences(tmp_path, layout, SCENARIOS["groups"], ALL) == []


# ---------------------------------------------------------------- features


def summed(home):
    """Coordinates, rows, bounds and step of a statistic release of these groups."""
    with pytest.MonkeyPatch.context() as patch:
        planned = world.note_calls(patch, drawing, "_plan_sum")
        charged = release(home, pairs(ASKED, RANKS), **STATISTIC)["charged"]
    [(_, design, bounds, step, _)] = planned
    assert charged == design.rows.units
    return design.z, design.rows, bounds, step


def test_a_statistic_is_clipped_and_bounded_by_group(home, tmp_path):
    z, rows, bounds, step = summed(home)
    labels = (np.arange(len(rows)) % 3).astype(np.uint8)
    assert rows.units == 5 and sorted(np.bincount(rows.unit)) == [12, 12, 12, 24, 24]
    ones = np.ones(len(rows), np.uint8)
    for unit in np.flatnonzero(np.bincount(rows.unit) == 24):  # both members change every label
        changed = np.where(rows.unit == unit, 1 - ones, labels)
        moved = np.where(rows.unit == unit, ones, labels)
        for one, other in combinations((labels, changed, moved), 2):
            sums = [
                statistic.clip_and_sum_labels(z, rows, y.astype(np.uint8), bounds, step)
                for y in (one, other)
            ]
            assert np.linalg.norm((sums[0] - sums[1]) * step) <= bounds.sensitivity * (1 + 1e-6)
    assert np.linalg.norm(parts(z, rows, ones, bounds), axis=1).max() <= bounds.clip * (1 + 1e-9)
    # Control: clipped one by one, two members together exceed what a group may add.
    z, rows, alone, _ = summed(home_of(tmp_path / "apart", ALONE))
    each = np.linalg.norm(parts(z, rows, np.ones(len(rows), np.uint8), alone), axis=1)
    assert rows.units == 7 and np.sort(each)[-2:].sum() > alone.clip
