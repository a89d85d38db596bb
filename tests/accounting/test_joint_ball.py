"""The joint price of coins and one release with ball noise."""

from __future__ import annotations

import itertools
from functools import partial

import flint
import numpy as np
import pytest
from support.balls import delta_of_ball
from support.components import coins, gaussians

from labelguard.accounting import ball, joint
from labelguard.accounting import randomized_response as rr
from labelguard.accounting.joint import Balls, RandomizedBlocks, Share


def mixture(answers, noise, epsilon):
    """δ(ε) by enumeration of all answers, enclosed by Arb."""
    flint.ctx.prec = 200
    changed = flint.arb(answers.threshold) / 2**64
    one = [(-1, changed), (1, 1 - changed)]
    loss = ((1 - changed) / changed).log()
    steps: dict[int, flint.arb] = {}
    for way in itertools.product(one, repeat=answers.count):
        probability = flint.arb(1)
        for _, each in way:
            probability *= each
        total = sum(step for step, _ in way)
        steps[total] = steps.get(total, flint.arb(0)) + probability
    return sum(
        (
            probability * delta_of_ball(noise.scale, epsilon - step * loss, noise.components)
            for step, probability in steps.items()
        ),
        flint.arb(0),
    )


@pytest.mark.parametrize("answers", [coins(0.4, 4), coins(3.0, 1)], ids=["4", "1"])
@pytest.mark.parametrize("noise", [Balls(0.8, 2), Balls(0.3, 5)], ids=["2", "5"])
@pytest.mark.parametrize("epsilon", [0.0, 0.7, 2.5])
def test_delta_is_the_mixture_and_never_below_it(answers, noise, epsilon):
    truth = mixture(answers, noise, epsilon)
    found = flint.arb(joint.delta([noise, answers], epsilon))
    assert truth <= found
    assert found <= truth * (1 + 1e-11) + 1e-300


def test_a_ball_alone_costs_what_its_own_accountant_says():
    noise = Balls(0.7, 3)
    assert joint.delta([noise], 1.2) == ball.delta(0.7, 1.2, 3)
    assert joint.epsilon([noise], 1e-5) == ball.epsilon(0.7, 1e-5, 3)
    wanted = Share(partial(Balls.calibrate, components=3), 1)
    assert joint.calibrate(1.2, 1e-5, [wanted]) == (Balls(ball.calibrate(1.2, 1e-5, 3), 3),)
    assert joint.delta([noise, coins(0.0, 5)], 1.2) == ball.delta(0.7, 1.2, 3)


def test_calibration_together_with_coins_is_tight_and_never_above():
    wanted = [
        Share(RandomizedBlocks.calibrate, 50),
        Share(partial(Balls.calibrate, components=4), 1),
    ]
    answers, noise = joint.calibrate(1.0, 1e-5, wanted)
    assert noise.components == 4
    assert joint.delta([answers, noise], 1.0) <= 1e-5
    assert 1 - 1e-4 < joint.epsilon([answers, noise], 1e-5) <= 1
    assert joint.delta([answers, Balls(0.9 * noise.scale, 4)], 1.0) > 2e-5
    # More than (ε/2, δ) for each.
    assert answers.epsilon0 > 1.1 * rr.calibrate(0.5, 1e-5, 50)
    assert noise.scale < ball.calibrate(0.5, 1e-5, 4) / 1.1


def test_five_thousand_coins_beside_a_ball_have_a_price():
    product = [coins(0.005, 5000), Balls(2.0, 16)]
    epsilon = joint.epsilon(product, 1e-6)
    assert joint.delta(product, epsilon) <= 1e-6 < joint.delta(product, epsilon * (1 - 1e-6))
    alone = [joint.epsilon([part], 1e-6) for part in product]
    assert max(alone) < epsilon < sum(alone)


def test_pure_prices_add_up():
    product = [coins(0.1, 5), Balls(2.0, 7)]
    assert joint.pure_epsilon(product) == pytest.approx(1.0)
    assert joint.epsilon(product, 0.0) == pytest.approx(1.0)
    assert joint.delta(product, 1.0 + 1e-9) < 1e-12
    shares = [
        Share(RandomizedBlocks.calibrate, 5),
        Share(partial(Balls.calibrate, components=7), 1),
    ]
    answers, noise = joint.calibrate(1.0, 0.0, shares)
    assert answers.epsilon0 == pytest.approx(0.1) and noise.scale == pytest.approx(2.0)


def test_two_releases_with_ball_noise_have_no_price():
    with pytest.raises(ValueError, match="for one release only, found 2"):
        Balls(1.0, 4, 2)
    for other in (Balls(1.0, 4), Balls(1.0, 5), gaussians(3.0, 1)):
        with pytest.raises(ValueError, match="price for one release only"):
            joint.delta([Balls(1.0, 4), other], 1.0)


@pytest.mark.parametrize(("scale", "components"), [(0.0, 2), (2.0**24, 2), (1.0, 0)])
def test_a_ball_that_the_ledger_cannot_hold_is_refused(scale, components):
    with pytest.raises(ValueError, match="must be"):
        Balls(scale, components)


def test_deltas_of_a_ball_are_needed_at_losses_beyond_every_loss_of_it():
    """A coin at ε0 = 3 beside noise whose loss is at most 1: where the coin alone costs δ."""
    product = [coins(3.0, 1), Balls(1.0, 3)]
    alone = joint.delta(product[:1], 1.0)
    assert joint.delta(product, 1.0) >= alone > 0.8
    assert np.isclose(joint.delta([coins(3.0, 1), Balls(1e6, 3)], 1.0), alone, rtol=1e-5)
