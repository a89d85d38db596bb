"""Randomized response flips with the probability that is charged, and by nothing but its coins.

Statistical tests accept what happens unless it has a probability below FALSE_FAILURE under the
claim. They run on fixed nonces, so they fail at random only when the streams of coins change.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from scipy import stats
from support import world

import labelguard as lg
from labelguard.accounting import randomized_response as accounting
from labelguard.accounting.kary import KAry
from labelguard.budget import pricing
from labelguard.keys.coins import Coins, Purpose
from labelguard.keys.prf import Prf, RowKeys
from labelguard.mechanisms.randomized_response import randomize, randomize_choices
from labelguard.storage.blocks import from_bytes, to_bytes
from labelguard.text import LABEL_TIE

FALSE_FAILURE = 1e-6
ROWS = 200_000
LABELERS = 400
NONCE, KEY = bytes(range(32)), bytes(range(32, 64))
GAMMA = 0.3
THRESHOLD = int(GAMMA * 2**64)


def fits(hits, trials, probability):
    """Whether a count of hits is what a binomial variable may show."""
    return bool(stats.binomtest(hits, trials, probability).pvalue > FALSE_FAILURE)


def independent(one, other):
    """Whether two columns may be independent (chi-square on their table)."""
    _, a = np.unique(one, return_inverse=True)
    _, b = np.unique(other, return_inverse=True)
    table = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(table, (a, b), 1)
    return bool(stats.chi2_contingency(table, correction=False).pvalue > FALSE_FAILURE)


class Rows:
    """Rows of labelers and items with keys of their own, and what a release draws for them."""

    def __init__(self, nonce=NONCE):
        authors = from_bytes(world.repeatable_bytes("authors")(16 * LABELERS))
        self.items = from_bytes(world.repeatable_bytes("items")(16 * ROWS))
        self.unit = np.arange(ROWS, dtype=np.intp) % LABELERS
        names = RowKeys(KEY)
        identity = names.identify(authors[self.unit], self.items)
        self.keys = names.keys(identity, np.zeros(ROWS, np.uint16))
        self.coins = Coins(nonce)

    def flips(self, threshold=THRESHOLD):
        """Released labels where every label is 0: which rows were flipped."""
        return self.released(constant(0), threshold=threshold)

    def released(self, labels, draw=randomize, threshold=THRESHOLD):
        return draw(labels, self.coins, self.keys, np.full(ROWS, threshold, np.uint64))


@pytest.fixture(scope="module")
def rows():
    return Rows()


def constant(value):
    return np.full(ROWS, value, np.uint8)


def test_labels_are_flipped_with_the_probability_of_the_threshold(rows):
    assert fits(int(rows.flips().sum()), ROWS, GAMMA)


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_sampler_that_is_ten_percent_off_is_rejected(factor, rows):
    flips = rows.flips(threshold=int(THRESHOLD * factor))
    assert not fits(int(flips.sum()), ROWS, GAMMA)


def test_a_flip_depends_on_the_coin_and_not_on_the_label(rows):
    flips = rows.flips()
    assert (rows.released(constant(1)) == 1 - flips).all()
    labels = np.random.default_rng(0).integers(0, 3, ROWS).astype(np.uint8)
    released = rows.released(labels)
    strict = labels != LABEL_TIE
    assert (released[strict] == labels[strict] ^ flips[strict]).all()
    assert set(np.unique(released)) == {0, 1}


def test_at_a_flip_probability_of_one_half_nothing_is_left_of_the_labels(rows):
    labels = np.random.default_rng(0).integers(0, 3, ROWS).astype(np.uint8)
    released = rows.released(labels, threshold=1 << 63)
    assert independent(released, labels)
    assert fits(int(released.sum()), ROWS, 0.5)


def test_every_row_has_a_coin_of_its_own(rows):
    drawn = rows.coins.draw(Purpose.FLIP, rows.keys)
    # 64-bit coins of 200,000 rows collide with probability 1e-9.
    assert len(np.unique(drawn)) == ROWS
    assert stats.kstest(drawn / 2**64, "uniform").pvalue > FALSE_FAILURE


def test_flips_do_not_depend_on_labeler_item_or_place(rows):
    flips = rows.flips()
    assert independent(flips, rows.unit % 16)
    assert independent(flips, rows.items[:, 0] >> np.uint64(60))
    assert independent(flips, np.arange(ROWS) * 16 // ROWS)
    assert independent(flips[1:], flips[:-1])
    assert independent(flips[LABELERS:], flips[:-LABELERS])  # the labeler's row before


def test_answers_follow_rows_through_orders_and_subsets(rows):
    labels = np.random.default_rng(0).integers(0, 3, ROWS).astype(np.uint8)
    released = rows.released(labels)
    threshold = np.full(ROWS, THRESHOLD, np.uint64)
    for index in (
        np.random.default_rng(1).permutation(ROWS),
        np.arange(ROWS)[::-7],
        np.array([5]),
        np.array([], dtype=np.intp),
    ):
        again = randomize(labels[index], rows.coins, rows.keys[index], threshold[index])
        assert (again == released[index]).all()


@pytest.mark.parametrize("threshold", [THRESHOLD, 1 << 63])
def test_two_releases_share_no_coin_at_the_same_price_or_another(threshold, rows):
    """With one coin for two prices, who is not flipped at γ = ½ would not be flipped at .3."""
    other = Rows(bytes(32)).flips(threshold)
    assert independent(rows.flips(), other)
    assert ((other == 0) & (rows.flips() == 1)).sum() > ROWS / 10


def test_coins_are_fresh_and_show_nothing(rows):
    one, other = (Coins.fresh().draw(Purpose.FLIP, rows.keys[:4]) for _ in range(2))
    assert (one != other).all()
    assert repr(Coins(NONCE)) == "Coins(…)"
    with pytest.raises(ValueError, match="has 32 bytes, found 16"):
        Coins(NONCE[:16])


def test_every_purpose_has_coins_of_its_own(rows):
    drawn = [rows.coins.draw(purpose, rows.keys) for purpose in Purpose]
    assert len(np.unique(np.concatenate(drawn))) == ROWS * len(Purpose)
    for index, one in enumerate(drawn):
        for other in drawn[:index]:
            assert independent(one >> np.uint64(61), other >> np.uint64(61))


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
    fair = rows.released(constant(LABEL_TIE), threshold=1)  # flips nobody
    assert fits(int(fair.sum()), ROWS, 0.5)
    released = rows.released(constant(LABEL_TIE))
    assert fits(int(released.sum()), ROWS, 0.5)
    assert independent(released ^ rows.flips(), rows.flips())


SIZES = np.array([2, 3, 4, 7])


def answers(rows, chosen, weaker=1.0):
    """How far released choices are from the true ones, at thresholds that are `weaker` than told.

    Rows are choices among 2, 3, 4 and 7 in turn, priced as choices among 2.
    """
    options = SIZES[np.arange(ROWS) % len(SIZES)]
    told = {k: KAry(2).among(k, THRESHOLD) for k in SIZES.tolist()}
    each = [int(weaker * threshold) // (k - 1) * (k - 1) for k, threshold in told.items()]
    thresholds = np.array(each, np.uint64)[np.arange(ROWS) % len(SIZES)]
    released = randomize_choices(chosen, rows.coins, rows.keys, thresholds, options)
    assert (released < options).all()
    steps: NDArray[np.int64] = (released.astype(np.int64) - chosen) % options
    return steps


def choices_fit(steps):
    """Whether every choice is kept as often as is charged, and otherwise becomes any other."""
    odds = GAMMA / (1 - GAMMA)
    for place, options in enumerate(SIZES.tolist()):
        counts = np.bincount(steps[place :: len(SIZES)], minlength=options)
        expected = np.append(1, np.full(options - 1, odds)) / (1 + (options - 1) * odds)
        if stats.chisquare(counts, expected * counts.sum()).pvalue <= FALSE_FAILURE:
            return False
    return True


def some_choices(seed):
    options = SIZES[np.arange(ROWS) % len(SIZES)]
    return np.random.default_rng(seed).integers(0, options).astype(np.int16)


def test_a_choice_is_kept_or_becomes_each_other_alike(rows):
    assert choices_fit(answers(rows, some_choices(0)))
    assert choices_fit(answers(rows, constant(1).astype(np.int16)))


@pytest.mark.parametrize("weaker", [0.7, 0.97])
def test_choices_with_too_little_noise_are_caught(weaker, rows):
    assert not choices_fit(answers(rows, some_choices(0), weaker))


def test_a_step_of_a_choice_does_not_depend_on_what_was_chosen(rows):
    chosen = some_choices(1)
    steps = answers(rows, chosen)
    assert (steps == answers(rows, constant(0).astype(np.int16))).all()
    assert independent(steps, rows.flips())


def test_a_choice_of_nothing_becomes_any(rows):
    nothing, least = np.full(ROWS, -1, np.int16), np.full(ROWS, 6, np.uint64)  # changes nobody
    released = randomize_choices(nothing, rows.coins, rows.keys, least, np.full(ROWS, 7))
    assert stats.chisquare(np.bincount(released, minlength=7)).pvalue > FALSE_FAILURE


def test_choices_among_two_are_coins_of_another_purpose(rows):
    flips = np.full(ROWS, THRESHOLD, np.uint64)
    drawn = randomize_choices(some_choices(0) % 2, rows.coins, rows.keys, flips, np.full(ROWS, 2))
    flipped = drawn ^ (some_choices(0) % 2).astype(np.uint8)
    assert fits(int(flipped.sum()), ROWS, GAMMA)
    assert independent(flipped, rows.flips())


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
    release = lg.privatize(table, mechanism="rr", epsilon=4, delta=1e-6, project=lg.init(project))
    rows = pl.from_arrow(table)
    joined = rows.with_row_index().join(lg.load(release), on="prompt")
    assert len(joined) == len(rows)
    preferred = pl.when(pl.col("label") == 1).then("response_a").otherwise("response_b")
    return joined.filter(pl.col("label") != 0.5).with_columns(flipped=pl.col("chosen") != preferred)


@pytest.fixture
def fixed_keys(monkeypatch):
    world.fix_randomness(monkeypatch, world.repeatable_bytes())


@pytest.mark.usefixtures("fixed_keys")
def test_released_labels_are_flipped_as_the_accountant_says(tmp_path):
    frame = flips_of(survey(), tmp_path)
    gamma = 1 / (1 + np.exp(accounting.calibrate(4, 1e-6, 8)))
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
def test_a_release_whose_threshold_is_ten_percent_off_is_rejected(tmp_path, monkeypatch):
    exact = pricing.prices
    monkeypatch.setattr(
        pricing,
        "prices",
        lambda *asked: {
            k: {"threshold": int(price["threshold"] * 1.1)} for k, price in exact(*asked).items()
        },
    )
    frame = flips_of(survey(), tmp_path)
    gamma = 1 / (1 + np.exp(accounting.calibrate(4, 1e-6, 8)))
    assert not fits(int(frame["flipped"].sum()), len(frame), gamma)


@pytest.mark.usefixtures("fixed_keys")
def test_released_ties_show_each_side_alike(tmp_path):
    table = survey()
    ties = table.set_column(3, "label", pa.array(np.full(len(table), 0.5)))
    release = lg.privatize(ties, mechanism="rr", epsilon=4, delta=1e-6, project=lg.init(tmp_path))
    frame = lg.load(release)
    assert len(frame) == len(ties)
    assert fits(int((frame["chosen"] == "first").sum()), len(frame), 0.5)
