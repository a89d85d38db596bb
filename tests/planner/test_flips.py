"""Flips in simulated worlds: their variance is that of joint flips, by enumeration."""

from itertools import combinations, product

import numpy as np
import pytest
from support.flips import coin, every_answer

from labelguard.accounting.blocks import find_block
from labelguard.mechanisms.statistic import Rows
from labelguard.planner.flips import Flips
from labelguard.planner.prior import Prior
from labelguard.planner.trials import FlippedLabels, derive_public_side


def variance(values, probability):
    return probability @ values**2 - (probability @ values) ** 2


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
@pytest.mark.parametrize("labels", [(4, 4, 4), (5, 3, 3), (4, 4, 2), (1, 1, 1)])
def test_a_labelers_sum_varies_in_trials_as_joint_flips_do(labels, epsilon):
    given, released, size = labels
    rng = np.random.default_rng(given)
    half = rng.standard_normal(given)
    vectors, probability = every_answer(coin(epsilon), size)
    sums, chances = [], []
    kept = list(combinations(range(given), released))
    for rows in kept:
        firsts = list(combinations(rows, size)) if size < released else [rows]
        for first in firsts:
            second = [row for row in rows if row not in first]
            for (s, p), (t, q) in product(
                zip(vectors, probability, strict=True),
                zip(vectors, probability, strict=True) if second else [(np.ones(0), 1.0)],
            ):
                sums.append(half[list(first)] @ s + half[second] @ t)
                chances.append(p * q / len(kept) / len(firsts))
    one = find_block(coin(epsilon), size)
    found = FlippedLabels.of(
        np.array([one.mean_sign]),
        np.array([one.mean_sign_product]),
        *(np.array([each]) for each in (size, float(released), given)),
    )
    alone = found.share - (found.share * found.signal) ** 2 - found.together
    of_sum = alone * (half @ half) + found.together * half.sum() ** 2
    assert of_sum == pytest.approx([variance(np.array(sums), np.array(chances))])


def test_heads_from_joint_flips_are_noisier_than_from_as_many_coins_with_that_probability():
    x = np.random.default_rng(0).standard_normal((30, 3)).astype(np.float32)
    rows = Rows(np.arange(30) % 15, np.repeat(np.arange(15), 2), 15)
    public = derive_public_side(x, rows)
    [trial] = public.trials(Prior(tie_rate=(0.0, 0.0)), 1)
    joint = Flips.of(public.counts, public.sampled_counts, 1.0, 0.0, None).sampled
    coins = FlippedLabels(joint.signal, joint.share, np.zeros(15))
    together, apart = trial.flipped_heads(joint), trial.flipped_heads(coins)
    np.testing.assert_array_equal(together.mean, apart.mean)
    weight = joint.signal**2 @ (joint.together[:, None] * (trial.sums**2 - public.energy))
    size, ridge = public.sizes[-1], public.ridges[0]
    shrunk = 1 / (joint.signal**2 @ public.energy + ridge)
    place = len(public.sizes) * len(public.ridges) - len(public.ridges)
    gap = together.variance[place] - apart.variance[place]
    np.testing.assert_allclose(gap[:size], (weight * shrunk**2)[:size], rtol=1e-3, atol=1e-6)


def test_one_of_two_stages_has_the_labels_of_every_other_labeler():
    labels = FlippedLabels(np.array([0.5, 0.6, 0.7]), np.ones(3), np.full(3, 0.1))
    half = labels.drop_every_second_labeler()
    assert half.share.tolist() == [1, 0, 1]
    assert half.together.tolist() == [0.1, 0, 0.1]
