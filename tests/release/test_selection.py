"""Which labels a release touches: at most k of a labeler, chosen by nothing but a keyed hash."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import world
from support.preferences import Public, opinions, pairs, public, rankings
from support.releases import make_release

import labelguard as lg
from labelguard.accounting import randomized_response
from labelguard.accounting.blocks import Block
from labelguard.budget.policy import Bound
from labelguard.errors import PolicyError
from labelguard.release.allocation import assign_blocks, select_fitting_groups
from labelguard.report import overview
from labelguard.report.overview import read_labeler

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


@pytest.mark.slow
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
    types = (np.intp, np.intp, np.uint64, np.int64)
    kept = select_fitting_groups(*map(np.array, (unit, group, order, free), types))
    assert kept.tolist() == model_of_bounded(unit, group, order, free)


@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    block=st.integers(1, 12),
    seed=st.integers(0, 99),
)
def test_labels_of_a_unit_fill_as_few_blocks_as_hold_them_evenly(counts, block, seed):
    unit = np.repeat(np.arange(len(counts)), counts)
    rng = np.random.default_rng(seed)
    rng.shuffle(unit)
    order = rng.permutation(len(unit)).astype(np.uint64)
    new = rng.random(len(unit)) < 0.8
    found = assign_blocks(unit, order, new, Bound(1, block))
    owners = {}
    for number, who in zip(found[new], unit[new], strict=True):
        assert owners.setdefault(number, who) == who  # no block has labels of two units
    for who in set(unit[new]):
        mine = new & (unit == who)
        sizes = Counter(found[mine]).values()
        assert len(sizes) == -(-int(mine.sum()) // block)
        assert max(sizes) - min(sizes) <= 1
        by_order = found[mine][np.argsort(order[mine])]
        assert (np.diff(by_order) >= 0).all()
    assert (found[~new] == 0).all()


def items(release):
    """The items of a release, as often as they occur."""
    return sorted(lg.load(release)["item_id"])


def test_a_use_is_a_block_of_new_labels(tmp_path):
    asked = Public(np.repeat(np.arange(4), [1, 8, 9, 33]), np.arange(51))
    for block, uses in ((None, [1, 1, 1, 1]), (8, [1, 1, 2, 5]), (1, [1, 8, 9, 33])):
        project = lg.init(tmp_path / str(block))
        release = make_release(pairs(asked, opinions(51, 1)), project=project, block=block, **PRICE)
        found = [read_labeler(f"worker {n}", project.state).allowances[0] for n in range(4)]
        assert [place.used for place in found] == uses
        assert {place.allowed for place in found} == {max(uses)}  # nothing is reserved
        laws = release.card["flip_probability"]["blocks"]
        assert sum(law["rows"] for law in laws) == 51
        assert max(law["labels"] for law in laws) == (block or 33)


def test_a_bound_is_of_a_release_and_old_labels_count_first(tmp_path):
    asked = public(labelers=5, per_labeler=9)
    ranks = opinions(len(asked), 1)
    project = lg.init(tmp_path)
    few = asked.item < 20
    one = make_release(
        pairs(asked[few], ranks[few]), project=project, max_labels_per_labeler=2, uses=3, **PRICE
    )
    two = make_release(pairs(asked, ranks), project=project, max_labels_per_labeler=4, **PRICE)
    assert not Counter(items(one)) - Counter(items(two))
    assert len(items(two)) == 5 * 4
    fewer = make_release(pairs(asked, ranks), project=project, max_labels_per_labeler=1, **PRICE)
    assert items(fewer) == items(two)  # what was released stays, whatever the bound
    assert fewer.card["counts"]["charged"] == 0
    more = make_release(pairs(asked, ranks), project=project, **PRICE)
    assert len(items(more)) == 5 * 9 and more.card["counts"]["charged"] == 5


def test_a_bound_goes_with_randomized_response(tmp_path):
    table = pairs(public(), opinions(len(public()), 1))
    with pytest.raises(PolicyError, match="goes with randomized response"):
        make_release(
            table, project=lg.init(tmp_path), mechanism="statistic", max_labels_per_labeler=3
        )


def test_labelers_keep_labels_of_their_own_choice_of_items(tmp_path):
    """The order is keyed by labeler: those who saw the same items keep different ones."""
    asked = public(labelers=20, per_labeler=30, items=30)
    options = PRICE | {"max_labels_per_labeler": 6, "project": lg.init(tmp_path)}
    release = make_release(pairs(asked, opinions(len(asked), 1)), **options)
    assert len(set(items(release))) > 20


def test_a_ranking_is_kept_or_dropped_whole(tmp_path):
    asked = public(labelers=6, per_labeler=7, items=20)
    project, bound = lg.init(tmp_path), PRICE | {"max_labels_per_labeler": 8, "block": 1}
    release = make_release(rankings(asked, opinions(len(asked), 1)), project=project, **bound)
    assert set(Counter(items(release)).values()) <= {3 * n for n in range(1, 7)}
    assert len(items(release)) == 6 * 6  # two rankings of three pairs each, in eight places
    assert overview.read_budget(project.state).allowances[0].left == 6 * 2


def test_a_ranking_larger_than_the_bound_is_refused_without_a_charge(tmp_path):
    asked = public(labelers=2, per_labeler=2, items=3)
    project, bound = lg.init(tmp_path), PRICE | {"max_labels_per_labeler": 2, "block": 1}
    with pytest.raises(PolicyError, match="no label fits"):
        make_release(rankings(asked, opinions(4, 1)), project=project, **bound)
    assert overview.read_budget(project.state).policy is None


def test_a_content_has_one_block_of_all_its_labels_or_of_few(tmp_path):
    asked = Public(np.zeros(30, np.int64), np.arange(30) % 10)
    table = pairs(asked, opinions(30, 1), labelers=False)
    for most, labels in ((None, 30), (2, 20), (1, 10)):
        project = lg.init(tmp_path / str(most))
        release = make_release(
            table,
            project=project,
            mechanism="rr",
            unit="item",
            epsilon=1,
            delta=0,
            max_labels_per_labeler=most,
        )
        assert release.card["counts"]["labelers"] == 10 and len(items(release)) == labels
        assert overview.read_budget(project.state).allowances[0].allowed == 10
        [flip] = lg.load(release)["flip_probability"].unique()
        law = Block(randomized_response.threshold(1), most or 3)
        assert flip == pytest.approx(law.flip_probability)
