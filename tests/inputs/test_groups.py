"""Labelers who share places as a group: counted together, drawn one by one."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations
from types import SimpleNamespace
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
from support.preferences import (
    LAYOUTS,
    Public,
    files,
    opinions,
    pairs,
    public,
    rankings,
    write,
)

import labelguard as lg
from labelguard.budget.policy import Bound, Policy
from labelguard.errors import InvalidLabels
from labelguard.inputs.columns import Reading
from labelguard.inputs.groups import read_groups
from labelguard.inputs.pairs import find_distinct_pairs
from labelguard.inputs.staging import StagingOptions, stage
from labelguard.keys.coins import Coins
from labelguard.keys.keyring import KeyRing
from labelguard.ledger.records import UnitGroups
from labelguard.mechanisms import statistic
from labelguard.project.private_map import PrivateMap
from labelguard.project.project import Project
from labelguard.release import selection
from labelguard.release.mechanisms import rr
from labelguard.release.mechanisms import statistic_design as design
from labelguard.storage import blocks, buckets
from labelguard.storage.executor import Threads, over_buckets

MEMBERS = pa.table(
    {"labeler_id": [f"worker {n}" for n in (0, 1, 2, 3)], "group_id": ["a", "a", "b", "b"]}
)
"""Of seven workers, four in two groups; the others are units of their own."""
ALONE = pa.table({"labeler_id": ["nobody"], "group_id": ["none"]})
ASKED = public(labelers=7, per_labeler=12, items=30)
RANKS = opinions(len(ASKED), 1)
HALF = 1 << 62


@dataclass
class Home:
    """A project in which labels are staged, planned and drawn as in a release, under groups."""

    project: Project
    members: pa.Table = field(default_factory=lambda: MEMBERS)
    bound: Bound = field(default_factory=lambda: Bound(None))
    places: dict[bytes, int] = field(default_factory=dict)
    used: Counter[bytes] = field(default_factory=Counter)
    releases: int = 0

    @property
    def keys(self):
        return KeyRing(self.project.keys)

    @property
    def groups(self):
        return read_groups(self.members, self.keys, "files")[0]

    def release(self, table, look=lambda staged, plan: None, **of):
        """One release; what it charges is written down. `look` sees its files."""
        earlier = [f"r{number + 1}" for number in range(self.releases)]
        self.releases += 1
        keys, options = self.keys, StagingOptions(Reading({}, "group"), "files", groups=self.groups)
        names = sorted(self.places)
        table_of_labelers = selection.LabelerTable(
            blocks.from_bytes(b"".join(names)),
            np.array([self.places[name] for name in names], np.int64),
            np.array([self.used[name] for name in names], np.int64),
        )
        with self.project.lock():
            self.project.work.mkdir(mode=0o700)
            staged = stage(table, self.project.work / "input", keys, options)
            plan = selection.plan_rows(
                staged,
                self.project,
                keys,
                table_of_labelers,
                **{"again": False, "finished": None, "earlier": earlier, "bound": self.bound}
                | {"executor": Threads(1), "progress": lambda share: None}
                | {"part": "training", "held_out": 0.0}
                | of,
            )
            private_map, release = PrivateMap(self.project.private_maps, keys), f"r{self.releases}"
            task = rr.Randomizing(
                staged.rows_directory,
                plan.directory,
                self.project.work / "outcomes",
                drawn := private_map.begin(release),
                Policy(3, 1e-5),
                {int(k): {"threshold": HALF // int(k)} for k in plan.capacity},
                Coins.fresh(),
                labelers=True,
                choices=False,
            )
            assert list(over_buckets(Threads(1), rr.randomize_bucket, task))
            private_map.complete(release, drawn)
            look(staged, plan)
        for unit, places, charged in zip(plan.units, plan.capacity, plan.charged, strict=True):
            name = unit.astype(">u8").tobytes()
            self.places[name] = int(places)
            self.used[name] += int(charged)
        return plan

    def drawn(self):
        """The private map of all releases, by row key."""
        rows = [
            row | {"bucket": int(path.stem.removeprefix("bucket="))}
            for path in sorted(self.project.private_maps.rglob("*.parquet"))
            for row in pq.read_table(path, partitioning=None).to_pylist()
        ]
        return {row["row_key"]: row for row in rows}


@pytest.fixture(autouse=True)
def same_keys_in_every_project(monkeypatch):
    world.fix_randomness(monkeypatch)


@pytest.fixture
def home(tmp_path):
    return Home(lg.init(tmp_path / "home"))


def unit_of(home, labeler):
    return blocks.to_bytes(home.groups.unit_of(home.keys.labeler_keys("files", [labeler])))


# ---------------------------------------------------------------- who belongs together


def equal(one, other):
    return np.array_equal(one.labelers, other.labelers) and np.array_equal(one.units, other.units)


def test_groups_are_read_from_every_format(home, tmp_path):
    expected = home.groups
    for suffix in ("csv", "parquet", "jsonl"):
        path = write(MEMBERS, tmp_path / f"groups.{suffix}")
        assert equal(read_groups(path, home.keys, "files")[0], expected)
    csv = (tmp_path / "groups.csv").read_bytes()
    (tmp_path / "groups.csv").write_bytes(b"\xef\xbb\xbf" + csv.replace(b"\n", b"\r\n"))
    assert equal(read_groups(tmp_path / "groups.csv", home.keys, "files")[0], expected)
    pieces = [pl.DataFrame(MEMBERS[3:]), MEMBERS[:3], MEMBERS]
    assert equal(read_groups(pieces, home.keys, "files")[0], expected)
    assert not equal(read_groups(MEMBERS, home.keys, "other")[0], expected)
    numbers = pa.table({"labeler_id": [7, 8], "group_id": pa.array([1, 2], pa.uint8())})
    texts = numbers.cast(pa.schema([(name, pa.string()) for name in numbers.column_names]))
    assert equal(*(read_groups(table, home.keys, "files")[0] for table in (numbers, texts)))
    for column in (pa.array([1.5]), pa.array([[1]]), pa.nulls(1)):
        with pytest.raises(InvalidLabels, match=r"column group_id: expected (text or whole|an id)"):
            read_groups(pa.table({"labeler_id": ["a"], "group_id": column}), home.keys, "files")


def test_a_group_is_nobody_and_who_is_in_none_is_themselves(home):
    names = ["a", "b", "worker 0"]
    groups, _ = read_groups(
        pa.table({"labeler_id": names, "group_id": names[::-1]}), home.keys, "files"
    )
    labelers = home.keys.labeler_keys("files", [*names, "other", "another"])
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
def test_bad_groups_are_refused_with_their_row_and_without_ids(text, home, tmp_path):
    path = tmp_path / "groups.csv"
    path.write_text(text)
    with pytest.raises(InvalidLabels, match=BAD[text]):
        read_groups(path, home.keys, "files")[0]


def test_groups_go_with_their_unit_and_need_labelers(home, tmp_path):
    for unit, groups in (("item", home.groups), ("group", None)):
        with pytest.raises(InvalidLabels, match="go with --unit group"):
            StagingOptions(Reading({}, unit), "files", groups=groups)
    options = StagingOptions(Reading({}, "group"), "files", groups=home.groups)
    with pytest.raises(InvalidLabels, match="no column labeler_id"):
        stage(pairs(ASKED, RANKS, labelers=False), tmp_path / "x", home.keys, options)


# ---------------------------------------------------------------- coins and places


@pytest.mark.quick("pairs")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_who_belongs_together_changes_no_coin(layout, tmp_path):
    table, drawn = LAYOUTS[layout](ASKED, RANKS), []
    for members in (MEMBERS, ALONE):
        home = Home(lg.init(tmp_path / str(len(drawn))), members, Bound(128))
        home.release(table)
        rows = home.drawn().values()
        drawn.append({row["row_key"]: (row["value"], row["threshold"]) for row in rows})
    assert drawn[0] == drawn[1]


def test_labels_lie_with_their_group_under_the_name_and_at_the_price_of_their_labeler(home):
    home.release(pairs(ASKED, RANKS))
    expected: Counter[tuple[bytes, int, int]] = Counter()
    for name in pairs(ASKED, RANKS)["labeler_id"].to_pylist():
        unit = unit_of(home, name)
        labeler = blocks.to_bytes(home.keys.labeler_keys("files", [name]))
        expected[labeler, HALF // home.places[unit], unit[0] >> 4] += 1
    found = Counter(
        (row["labeler"], row["threshold"], row["bucket"]) for row in home.drawn().values()
    )
    assert found == expected


def test_two_members_who_label_one_item_give_two_labels(home):
    asked = Public(np.array([0, 1, 0, 4]), np.zeros(4, np.int64))
    plan = home.release(pairs(asked, opinions(4, 1)))
    assert plan.drawn == 3 and plan.duplicates == 1
    assert home.used == {unit_of(home, "worker 0"): 2, unit_of(home, "worker 4"): 1}
    assert unit_of(home, "worker 0") == unit_of(home, "worker 1")


def test_labels_of_all_members_take_the_places_of_their_group(home):
    home.release(pairs(ASKED, RANKS))
    places = {n: home.places[unit_of(home, f"worker {n}")] for n in range(7)}
    assert places == {0: 32, 1: 32, 2: 32, 3: 32, 4: 16, 5: 16, 6: 16}
    later = home.release(pairs(ASKED, RANKS))
    assert later.new == 0 and later.rows == len(ASKED)


@pytest.mark.slow
@given(
    runs=st.lists(st.sets(st.integers(0, 39), min_size=1), min_size=1, max_size=4),
    places=st.integers(1, 12),
    again=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_no_sequence_of_runs_takes_more_than_a_groups_places(runs, places, again, tmp_path_factory):
    asked = Public(np.arange(40) % 2, np.arange(40) // 2)
    home = Home(lg.init(tmp_path_factory.mktemp("runs")), bound=Bound(places))
    for rows in runs:
        index = np.array(sorted(rows))
        home.release(pairs(asked[index], RANKS[index]), again=again)
    [used] = home.used.values()
    seen = len(set().union(*runs))
    assert used <= places and (again or used == min(places, seen))


def test_without_a_group_the_same_labelers_take_their_places_twice(tmp_path):
    asked = Public(np.arange(40) % 2, np.arange(40) // 2)
    home = Home(lg.init(tmp_path), ALONE, Bound(5))
    home.release(pairs(asked, RANKS[:40]))
    assert sorted(home.used.values()) == [5, 5]


def test_a_ranking_of_each_member_is_kept_or_dropped_on_its_own(tmp_path):
    """Of n members who rank the same three responses, places for two rankings keep two."""
    members = pa.table({"labeler_id": [f"worker {n}" for n in range(5)], "group_id": ["g"] * 5})
    home = Home(lg.init(tmp_path), members, Bound(8))
    asked = Public(np.arange(5), np.zeros(5, np.int64))
    plan = home.release(rankings(asked, opinions(5, 1)))
    assert plan.rows == plan.new == 6 and plan.over_bound == 9


# ---------------------------------------------------------------- features


def read_features(home):
    """Coordinates, rows and labels as a statistic release of these groups would take them."""
    found: list[Any] = []

    def look(staged, plan):
        pair = find_distinct_pairs(staged)
        z = np.random.default_rng(0).standard_normal((len(pair), 3)).astype(np.float32)
        labels = [
            buckets.column(both[1], "label")[both[0].index[both[0].new]]
            for bucket in range(buckets.BUCKETS)
            if (both := selection.read_selected(plan.directory, staged.rows_directory, bucket))
        ]
        job: Any = SimpleNamespace(
            staged=staged, over_buckets=lambda step, *work: over_buckets(Threads(1), *work)
        )
        found.extend([z, design.planned_comparisons(job, plan, pair)[1], np.concatenate(labels)])

    home.bound = Bound(1, per_label=False)
    home.release(pairs(ASKED, RANKS), look)
    return found[0], found[1], found[2].astype(np.uint8)


def test_a_statistic_is_clipped_and_bounded_by_group(home, tmp_path):
    z, rows, labels = read_features(home)
    assert rows.units == 5 and sorted(np.bincount(rows.unit)) == [12, 12, 12, 24, 24]
    assert sorted(home.used.values()) == [1] * 5
    bounds = statistic.bounds(z, rows, 0.5)
    ones = np.ones(len(rows), np.uint8)
    step = bounds.sensitivity / 2**30
    for unit in np.flatnonzero(np.bincount(rows.unit) == 24):  # both members change every label
        changed = np.where(rows.unit == unit, 1 - ones, labels)
        moved = np.where(rows.unit == unit, ones, labels)
        for one, other in combinations((labels, changed, moved), 2):
            sums = [
                statistic.exact_sum(z, rows, y.astype(np.uint8), bounds, step) for y in (one, other)
            ]
            assert np.linalg.norm((sums[0] - sums[1]) * step) <= bounds.sensitivity * (1 + 1e-6)
    assert np.linalg.norm(parts(z, rows, ones, bounds), axis=1).max() <= bounds.clip * (1 + 1e-9)
    # Control: clipped one by one, two members together exceed what a group may add.
    apart = read_features(Home(lg.init(tmp_path / "apart"), ALONE))
    alone = statistic.bounds(apart[0], apart[1], 0.5)
    each = np.linalg.norm(parts(apart[0], apart[1], ones, alone, clip=alone.clip), axis=1)
    assert apart[1].units == 7 and np.sort(each)[-2:].sum() > alone.clip


# ---------------------------------------------------------------- noninterference


def observe(here, layout, ranks, coins):
    """All that is left and planned in a project where `ranks` were raw labels."""
    with pytest.MonkeyPatch.context() as patch:
        world.fix(patch, world.repeatable_bytes())
        patch.setattr(rr, "randomize", coins.wrap(rr.randomize))
        home = Home(lg.init(here), bound=Bound(30))
        found: dict[str, Any] = {}

        def look(staged, plan):
            name = f"release {home.releases}: "
            found[name + "digest"] = staged.public_digest
            found[name + "plan"] = {
                k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in vars(plan).items()
            }
            found.update(
                (name + path, data)
                for path, data in files(home.project.work).items()
                if not path.startswith("input/rows/")
            )
            found[name + "raw"] = files(staged.rows_directory)

        for rows in (40, None):
            home.release(LAYOUTS[layout](ASKED[:rows], ranks[:rows]), look)
        found["used"] = sorted(home.used.items())
        found |= {
            k: v for k, v in files(here).items() if not k.endswith(("ledger.sqlite3", "toml"))
        }
    return found


@pytest.mark.quick("pairs")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_but_released_labels_depends_on_raw_labels_of_groups(layout, tmp_path):
    coins = worlds.Coins({}, replayed=False)
    (tmp_path / "w").mkdir()
    one = observe(tmp_path / "w", layout, RANKS, coins)
    (tmp_path / "w").rename(tmp_path / "first")
    coins.replayed = True
    (tmp_path / "w").mkdir()
    two = observe(tmp_path / "w", layout, opinions(len(ASKED), 9), coins)
    differing = {name for name in {*one, *two} if one.get(name) != two.get(name)}
    assert differing == {"release 1: raw", "release 2: raw"}
    assert any("released/r2/bucket" in name for name in one)
