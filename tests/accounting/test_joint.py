"""The joint price of coins and Gaussian releases, against independent computations of it.

The joint price of coins and one release with ball noise.
"""

import itertools
import math
from dataclasses import replace
from functools import partial

import flint
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support import upper_bounds
from support.balls import delta_of_ball
from support.components import coins, components, counts, deltas, gaussians, products

from labelguard.accounting import ball, gaussian, joint
from labelguard.accounting import randomized_response as rr
from labelguard.accounting.components import Balls, Component, Gaussians, RandomizedBlocks
from labelguard.accounting.joint import Share

shares = st.lists(
    st.builds(
        Share,
        st.sampled_from([RandomizedBlocks.calibrate, Gaussians.calibrate]),
        counts,
        st.floats(0.2, 5),
    ),
    min_size=1,
    max_size=3,
)

MIXED: tuple[Component, ...] = (
    coins(0.3, 20),
    coins(0.2, 15),
    gaussians(4.0, 6),
    coins(0.1, 9),
    gaussians(9.0, 2),
)


# --- known values --------------------------------------------------------------------------------


@given(st.floats(0.01, 20), st.floats(1e-12, 0.3), counts, st.floats(0.01, 100))
@settings(max_examples=30, deadline=None)
def test_a_single_share_gets_what_its_own_accountant_gives(epsilon, delta, count, weight):
    def single(calibrated):
        return joint.calibrate(epsilon, delta, [Share(calibrated, count, weight)])

    flipped = rr.threshold(rr.calibrate(epsilon, delta, count))
    noise = gaussian.calibrate(epsilon, delta, count)
    assert single(RandomizedBlocks.calibrate) == (RandomizedBlocks(flipped, count),)
    assert single(Gaussians.calibrate) == (Gaussians(noise, count),)


# --- against independent computations ------------------------------------------------------------


def delta_in_high_precision(product, epsilon):
    """The formula of the module's first lines as it stands, by enumeration, in 80 digits."""
    mp = pytest.importorskip("mpmath").mp.clone()
    mp.dps = 80
    total, everything = mp.mpf(0), mp.mpf(2) ** 64
    atoms, square = [(mp.mpf(0), mp.mpf(1))], mp.mpf(0)
    for component in product:
        k = component.count
        if isinstance(component, Gaussians):
            square += k / mp.mpf(component.noise_multiplier) ** 2
            continue
        changed = component.threshold / everything
        loss = mp.log((1 - changed) / changed)
        steps = [
            ((k - 2 * j) * loss, mp.binomial(k, j) * changed**j * (1 - changed) ** (k - j))
            for j in range(k + 1)
        ]
        atoms = [(a + b, p * q) for (a, p), (b, q) in itertools.product(atoms, steps)]
    mu = mp.sqrt(square)
    for loss, probability in atoms:
        rest = epsilon - loss
        if square:
            part = mp.ncdf(mu / 2 - rest / mu) - mp.exp(rest) * mp.ncdf(-mu / 2 - rest / mu)
        else:
            part = max(mp.mpf(0), 1 - mp.exp(rest))
        total += probability * part
    return total


@pytest.mark.parametrize(
    "product",
    [
        (coins(0.3, 20), gaussians(4.0, 6)),
        (coins(0.05, 60), gaussians(50.0, 1)),
        (coins(2.0, 3), gaussians(1e5, 4)),  # the two normals all but coincide
        (coins(0.01, 5), gaussians(0.3, 2)),  # and are far apart
        (coins(0.5, 8), gaussians(3.0, 2)),
        (coins(0.5, 7), coins(0.4, 6), gaussians(3.0, 2), gaussians(2.0, 1)),
        (coins(0.5, 7), coins(0.3, 12)),
        (coins(0.5, 7), coins(0.7, 5)),
    ],
)
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0, 5.5])
def test_delta_is_the_formula_and_never_below_it(product, epsilon):
    exact = delta_in_high_precision(product, epsilon)
    found = joint.delta(product, epsilon)
    assert exact <= found <= exact * (1 + 1e-9) + 1e-300


@pytest.mark.parametrize("distance", [1e-6, 0.01, 0.2499, 0.25, 1.0, 5.0, 100.0])
def test_the_gaussian_part_is_accurate_for_losses_of_either_sign(distance):
    mp = pytest.importorskip("mpmath").mp.clone()
    mp.dps = 80
    generator = np.random.default_rng(5)
    spread = np.concatenate([generator.uniform(-36, 36, 40), [0.0, distance / 2, -distance / 2]])
    rest = distance * spread
    found = gaussian.deltas(rest, distance)
    for x, value in zip(rest.tolist(), found.tolist(), strict=True):
        mu = mp.mpf(distance)
        exact = mp.ncdf(mu / 2 - x / mu) - mp.exp(x) * mp.ncdf(-mu / 2 - x / mu)
        # Half a unit of rounding of 1 − e^x is left to the margin of the caller.
        assert exact * (1 - 1e-15) <= value <= exact * (1 + 1e-10) + 1e-300


def test_too_many_unlike_answers_are_refused():
    unlike = [coins(0.01 * (1 + n), 1000) for n in range(3)]
    with pytest.raises(ValueError, match="too many unlike blocks"):
        joint.delta(unlike, 1.0)


@given(products, deltas)
@settings(max_examples=80, deadline=None)
def test_no_upper_bound_of_another_theorem_is_below_the_price(product, delta):
    exact = joint.epsilon(product, delta) * (1 - 1e-9)
    assert exact <= upper_bounds.rdp(product, delta)
    assert exact <= upper_bounds.basic(product, delta)
    assert exact <= joint.pure_epsilon(product)


# --- how prices behave ---------------------------------------------------------------------------


@given(products, st.floats(0, 10), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_the_order_of_components_is_of_no_consequence(product, epsilon, shuffler):
    shuffled = list(product)
    shuffler.shuffle(shuffled)
    assert joint.delta(shuffled, epsilon) == joint.delta(product, epsilon)


@given(products, st.floats(0, 10))
@settings(max_examples=60, deadline=None)
def test_n_components_of_count_one_cost_what_one_of_count_n_costs(product, epsilon):
    singly: list[Component] = []
    for component in product:
        singly += [replace(component, count=1)] * component.count
    assert joint.delta(singly, epsilon) == joint.delta(product, epsilon)


@given(products, components, st.floats(0, 10), st.floats(0, 3))
@settings(max_examples=60, deadline=None)
def test_delta_rises_with_components_and_falls_with_epsilon(product, more, epsilon, step):
    # The margins for rounding, some 1e-11, differ between products. And where coins alone add up
    # to epsilon, their δ is 0.
    here = joint.delta(product, epsilon)
    assert joint.delta([*product, more], epsilon) >= here * (1 - 1e-9)
    assert joint.delta(product, epsilon + step) <= here * (1 + 1e-9)


@given(products, deltas)
@settings(max_examples=60, deadline=None)
def test_epsilon_is_the_inverse_of_delta(product, delta):
    epsilon = joint.epsilon(product, delta)
    assert joint.delta(product, epsilon) <= delta
    assert epsilon == 0 or joint.delta(product, epsilon * (1 - 1e-9)) > delta * (1 - 1e-6)


def test_components_without_protection_cost_their_values_and_nothing_costs_nothing():
    assert joint.delta([], 0.0) == joint.epsilon([], 1e-5) == joint.epsilon([], 0.0) == 0
    assert joint.delta([RandomizedBlocks(2**63, 100)], 0.0) == 0  # fair coins
    assert joint.epsilon([coins(0.1, 10), coins(0.2, 5)], 0.0) == pytest.approx(2.0)
    assert joint.delta([coins(0.1, 10), coins(0.2, 5)], 2.0 * (1 + 1e-14)) == 0
    assert joint.delta([coins(40.0, 1), gaussians(0.001, 1)], 0.0) == pytest.approx(1)


# --- calibration ---------------------------------------------------------------------------------


@given(st.floats(0.05, 12), st.floats(1e-9, 1e-2), shares)
@settings(max_examples=25, deadline=None)
def test_calibration_is_tight_and_never_above(epsilon, delta, wanted):
    calibrated = joint.calibrate(epsilon, delta, wanted)
    assert [component.count for component in calibrated] == [share.count for share in wanted]
    assert joint.delta(calibrated, epsilon) <= delta
    # Its inverse is rounded up.
    assert joint.epsilon(calibrated, delta) <= math.nextafter(epsilon, math.inf)
    # A budget that is mostly δ buys total variation, to which ε says little.
    assume(delta < epsilon / 100)
    assert joint.epsilon(calibrated, delta) >= epsilon * (1 - 1e-3)


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-4, 1e-2), (1e-3, 0.3), (0.01, 0.9)])
def test_a_delta_beside_which_epsilon_is_small_is_shared_too(epsilon, delta):
    wanted = [
        Share(RandomizedBlocks.calibrate, 5),
        Share(Gaussians.calibrate, 2),
        Share(Gaussians.calibrate, 9),
        Share(RandomizedBlocks.calibrate, 3),
    ]
    calibrated = joint.calibrate(epsilon, delta, wanted)
    assert 0.97 * delta <= joint.delta(calibrated, epsilon) <= delta


def test_pure_privacy_is_shared_among_coins_by_weight():
    first, second = joint.calibrate(
        1.0, 0.0, [Share(RandomizedBlocks.calibrate, 5, 3.0), Share(RandomizedBlocks.calibrate, 2)]
    )
    assert first.epsilon0 == pytest.approx(0.15)
    assert second.epsilon0 == pytest.approx(0.125)
    assert joint.delta([first, second], 1.0) == 0
    assert joint.epsilon([first, second], 0.0) <= 1 + 1e-14


# --- refusals ------------------------------------------------------------------------------------


def test_numbers_that_the_ledger_cannot_hold_are_refused():
    for kind, price in (
        (RandomizedBlocks, 0),
        (RandomizedBlocks, 2**63 + 1),
        (Gaussians, 0),
        (Gaussians, 2.0**24),
    ):
        with pytest.raises(ValueError, match=r"must be"):
            kind(price, count=1)
    with pytest.raises(ValueError, match=r"count must be an integer >= 1, found 0"):
        RandomizedBlocks(2**62, 0)
    with pytest.raises(ValueError, match=r"weight must be finite and > 0"):
        Share(RandomizedBlocks.calibrate, 1, 0.0)


def test_a_budget_that_cannot_be_met_is_refused():
    with pytest.raises(ValueError, match=r"Gaussian noise gives no pure privacy"):
        joint.calibrate(
            1.0, 0.0, [Share(RandomizedBlocks.calibrate, 1), Share(Gaussians.calibrate, 1)]
        )
    with pytest.raises(ValueError, match=r"Gaussian noise gives no pure privacy"):
        joint.epsilon(MIXED, 0.0)
    with pytest.raises(ValueError, match=r"at least one share"):
        joint.calibrate(1.0, 1e-5, [])
    with pytest.raises(ValueError, match=r"epsilon must be finite"):
        joint.delta(MIXED, math.nan)


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
