"""The price of choices among K options: against all outcomes, and against its two special cases."""

from __future__ import annotations

import itertools
import math
import sys
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import upper_bounds
from support.components import coins, gaussians

from labelguard.accounting import joint
from labelguard.accounting import randomized_response as rr
from labelguard.accounting.joint import BinaryAnswers, ChoiceAnswers, Share
from labelguard.accounting.kary import KAry

COIN_RANGE = 2**64
SEVERAL = (2, 3, 4, 7, 256)


def transition(options: int, epsilon0: float) -> NDArray[np.float64]:
    """Row: true choice; column: answer."""
    other = 1 / (math.exp(epsilon0) + options - 1)
    return np.full((options, options), other) + np.eye(options) * (math.exp(epsilon0) - 1) * other


def delta_by_enumeration(sizes: list[int], epsilon0: float, epsilon: float) -> float:
    """The largest divergence over all pairs of choice vectors, each choice among its own number."""
    whole = np.ones((1, 1))
    for options in sizes:
        whole = np.kron(whole, transition(options, epsilon0))
    gaps = np.maximum(0, whole[:, None, :] - math.exp(epsilon) * whole[None, :, :])
    return float(gaps.sum(axis=2).max())


def delta_in_decimal(options: int, epsilon0: float, k: int, epsilon: float) -> Decimal:
    """The multinomial sum, term by term in 60 digits."""
    with localcontext(prec=60):
        step, total = Decimal(epsilon0).exp(), Decimal(0)
        for a, b in itertools.product(range(k + 1), repeat=2):
            c = k - a - b
            loss = (a - b) * Decimal(epsilon0)
            if c >= 0 and loss > Decimal(epsilon):
                ways = math.factorial(k) // math.factorial(a) // math.factorial(b)
                weight = ways // math.factorial(c) * (options - 2) ** c * step**a
                part = 1 - (Decimal(epsilon) - loss).exp()
                total += weight / (step + options - 1) ** k * part
        return total


@pytest.mark.parametrize(("options", "k"), [(2, 3), (3, 3), (4, 3), (6, 2), (9, 2), (30, 1)])
@pytest.mark.parametrize(("epsilon0", "epsilon"), [(0.5, 0.0), (0.7, 0.6), (1.5, 2.0), (3.0, 3.1)])
def test_delta_is_that_of_the_worst_pair_of_choice_vectors(
    options: int, k: int, epsilon0: float, epsilon: float
) -> None:
    truth = delta_by_enumeration([options] * k, epsilon0, epsilon)
    assert KAry(options).delta(epsilon0, k, epsilon) == pytest.approx(truth, rel=1e-11, abs=1e-15)


@pytest.mark.parametrize("options", [2, 3, 19, 256])
@pytest.mark.parametrize(
    ("epsilon0", "k", "epsilon"),
    [(1e-6, 2, 1e-7), (0.2, 30, 2.0), (1.0, 25, 0.0), (50.0, 12, 70.0), (3.0, 40, 115.0)],
)
def test_delta_is_never_below_the_truth(
    options: int, epsilon0: float, k: int, epsilon: float
) -> None:
    truth = delta_in_decimal(options, epsilon0, k, epsilon)
    found = Decimal(KAry(options).delta(epsilon0, k, epsilon))
    assert truth * (1 - Decimal("1e-16")) <= found <= truth * (1 + Decimal("1e-12"))


@given(st.floats(1e-4, 8), st.integers(1, 200), st.floats(0, 10))
@settings(max_examples=40, deadline=None)
def test_two_options_are_coins(epsilon0: float, k: int, epsilon: float) -> None:
    binary = rr.delta(epsilon0, k, epsilon)
    smallest = sys.float_info.min
    assert KAry(2).delta(epsilon0, k, epsilon) == pytest.approx(binary, rel=1e-10, abs=smallest)
    assert KAry(2).threshold(epsilon0) == rr.threshold(epsilon0)


# --- more options cost less, fewer cost more -----------------------------------------------------


@given(st.floats(1e-3, 5), st.integers(1, 60), st.floats(0, 6))
@settings(max_examples=40, deadline=None)
def test_delta_falls_with_the_number_of_options(epsilon0: float, k: int, epsilon: float) -> None:
    found = [KAry(options).delta(epsilon0, k, epsilon) for options in SEVERAL]
    assert all(one >= other * (1 - 1e-9) for one, other in itertools.pairwise(found))


@pytest.mark.parametrize("sizes", [[3, 4, 5], [3, 3, 8], [4, 3], [6, 3]])
@pytest.mark.parametrize(("epsilon0", "epsilon"), [(0.7, 0.6), (1.5, 2.0)])
def test_choices_among_more_options_cost_no_more_in_any_mixture(
    sizes: list[int], epsilon0: float, epsilon: float
) -> None:
    mixed = delta_by_enumeration(sizes, epsilon0, epsilon)
    assert mixed <= KAry(min(sizes)).delta(epsilon0, len(sizes), epsilon) * (1 + 1e-12)


def test_a_price_for_many_options_is_none_for_few() -> None:
    epsilon0 = KAry(8).calibrate(3, 1e-5, 50)
    assert KAry(8).delta(epsilon0, 50, 3) <= 1e-5
    assert KAry(2).delta(epsilon0, 50, 3) == pytest.approx(0.025, rel=2e-3)
    mixed = delta_by_enumeration([2, 2, 3], KAry(4).calibrate(1, 1e-3, 3), 1)
    assert mixed > 1.5e-3


# --- thresholds ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", SEVERAL)
@pytest.mark.parametrize("epsilon0", [1e-12, 1e-6, 0.104592, 1.0, 8.0, 43.0, 80.0])
def test_a_threshold_is_exactly_the_ceiling(options: int, epsilon0: float) -> None:
    found = KAry(options).threshold(epsilon0)
    per_option, rest = divmod(found, options - 1)
    with localcontext(prec=120):
        power = Fraction(Decimal(epsilon0).exp())
    exact = COIN_RANGE / (power + options - 1)
    assert rest == 0 and per_option - 1 < exact * (1 + Fraction(1, 10**100))
    assert exact * (1 - Fraction(1, 10**100)) <= per_option
    assert KAry(options).epsilon0_of(found) <= epsilon0 + 2 * math.ulp(epsilon0)


@given(st.sampled_from(SEVERAL), st.integers(0, 254), st.floats(1e-9, 40), st.floats(1e-9, 1e-3))
@settings(max_examples=60, deadline=None)
def test_among_more_options_a_choice_has_at_most_the_same_loss(
    options: int, more: int, epsilon0: float, step: float
) -> None:
    one, other = KAry(options), KAry(min(256, options + more))
    threshold = one.threshold(epsilon0)
    found = other.among(other.options, one.among(other.options, threshold))
    kept, changed = COIN_RANGE - threshold, threshold // (options - 1)
    odds = Fraction(COIN_RANGE - found, found // (other.options - 1))
    assert found % (other.options - 1) == 0
    assert 1 <= odds <= Fraction(kept, changed)
    # One step less noise would be too little.
    fewer = found // (other.options - 1) - 1
    assert fewer == 0 or Fraction(COIN_RANGE, fewer) - other.options + 1 > Fraction(kept, changed)


def test_a_choice_among_fewer_options_has_no_threshold() -> None:
    with pytest.raises(ValueError, match=r"options must be in \[4, 256\], found 3"):
        KAry(4).among(3, KAry(4).threshold(1.0))
    for wrong in (1, 257):
        with pytest.raises(ValueError, match="options must be in"):
            KAry(wrong)
    with pytest.raises(ValueError, match="threshold must be a multiple of 3, found 7"):
        KAry(4).epsilon0_of(7)
    with pytest.raises(ValueError, match="epsilon0 must be at least"):
        KAry(5).threshold(0.0)
    assert KAry(4).epsilon0_of(KAry(4).threshold(0.0)) == 0


# --- priced with others --------------------------------------------------------------------------


def choices(epsilon0: float, count: int, options: int) -> ChoiceAnswers:
    return ChoiceAnswers(KAry(options).threshold(epsilon0), count, options)


def joint_by_enumeration(sizes: list[int], epsilon0s: list[float], epsilon: float) -> float:
    """The divergence of unlike answers of which every one is changed, outcome by outcome."""
    atoms = np.array([[0.0, 1.0]])
    for options, epsilon0 in zip(sizes, epsilon0s, strict=True):
        row = transition(options, epsilon0)[:2]
        steps = list(zip(np.log(row[0] / row[1]), row[0], strict=True))
        atoms = np.array([[a + b, p * q] for (a, p), (b, q) in itertools.product(atoms, steps)])
    return float(np.sum(atoms[:, 1] * -np.expm1(np.minimum(0, epsilon - atoms[:, 0]))))


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.7])
def test_the_joint_price_is_that_of_all_outcomes(epsilon: float) -> None:
    parts = [choices(0.5, 2, 5), choices(0.4, 1, 4), coins(0.3, 2)]
    truth = joint_by_enumeration([5, 5, 4, 2, 2], [0.5, 0.5, 0.4, 0.3, 0.3], epsilon)
    assert joint.delta(parts, epsilon) == pytest.approx(truth, rel=1e-9)
    assert joint.delta(parts[::-1], epsilon) == joint.delta(parts, epsilon)


def test_choices_among_two_cost_with_noise_what_coins_do() -> None:
    same = KAry(2).threshold(0.2)
    one, other = ChoiceAnswers(same, 40, 2), BinaryAnswers(same, 40)
    for beside in ([], [gaussians(3.0, 4)], [coins(0.1, 12)]):
        found = joint.delta([one, *beside], 2.0)
        assert found == pytest.approx(joint.delta([other, *beside], 2.0), rel=1e-9)
    assert upper_bounds.rdp([one], 1e-5) == pytest.approx(upper_bounds.rdp([other], 1e-5))


@pytest.mark.parametrize("options", [4, 16])
def test_upper_bounds_of_choices_are_above_the_exact_price(options: int) -> None:
    part = [choices(0.3, 40, options)]
    exact = joint.epsilon(part, 1e-5)
    assert exact <= upper_bounds.rdp(part, 1e-5) <= upper_bounds.rdp([coins(0.3, 40)], 1e-5)
    assert exact <= joint.pure_epsilon(part) == pytest.approx(12)


def test_a_share_of_choices_is_calibrated_with_the_others() -> None:
    shares = [
        Share(lambda *at: ChoiceAnswers.calibrate(*at, options=4), 30),
        Share(BinaryAnswers.calibrate, 10),
    ]
    found = joint.calibrate(2.0, 1e-5, shares)
    assert joint.delta(found, 2.0) <= 1e-5 < joint.delta(found, 1.999)
    assert isinstance(found[0], ChoiceAnswers) and found[0].options == 4
    alone = ChoiceAnswers.calibrate(2.0, 1e-5, 30, options=4)
    assert joint.calibrate(2.0, 1e-5, shares[:1]) == (alone,)
    assert found[0].epsilon0 < alone.epsilon0
