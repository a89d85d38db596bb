"""Blocks of randomized response: exact laws, by enumeration and by numbers from elsewhere."""

import itertools
import math
from fractions import Fraction

import pytest

from labelguard.accounting import randomized_response as rr
from labelguard.accounting.blocks import Block

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
SMALL = [(labels, letters) for labels in (1, 2, 3, 5) for letters in (2, 3, 4)] + [(8, 2)]
EPSILONS = (0.1, 1.0, 3.0, 8.0)


def make(epsilon0, labels, letters=2):
    return Block(rr.threshold(epsilon0), labels, letters)


def count_changes(block):
    """Return how many of the 2^N random numbers have j changes, for j = 0 … m."""
    size = block.draw_bytes
    # Numpy's bytes end before the last zeros.
    drawn = (each.ljust(size, b"\0") for each in block.change_limits.tolist())
    limits = [0, *(int.from_bytes(each, "big") for each in drawn), 256**size]
    return [high - low for low, high in itertools.pairwise(limits)]


def densities(block):
    """Return the exact probability of one answer with j changes, as it is drawn."""
    ways = [math.comb(block.labels, j) * (block.letters - 1) ** j for j in range(block.labels + 1)]
    whole = 256**block.draw_bytes
    return [Fraction(n, whole * way) for n, way in zip(count_changes(block), ways, strict=True)]


@pytest.mark.parametrize(("labels", "at_1", "at_3", "at_8"), MEASURED)
def test_flips_and_information_are_the_measured_ones(labels, at_1, at_3, at_8):
    for epsilon0, (t, gamma, information) in zip((1, 3, 8), (at_1, at_3, at_8), strict=True):
        block = make(epsilon0, labels)
        assert block.most_changes == t
        assert block.flip_probability == pytest.approx(gamma, abs=5e-5)
        assert labels * block.first_moment**2 == pytest.approx(information, abs=5e-4)


@pytest.mark.parametrize(("labels", "letters"), SMALL)
@pytest.mark.parametrize("epsilon0", EPSILONS)
def test_no_answer_is_more_likely_than_the_price_says(epsilon0, labels, letters):
    block = make(epsilon0, labels, letters)
    drawn = densities(block)
    paid = Fraction(2**64 - block.threshold, block.threshold)
    assert max(drawn) / min(drawn) <= paid
    # Changing every label moves an answer from any of these densities to any other.
    changed = [
        drawn[sum(a != b for a, b in zip(truth, answer, strict=True))]
        for truth in ([0] * labels, [letters - 1] * labels)
        for answer in itertools.product(range(letters), repeat=labels)
    ]
    assert sum(changed) == 2


@pytest.mark.parametrize(("labels", "letters"), SMALL)
@pytest.mark.parametrize("epsilon0", EPSILONS)
def test_moments_are_those_of_all_answers(epsilon0, labels, letters):
    block = make(epsilon0, labels, letters)
    drawn, kept, other = densities(block), Fraction(0), Fraction(0)
    both, one, none = Fraction(0), Fraction(0), Fraction(0)
    for answer in itertools.product(range(letters), repeat=labels):
        density = drawn[sum(letter > 0 for letter in answer)]
        kept += density * (answer[0] == 0)
        other += density * (answer[0] == 1)
        if labels > 1:
            both += density * (answer[:2] == (0, 0))
            one += density * (answer[:2] == (0, 1))
            none += density * (answer[:2] == (1, 1))
    assert float(kept) == pytest.approx(1 - block.flip_probability, rel=1e-12)
    assert float(kept - other) == pytest.approx(block.first_moment, rel=1e-12)
    if labels > 1:
        assert float(both - 2 * one + none) == pytest.approx(block.second_moment, abs=1e-15)


@pytest.mark.parametrize("letters", [2, 3, 8])
@pytest.mark.parametrize("epsilon0", EPSILONS)
def test_no_other_number_of_changes_tells_more(epsilon0, letters):
    gain = math.expm1(epsilon0)
    for labels in range(1, 40):

        def first_moment(t, labels=labels):
            likely = sum(math.comb(labels, j) * (letters - 1) ** j for j in range(t + 1))
            ways = math.comb(labels - 1, t) * (letters - 1) ** t
            return gain * ways / (letters**labels + gain * likely)

        best = max(map(first_moment, range(labels)))
        assert make(epsilon0, labels, letters).first_moment == pytest.approx(best, rel=1e-12)


def test_one_label_is_a_coin():
    for epsilon0 in EPSILONS:
        gamma = make(epsilon0, 1).flip_probability
        assert gamma == pytest.approx(rr.flip_probability(epsilon0), rel=1e-15)


@pytest.mark.parametrize(
    "arguments", [(0, 1), (2**63, 1), (2**60, 0), (2**60, 16_385), (2**60, 1, 1), (2**60, 1, 257)]
)
def test_numbers_out_of_range_are_refused(arguments):
    with pytest.raises(ValueError, match="must be"):
        Block(*arguments)
