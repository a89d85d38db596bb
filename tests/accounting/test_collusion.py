"""What two labelers cost together: vectors, brute force, and the bound in two steps."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm

from labelguard.accounting import ball, collusion, joint
from labelguard.accounting.blocks import Block
from labelguard.accounting.components import (
    Balls,
    Gaussians,
    RandomizedBlocks,
    Unproven,
)

DELTA = 1e-5


def test_a_statistic_at_three_is_at_671_for_two():
    """From an independent bisection of Balle and Wang's formula at σ/2."""
    one = Gaussians.calibrate(3, DELTA, 1)
    found = collusion.epsilon([one], DELTA)
    assert found == pytest.approx(6.7061, abs=1e-4)

    def delta(epsilon):
        shift = 2 / one.noise_multiplier
        low, high = shift / 2 - epsilon / shift, -shift / 2 - epsilon / shift
        return float(norm.cdf(low) - math.exp(epsilon) * norm.cdf(high))

    assert found is not None
    assert delta(found) <= DELTA < delta(found - 1e-6)


@pytest.mark.parametrize(("labels", "expected"), [(1, 6.00001), (10, 5.39147), (50, 4.53435)])
def test_two_who_give_coins_give_twice_as_many(labels, expected):
    one = RandomizedBlocks.calibrate(3, DELTA, labels)
    assert collusion.epsilon([one], DELTA) == pytest.approx(expected, abs=1e-5)
    gamma, total = one.threshold / 2**64, 2 * labels
    found = collusion.epsilon([one], DELTA) or 0.0
    flips = np.arange(total + 1)
    chance = [math.comb(total, j) * gamma**j * (1 - gamma) ** (total - j) for j in flips.tolist()]
    loss = (total - 2 * flips) * math.log((1 - gamma) / gamma)
    excess = np.maximum(0, -np.expm1(found - loss)) @ np.array(chance)
    assert excess == pytest.approx(DELTA, rel=1e-4)


def hockey_stick(one, other, epsilon):
    return sum(max(0.0, chance - math.exp(epsilon) * other[at]) for at, chance in one.items())


def test_all_outcomes_of_two_labelers_with_two_blocks_of_three_each():
    """Every pair of neighbours who differ in all labels of both, by enumeration."""
    part = RandomizedBlocks.calibrate(1.0, 1e-3, 2)
    law = Block(part.threshold, 3)
    odds = (2**64 - law.threshold - 1) / (law.threshold + 1)
    likely = sum(math.comb(3, j) for j in range(law.most_changes + 1))
    total = odds * likely + 8 - likely
    answers = [*itertools.product(range(2), repeat=3)]

    def density(answer, label):
        changes = sum(letter != label for letter in answer)
        return (odds if changes <= law.most_changes else 1) / total

    def laws(label):
        one = [density(answer, label) for answer in answers]
        return {at: math.prod(one[i] for i in at) for at in itertools.product(range(8), repeat=4)}

    found = collusion.epsilon([part], 1e-3) or 0.0
    worst = hockey_stick(laws(0), laws(1), found)
    assert worst <= 1e-3
    # The negative control: the price of one is not that of two.
    assert hockey_stick(laws(0), laws(1), 1.0) > 1e-2


@pytest.mark.parametrize("components", [1, 4, 16])
@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_two_steps_of_a_ball_are_little_more_than_one_of_twice_the_length(components, epsilon):
    one = Balls.calibrate(epsilon, DELTA, 1, components)
    exact = ball.epsilon(one.scale / 2, DELTA, components)
    found = collusion.epsilon([one], DELTA)
    assert found is not None
    assert exact <= found <= 1.005 * exact
    assert found <= 2 / one.scale * (1 + 1e-9)
    assert exact > 1.9 * epsilon


@pytest.mark.parametrize(
    "parts",
    [
        [Gaussians.calibrate(3, DELTA, 4)],
        [RandomizedBlocks.calibrate(3, DELTA, 20)],
        [RandomizedBlocks.calibrate(1, DELTA / 2, 8), Gaussians.calibrate(2, DELTA / 2, 3)],
    ],
    ids=["gaussian", "answers", "jointly"],
)
def test_two_steps_are_never_less_than_what_is_exact(parts):
    exact, steps = collusion.epsilon(parts, DELTA), collusion.epsilon_by_two_steps(parts, DELTA)
    assert exact is not None and joint.epsilon(parts, DELTA) < exact <= steps


def test_of_what_is_unproven_nothing_is_stated():
    unproven = Unproven(
        noise_multiplier=3.0, sampling_probability=0.1, steps=10, epsilon=3.0, delta=DELTA, count=1
    )
    assert collusion.epsilon([unproven], DELTA) is None
