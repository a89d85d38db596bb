"""The noise of a statistic has exactly the law that is priced, in both shapes.

A statistical test accepts what happens unless it has a probability below FALSE_FAILURE under the
claim; noise that is 10% too small or too large is rejected but with that probability. All nonces
are fixed, so that a test fails at random only when the stream changes.

Noise is rounded exactly, at whatever precision that takes, and comes from its nonce alone.

Quantiles along a direction are exact for the ball, and those of normal noise would not do. Where a
count of draws is tested, five standard errors are allowed, and seeds are fixed.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from flint import ctx
from mpmath import mp, mpf
from scipy import stats
from support import world

from labelguard.mechanisms import noise
from labelguard.mechanisms.noise import (
    DIMENSION_LIMIT,
    SCALE_LIMIT,
    Noise,
    NoiseKind,
    NoiseStream,
    ReleasedNoise,
    bound_quantile,
    draw_noise,
    noise_of_price,
)

FALSE_FAILURE = 1e-6
BEYOND = float(stats.norm.isf(FALSE_FAILURE / 2))
LARGE = 2**31
COORDINATES = 12_000  # to tell a scale from one 10% off, see the power below
KINDS: tuple[NoiseKind, ...] = ("gaussian", "ball")


def stream(number=0):
    return NoiseStream(number.to_bytes(32, "big"))


@cache
def draws(kind, dimension, scale=LARGE):
    """Noise in units of the scale, (COORDINATES / dimension, dimension), read-only."""
    source = stream(dimension)
    drawn = [draw_noise(kind, scale, dimension, source) for _ in range(COORDINATES // dimension)]
    found = np.array(drawn, np.float64) / scale
    found.flags.writeable = False
    return found


# --- the scale -----------------------------------------------------------------------------------


def size(kind, found):
    """The sum of squares: chi-square. Or of radii, which is Gamma(COORDINATES, s) for the ball."""
    radii = np.linalg.norm(found, axis=1)
    return float((radii**2).sum() if kind == "gaussian" else 2 * radii.sum())


def law(kind, factor=1.0):
    """Of `size`, of noise that is too large by a factor."""
    if kind == "gaussian":
        return stats.chi2(COORDINATES, scale=factor**2)
    return stats.chi2(2 * COORDINATES, scale=factor)


def has_scale(kind, found):
    right = law(kind)
    return bool(right.ppf(FALSE_FAILURE / 2) < size(kind, found) < right.isf(FALSE_FAILURE / 2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dimension", [1, 2, 5, 40, 1000])
def test_noise_has_its_scale_and_none_that_is_ten_percent_off(kind, dimension):
    found = draws(kind, dimension)
    assert has_scale(kind, found)
    assert not has_scale(kind, 0.9 * found) and not has_scale(kind, 1.1 * found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_wrong_scale_is_missed_less_often_than_a_right_one_is_rejected(kind, factor):
    """The power of the test above, by the law under the wrong scale."""
    right, wrong = law(kind), law(kind, factor)
    low, high = right.ppf(FALSE_FAILURE / 2), right.isf(FALSE_FAILURE / 2)
    assert wrong.cdf(high) - wrong.cdf(low) < FALSE_FAILURE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [LARGE + 12345, 2**56, SCALE_LIMIT])
def test_large_scales_are_accepted_too(kind, scale):
    assert has_scale(kind, draws(kind, 10, scale))


# --- the shape -----------------------------------------------------------------------------------


def follows(values, expected):
    return bool(stats.kstest(values, expected.cdf).pvalue > FALSE_FAILURE)


@pytest.mark.parametrize("dimension", [1, 2, 5, 40])
def test_a_radius_of_the_ball_is_gamma_and_no_normal_one(dimension):
    expected = stats.gamma(dimension)
    assert follows(np.linalg.norm(draws("ball", dimension), axis=1), expected)
    normal = draws("gaussian", dimension)
    if dimension < 40:  # of 300 radii, 40 dimensions are too few to tell
        as_large = normal * np.sqrt(dimension + 1)
        assert not follows(np.linalg.norm(as_large, axis=1), expected)


def test_the_noise_of_one_component_is_laplace_or_normal():
    ball, normal = draws("ball", 1).ravel(), draws("gaussian", 1).ravel()
    assert follows(ball, stats.laplace()) and not follows(ball, stats.norm(scale=2**0.5))
    assert follows(normal, stats.norm()) and not follows(normal, stats.laplace(scale=0.5**0.5))


@pytest.mark.parametrize("dimension", [2, 5, 40, 1000])
def test_every_coordinate_of_gaussian_noise_is_normal(dimension):
    found = draws("gaussian", dimension)
    assert follows(found.ravel(), stats.norm())
    assert follows(found[:, 0], stats.norm()) and follows(found[:, -1], stats.norm())


@pytest.mark.parametrize("dimension", [2, 3, 5, 40])
def test_the_direction_is_uniform(dimension):
    found = draws("ball", dimension)
    directions = found / np.linalg.norm(found, axis=1, keepdims=True)
    for place in {0, 1, dimension - 1}:  # one of an odd number is half of a pair
        along = (1 + directions[:, place]) / 2
        assert follows(along, stats.beta((dimension - 1) / 2, (dimension - 1) / 2))
    squeezed = found * np.where(np.arange(dimension) == 0, 0.5, 1)
    squeezed /= np.linalg.norm(squeezed, axis=1, keepdims=True)
    if dimension < 40:
        along = (1 + squeezed[:, 0]) / 2
        assert not follows(along, stats.beta((dimension - 1) / 2, (dimension - 1) / 2))


def test_the_angle_of_two_components_is_uniform_whatever_the_radius_is():
    found = draws("ball", 2)
    angle = np.arctan2(found[:, 1], found[:, 0])
    assert follows(angle, stats.uniform(-np.pi, 2 * np.pi))
    radius = np.linalg.norm(found, axis=1)
    table = stats.contingency.crosstab(np.digitize(angle, [-2, -1, 0, 1, 2]), radius > 2).count
    assert stats.chi2_contingency(table).pvalue > FALSE_FAILURE
    table = stats.contingency.crosstab(np.abs(found[:, 0]) > 2, radius > 2).count
    assert stats.chi2_contingency(table).pvalue < FALSE_FAILURE


def are_unrelated(one, other):
    """Whether the products of independent variables of mean 0 add up to what they may."""
    bound = BEYOND * float(one.std() * other.std()) * np.sqrt(one.size)
    return bool(abs(float((one * other).sum())) < bound)


@pytest.mark.parametrize("kind", KINDS)
def test_coordinates_draws_and_streams_are_independent(kind):
    found = draws(kind, 40)
    for lag in (1, 2, 20):
        assert are_unrelated(found[:, lag:], found[:, :-lag])
        assert are_unrelated(found[lag:], found[:-lag])
        if kind == "gaussian":  # the squares of the ball's coordinates share its radius
            assert are_unrelated(found[:, lag:] ** 2 - 1, found[:, :-lag] ** 2 - 1)
    half = (found[:, 1:] + found[:, :-1]) / np.sqrt(2)  # a correlation of ½ between neighbours
    assert not are_unrelated(half[:, 1:], half[:, :-1])
    for bit in (0, 131, 255):
        other = np.array(draw_noise(kind, LARGE, 4000, stream(1 << bit))) / LARGE
        assert are_unrelated(np.array(draw_noise(kind, LARGE, 4000, stream())) / LARGE, other)


# --- what is public of it ------------------------------------------------------------------------


def test_the_deviation_of_a_coordinate_is_that_of_what_is_drawn():
    assert Noise("gaussian", 2.5).deviation(7) == 2.5
    assert Noise("ball", 2.0).deviation(8) == 6 and Noise("ball", 2.0, least=8).deviation(3) == 6
    for dimension in (1, 2, 5, 40):
        squares = draws("ball", dimension)[:, 0] ** 2
        variance = Noise("ball", 1.0).deviation(dimension) ** 2
        # E y⁴ = 3(d+1)(d+3)
        error = np.sqrt((3 * variance * (dimension + 3) - variance**2) / len(squares))
        assert abs(squares.mean() - variance) < 7 * error  # squares have heavier tails than normal
        assert error < variance / 4


def test_a_price_names_its_noise():
    assert noise_of_price({"noise_multiplier": 3.7}) == Noise("gaussian", 3.7)
    assert noise_of_price({"scale": 0.98, "components": 4}) == Noise("ball", 0.98, 4)


# --- rounding ------------------------------------------------------------------------------------


def fits(found, scale):
    """Chi-square against the probabilities of the cells around whole numbers."""
    edges = np.arange(-4 * scale, 4 * scale + 2) - 0.5
    inside = np.diff(stats.norm.cdf(edges, scale=scale))
    counted, _ = np.histogram(found, edges)
    observed = np.append(counted, len(found) - counted.sum())
    expected = np.append(inside, 1 - inside.sum()) * len(found)
    return bool(stats.chisquare(observed, expected).pvalue > FALSE_FAILURE)


@pytest.mark.parametrize("scale", [1, 2, 3, 7])
def test_small_scales_have_the_probabilities_of_rounded_noise(scale):
    found = np.array(draw_noise("gaussian", scale, 20_000, stream(scale)))
    assert fits(found, scale)
    fine = np.array(draw_noise("gaussian", scale * 1000, 20_000, stream(scale))) / 1000
    assert not fits(np.floor(fine).astype(np.int64), scale)


def by_hand(kind, scale, count, nonce):
    """The same in 1,500 bits of mpmath, by the definition."""
    pairs = (count + 1) // 2
    keystream = Cipher(algorithms.AES(nonce), modes.CTR(bytes(16))).encryptor()
    with mp.workprec(1500):
        half = mpf(1) / 2
        uniforms = [
            (int.from_bytes(keystream.update(bytes(32)), "big") + half) / mpf(2) ** 256
            for _ in range(2 * pairs + count)
        ]
        normals = []
        for first, second in zip(
            uniforms[: 2 * pairs : 2], uniforms[1 : 2 * pairs : 2], strict=True
        ):
            radius, angle = mp.sqrt(-2 * mp.log(first)), 2 * mp.pi * second
            normals += [radius * mp.cos(angle), radius * mp.sin(angle)]
        found = normals[:count]
        if kind == "ball":
            norm = mp.sqrt(sum(x * x for x in found))
            radius = -sum(mp.log(u) for u in uniforms[2 * pairs :])
            found = [radius * x / norm for x in found]
        return [int(mp.floor(scale * x + half)) for x in found]


CASES = [
    (kind, scale, count)
    for kind in KINDS
    for scale in (1, 3, LARGE, SCALE_LIMIT)
    for count in (1, 2, 3, 8)
]


@pytest.mark.parametrize(("kind", "scale", "count"), CASES)
def test_rounding_is_exact(kind, scale, count):
    for number in range(8):
        nonce = number.to_bytes(32, "big")
        assert draw_noise(kind, scale, count, NoiseStream(nonce)) == by_hand(
            kind, scale, count, nonce
        )


@pytest.mark.parametrize("kind", KINDS)
def test_a_precision_that_is_too_low_is_raised(kind, monkeypatch):
    expected = draw_noise(kind, SCALE_LIMIT, 9, stream())
    tried = world.note_calls(monkeypatch, noise, "_round_noise", lambda *_: ctx.prec)
    monkeypatch.setattr(noise, "_SPARE_BITS", -60)
    assert draw_noise(kind, SCALE_LIMIT, 9, stream()) == expected
    assert len(tried) > 2 and tried == sorted(set(tried))


def test_the_lowest_bits_of_the_largest_noise_are_random():
    """A float has 53 bits, and noise that passed through one ends in zeros."""
    for kind in KINDS:
        found = draw_noise(kind, SCALE_LIMIT, 4000, stream(7))
        assert stats.chisquare(np.bincount([n & 15 for n in found])).pvalue > FALSE_FAILURE
    through_a_float = [int(float(n)) & 15 for n in found]
    assert stats.chisquare(np.bincount(through_a_float, minlength=16)).pvalue < FALSE_FAILURE


def test_threads_share_arbs_precision_without_harm():
    before = ctx.prec

    def one(number):
        return draw_noise(KINDS[number % 2], 2 ** (number + 20), 50, stream(number))

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(one, range(40))) == [one(number) for number in range(40)]
    assert ctx.prec == before


# --- the stream ----------------------------------------------------------------------------------


def test_the_noise_of_a_nonce_never_changes():
    nonce = bytes(range(32))
    assert draw_noise("gaussian", 3, 8, NoiseStream(nonce)) == [1, 0, 4, -2, -2, 0, -4, 3]
    assert draw_noise("ball", LARGE, 3, NoiseStream(nonce)) == [
        1110701258,
        420233396,
        4732367636,
    ]


def test_uniforms_are_odd_numbers_of_the_keystream_of_aes_256():
    nonce = bytes(range(32))
    keystream = Cipher(algorithms.AES(nonce), modes.CTR(bytes(16))).encryptor().update(bytes(960))
    expected = [int.from_bytes(keystream[at : at + 32], "big") for at in range(0, 960, 32)]
    here = NoiseStream(nonce)
    drawn = here.uniforms(20) + here.uniforms(0) + here.uniforms(10)
    assert drawn == [2 * n + 1 for n in expected]


def test_a_stream_shows_nothing_of_its_nonce():
    nonce = bytes(range(200, 232))
    here = NoiseStream(nonce)
    here.uniforms(3)
    assert repr(here) == str(here) == "NoiseStream(…)"
    assert nonce not in vars(here).values()


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_a_nonce_of_another_length_is_refused(length):
    with pytest.raises(ValueError, match=f"a nonce has 32 bytes, found {length}"):
        NoiseStream(bytes(length))


@pytest.mark.parametrize("scale", [0, -1, SCALE_LIMIT + 1, 2**70])
def test_a_scale_that_cannot_be_drawn_is_refused(scale):
    with pytest.raises(ValueError, match=rf"scale must be in \[1, 2\^60\], found {scale}"):
        draw_noise("gaussian", scale, 1, stream())


@pytest.mark.parametrize("kind", KINDS)
def test_other_arguments_out_of_range_are_refused(kind):
    assert draw_noise(kind, 1, 0, stream()) == []
    for count in (-1, DIMENSION_LIMIT + 1):
        with pytest.raises(ValueError, match=rf"count must be in \[0, 2\^16\], found {count}"):
            draw_noise(kind, 1, count, stream())
    with pytest.raises(TypeError):
        draw_noise(kind, 2.5, 1, stream())  # type: ignore[arg-type]


# --- quantiles along a direction ------------------------------------------------------------------

DRAWS = 400_000
BELL = float(stats.norm.isf(0.01))


def ball(deviation=1.0, least=1):
    return ReleasedNoise("ball", deviation, least)


def along(direction, noises, variance):
    """N(0, variance) + Σ cᵀY, shape (DRAWS,)."""
    c, rng = np.array(direction), np.random.default_rng(len(direction))
    total = math.sqrt(variance) * rng.standard_normal(DRAWS)
    for one in noises:
        total += one.draws(len(c), rng, DRAWS) @ c
    return total


def excess(values, t, probability):
    """By how many standard errors more of the values exceed t than should."""
    error = math.sqrt(probability * (1 - probability) / len(values))
    return (float(np.mean(values > t)) - probability) / error


def test_in_one_dimension_it_is_laplace_noise():
    for probability in (0.4, 0.1, 0.05, 0.01, 1e-4, 1e-8):
        exact = math.log(1 / (2 * probability)) / math.sqrt(2)
        assert exact <= bound_quantile(probability, 0.0, [ball()], 1.0, 1) <= 1.01 * exact
    t = 2.326348 / math.sqrt(1 / 2)  # in scales
    assert math.exp(-t) / 2 == pytest.approx(0.0187, abs=1e-4)


def test_without_ball_noise_it_is_normal():
    noises = [ReleasedNoise("gaussian", 3.0), ReleasedNoise("gaussian", 1.0)]
    assert bound_quantile(0.05, 4.0, noises, 2.0, 7) == pytest.approx(
        1.644854 * math.sqrt(44), rel=1e-6
    )
    assert bound_quantile(0.5, 4.0, [ball()], 2.0, 7) == 0
    assert bound_quantile(0.05, 4.0, [ball()], 0.0, 7) == pytest.approx(1.644854 * 2, rel=1e-6)
    with pytest.raises(ValueError, match="probability"):
        bound_quantile(0.6, 1.0, [], 1.0, 1)


@pytest.mark.parametrize("variance", [0.0, 0.5])
@pytest.mark.parametrize("dimensions", [1, 2, 4, 16])
def test_noise_along_a_direction_exceeds_it_as_often_as_it_says(dimensions, variance):
    direction = np.linspace(1, 2, dimensions)
    values = along(direction.tolist(), [ball()], variance)
    for probability in (0.05, 0.01, 0.001):
        t = bound_quantile(
            probability, variance, [ball()], float(np.linalg.norm(direction)), dimensions
        )
        assert excess(values, 0.99 * t, probability) > -5  # less than 1 % too large
        assert excess(values, t, probability) < 5


@pytest.mark.parametrize("dimensions", [1, 2, 4])
def test_a_normal_quantile_is_exceeded_too_often(dimensions):
    """The negative control: .0187 in place of .01 for one dimension."""
    values = along([1.0] + [0.0] * (dimensions - 1), [ball()], 0.0)
    assert excess(values, BELL, 0.01) > 20
    if dimensions == 1:
        assert np.mean(values > BELL) == pytest.approx(0.0187, abs=0.001)


@pytest.mark.slow
def test_the_mechanism_draws_noise_of_this_law():
    """Its own sampler, three coordinates of noise in five dimensions: 30,000 draws."""
    source, unit, released = NoiseStream(bytes(32)), 2**20, Noise("ball", 1.0, 5)
    drawn = np.array([draw_noise("ball", unit, 5, source)[:3] for _ in range(30_000)], float) / unit
    known = ball(released.deviation(3), 5)
    c = np.array([0.6, 0.0, -0.8])
    for probability in (0.05, 0.01):
        t = bound_quantile(probability, 0.0, [known], 1.0, 3)
        assert abs(excess(drawn @ c, t, probability)) < 5
        assert excess(drawn @ c, 0.7 * t, probability) > 5  # noise 30 % off is found out


def test_windows_of_several_scales_and_kinds_are_never_underrated():
    noises = [ball(1.0), ball(0.3), ReleasedNoise("gaussian", 0.5)]
    values = along([0.6, 0.8], noises, 0.2)
    for probability in (0.05, 0.01):
        t = bound_quantile(probability, 0.2, noises, 1.0, 2)
        assert excess(values, t, probability) < 5
        assert excess(values, 0.85 * t, probability) > 5  # nor by much too large
    equal = [ball(1.0), ball(1.0)]
    values = along([0.6, 0.8], equal, 0.0)
    assert abs(excess(values, bound_quantile(0.01, 0.0, equal, 1.0, 2), 0.01)) < 5
