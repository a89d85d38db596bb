"""A label is released once: the same command reads nothing, the same label keeps its value."""

import tempfile
from dataclasses import asdict
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support import world
from support.codings import NUMBERS
from support.installed import without
from support.preferences import (
    LAYOUTS,
    chosen,
    dump,
    files,
    opinions,
    pairs,
    public,
    rankings,
    spent,
)
from support.releases import make_release
from support.surveys import survey

import labelguard as lg
from labelguard.budget.policy import choose_usual_delta
from labelguard.errors import NoProject, NotAgreed
from labelguard.extras import MissingExtra
from labelguard.project import policies
from labelguard.release import selection
from labelguard.release.plan import EARLIER_LEFT_OUT, Preview
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
    return make_release(table, project=project, **PRICE | options)


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
    first = make_release(table, mechanism="rr", epsilon=3, delta=0, project=project)
    second = make_release(
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


@pytest.mark.quick("labels")
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


@pytest.mark.quick("changed labels")
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
    first = make_release(pairs(asked, ranks), **options)
    again = make_release(pairs(asked, ranks), again=True, **options)
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


# The first release of a project: what it fixes is said, and asked, before anything is charged.

SMALL = survey(labelers=24, per_labeler=6, items=40)
COLUMNS: dict[str, Any] = {
    "mechanism": "auto",
    "label_values": NUMBERS,
    "features": "columns:score,length",
    "public_columns": ["score", "length"],
}
RR: dict[str, Any] = {"mechanism": "rr", "label_values": NUMBERS}


def flip(table):
    """The same rows with other labels, in another order."""
    return table.with_columns(label=1 - pl.col("label")).sort("label", "labeler_id")


def preview_release(project, source=SMALL, **options):
    """What a release shows before it is charged, where nobody agrees to it."""
    shown: list[Preview] = []

    def decline(found):
        shown.append(found)
        raise NotAgreed("no")

    with pytest.raises(NotAgreed):
        make_release(source, project=project, review=decline, **options)
    [found] = shown
    return found


@pytest.mark.quick("rr")
@pytest.mark.parametrize("options", [RR, COLUMNS], ids=["rr", "auto"])
def test_who_declines_is_charged_nothing_and_fixes_nothing(options, project):
    before = dump(project.state)
    preview_release(project, **options)
    after = dump(project.state)
    assert {name: rows for name, rows in after.items() if name != "meta"} == {
        name: rows for name, rows in before.items() if name != "meta"
    }
    assert not list(project.releases.iterdir()) and not list(project.private_maps.iterdir())
    release = make_release(SMALL, project=project, epsilon=0.5, **options)
    assert release.card["privacy"]["epsilon"] == 0.5


@pytest.mark.quick("rr")
@pytest.mark.parametrize("options", [RR, COLUMNS], ids=["rr", "auto"])
def test_what_was_shown_is_what_is_released(options, project):
    planned = plan(SMALL, project=project, **{"once": "uses" not in options} | options)
    shown = planned.preview
    assert repr(planned) == f"Plan(preview={shown!r})", "neither rows nor prices"
    assert shown == preview_release(project, **options)
    assert shown.first and shown.usual == ["epsilon", "delta"]
    release = make_release(SMALL, project=project, **options)
    card = release.card
    assert card["mechanism"] == shown.mechanism
    assert card["privacy"]["epsilon"] == shown.epsilon == 3
    assert card["privacy"]["delta"] == shown.delta == choose_usual_delta(24)
    assert card["counts"]["rows"] == shown.labels
    assert card["counts"]["charged"] == shown.charged
    assert card["budget"]["left"] == shown.left
    if shown.mechanism == "rr":
        flips = lg.load(release)["flip_probability"]
        assert shown.label_error == pytest.approx(flips.mean(), rel=1e-12)


def test_a_preview_writes_nothing_into_a_project(project):
    for _ in range(2):
        before = files(project.state)
        plan(SMALL, project=project, **RR)
        after = files(project.state)
        assert {**after, "lock": b""} == {**before, "lock": b""}
        make_release(SMALL, project=project, **RR)


def test_a_preview_needs_no_project_and_leaves_none(tmp_path, monkeypatch):
    room = tmp_path / "tmp"
    room.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(room))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    assert plan(SMALL, **RR).preview.first
    assert not list(room.iterdir()) and not (tmp_path / "state").exists()
    with pytest.raises(NoProject):
        plan(SMALL, project=tmp_path / "elsewhere", **RR)


@pytest.mark.parametrize("name", ["LABELGUARD_KEYS", "LABELGUARD_LEDGER_URL"])
def test_keys_and_a_ledger_of_a_project_are_not_taken_for_a_preview_without_one(
    name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, str(tmp_path / "given"))
    with pytest.raises(NoProject):
        plan(SMALL, **RR)
    assert not (tmp_path / "given").exists()


@pytest.mark.quick("rr")
@pytest.mark.parametrize("options", [RR, COLUMNS], ids=["rr", "auto"])
def test_a_preview_does_not_depend_on_labels(options, project):
    one, other = (plan(table, project=project, **options) for table in (SMALL, flip(SMALL)))
    assert one.preview == other.preview


def test_what_was_released_is_said_to_be_free(project):
    made = make_release(SMALL, project=project, uses=2, **RR)
    again = plan(SMALL, project=project, **RR).preview
    assert again.reused == made.id and not again.first
    other = plan(SMALL.head(100), project=project, **RR).preview
    assert other.reused is None and other.charged == 0 and other.labels == 100
    anew = plan(SMALL.head(60), project=project, again=True, exhausted="drop", **RR).preview
    assert 0 < anew.charged <= 60


@pytest.mark.slow
def test_a_project_keeps_the_features_of_its_first_release(project, monkeypatch):
    shape = {"mechanism": "statistic", "components": 2, "ridge": 1.0, "uses": 3}
    with monkeypatch.context() as light:
        without(light, "torch")
        first = make_release(SMALL, project=project, epsilon=8, **shape)
    assert first.card["statistic"]["features"] == "length+style+text"
    fresh = SMALL.with_columns(prompt=pl.lit("later: ") + pl.col("prompt"))
    later = make_release(fresh, project=project, mechanism="auto", components=2, ridge=1.0)
    assert later.card["statistic"]["features"] == "length+style+text"


def test_features_that_cannot_be_computed_here_are_refused_before_anything_is_read(
    project, monkeypatch
):
    without(monkeypatch, "transformers")
    with pytest.raises(MissingExtra, match=r"transformers.*pip install '.*\[encoders\]'"):
        make_release(
            "nowhere.parquet", project=project, mechanism="statistic", features="minilm+length"
        )


def test_a_first_release_is_public_in_all_it_fixes(tmp_path, monkeypatch):
    """δ, mechanism and allowances come from public counts: other labels, the same policy."""

    def policy(table, name):
        world.fix(monkeypatch)
        project = lg.init(tmp_path / name)
        make_release(table, project=project, recurring="weekly", duration="8w", **COLUMNS)
        return asdict(policies.show(project=project))

    assert policy(SMALL, "one") == policy(flip(SMALL), "other")
