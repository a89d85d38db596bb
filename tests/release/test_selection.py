"""Which labels a release touches: at most k of a labeler, chosen by nothing but a keyed hash."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import world
from support.preferences import Public, opinions, pairs, public, rankings

import labelguard as lg
from labelguard.budget.policy import Policy, round_up_bounds
from labelguard.errors import PolicyError
from labelguard.keys.coins import Coins
from labelguard.release.mechanisms import rr
from labelguard.release.selection import SelectedRows, fit_groups
from labelguard.report import overview

PRICE: dict[str, Any] = {"mechanism": "rr", "epsilon": 3, "delta": 1e-5}


@pytest.fixture(autouse=True)
def same_keys_in_every_project(monkeypatch):
    world.fix_randomness(monkeypatch)


def model_of_bounded(unit, group, order, free):
    """The same rule, one labeler and one group after the other."""
    members = Counter(zip(unit, order, group, strict=True))
    left, kept = dict(enumerate(free)), set()
    for name, size in sorted(members.items()):
        if size <= left[name[0]]:
            left[name[0]] -= size
            kept.add(name)
    return [name in kept for name in zip(unit, order, group, strict=True)]


@given(data=st.data(), labels=st.integers(0, 60), labelers=st.integers(1, 6))
@settings(max_examples=300, deadline=None)
def test_places_are_given_to_whole_groups_in_keyed_order(data, labels, labelers):
    def column(most):
        return data.draw(st.lists(st.integers(0, most), min_size=labels, max_size=labels))

    unit, group = column(labelers - 1), column(8)
    keys = data.draw(
        st.lists(st.integers(0, 2**64 - 1), min_size=9 * labelers, max_size=9 * labelers)
    )
    order = [keys[9 * u + g] for u, g in zip(unit, group, strict=True)]
    free = data.draw(st.lists(st.integers(0, 12), min_size=labelers, max_size=labelers))
    kept = fit_groups(
        np.array(unit, np.intp),
        np.array(group, np.intp),
        np.array(order, np.uint64),
        np.array(free, np.int64),
    )
    assert kept.tolist() == model_of_bounded(unit, group, order, free)


def test_a_label_is_drawn_at_the_price_of_its_labelers_bound(tmp_path):
    capacity, none = np.array([16, 8, 32, 8, 16]), np.zeros(5, np.int64)
    keys = np.arange(10, dtype=np.uint64).reshape(5, 2)
    rows = SelectedRows(np.arange(5), none, capacity, keys, keys, none == 0, *[none] * 4)
    prices = {8: {"threshold": 0}, 16: {"threshold": 2**62}, 32: {"threshold": 2**63}}
    places = tmp_path, tmp_path, tmp_path, None
    task = rr.Randomizing(
        *places, Policy(3.0, 1e-5), prices, Coins(bytes(32)), labelers=True, choices=False
    )
    label = np.array([0, 1, 0, 0, 1], np.uint8)
    value, threshold = rr._draw_pairs(task, rows, label)
    assert threshold.tolist() == [prices[k]["threshold"] for k in capacity.tolist()]
    assert value[[1, 3]].tolist() == [1, 0]


def test_a_bound_is_the_next_power_of_two():
    counts = [1, *(2**n + offset for n in range(1, 45) for offset in (-1, 0, 1))]
    expected = [max(8, 1 << (count - 1).bit_length()) for count in counts]
    assert round_up_bounds(np.array(counts, np.int64)).tolist() == expected


def items(release):
    """The items of a release, as often as they occur."""
    return sorted(lg.load(release)["item_id"])


def test_without_a_bound_the_places_are_the_labels_rounded_up(tmp_path):
    asked = Public(np.repeat(np.arange(4), [1, 8, 9, 33]), np.arange(51))
    project = lg.init(tmp_path)
    lg.privatize(pairs(asked, opinions(51, 1)), project=project, **PRICE)
    places = [
        overview.labeler(f"worker {labeler}", project.state).allowances[0] for labeler in range(4)
    ]
    assert [place.allowed for place in places] == [8, 8, 16, 64]
    assert [place.used for place in places] == [1, 8, 9, 33]


def test_labels_that_were_released_come_first(tmp_path):
    asked = public(labelers=9, per_labeler=20)
    ranks = opinions(len(asked), 1)
    project = lg.init(tmp_path)
    few = asked.item < 8
    first = lg.privatize(
        pairs(asked[few], ranks[few]), project=project, max_labels_per_labeler=10, block=1, **PRICE
    )
    both = lg.privatize(pairs(asked, ranks), project=project, exhausted="drop", **PRICE)
    assert len(items(both)) == 9 * 10
    assert not Counter(items(first)) - Counter(items(both))
    assert overview.budget(project.state).allowances[0].left == 0


def test_labelers_keep_labels_of_their_own_choice_of_items(tmp_path):
    """The order is keyed by labeler: those who saw the same items keep different ones."""
    asked = public(labelers=20, per_labeler=30, items=30)
    options = PRICE | {"max_labels_per_labeler": 6, "project": lg.init(tmp_path)}
    release = lg.privatize(pairs(asked, opinions(len(asked), 1)), **options)
    assert len(set(items(release))) > 20


def test_a_ranking_is_kept_or_dropped_whole(tmp_path):
    asked = public(labelers=6, per_labeler=7, items=20)
    project = lg.init(tmp_path)
    release = lg.privatize(
        rankings(asked, opinions(len(asked), 1)),
        project=project,
        max_labels_per_labeler=8,
        block=1,
        **PRICE,
    )
    assert set(Counter(items(release)).values()) <= {3 * n for n in range(1, 7)}
    assert len(items(release)) == 6 * 6  # two rankings of three pairs each, in eight places
    assert overview.budget(project.state).allowances[0].left == 6 * 2


def test_a_ranking_larger_than_the_bound_is_refused_without_a_charge(tmp_path):
    asked = public(labelers=2, per_labeler=2, items=3)
    project = lg.init(tmp_path)
    with pytest.raises(PolicyError, match="no label fits"):
        lg.privatize(
            rankings(asked, opinions(4, 1)),
            project=project,
            max_labels_per_labeler=2,
            block=1,
            **PRICE,
        )
    assert overview.budget(project.state).policy is None


def test_a_content_has_one_place_unless_it_is_given_more(tmp_path):
    asked = Public(np.zeros(30, np.int64), np.arange(30) % 10)
    table = pairs(asked, opinions(30, 1), labelers=False)
    for places, found in ((None, 10), (2, 20), (5, 30)):
        project = lg.init(tmp_path / str(found))
        release = lg.privatize(
            table,
            project=project,
            mechanism="rr",
            unit="item",
            epsilon=1,
            delta=0,
            max_labels_per_labeler=places,
            block=1,
        )
        assert release.card["counts"]["labelers"] == 10 and len(items(release)) == found
        assert overview.budget(project.state).allowances[0].allowed == 10 * (places or 1)
        [flip] = lg.load(release)["flip_probability"].unique()
        assert flip == pytest.approx(1 / (1 + np.exp(1 / (places or 1))))
