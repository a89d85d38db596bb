"""The price of ball noise, against independent computations of the same numbers.

Blocks of randomized response: exact laws, by enumeration and by numbers from elsewhere.
"""

import itertools
import math
from fractions import Fraction

import flint
import numpy as np
import pytest
from scipy import integrate
from support.balls import delta_of_ball

from labelguard.accounting import ball, gaussian
from labelguard.accounting import randomized_response as rr
from labelguard.accounting.blocks import Block

# --- measured vectors ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("components", "epsilon", "scale"),
    [
        (4, 0.5, 1.957804),
        (4, 1, 0.985245),
        (4, 3, 0.330868),
        (8, 0.5, 1.787299),
        (8, 1, 0.913308),
        (8, 3, 0.314461),
        (16, 0.5, 1.479235),
        (16, 1, 0.767810),
        (16, 3, 0.272697),
        (3, 1, 0.994848),
    ],
)
def test_calibration_gives_the_measured_scale(components, epsilon, scale):
    assert ball.calibrate(epsilon, 1e-5, components) == pytest.approx(scale, abs=5.1e-7)


@pytest.mark.parametrize(
    ("components", "ratio"), [(2, 0.22), (4, 0.35), (8, 0.54), (16, 0.72), (32, 0.85)]
)
def test_few_components_need_less_variance_than_a_gaussian(components, ratio):
    variance = (components + 1) * ball.calibrate(1, 1e-5, components) ** 2
    assert variance / gaussian.calibrate(1, 1e-5) ** 2 == pytest.approx(ratio, abs=5.1e-3)


def test_with_many_components_the_noise_is_that_of_a_gaussian():
    deviation = math.sqrt(20_001) * ball.calibrate(1, 1e-5, 20_000)
    assert deviation == pytest.approx(gaussian.calibrate(1, 1e-5), rel=2e-4)


# --- against independent computations ------------------------------------------------------------


@pytest.mark.parametrize(
    ("components", "scale", "epsilon", "margin"),
    [
        (2, 0.9991, 1.0, 3e-11),
        (2, 0.5, 0.0, 1e-12),
        (3, 0.994848, 1.0, 1e-11),
        (4, 0.330868, 3.0, 1e-11),
        (5, 0.125, 7.5, 1e-11),
        (7, 0.01, 3.0, 1e-12),
        (7, 0.01, 90.0, 1e-11),
        (16, 1.479235, 0.5, 1e-12),
        (16, 1.479235, 0.67, 1e-11),
        (33, 1e4, 1e-5, 1e-11),
        (64, 0.4435, 1.0, 1e-12),
        (101, 0.01, 60.0, 1e-11),
        (512, 0.17, 1.0, 1e-11),
    ],
)
def test_delta_is_never_below_the_truth_and_hardly_above(components, scale, epsilon, margin):
    truth = delta_of_ball(scale, epsilon, components)
    assert truth > 1e-300
    assert truth.rel_accuracy_bits() > 60
    found = flint.arb(ball.delta(scale, epsilon, components))
    assert truth <= found
    assert found <= truth * (1 + margin)


@pytest.mark.parametrize("components", [1, 2, 3, 12])
def test_the_loss_of_sampled_noise_has_this_delta_at_every_sign_of_epsilon(components):
    scale, count = 0.4, 200_000
    generator = np.random.default_rng(5)
    direction = generator.normal(size=(count, components))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    noise = direction * generator.gamma(components, scale, size=(count, 1))
    moved = noise.copy()
    moved[:, 0] += 1
    loss = (np.linalg.norm(moved, axis=1) - np.linalg.norm(noise, axis=1)) / scale
    epsilons = np.array([-3.0, -2.4, -1.0, -0.1, 0.0, 0.3, 1.0, 2.0, 2.6])
    sampled = np.maximum(0.0, -np.expm1(epsilons[:, np.newaxis] - loss))
    # One check in 1.7 million errs by chance at five standard errors.
    error = 5 * sampled.std(axis=1) / math.sqrt(count) + 1e-12
    found = ball.deltas(epsilons, scale, components)
    assert np.all(np.abs(found - sampled.mean(axis=1)) <= error)


def test_one_component_is_laplace_noise():
    scale, epsilon = 0.7, 0.9
    # The densities are |y| and |y − 1| apart; the loss passes ε at this place.
    end = (1 - epsilon * scale) / 2
    one, _ = integrate.quad(lambda y: math.exp(-abs(y) / scale) / (2 * scale), -50, end, points=[0])
    other, _ = integrate.quad(lambda y: math.exp(-abs(y - 1) / scale) / (2 * scale), -50, end)
    truth = one - math.exp(epsilon) * other
    assert ball.delta(scale, epsilon, 1) == pytest.approx(truth, rel=1e-9)


# --- laws ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("components", [1, 2, 3, 17])
@pytest.mark.parametrize("epsilon", [0.1, 1 / 3, 1.0, 7.0])
def test_the_reciprocal_scale_is_pure(epsilon, components):
    scale = ball.calibrate(epsilon, 0.0, components)
    assert Fraction(scale) == Fraction(math.ceil(2**40 / Fraction(epsilon)), 2**40)
    assert ball.delta(scale, epsilon, components) == 0
    assert ball.epsilon(scale, 0.0, components) <= epsilon
    assert ball.delta(scale * (1 - 1e-6), epsilon, components) > 0


def test_epsilon_beyond_the_range_of_the_loss():
    at = np.array([-800.0, -2.5, -2.0, 2.5, 2.500001, 900.0])
    found = ball.deltas(at, 0.4, 6)
    assert found[:2] == pytest.approx(-np.expm1(at[:2]), rel=1e-14)
    assert found[2] > -np.expm1(-2.0)
    assert np.all(found[3:] == 0)


@pytest.mark.parametrize("components", [1, 2, 9, 100])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.2, 1e-9), (1.0, 1e-5), (20.0, 0.3)])
def test_calibration_and_epsilon_are_inverses_on_the_safe_side(epsilon, delta, components):
    scale = ball.calibrate(epsilon, delta, components)
    assert scale * 2**40 == int(scale * 2**40)
    assert ball.delta(scale, epsilon, components) <= delta
    assert ball.delta(scale - 2**-40, epsilon, components) > delta
    back = ball.epsilon(scale, delta, components)
    assert ball.delta(scale, back, components) <= delta
    assert epsilon * (1 - 1e-8) <= back <= epsilon


def test_a_release_that_reveals_little_is_free():
    assert ball.epsilon(1e3, 0.2, 4) == 0


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scale", "epsilon", "components", "text"),
    [
        (0.0, 1.0, 2, "scale must be finite and > 0"),
        (1.0, -1.0, 2, "epsilon must be finite and >= 0"),
        (1.0, 0.5, 0, "components must be an integer >= 1"),
        (1.0, 0.5, 2.0, "components must be an integer >= 1"),
        (1.0, 0.5, 2**16 + 1, "components must be in .1, 65536."),
        (1e-9, 1.0, 3, "expected a scale of 1e-4 or more"),
    ],
)
def test_values_that_have_no_price(scale, epsilon, components, text):
    with pytest.raises(ValueError, match=text):
        ball.delta(scale, epsilon, components)


def test_a_budget_that_is_none():
    with pytest.raises(ValueError, match="components must be in"):
        ball.calibrate(1.0, 1e-5, 10**9)
    with pytest.raises(ValueError, match="delta must be in"):
        ball.calibrate(1.0, 1.0, 3)
    with pytest.raises(ValueError, match="epsilon must be finite and > 0"):
        ball.calibrate(0.0, 1e-5, 3)


# Labels, then t, γ and Σ(1−2γ)² at ε0 = 1, 3 and 8.
MEASURED = [
    (1, (0, 0.2689, 0.214), (0, 0.0474, 0.819), (0, 0.0003, 0.999)),
    (2, (0, 0.3498, 0.181), (0, 0.0866, 1.367), (0, 0.0007, 1.995)),
    (3, (1, 0.3845, 0.160), (0, 0.1477, 1.490), (0, 0.0013, 2.984)),
    (8, (3, 0.4277, 0.167), (2, 0.2917, 1.388), (0, 0.0396, 6.784)),
    (16, (7, 0.4501, 0.159), (5, 0.3545, 1.355), (2, 0.1698, 6.978)),
    (50, (23, 0.4718, 0.159), (20, 0.4183, 1.335), (15, 0.3076, 7.407)),
    (200, (97, 0.4859, 0.158), (91, 0.4590, 1.346), (80, 0.4032, 7.491)),
]
SMALL = (1, 2, 3, 5, 8)
EPSILONS = (0.1, 1.0, 3.0, 8.0)


def make(epsilon0, labels):
    return Block(rr.threshold(epsilon0), labels)


def count_changes(block):
    """Return how many of the 2^N random numbers have j changes, for j = 0 … m."""
    size = block.bytes_per_draw
    # Numpy's bytes end before the last zeros.
    drawn = (each.ljust(size, b"\0") for each in block.change_limits.tolist())
    limits = [0, *(int.from_bytes(each, "big") for each in drawn), 256**size]
    return [high - low for low, high in itertools.pairwise(limits)]


def densities(block):
    """Return the exact probability of one answer with j changes, as it is drawn."""
    ways = [math.comb(block.labels, j) for j in range(block.labels + 1)]
    whole = 256**block.bytes_per_draw
    return [Fraction(n, whole * way) for n, way in zip(count_changes(block), ways, strict=True)]


@pytest.mark.parametrize(("labels", "at_1", "at_3", "at_8"), MEASURED)
def test_flips_and_information_are_the_measured_ones(labels, at_1, at_3, at_8):
    for epsilon0, (t, gamma, information) in zip((1, 3, 8), (at_1, at_3, at_8), strict=True):
        block = make(epsilon0, labels)
        assert block.likely_change_limit == t
        assert block.flip_probability == pytest.approx(gamma, abs=5e-5)
        assert labels * block.mean_sign**2 == pytest.approx(information, abs=5e-4)


@pytest.mark.parametrize("labels", SMALL)
@pytest.mark.parametrize("epsilon0", EPSILONS)
def test_no_answer_is_more_likely_than_the_price_says(epsilon0, labels):
    block = make(epsilon0, labels)
    drawn = densities(block)
    paid = Fraction(2**64 - block.threshold, block.threshold)
    assert max(drawn) / min(drawn) <= paid
    # Changing every label moves an answer from any of these densities to any other.
    changed = [
        drawn[sum(a != b for a, b in zip(truth, answer, strict=True))]
        for truth in ([0] * labels, [1] * labels)
        for answer in itertools.product(range(2), repeat=labels)
    ]
    assert sum(changed) == 2


@pytest.mark.parametrize("labels", SMALL)
@pytest.mark.parametrize("epsilon0", EPSILONS)
def test_moments_are_those_of_all_answers(epsilon0, labels):
    block = make(epsilon0, labels)
    drawn, kept, other = densities(block), Fraction(0), Fraction(0)
    both, one, none = Fraction(0), Fraction(0), Fraction(0)
    for answer in itertools.product(range(2), repeat=labels):
        density = drawn[sum(letter > 0 for letter in answer)]
        kept += density * (answer[0] == 0)
        other += density * (answer[0] == 1)
        if labels > 1:
            both += density * (answer[:2] == (0, 0))
            one += density * (answer[:2] == (0, 1))
            none += density * (answer[:2] == (1, 1))
    assert float(kept) == pytest.approx(1 - block.flip_probability, rel=1e-12)
    assert float(kept - other) == pytest.approx(block.mean_sign, rel=1e-12)
    if labels > 1:
        assert float(both - 2 * one + none) == pytest.approx(block.mean_sign_product, abs=1e-15)


@pytest.mark.parametrize("epsilon0", EPSILONS)
def test_no_other_number_of_changes_tells_more(epsilon0):
    gain = math.expm1(epsilon0)
    for labels in range(1, 40):

        def first_moment(t, labels=labels):
            likely = sum(math.comb(labels, j) for j in range(t + 1))
            return gain * math.comb(labels - 1, t) / (2**labels + gain * likely)

        best = max(map(first_moment, range(labels)))
        assert make(epsilon0, labels).mean_sign == pytest.approx(best, rel=1e-12)


def test_one_label_is_a_coin():
    for epsilon0 in EPSILONS:
        gamma = make(epsilon0, 1).flip_probability
        assert gamma == pytest.approx(rr.flip_probability(epsilon0), rel=1e-15)


@pytest.mark.parametrize("arguments", [(0, 1), (2**63, 1), (2**60, 0), (2**60, 16_385)])
def test_numbers_out_of_range_are_refused(arguments):
    with pytest.raises(ValueError, match="must be"):
        Block(*arguments)
