"""Discrete Gaussian noise has exactly the distribution that is priced, and comes from its nonce.

A statistical test accepts what happens unless it has a probability below FALSE_FAILURE under the
claim. All nonces are fixed, so that a test fails at random only when the stream changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from scipy import stats

from labelguard.mechanisms.discrete_gaussian import SCALE_LIMIT, NoiseStream, sample

FALSE_FAILURE = 1e-6
DRAWS = 20_000
LARGE = 2**30
# As many squares as it takes to tell a scale from one 10% off, see `missed`.
SQUARES = 6_000


def stream(number: int = 0) -> NoiseStream:
    return NoiseStream(number.to_bytes(32, "big"))


def probabilities(scale: int, values: NDArray[np.int64]) -> NDArray[np.float64]:
    """e^(−x²/(2·scale²)), normalised over all whole numbers within 30 scales."""
    everything = np.arange(-30 * scale, 30 * scale + 1)
    total = np.exp(-(everything**2) / (2 * scale**2)).sum()
    return np.asarray(np.exp(-(values**2) / (2 * scale**2)) / total)


def fits(draws: NDArray[np.int64], scale: int) -> bool:
    """Chi-square against the exact probabilities; rare values are counted together."""
    values = np.arange(-5 * scale, 5 * scale + 1)
    expected = probabilities(scale, values) * len(draws)
    common = expected >= 10
    counted = Counter(draws.tolist())
    observed = np.array([counted[value] for value in values[common].tolist()])
    observed = np.append(observed, len(draws) - observed.sum())
    expected = np.append(expected[common], len(draws) - expected[common].sum())
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return bool(stats.chi2.sf(statistic, len(observed) - 1) > FALSE_FAILURE)


def accepted_sums() -> tuple[float, float]:
    """What the sum of SQUARES squared standard normals may be."""
    law = stats.chi2(SQUARES)
    return float(law.ppf(FALSE_FAILURE / 2)), float(law.isf(FALSE_FAILURE / 2))


def has_scale(draws: NDArray[np.int64], scale: int) -> bool:
    """Whether the squares add up to what they may; at a large scale the law is the normal one."""
    low, high = accepted_sums()
    return low < float(((draws / scale) ** 2).sum()) < high


# --- the distribution ----------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1, 2, 3, 7])
def test_small_scales_have_the_exact_probabilities(scale: int) -> None:
    assert fits(sample(scale, DRAWS, stream(scale)), scale)


def rounded_normal(scale: int) -> NDArray[np.int64]:
    return np.rint(np.random.default_rng(0).normal(0, scale, DRAWS)).astype(np.int64)


def two_zeros(scale: int) -> NDArray[np.int64]:
    """Every zero twice: the sampler without the rejection of −0 (algorithm 2)."""
    draws = sample(scale, DRAWS, stream(scale))
    return np.concatenate([draws, draws[draws == 0]])


@pytest.mark.parametrize(
    ("wrong", "scale"),
    [
        (rounded_normal, 1),
        (two_zeros, 2),
        (lambda scale: sample(scale - 1, DRAWS, stream(2)), 10),
        (lambda scale: sample(scale + 1, DRAWS, stream(2)), 10),
        (lambda scale: sample(scale, DRAWS, stream(2)) * 2, 2),
    ],
)
def test_another_distribution_is_rejected(
    wrong: Callable[[int], NDArray[np.int64]], scale: int
) -> None:
    assert not fits(wrong(scale), scale)


@pytest.mark.parametrize("scale", [LARGE, LARGE + 12345, SCALE_LIMIT - 1])
def test_a_large_scale_is_accepted(scale: int) -> None:
    assert has_scale(sample(scale, SQUARES, stream(4)), scale)


@pytest.mark.parametrize("percent", [90, 110])
def test_a_scale_that_is_ten_percent_off_is_rejected(percent: int) -> None:
    draws = sample(LARGE * percent // 100, SQUARES, stream(5))
    assert not has_scale(draws, LARGE)


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_wrong_scale_is_missed_with_a_probability_below_the_false_failure_rate(
    factor: float,
) -> None:
    """The power of the two tests above, by the law of the statistic under the wrong scale."""
    low, high = accepted_sums()
    law = stats.chi2(SQUARES, scale=factor**2)
    assert law.cdf(high) - law.cdf(low) < FALSE_FAILURE


def test_noise_of_a_large_scale_is_centred_and_normal() -> None:
    draws = sample(LARGE, DRAWS, stream(6)) / LARGE
    assert stats.kstest(draws, "norm").pvalue > FALSE_FAILURE
    five_sigma = stats.norm.isf(FALSE_FAILURE / 2)
    # Means of the first four powers, with the variance of each under a standard normal.
    for power, mean, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert abs((draws**power).mean() - mean) < five_sigma * np.sqrt(variance / DRAWS)


def low_bits_are_uniform(draws: NDArray[np.int64]) -> bool:
    counts = np.bincount(draws & 15, minlength=16)
    return bool(stats.chisquare(counts).pvalue > FALSE_FAILURE)


def test_the_lowest_bits_of_the_largest_noise_are_random() -> None:
    """A float has 53 bits, and noise that passed through one ends in zeros."""
    scale = SCALE_LIMIT - 1
    assert low_bits_are_uniform(sample(scale, 4_000, stream(7)))
    through_a_float = np.random.default_rng(0).normal(0, scale, 4_000).astype(np.int64)
    assert not low_bits_are_uniform(through_a_float)


def test_draws_of_one_stream_are_independent_of_each_other() -> None:
    draws = sample(LARGE, DRAWS, stream(8)) / LARGE
    bound = stats.norm.isf(FALSE_FAILURE / 2) / np.sqrt(DRAWS - 1)
    assert abs((draws[1:] * draws[:-1]).mean()) < bound
    # The product of squares less one has variance 4.
    assert abs(((draws[1:] ** 2 - 1) * (draws[:-1] ** 2 - 1)).mean()) < 2 * bound


# --- the stream ----------------------------------------------------------------------------------


def test_a_nonce_gives_the_same_noise_however_it_is_drawn() -> None:
    whole = sample(LARGE, 500, stream(1))
    parts = stream(1)
    pieces = [sample(LARGE, count, parts) for count in (1, 0, 250, 249)]
    assert np.concatenate(pieces).tolist() == whole.tolist()
    assert whole.dtype == np.int64 and whole.shape == (500,)


@pytest.mark.parametrize("bit", [0, 131, 255])
def test_a_nonce_of_one_other_bit_gives_independent_noise(bit: int) -> None:
    one = sample(LARGE, DRAWS, stream(0)) / LARGE
    other = sample(LARGE, DRAWS, stream(1 << bit)) / LARGE
    bound = stats.norm.isf(FALSE_FAILURE / 2) / np.sqrt(DRAWS)
    assert abs((one * other).mean()) < bound
    table = stats.contingency.crosstab(one > 0, other > 0).count
    assert stats.chi2_contingency(table, correction=False).pvalue > FALSE_FAILURE


def test_the_noise_of_a_nonce_never_changes() -> None:
    """An interrupted release that goes on with another version must meet the same noise."""
    nonce = bytes(range(32))
    assert sample(LARGE, 4, NoiseStream(nonce)).tolist() == [
        -2001444320,
        1135553911,
        -169891851,
        276405852,
    ]
    assert sample(3, 12, NoiseStream(nonce)).tolist() == [-2, -4, -2, -4, -4, -2, 4, 4, -1, 6, 3, 2]


def test_bytes_come_from_aes_256_in_counter_mode() -> None:
    nonce = bytes(range(32))
    keystream = Cipher(algorithms.AES(nonce), modes.CTR(bytes(16))).encryptor().update(bytes(9000))
    here = NoiseStream(nonce)
    assert bytes(here.below(256) for _ in range(4095)) == keystream[:4095]
    assert here.below(2**40) == int.from_bytes(keystream[4095:4100], "big")
    assert here.below(2**32000) == int.from_bytes(keystream[4100:8100], "big")
    assert here.below(2**12) == int.from_bytes(keystream[8100:8102], "big") >> 4


@pytest.mark.parametrize("n", [2, 3, 5, 192, 256, 257])
def test_whole_numbers_below_a_bound_are_uniform(n: int) -> None:
    here = stream(n)
    counts = np.bincount([here.below(n) for _ in range(DRAWS)], minlength=n)
    assert len(counts) == n
    assert stats.chisquare(counts).pvalue > FALSE_FAILURE


def test_a_remainder_in_place_of_a_rejection_is_not_uniform() -> None:
    here = stream(3)
    counts = np.bincount([here.below(256) % 192 for _ in range(DRAWS)], minlength=192)
    assert stats.chisquare(counts).pvalue < FALSE_FAILURE


def test_one_possibility_takes_no_randomness() -> None:
    here, there = stream(), stream()
    assert [here.below(1) for _ in range(5)] == [0] * 5
    assert here.below(2**64) == there.below(2**64)


def test_a_stream_shows_nothing_of_its_nonce() -> None:
    nonce = bytes(range(200, 232))
    here = NoiseStream(nonce)
    here.below(2**64)
    assert repr(here) == str(here) == "NoiseStream(…)"
    assert nonce not in vars(here).values()


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_a_nonce_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"a nonce has 32 bytes, found {length}"):
        NoiseStream(bytes(length))


@pytest.mark.parametrize("scale", [0, -1, SCALE_LIMIT, 2**70])
def test_a_scale_that_cannot_be_drawn_is_refused(scale: int) -> None:
    with pytest.raises(ValueError, match=rf"scale must be in \[1, 2\^56\), found {scale}"):
        sample(scale, 1, stream())


def test_other_arguments_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="count must be >= 0, found -1"):
        sample(1, -1, stream())
    with pytest.raises(ValueError, match="n must be >= 1, found 0"):
        stream().below(0)
    with pytest.raises(TypeError):
        sample(2.5, 1, stream())  # type: ignore[arg-type]
