"""What is estimated from labels that were flipped together scatters no more than is said.

Statistical tests run on fixed seeds; 500 worlds know a coverage of .95 to .01, and what claims that
is accepted from .91 on (four standard errors), which the claim for labels flipped alone misses.
"""

import numpy as np
import pytest
from support.flips import coin, draw, every_answer, on_card

from labelguard.accounting.blocks import find_block
from labelguard.mechanisms.agreement import (
    estimate_between_labelers,
    estimate_with_gold,
    estimate_with_items_as_units,
)
from labelguard.mechanisms.randomized_response import (
    FlippedRows,
    coin_variance,
    compute_largest_eigenvalue,
    paired_standard_error,
    standard_error,
)

WORLDS = 500
COVERAGE = 0.91


@pytest.mark.parametrize("epsilon", [0.7, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("labels", [1, 2, 3, 6])
def test_no_weights_make_a_sum_of_one_block_vary_more_than_the_factor_says(labels, epsilon):
    vectors, probability = every_answer(coin(epsilon), labels)
    one = find_block(coin(epsilon), labels)
    covariance = np.cov(vectors.T, aweights=probability, bias=True).reshape(labels, labels)
    largest = float(np.linalg.eigvalsh(covariance)[-1])
    factor = compute_largest_eigenvalue(one.mean_sign, one.mean_sign_product, labels)
    assert factor == pytest.approx(largest, rel=1e-6)
    # Flips of single labels vary less: the test would tell.
    assert labels == 1 or factor > 1.001 * (1 - one.mean_sign**2)


def test_the_noise_of_a_row_is_that_of_the_block_with_its_flip_probability():
    blocks = on_card(coin(3.0), 2, 8)
    gammas = [one["flip_probability"] for one in blocks]
    rows = FlippedRows.of([gammas[1], 0.0, gammas[0] + 1e-12, 0.31], blocks)
    assert rows.size.tolist() == [8, 1, 2, 1]
    assert rows.noise[[1, 3]] == pytest.approx(coin_variance([0.0, 0.31]))
    laws = [find_block(coin(3.0), m) for m in (8, 2)]
    moments = np.array([(law.mean_sign, law.mean_sign_product, law.labels) for law in laws]).T
    factors = compute_largest_eigenvalue(*moments)
    assert rows.noise[[0, 2]] == pytest.approx(factors)
    twice = [*blocks, blocks[1] | {"labels": 2}]
    for order in (twice, twice[::-1]):
        assert FlippedRows.of(gammas[1:], order).size.tolist() == [8]


# Labels of 30 labelers: eight each, at ε = 8, where flips that come together come seldom.
EPSILON, LABELS, LABELERS = 8.0, 8, 30
BLOCKS = on_card(coin(EPSILON), LABELS)
GAMMA = np.full(LABELERS * LABELS, BLOCKS[0]["flip_probability"])
ITEMS = np.arange(LABELERS * LABELS) // 2
SIGNAL = 1 - 2 * GAMMA


def covers(estimates, truth):
    """How often ± 1.96 errors hold the truth, of (estimate, error)."""
    found = np.array(estimates)
    return float((np.abs(found[:, 0] - truth) <= 1.96 * found[:, 1]).mean())


def error_rate(s, blocks):
    """Of a model that is always right, of labels that are all turned to 1."""
    wrong = (s < 0).astype(float)
    rate = SIGNAL @ (wrong - GAMMA) / (SIGNAL @ SIGNAL)
    return rate, standard_error(wrong, GAMMA, ITEMS, blocks)


def gain(s, blocks):
    """Of a model that is always right beside one that is always wrong."""
    gained = -s.astype(float)
    rate = SIGNAL @ gained / (SIGNAL @ SIGNAL)
    return rate, paired_standard_error(gained, GAMMA, ITEMS, blocks)


def gold(s, blocks):
    found = estimate_with_gold(ITEMS, s, np.ones(len(s)), GAMMA, blocks)
    return found.agreement, found.standard_error


def between(s, blocks):
    """Eight labelers on each item, who all agree."""
    found = estimate_between_labelers(np.tile(np.arange(LABELS), LABELERS), s, GAMMA, blocks)
    return found.agreement, found.standard_error


@pytest.mark.parametrize(
    ("estimate", "truth"), [(error_rate, 0.0), (gain, -1.0), (gold, 1.0), (between, 1.0)]
)
def test_standard_errors_cover_flips_that_come_together_and_those_of_coins_do_not(estimate, truth):
    rng = np.random.default_rng(0)
    worlds = [draw(coin(EPSILON), LABELS, LABELERS, rng).ravel() for _ in range(WORLDS)]
    assert covers([estimate(s, BLOCKS) for s in worlds], truth) >= COVERAGE
    assert covers([estimate(s, ()) for s in worlds], truth) < COVERAGE - 0.02


def test_products_within_a_block_are_divided_by_the_second_moment():
    """600 items of two labels at ε = 1: by c1² agreement would be 3.3 times as far from ½."""
    blocks = on_card(coin(1.0), 2)
    gamma, items = np.full(1_200, blocks[0]["flip_probability"]), np.repeat(np.arange(600), 2)
    rng = np.random.default_rng(4)
    true = np.where(rng.random(1_200) < 0.7, 1, -1)
    agree = float((true[::2] == true[1::2]).mean())
    found, errors, wrong = [], [], []
    for _ in range(300):
        x = true * draw(coin(1.0), 2, 600, rng).ravel()
        estimate, other = (
            f(items, x, gamma, blocks)
            for f in (estimate_with_items_as_units, estimate_between_labelers)
        )
        found.append(estimate.agreement)
        errors.append(estimate.standard_error)
        wrong.append(other.agreement)
    error = np.std(found) / np.sqrt(300)
    assert abs(np.mean(found) - agree) < 5 * error < abs(np.mean(wrong) - agree)
    assert np.std(found) <= 1.1 * errors[0]
    assert (estimate.comparisons, estimate.items) == (600, 600)


def test_blocks_of_one_item_that_tell_nothing_or_are_several_are_not_compared():
    three = on_card(coin(1.0), 3)  # c2 = 0
    gamma = np.full(3, three[0]["flip_probability"])
    assert estimate_with_items_as_units([1, 1, 1], [1, 1, -1], gamma, three) is None
    two = on_card(coin(1.0), 2)
    gamma = np.full(5, two[0]["flip_probability"])
    found = estimate_with_items_as_units([1, 1, 1, 2, 2], [1, 1, 1, 1, -1], gamma, two)
    assert (found.comparisons, found.items) == (1, 1) and found.agreement < 0
    gamma[4] = 0.1  # of another release
    assert estimate_with_items_as_units([1, 1, 1, 2, 2], np.ones(5), gamma, two) is None
