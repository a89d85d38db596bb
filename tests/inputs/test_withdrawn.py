"""Of several submissions of one label the latest counts, also where it is a skip."""

import itertools
from typing import Any

import pyarrow as pa
import pytest

import labelguard as lg
from labelguard.errors import InvalidLabels

OPEN: dict[str, Any] = {"mechanism": "rr", "epsilon": 2000.0, "delta": 0.0, "workers": 1}
OPEN |= {"max_labels_per_labeler": 16, "accept_delta": True}
EARLY, LATE, LATEST = "2026-01-01", "2026-01-02", "2026-01-03"


@pytest.fixture
def project(tmp_path):
    return lg.init(tmp_path / "p", max_epsilon=10_000.0, max_delta=0.5)


def table(*rows, **more):
    """Rows of (labeler, prompt, label, time)."""
    return pa.table(
        {
            "labeler_id": [row[0] for row in rows],
            "prompt": [row[1] for row in rows],
            "response_a": ["a"] * len(rows),
            "response_b": ["b"] * len(rows),
            "label": pa.array([row[2] for row in rows], pa.string()),
            "submitted_at": pa.array([row[3] for row in rows], pa.string()),
            **more,
        }
    )


def released(rows, project, **options):
    found = lg.load(lg.privatize(rows, project=project, **OPEN | options))
    return sorted(found.select("prompt", "chosen").iter_rows())


def test_a_skip_takes_back_what_was_said_before_it_and_nothing_else(project):
    rows = table(
        ("maria", "p", "1", EARLY),
        ("maria", "p", None, LATE),
        ("maria", "q", None, EARLY),
        ("maria", "q", "0", LATE),
        ("otto", "p", "1", EARLY),
        ("otto", "q", None, LATEST),
    )
    assert released(rows, project) == [("p", "a"), ("q", "b")]


def test_the_order_of_rows_decides_nothing(tmp_path):
    rows = table(
        ("maria", "p", "1", EARLY), ("maria", "p", None, LATE), ("maria", "p", "0", LATEST)
    )
    for number, order in enumerate(itertools.permutations(range(3))):
        own = lg.init(tmp_path / str(number), max_epsilon=10_000.0, max_delta=0.5)
        assert released(rows.take(list(order)), own) == [("p", "b")]


def test_a_skip_at_the_same_time_counts_whatever_the_other_says(tmp_path):
    for label in ("0", "1"):
        own = lg.init(tmp_path / label, max_epsilon=10_000.0, max_delta=0.5)
        rows = table(
            ("maria", "p", label, EARLY), ("maria", "p", None, EARLY), ("otto", "p", "1", EARLY)
        )
        assert released(rows, own) == [("p", "a")]


def test_without_times_or_labelers_a_skip_is_only_a_row_without_a_label(project):
    rows = table(("maria", "p", "1", EARLY), ("maria", "p", None, LATE))
    untimed = rows.drop_columns(["submitted_at"])
    assert released(untimed, project) == [("p", "a")]


def test_single_labels_are_not_taken_back_by_others(tmp_path):
    own = lg.init(tmp_path / "own", max_epsilon=10_000.0, max_delta=0.5)
    rows = table(("maria", "p", "1", EARLY), ("otto", "p", None, LATE))
    assert released(rows.drop_columns(["labeler_id"]), own, unit="item") == [("p", "a")]
    other = lg.init(tmp_path / "other", max_epsilon=10_000.0, max_delta=0.5)
    rows = table(("maria", "p", "1", EARLY), ("otto", "p", None, LATE), ("otto", "p", "0", EARLY))
    assert released(rows, other, unit="item") == [("p", "a")]


def test_where_all_was_taken_back_there_is_nothing_to_release(project):
    rows = table(("maria", "p", "1", EARLY), ("maria", "p", None, LATE))
    with pytest.raises(InvalidLabels, match="no usable row"):
        lg.privatize(rows, project=project, **OPEN)


def test_more_skips_that_take_nothing_back_are_the_same_request(project):
    rows = [("maria", "p", "1", EARLY), ("otto", "p", "0", EARLY)]
    first = lg.privatize(table(*rows), project=project, **OPEN)
    more = [*rows, ("zoe", "p", None, LATE), ("maria", "q", None, LATE)]
    assert lg.privatize(table(*more), project=project, **OPEN).id == first.id
    # One that takes something back is another; what was released stays in the first.
    less = [*rows, ("otto", "p", None, LATE)]
    second = lg.privatize(table(*less), project=project, **OPEN)
    assert second.id != first.id
    assert (lg.load(first).height, lg.load(second).height) == (2, 1)


def test_of_rankings_a_skip_takes_the_whole_list_back(project):
    rows = pa.table(
        {
            "labeler_id": ["maria", "maria", "otto"],
            "prompt": ["p"] * 3,
            "responses": [["a", "b", "c"]] * 3,
            "ranks": [[1, 2, 3], None, [3, 2, 1]],
            "submitted_at": [EARLY, LATE, EARLY],
        }
    )
    found = lg.load(lg.privatize(rows, project=project, **OPEN))
    chosen = sorted(found.select("chosen", "rejected").iter_rows())
    assert chosen == [("b", "a"), ("c", "a"), ("c", "b")]


def test_who_only_skipped_was_not_met(project):
    rows = table(("maria", "p", "1", EARLY), ("Otto", "p", None, EARLY))
    lg.privatize(rows, project=project, **OPEN)
    # Spelled otherwise Otto is nobody the project knows: there is no double to refuse.
    rows = table(("maria", "p", "1", EARLY), ("otto", "q", "1", EARLY))
    assert released(rows, project) == [("p", "a"), ("q", "a")]


def test_a_tie_that_is_dropped_takes_back_what_was_said_before_it(project):
    rows = table(
        ("maria", "p", "1", EARLY),
        ("maria", "p", "0.5", LATE),
        ("otto", "p", "0.5", EARLY),
        ("otto", "p", "0", LATE),
    )
    dropped = {"ties": "drop", "tie_status_public": True}
    assert released(rows, project, **dropped) == [("p", "b")]
