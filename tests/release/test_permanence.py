"""A label is released once: the same command reads nothing, the same label keeps its value."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.preferences import LAYOUTS, chosen, dump, opinions, pairs, public, rankings, spent

import labelguard as lg
from labelguard.release import selection
from labelguard.release.plan import EARLIER_LEFT_OUT
from labelguard.release.privatize import plan
from labelguard.storage import buckets

PRICE: dict[str, Any] = {"epsilon": 3, "delta": 1e-5, "mechanism": "rr", "uses": 3}
ASKED = public()
RANKS = opinions(len(ASKED), 1)


def values(release):
    """The rows of a release, in any order."""
    frame = lg.load(release)
    return sorted(frame.drop("label_probability", "residual_flip_estimate").rows())


def privatize(project, table, **options):
    return lg.privatize(table, project=project, **PRICE | options)


def count_uses(project):
    return spent(project)


def private_map(project):
    """Version and value of every release of every label."""
    rows: dict[bytes, list[tuple[int, int]]] = {}
    for path in sorted(project.private_maps.rglob("*.parquet")):
        table = pq.read_table(path, partitioning=None)
        for row in table.to_pylist():
            rows.setdefault(row["row_key"], []).append((row["version"], row["value"]))
    return rows


GARBAGE: dict[str, pa.Array] = {
    "null": pa.nulls(84, pa.int8()),
    "numbers": pa.array(np.full(84, 77, np.int8)),
    "texts": pa.array(["?"] * 84),
}


@pytest.mark.quick("null")
@pytest.mark.parametrize("garbage", GARBAGE)
def test_the_same_command_needs_no_labels(garbage, project):
    table = pairs(ASKED, RANKS).drop(["tie"])
    table = table.set_column(3, "label", pa.array((RANKS[:, 0] < RANKS[:, 1]).astype(np.int8)))
    first = privatize(project, table, skips="tie")  # else blank labels are public skips
    before = dump(project.state)
    second = privatize(project, table.set_column(3, "label", GARBAGE[garbage]))
    assert second.reused and second.id == first.id
    assert values(second) == values(first)
    assert dump(project.state) == before


def test_the_same_command_needs_no_ranks(project):
    table = rankings(ASKED, RANKS)
    first = privatize(project, table)
    wrong = pa.array([[None]] * len(ASKED), pa.list_(pa.int64()))
    second = privatize(project, table.set_column(2, "ranks", wrong))
    assert second.reused and second.id == first.id


def test_planning_and_answering_never_read_the_label_column(project, monkeypatch):
    read = buckets.read_column
    asked_for: list[str] = []

    def spy(table, name):
        asked_for.append(name)
        return read(table, name)

    monkeypatch.setattr(buckets, "read_column", spy)
    assert "label" not in selection.PUBLIC
    privatize(project, pairs(ASKED, RANKS))
    assert asked_for.count("label") == len(list(project.private_maps.rglob("*.parquet")))
    asked_for.clear()
    assert privatize(project, pairs(ASKED, RANKS)).reused
    assert "label" not in asked_for


def test_a_request_is_the_same_however_it_is_written(project):
    table = pairs(ASKED, RANKS)
    first = lg.privatize(table, mechanism="rr", epsilon=3, delta=0, project=project)
    second = lg.privatize(
        table, mechanism="rr", epsilon=np.float64(3.0), delta=0.0, workers=1, project=project
    )
    assert second.reused and second.id == first.id


@pytest.mark.quick("pairs")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_label_keeps_its_value_in_every_later_release(layout, project):
    make = LAYOUTS[layout]
    shuffled = np.random.default_rng(0).permutation(len(ASKED))
    first = privatize(project, make(ASKED[:50], RANKS[:50]))
    charged = count_uses(project)
    for release in (
        privatize(project, make(ASKED[:50][::-1], RANKS[:50][::-1])),
        privatize(project, make(ASKED[:50], RANKS[:50]), exhausted="drop"),
        privatize(project, make(ASKED[:50], RANKS[:50]).slice(0, 50), workers=1),
    ):
        assert values(release) == values(first)
        assert count_uses(project) == charged
    everything = privatize(project, make(ASKED[shuffled], RANKS[shuffled]))
    assert set(values(first)) <= set(values(everything))
    assert count_uses(project) == charged + everything.card["counts"]["charged"]
    part = privatize(project, make(ASKED[:20], RANKS[:20]))
    assert set(values(part)) <= set(values(first)) and part.card["counts"]["charged"] == 0
    assert all(len(versions) == 1 for versions in private_map(project).values())


def resubmit(ranks, later):
    """All labels, and a second submission of each with the opinions of another seed."""
    times = [f"2026-01-0{day}T00:00:00Z" for day in (1, 2)]
    tables = [
        table.append_column("submitted_at", pa.array([time] * len(table)))
        for table, time in zip(
            (pairs(ASKED, ranks), pairs(ASKED, opinions(len(ASKED), later))), times, strict=True
        )
    ]
    return pa.concat_tables(tables)


@pytest.mark.parametrize("labels", [RANKS, RANKS[:, ::-1]], ids=["labels", "others"])
def test_a_later_file_without_the_earlier_one_says_whose_rows_it_has(labels, project):
    table = pairs(ASKED, labels)
    first, second = table.slice(0, 40), table.slice(40)
    assert EARLIER_LEFT_OUT not in privatize(project, first).notes
    [preview, both] = (plan(files, project=project, **PRICE).preview for files in (second, table))
    assert EARLIER_LEFT_OUT in preview.notes and EARLIER_LEFT_OUT not in both.notes
    alone = privatize(project, second)
    assert EARLIER_LEFT_OUT in alone.notes and alone.card["counts"]["rows"] == 44
    again = privatize(project, second, again=True)
    assert EARLIER_LEFT_OUT not in again.notes
    assert EARLIER_LEFT_OUT not in privatize(project, table).notes


def test_a_label_that_was_changed_after_its_release_is_ignored(project):
    first = privatize(project, pairs(ASKED, RANKS))
    charged = count_uses(project)
    later = privatize(project, resubmit(RANKS, later=7))
    assert values(later) == values(first)
    assert count_uses(project) == charged
    assert later.card["counts"]["duplicates"] == 84
    unread = privatize(project, resubmit(RANKS, later=8))
    assert unread.id == later.id and unread.reused


@pytest.mark.parametrize("later", [1, 7], ids=["unchanged labels", "changed labels"])
def test_again_draws_and_charges_every_label_whether_it_was_changed_or_not(later, project):
    first = privatize(project, pairs(ASKED, RANKS))
    again = privatize(project, resubmit(RANKS, later=later), again=True)
    assert count_uses(project) == 14 and again.card["counts"]["charged"] == 7
    versions = private_map(project)
    assert all([version for version, _ in row] == [0, 1] for row in versions.values())
    assert len(versions) == 84
    third = privatize(project, pairs(ASKED, RANKS), again=True)
    assert count_uses(project) == 21 and third.id not in (first.id, again.id)
    # From now on the newest answer is the one that is kept.
    kept = privatize(project, pairs(ASKED[:40], RANKS[:40]))
    assert kept.card["counts"]["charged"] == 0 and set(values(kept)) <= set(values(third))


def test_again_tosses_new_coins(tmp_path):
    """False failures: 2^-40 or less. With strict labels at a flip probability of nearly ½, two
    independent answers agree on all of 1,000 labels with probability 2^-1000."""
    asked = public(labelers=50, per_labeler=20)
    ranks = np.tile([1, 2, 3], (len(asked), 1))
    home = lg.init(tmp_path / "p")
    options = {"epsilon": 0.01, "delta": 0, "mechanism": "rr", "uses": 3, "project": home}
    first = lg.privatize(pairs(asked, ranks), **options)
    again = lg.privatize(pairs(asked, ranks), again=True, **options)
    assert values(first) != values(again)
    pairs_of_values = np.array([[v for _, v in row] for row in private_map(home).values()])
    assert pairs_of_values.shape == (1000, 2)
    agreeing = int((pairs_of_values[:, 0] == pairs_of_values[:, 1]).sum())
    assert 380 <= agreeing <= 620  # 7.6 standard deviations


def test_identical_sides_are_dropped_and_cost_nothing(project):
    table = pairs(ASKED, RANKS)
    same = table.set_column(2, "response_b", table["response_a"])
    release = privatize(project, pa.concat_tables([table, same]))
    counts = release.card["counts"]
    assert counts["identical_sides"] == 84 and counts["charged"] == 7 == count_uses(project)


def test_sides_and_layouts_are_one_label(project):
    first = privatize(project, pairs(ASKED, RANKS))
    table = pairs(ASKED, RANKS)
    sides = [table["response_b"], table["response_a"]]
    swapped = table.set_column(1, "response_a", sides[0]).set_column(2, "response_b", sides[1])
    swapped = swapped.set_column(3, "label", pc.subtract(1, table["label"]))
    for other in (privatize(project, swapped), privatize(project, chosen(ASKED, RANKS))):
        assert values(other) == values(first)
    assert count_uses(project) == 7
