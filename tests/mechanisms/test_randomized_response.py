"""Randomized response changes the labels of a block with the law that is charged, by its coins.

Statistical tests accept what happens unless it has a probability below FALSE_FAILURE under the
claim. They run on fixed nonces, so they fail at random only when the streams of coins change.
"""

import copy
import math
from itertools import combinations, product

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from scipy import stats
from support import world
from support.flips import scale_thresholds
from support.releases import make_release

import labelguard as lg
from labelguard.accounting import blocks as accounting_blocks
from labelguard.accounting import randomized_response as accounting
from labelguard.accounting.blocks import Block
from labelguard.keys.keyring import Coins, Purpose
from labelguard.keys.prf import Prf, RowKeys
from labelguard.mechanisms import randomized_response as mechanism
from labelguard.mechanisms.randomized_response import LABEL_TIE, LabelBlocks, randomize
from labelguard.storage.blocks import from_bytes, to_bytes

FALSE_FAILURE = 1e-6
ROWS = 240_000
LABELERS = 400
NONCE, KEY = bytes(range(32)), bytes(range(32, 64))
EPSILON0 = 1.0
THRESHOLD = accounting.threshold(EPSILON0)


def fits(hits, trials, probability):
    """Whether a count of hits is what a binomial variable may show."""
    return bool(stats.binomtest(hits, trials, probability).pvalue > FALSE_FAILURE)


def independent(one, other):
    """Whether two columns may be independent (chi-square on their table)."""
    values, a = np.unique(one, return_inverse=True)
    others, b = np.unique(other, return_inverse=True)
    table = np.bincount(a * len(others) + b, minlength=len(values) * len(others))
    shape = len(values), len(others)
    found = stats.chi2_contingency(table.reshape(shape), correction=False)
    return bool(found.pvalue > FALSE_FAILURE)


class Rows:
    """Rows of labelers and items with keys of their own, and what a release draws for them."""

    def __init__(self):
        authors = from_bytes(world.repeatable_bytes("authors")(16 * LABELERS))
        self.items = from_bytes(world.repeatable_bytes("items")(16 * ROWS))
        self.unit = np.arange(ROWS, dtype=np.intp) % LABELERS
        names = RowKeys(KEY)
        identity = names.identify(authors[self.unit], self.items)
        self.keys = names.keys(identity, np.zeros(ROWS, np.uint16))
        self.coins = Coins(NONCE)
        self.known: dict[tuple[int, int], NDArray[np.uint8]] = {}

    def release_labels(self, labels, size=1, threshold=THRESHOLD):
        """What is released of labels in blocks of `size` rows that follow one another."""
        blocks = LabelBlocks.of_rows(np.arange(ROWS) // size, threshold)
        return randomize(labels, self.coins, self.keys, blocks)

    def with_nonce(self, nonce):
        """The same rows in another release."""
        other = copy.copy(self)
        other.coins, other.known = Coins(nonce), {}
        return other

    def flips(self, size=1, threshold=THRESHOLD):
        """Which rows change where every label is 0."""
        if (size, threshold) not in self.known:
            self.known[size, threshold] = self.release_labels(constant(0), size, threshold)
        return self.known[size, threshold]


@pytest.fixture(scope="module")
def rows():
    return Rows()


def constant(value):
    return np.full(ROWS, value, np.uint8)


def some_labels(seed=0):
    """Labels 0 and 1, and ties."""
    return np.random.default_rng(seed).integers(0, 3, ROWS).astype(np.uint8)


# --- the law of a block ---------------------------------------------------------------------------


def answers_fit(flips, size, threshold=THRESHOLD):
    """Whether answers of blocks, (rows,), show each of 2^size answers as often as is charged."""
    digits = flips.reshape(-1, size).astype(np.int64)
    counts = np.bincount(digits @ 2 ** np.arange(size), minlength=2**size)
    law = Block(threshold, size)
    changes = np.array([sum(answer) for answer in product(range(2), repeat=size)])
    odds = (2**64 - threshold) / threshold
    weight = np.where(changes <= law.likely_change_limit, odds, 1.0)
    # Answers are numbered with the first label as the lowest digit; changes do not mind.
    expected = weight / weight.sum() * counts.sum()
    return bool(stats.chisquare(counts, expected).pvalue > FALSE_FAILURE)


@pytest.mark.quick("1.0", "0.3-8", "3.0-3")
@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("epsilon0", [0.3, 1.0, 3.0])
def test_every_answer_of_a_block_comes_as_often_as_is_charged(size, epsilon0, rows):
    threshold = accounting.threshold(epsilon0)
    assert answers_fit(rows.flips(size, threshold), size, threshold=threshold)


def test_one_change_more_among_the_likely_answers_is_caught(rows, monkeypatch):
    exact = Block.likely_change_limit.func
    monkeypatch.setattr(Block, "likely_change_limit", property(lambda self: exact(self) + 1))
    forget_laws()
    flips = rows.release_labels(constant(0), 4)
    monkeypatch.undo()
    forget_laws()
    assert not answers_fit(flips, 4)


def forget_laws():
    for cache in (mechanism.find_block, accounting_blocks._SMALL_LIMITS):
        cache.cache_clear()


def test_likely_answers_that_weigh_two_percent_too_much_are_caught(rows):
    odds = (2**64 - THRESHOLD) / THRESHOLD * 1.02
    releases = [rows.with_nonce(bytes([nonce]) * 32) for nonce in range(4)]
    right, wrong = (
        np.concatenate([one.flips(2, threshold) for one in releases])
        for threshold in (THRESHOLD, accounting.threshold(math.log(odds)))
    )
    assert answers_fit(right, 2)
    assert not answers_fit(wrong, 2)


def test_coins_in_place_of_a_block_are_caught(rows):
    gamma = Block(THRESHOLD, 4).flip_probability
    threshold = int(gamma * 2**64)
    assert not answers_fit(rows.flips(1, threshold), 4)


def test_two_half_blocks_at_the_price_of_one_are_caught(rows):
    assert not answers_fit(rows.flips(2), 4)
    assert not answers_fit(rows.flips(4), 8)


def test_numbers_are_compared_as_numbers_whatever_their_bytes(rows):
    """Numpy's bytes end at the last byte that is not 0; so must what stands for a number."""
    limits = Block(THRESHOLD, 5).change_limits
    size = limits.itemsize
    numbers = [int.from_bytes(each.ljust(size, b"\0"), "big") for each in limits.tolist()]
    tried = [0, 1, 256**size - 1, *numbers, *(n - 1 for n in numbers), *(n + 1 for n in numbers)]
    tried += [n >> 64 << 64 for n in numbers]
    drawn = np.array([n.to_bytes(size, "big") for n in tried], f"S{size}")
    found = np.searchsorted(limits, drawn, side="right")
    assert found.tolist() == [sum(limit <= n for limit in numbers) for n in tried]


@pytest.mark.parametrize("labels", [0, 1, LABEL_TIE])
def test_the_work_is_the_same_whatever_labels_and_outcomes_are(labels, rows, monkeypatch):
    calls = []
    exact = Coins.draw

    def draw(self, purpose, row_keys, counter=0):
        calls.append((purpose, len(row_keys), counter))
        return exact(self, purpose, row_keys, counter)

    monkeypatch.setattr(Coins, "draw", draw)
    rows.release_labels(constant(labels), 6)
    words = range(-(-Block(THRESHOLD, 6).bytes_per_draw // 16))
    expected = [(purpose, ROWS, 0) for purpose in (Purpose.TIE, Purpose.ORDER)]
    expected += [(Purpose.CHANGES, ROWS // 6, word) for word in words]
    assert calls == expected


# --- coins ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 5])
def test_a_flip_depends_on_the_coin_and_not_on_the_label(size, rows):
    flips = rows.flips(size)
    assert (rows.release_labels(constant(1), size) == 1 - flips).all()
    labels = some_labels()
    released = rows.release_labels(labels, size)
    strict = labels != LABEL_TIE
    assert (released[strict] == labels[strict] ^ flips[strict]).all()
    assert set(np.unique(released)) == {0, 1}


def test_where_nothing_is_paid_for_nothing_is_left_of_the_labels(rows):
    labels = some_labels()
    released = rows.release_labels(labels, threshold=2**63 - 1)
    assert independent(released, labels)
    assert fits(int(released.sum()), ROWS, 0.5)


def test_every_row_has_a_coin_of_its_own(rows):
    drawn = rows.coins.draw(Purpose.ORDER, rows.keys)[:, 0]
    # 64 bits of 240,000 rows collide with probability 2e-9.
    assert len(np.unique(drawn)) == ROWS
    assert stats.kstest(drawn / 2**64, "uniform").pvalue > FALSE_FAILURE


@pytest.mark.parametrize("size", [1, 5])
def test_flips_do_not_depend_on_labeler_item_or_place(size, rows):
    flips = rows.flips(size)
    assert independent(flips, rows.items[:, 0] >> np.uint64(60))
    assert independent(flips, np.arange(ROWS) % 5)
    assert independent(flips[5:], flips[:-5])
    assert independent(flips[LABELERS:], flips[:-LABELERS])  # the labeler's row before


def test_answers_follow_rows_through_orders(rows):
    labels = some_labels()
    blocks = np.arange(ROWS) // 6
    released = rows.release_labels(labels, 6)
    first = blocks * 6 == np.arange(ROWS)
    for order in (
        np.random.default_rng(1).permutation(ROWS // 6),
        np.arange(ROWS // 6)[::-7],
        np.array([5]),
        np.array([], dtype=np.intp),
    ):
        index = (order[:, None] * 6 + np.arange(6)).ravel()
        drawn = LabelBlocks.of_rows(blocks[index], THRESHOLD)
        again = randomize(labels[index], rows.coins, rows.keys[index], drawn)
        assert (again == released[index]).all()
    assert first.sum() == ROWS // 6


@pytest.mark.parametrize("threshold", [THRESHOLD, 2**63 - 1])
def test_two_releases_share_no_coin_at_the_same_price_or_another(threshold, rows):
    """With one coin for two prices, who is not flipped at γ = ½ would not be flipped at .27."""
    other = rows.with_nonce(bytes(32)).flips(threshold=threshold)
    assert independent(rows.flips(), other)
    assert ((other == 0) & (rows.flips() == 1)).sum() > ROWS / 10


def test_coins_are_fresh_and_show_nothing(rows):
    one, other = (Coins.fresh().draw(Purpose.ORDER, rows.keys[:4]) for _ in range(2))
    assert (one != other).all()
    assert repr(Coins(NONCE)) == "Coins(…)"
    with pytest.raises(ValueError, match="has 32 bytes, found 16"):
        Coins(NONCE[:16])


def test_every_purpose_and_counter_has_coins_of_its_own(rows):
    drawn = [
        rows.coins.draw(purpose, rows.keys, counter)[:, 0]
        for purpose in Purpose
        for counter in (0, 1)
    ]
    assert len(np.unique(np.concatenate(drawn))) == ROWS * len(drawn)
    for one, other in combinations([(each >> np.uint64(61)).astype(np.uint8) for each in drawn], 2):
        assert independent(one, other)


def test_keys_of_other_labelers_items_pairs_and_projects_are_others(rows):
    authors = from_bytes(world.repeatable_bytes("authors")(32))
    items = rows.items[:2]

    def keys(key, author, item, pair):
        names = RowKeys(key)
        identity = names.identify(authors[[author]], items[[item]])
        return to_bytes(names.keys(identity, np.array([pair], np.uint16)))

    fields = product((KEY, NONCE), (0, 1), (0, 1), (0, 1, 256))
    assert len({keys(*row) for row in fields}) == 24
    assert len(np.unique(rows.keys, axis=0)) == ROWS


def test_a_tie_becomes_a_fair_coin_that_is_independent_of_the_flip(rows):
    fair = rows.release_labels(constant(LABEL_TIE), threshold=1)  # flips nobody
    assert fits(int(fair.sum()), ROWS, 0.5)
    released = rows.release_labels(constant(LABEL_TIE))
    assert fits(int(released.sum()), ROWS, 0.5)
    assert independent(released ^ rows.flips(), rows.flips())


def test_a_prf_takes_messages_of_its_length_only():
    block = from_bytes(bytes(16))
    with pytest.raises(ValueError, match="expected 3 blocks, found 2"):
        Prf(KEY, 3)(block, block)


def survey(rows=20_000, labelers=5_000):
    """Strict labels and ties, on either side, 4 of each labeler."""
    rng = np.random.default_rng(0)
    item = np.arange(rows)
    side = rng.integers(0, 2, rows)
    names = np.array(["first", "second"])
    label = rng.choice([0, 0.5, 1], rows, p=[0.3, 0.2, 0.5])
    table = {
        "prompt": item.astype(str),
        "response_a": names[side],
        "response_b": names[1 - side],
        "label": label,
        "labeler_id": (item % labelers).astype(str),
    }
    return pa.table(table)


def flips_of(table, project):
    """The rows of a table with what was released of them; ties do not count."""
    release = make_release(table, mechanism="rr", epsilon=4, delta=1e-6, project=lg.init(project))
    rows = pl.from_arrow(table)
    joined = rows.with_row_index().join(lg.load(release), on="prompt")
    assert len(joined) == len(rows)
    preferred = pl.when(pl.col("label") == 1).then("response_a").otherwise("response_b")
    return joined.filter(pl.col("label") != 0.5).with_columns(flipped=pl.col("chosen") != preferred)


def block_of_four():
    """γ of labelers with four labels in a release at the price of the survey's."""
    return Block(accounting.threshold(accounting.calibrate(4, 1e-6, 1)), 4).flip_probability


@pytest.fixture
def fixed_keys(monkeypatch):
    world.fix_randomness(monkeypatch, world.repeatable_bytes())


@pytest.mark.usefixtures("fixed_keys")
def test_released_labels_are_flipped_as_the_accountant_says(tmp_path):
    frame = flips_of(survey(), tmp_path)
    gamma = block_of_four()
    assert frame["flip_probability"].unique().to_list() == pytest.approx([gamma])
    assert fits(int(frame["flipped"].sum()), len(frame), gamma)


@pytest.mark.usefixtures("fixed_keys")
def test_flips_do_not_depend_on_label_side_or_row_order(tmp_path):
    frame = flips_of(survey(), tmp_path)
    flipped = frame["flipped"].to_numpy()
    assert independent(flipped, frame["label"].to_numpy())
    assert independent(flipped, frame["response_a"].to_numpy())
    assert independent(flipped, frame["index"].to_numpy() // 4_000)


@pytest.mark.usefixtures("fixed_keys")
def test_a_release_whose_threshold_is_half_as_much_again_is_rejected(tmp_path, monkeypatch):
    scale_thresholds(monkeypatch, 1.5)
    frame = flips_of(survey(), tmp_path)
    gamma = block_of_four()
    assert not fits(int(frame["flipped"].sum()), len(frame), gamma)


@pytest.mark.usefixtures("fixed_keys")
def test_released_ties_show_each_side_alike(tmp_path):
    table = survey()
    ties = table.set_column(3, "label", pa.array(np.full(len(table), 0.5)))
    release = make_release(ties, mechanism="rr", epsilon=4, delta=1e-6, project=lg.init(tmp_path))
    frame = lg.load(release)
    assert len(frame) == len(ties)
    assert fits(int((frame["chosen"] == "first").sum()), len(frame), 0.5)
