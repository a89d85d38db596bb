"""The joint price of coins, sums and runs of gradient methods, against compositions by hand.

What two labelers cost together: vectors, brute force, and the bound in two steps.
"""

import itertools
import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm
from support import upper_bounds
from support.components import coins, gaussians
from support.runs import INTERVAL, subsampled_pld

from labelguard.accounting import ball, collusion, joint, subsampled
from labelguard.accounting import randomized_response as rr
from labelguard.accounting.blocks import Block
from labelguard.accounting.components import (
    Balls,
    Gaussians,
    Groups,
    RandomizedBlocks,
    SampledRecords,
    Subsampled,
    Unproven,
)
from labelguard.accounting.joint import Share

RUN = Subsampled(3.0, 0.1, 40, 1)
ONE_RUN = partial(Subsampled.calibrate, sampling_probability=0.1, steps=40)
KINDS: dict[str, Any] = {
    "els": partial(SampledRecords.calibrate, sampling_probability=0.1, steps=20, records=3),
    "els-group": partial(Groups.calibrate, sampling_probability=0.1, steps=20, records=3),
    "aup": partial(Unproven.calibrate, sampling_probability=0.2, steps=20),
}


def by_hand(epsilon0, k, noise_multiplier, releases, runs):
    """Coins, sums and runs as dp-accounting composes them, on its grid."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    answers = pld.from_randomized_response(
        2 * rr.flip_probability(epsilon0), 2, value_discretization_interval=INTERVAL / 8
    ).self_compose(k)
    # Under its own relation a Gaussian moves by the sensitivity as given: nothing is doubled.
    noise = pld.from_gaussian_mechanism(
        noise_multiplier / math.sqrt(releases), value_discretization_interval=INTERVAL / 8
    )
    return answers.compose(noise).compose(runs)


# --- against independent compositions ------------------------------------------------------------


def test_coins_sums_and_a_run_cost_what_their_distributions_composed_by_hand_cost():
    product = [coins(0.1, 12), gaussians(5.0, 3), RUN]
    theirs = by_hand(0.1, 12, 5.0, 3, subsampled_pld(3.0, 0.1, 40, interval=INTERVAL / 8))
    for epsilon in (0.5, 1.5, 3.0):
        coarser = theirs.get_delta_for_epsilon(epsilon)
        # Theirs rounds the loss of every coin up to the grid, ours that of none.
        finer = theirs.get_delta_for_epsilon(epsilon + 12 * INTERVAL / 8)
        assert finer * (1 - 1e-3) <= joint.delta(product, epsilon) <= coarser * (1 + 1e-4)
    found = joint.epsilon(product, 1e-5)
    assert found <= theirs.get_epsilon_for_delta(1e-5) <= found + 12 * INTERVAL / 8 + 1e-4


def test_a_joint_price_is_never_below_an_exact_one():
    """Where everybody is drawn all is in closed form, and next to it all is on the grid."""
    exact = joint.delta([coins(0.2, 9), gaussians(6.0, 2), gaussians(10.0, 40)], 1.3)
    certain = [coins(0.2, 9), gaussians(6.0, 2), Subsampled(20.0, 1.0, 40, 1)]
    assert joint.delta(certain, 1.3) == exact
    almost = [coins(0.2, 9), gaussians(6.0, 2), Subsampled(20.0, 1 - 1e-12, 40, 1)]
    assert exact * (1 - 1e-9) <= joint.delta(almost, 1.3) <= exact * (1 + 1e-4)


def test_a_converted_run_costs_its_epsilon_and_delta_composed_by_hand():
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    (run,) = joint.calibrate(1.0, 1e-6, [Share(KINDS["els-group"], 1)])
    assert isinstance(run, Groups) and run.epsilon == 1.0
    assert 1e-6 * (1 - 1e-8) < run.delta < 1e-6  # what is left is for rounding
    assert joint.epsilon([run], 1.001e-6) == pytest.approx(1.0, abs=1e-3)
    event = pld.from_privacy_parameters(
        common.DifferentialPrivacyParameters(1.0, 1e-6), INTERVAL / 8
    )
    theirs = by_hand(0.1, 12, 5.0, 3, event)
    product = [coins(0.1, 12), gaussians(5.0, 3), run]
    found = joint.epsilon(product, 1e-5)
    assert found <= theirs.get_epsilon_for_delta(1e-5) <= found + 14 * INTERVAL / 8 + 1e-4
    # Loss ∞ at δ, ±ε else: with coins alone a sum of four points each.
    e, d, (k, e0) = 1.0, 1e-6, (3, 0.5)
    flipped = rr.flip_probability(e0)
    for epsilon in (0.4, 1.6):
        exact = d + (1 - d) * math.fsum(
            math.comb(k, j)
            * flipped**j
            * (1 - flipped) ** (k - j)
            * math.exp(sign * e / 2)
            / (2 * math.cosh(e / 2))
            * max(0.0, -math.expm1(epsilon - (k - 2 * j) * e0 - sign * e))
            for j in range(k + 1)
            for sign in (1, -1)
        )
        price = joint.delta([coins(e0, k), run], epsilon)
        assert exact * (1 - 1e-9) <= price <= exact * (1 + 1e-5)


# --- how prices behave ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("singly", "together"),
    [
        ([RUN, RUN], [replace(RUN, count=2)]),
        ([RUN, RUN], [replace(RUN, steps=80)]),
        ([RUN, coins(0.1, 3), RUN, coins(0.1, 2)], [coins(0.1, 5), replace(RUN, count=2)]),
        ([Subsampled(8.0, 1.0, 5, 2), gaussians(4.0, 1)], [gaussians(4.0, 11)]),
    ],
    ids=["twice", "steps", "coins", "everybody"],
)
def test_n_runs_cost_n_times_the_steps(singly, together):
    for epsilon in (0.4, 2.0):
        assert joint.delta(singly, epsilon) == joint.delta(together, epsilon)


def test_a_run_alone_costs_what_its_own_accountant_says():
    assert joint.delta([RUN], 0.8) == subsampled.delta(3.0, 0.1, 40, 0.8)
    assert joint.epsilon([RUN], 1e-5) == subsampled.epsilon(3.0, 0.1, 40, 1e-5)
    assert joint.delta([RUN, coins(0.0, 4)], 0.8) == subsampled.delta(3.0, 0.1, 40, 0.8)


def test_upper_bounds_that_say_nothing_of_runs_are_infinite():
    assert upper_bounds.rdp([coins(0.1, 4), RUN], 1e-5) == math.inf
    assert joint.pure_epsilon([RUN]) == joint.epsilon([RUN], 0.0) == math.inf


# --- calibration ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_calibration_with_coins_and_sums_is_tight_and_a_tenth_less_noise_is_refused():
    wanted = [
        Share(RandomizedBlocks.calibrate, 10),
        Share(Gaussians.calibrate, 2),
        Share(ONE_RUN, 1),
    ]
    found = joint.calibrate(1.5, 1e-5, wanted)
    assert joint.delta(found, 1.5) <= 1e-5
    assert joint.epsilon(found, 1e-5) > 1.5 * (1 - 1e-4)
    run = found[-1]
    assert isinstance(run, Subsampled)
    assert (run.sampling_probability, run.steps, run.count) == (0.1, 40, 1)
    weaker = replace(run, noise_multiplier=0.9 * run.noise_multiplier)
    assert joint.delta([*found[:2], weaker], 1.5) > 1.2e-5


def test_two_runs_are_calibrated_together():
    (pair,) = joint.calibrate(1.0, 1e-5, [Share(ONE_RUN, 2)])
    assert isinstance(pair, Subsampled) and pair.count == 2
    assert pair.noise_multiplier == subsampled.calibrate(1.0, 1e-5, 0.1, 80)


@pytest.mark.parametrize(
    ("kind", "count"),
    [("els-group", 1)]
    + [
        pytest.param(kind, count, marks=pytest.mark.slow)
        for kind, count in [("els", 1), ("els", 2), ("aup", 1), ("aup", 2), ("els-group", 2)]
    ],
)
def test_converted_runs_share_a_budget_and_weaker_noise_is_not_believed(kind, count):
    coin, run = joint.calibrate(
        2.0, 1e-4, [Share(RandomizedBlocks.calibrate, 5), Share(KINDS[kind], count)]
    )
    assert isinstance(run, SampledRecords | Groups | Unproven) and run.count == count
    assert joint.delta([coin, run], 2.0) <= 1e-4
    assert joint.epsilon([coin, run], 1e-4) > 2.0 * (1 - 1e-4)
    assert run.compute_own_delta() <= run.delta
    weaker = replace(run, noise_multiplier=0.9 * run.noise_multiplier)
    assert weaker.compute_own_delta() > 1.5 * run.delta
    with pytest.raises(ValueError, match="noise_multiplier must be larger"):
        joint.delta([coin, weaker], 2.0)


# --- refusals ------------------------------------------------------------------------------------


def test_ball_noise_has_no_price_beside_runs():
    with pytest.raises(ValueError, match="none beside Gaussian noise or runs"):
        joint.delta([Balls(1.0, 4), RUN], 1.0)


def test_numbers_that_the_ledger_cannot_hold_are_refused():
    for numbers in ((0.0, 0.1, 5), (1.0, 0.0, 5), (1.0, 1.5, 5), (1.0, 0.1, 0), (2.0**24, 0.1, 5)):
        with pytest.raises(ValueError, match="must be"):
            Subsampled(*numbers, 1)
    with pytest.raises(ValueError, match="records must be"):
        Groups(
            noise_multiplier=1.0,
            sampling_probability=0.1,
            steps=5,
            records=0,
            epsilon=1.0,
            delta=1e-5,
            count=1,
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
    likely = sum(math.comb(3, j) for j in range(law.likely_change_limit + 1))
    total = odds * likely + 8 - likely
    answers = [*itertools.product(range(2), repeat=3)]

    def density(answer, label):
        changes = sum(letter != label for letter in answer)
        return (odds if changes <= law.likely_change_limit else 1) / total

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
