"""Linked labelers share one budget: charged together, clipped together, drawn one by one."""

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import world, worlds
from support.label_changes import parts
from support.lives import put_into_force
from support.preferences import LAYOUTS, STATISTIC, Public, opinions, pairs, public, rankings
from support.releases import make_release
from support.scenarios import ALL, SCENARIOS

import labelguard as lg
from labelguard.keys.keyring import KeyRing
from labelguard.ledger.records import Links
from labelguard.mechanisms import statistic
from labelguard.project import linking
from labelguard.project.opening import OpenProject
from labelguard.release.mechanisms import statistic as drawing
from labelguard.report.overview import read_labeler
from labelguard.storage import blocks

# Of seven workers, four in two units; the others are units of their own.
LINKED = ((0, 1), (2, 3))
ASKED = public(labelers=7, per_labeler=12, items=30)
RANKS = opinions(len(ASKED), 1)


PRICE: dict[str, Any] = {"mechanism": "rr", "epsilon": 3.0, "delta": 1e-5, "workers": 1}


def home_of(here, linked=LINKED):
    """A project with these links."""
    home = lg.init(here)
    for first, *others in linked:
        for other in others:
            linking.link_two_ids(f"worker {first}", f"worker {other}", home)
    return home


def release(home, table, **options):
    """What a release counts."""
    return make_release(table, project=home, **PRICE | options).card["counts"]


def places(home, worker):
    """Those of a worker's unit: how many it has, how many are taken."""
    [own] = read_labeler(f"worker {worker}", home).allowances
    return own.allowed, own.used


def draws(home):
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


def test_whoever_is_not_linked_is_a_unit_alone(keys):
    labelers = keys.hash_labelers("files", ["a", "b", "other"])
    labelers = labelers[blocks.sort_order(labelers)]
    links = Links(labelers[:2], labelers[[0, 0]])
    assert np.array_equal(links.unit_of(labelers), labelers[[0, 0, 2]])
    assert np.array_equal(links.find_linked(labelers[1:2]), labelers[:1])
    assert not len(links.find_linked(labelers[2:]))
    nobody = Links(labelers[:0], labelers[:0])
    assert np.array_equal(nobody.unit_of(labelers), labelers)
    assert repr(links) == "Links()"
    with pytest.raises(ValueError, match="distinct labelers"):
        Links(labelers[1::-1], labelers[:2])


# ---------------------------------------------------------------- coins and places


@pytest.mark.quick("pairs")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_who_is_linked_changes_no_coin(layout, tmp_path):
    table, coins = LAYOUTS[layout](ASKED, RANKS), []
    for number, linked in enumerate((LINKED, ())):
        home = home_of(tmp_path / str(number), linked)
        put_into_force(home, "coins", "rr:uses=128,block=1")
        release(home, table)
        rows = draws(home).values()
        coins.append({row["row_key"]: (row["value"], row["threshold"]) for row in rows})
    assert coins[0] == coins[1]


def test_labels_lie_with_their_unit_under_the_name_and_at_the_price_of_their_labeler(home, keys):
    release(home, pairs(ASKED, RANKS))
    links = OpenProject.open(home).ledger.people.links()
    who, bucket = {}, {}
    for worker in range(7):
        labeler = keys.hash_labelers("files", [f"worker {worker}"])
        who[name := blocks.to_bytes(labeler)] = worker
        bucket[name] = blocks.to_bytes(links.unit_of(labeler))[0] >> 4
    rows = draws(home).values()
    assert Counter(who[row["labeler"]] for row in rows) == Counter(ASKED.labeler.tolist())
    assert all(row["bucket"] == bucket[row["labeler"]] for row in rows)
    assert len({row["threshold"] for row in rows}) == 1
    # A block holds the labels of all who are linked.
    sizes, given = (
        {who[row["labeler"]]: row["block_labels"] for row in rows},
        Counter(ASKED.labeler),
    )
    of_pairs = [given[0] + given[1]] * 2 + [given[2] + given[3]] * 2
    assert [sizes[n] for n in range(7)] == [*of_pairs, *(given[n] for n in (4, 5, 6))]


def test_two_linked_labelers_who_label_one_item_give_two_labels(home):
    asked = Public(np.array([0, 1, 0, 4]), np.zeros(4, np.int64))
    counts = release(home, pairs(asked, opinions(4, 1)))
    assert (counts["charged"], counts["rows"], counts["duplicates"]) == (2, 3, 1)
    assert [places(home, worker)[1] for worker in (0, 1, 4)] == [1, 1, 1]


def test_labels_of_all_who_are_linked_take_the_uses_of_their_unit(home):
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
def test_no_sequence_of_runs_takes_more_than_a_units_uses(runs, most, again, tmp_path_factory):
    asked = Public(np.arange(40) % 2, np.arange(40) // 2)
    home = home_of(tmp_path_factory.mktemp("runs"))
    options = {"max_labels_per_labeler": most, "exhausted": "drop", "again": again}
    for rows in runs:
        index = np.array(sorted(rows))
        release(home, pairs(asked[index], RANKS[index]), **options)
    seen = set().union(*runs)
    allowed, used = places(home, min(seen) % 2)
    assert used == allowed == 1 and (again or len(draws(home)) <= most)


def test_without_a_link_the_same_labelers_take_their_uses_twice(tmp_path):
    asked = Public(np.arange(40) % 2, np.arange(40) // 2)
    home = home_of(tmp_path, ())
    release(home, pairs(asked, RANKS[:40]), max_labels_per_labeler=5)
    assert [places(home, worker) for worker in (0, 1)] == [(1, 1)] * 2
    assert Counter(row["labeler"] for row in draws(home).values()).most_common()[-1][1] == 5


def test_a_ranking_of_each_labeler_is_kept_or_dropped_on_its_own(tmp_path):
    """Of n linked labelers who rank the same three responses, room for two rankings keeps two."""
    home = home_of(tmp_path, [range(5)])
    asked = Public(np.arange(5), np.zeros(5, np.int64))
    counts = release(home, rankings(asked, opinions(5, 1)), max_labels_per_labeler=8)
    assert (counts["rows"], counts["charged"], counts["dropped_by_bound"]) == (6, 1, 9)


@pytest.mark.quick("pairs")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_but_released_labels_depends_on_raw_labels_of_linked_ids(layout, tmp_path):
    assert worlds.differences(tmp_path, layout, SCENARIOS["linked ids"], ALL) == []


# ---------------------------------------------------------------- features


def summed(home):
    """Coordinates, rows, bounds and step of a statistic release of these units."""
    with pytest.MonkeyPatch.context() as patch:
        planned = world.note_calls(patch, drawing, "_plan_sum")
        charged = release(home, pairs(ASKED, RANKS), **STATISTIC)["charged"]
    [(_, design, bounds, step, _)] = planned
    assert charged == design.rows.units
    return design.z, design.rows, bounds, step


def test_a_statistic_is_clipped_and_bounded_by_unit(home, tmp_path):
    z, rows, bounds, step = summed(home)
    labels = (np.arange(len(rows)) % 3).astype(np.uint8)
    assert rows.units == 5 and sorted(np.bincount(rows.unit)) == [12, 12, 12, 24, 24]
    ones = np.ones(len(rows), np.uint8)
    for unit in np.flatnonzero(np.bincount(rows.unit) == 24):  # both labelers change every label
        changed = np.where(rows.unit == unit, 1 - ones, labels)
        moved = np.where(rows.unit == unit, ones, labels)
        for one, other in combinations((labels, changed, moved), 2):
            sums = [
                statistic.clip_and_sum_labels(z, rows, y.astype(np.uint8), bounds, step)
                for y in (one, other)
            ]
            assert np.linalg.norm((sums[0] - sums[1]) * step) <= bounds.sensitivity * (1 + 1e-6)
    assert np.linalg.norm(parts(z, rows, ones, bounds), axis=1).max() <= bounds.clip * (1 + 1e-9)
    # Control: clipped one by one, two labelers together exceed what a unit may add.
    z, rows, alone, _ = summed(home_of(tmp_path / "apart", ()))
    each = np.linalg.norm(parts(z, rows, np.ones(len(rows), np.uint8), alone), axis=1)
    assert rows.units == 7 and np.sort(each)[-2:].sum() > alone.clip
