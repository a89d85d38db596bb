"""Noise is rounded exactly, at whatever precision that takes, and comes from its nonce alone.

A statistical test accepts what happens unless it has a probability below FALSE_FAILURE under the
claim; all nonces are fixed.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from flint import ctx
from mpmath import mp, mpf
from scipy import stats
from support import world

from labelguard.mechanisms import noise
from labelguard.mechanisms.noise import DIMENSION_LIMIT, SCALE_LIMIT, NoiseKind, NoiseStream, sample

FALSE_FAILURE = 1e-6
LARGE = 2**31
KINDS: tuple[NoiseKind, ...] = ("gaussian", "ball")


def stream(number=0):
    return NoiseStream(number.to_bytes(32, "big"))


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
    found = np.array(sample("gaussian", scale, 20_000, stream(scale)))
    assert fits(found, scale)
    fine = np.array(sample("gaussian", scale * 1000, 20_000, stream(scale))) / 1000
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
        assert sample(kind, scale, count, NoiseStream(nonce)) == by_hand(kind, scale, count, nonce)


@pytest.mark.parametrize("kind", KINDS)
def test_a_precision_that_is_too_low_is_raised(kind, monkeypatch):
    expected = sample(kind, SCALE_LIMIT, 9, stream())
    tried = world.note_calls(monkeypatch, noise, "_round_noise", lambda *_: ctx.prec)
    monkeypatch.setattr(noise, "_SPARE_BITS", -60)
    assert sample(kind, SCALE_LIMIT, 9, stream()) == expected
    assert len(tried) > 2 and tried == sorted(set(tried))


def test_the_lowest_bits_of_the_largest_noise_are_random():
    """A float has 53 bits, and noise that passed through one ends in zeros."""
    for kind in KINDS:
        found = sample(kind, SCALE_LIMIT, 4000, stream(7))
        assert stats.chisquare(np.bincount([n & 15 for n in found])).pvalue > FALSE_FAILURE
    through_a_float = [int(float(n)) & 15 for n in found]
    assert stats.chisquare(np.bincount(through_a_float, minlength=16)).pvalue < FALSE_FAILURE


def test_threads_share_arbs_precision_without_harm():
    before = ctx.prec

    def one(number):
        return sample(KINDS[number % 2], 2 ** (number + 20), 50, stream(number))

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(one, range(40))) == [one(number) for number in range(40)]
    assert ctx.prec == before


# --- the stream ----------------------------------------------------------------------------------


def test_the_noise_of_a_nonce_never_changes():
    nonce = bytes(range(32))
    assert sample("gaussian", 3, 8, NoiseStream(nonce)) == [1, 0, 4, -2, -2, 0, -4, 3]
    assert sample("ball", LARGE, 3, NoiseStream(nonce)) == [1110701258, 420233396, 4732367636]


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
        sample("gaussian", scale, 1, stream())


@pytest.mark.parametrize("kind", KINDS)
def test_other_arguments_out_of_range_are_refused(kind):
    assert sample(kind, 1, 0, stream()) == []
    for count in (-1, DIMENSION_LIMIT + 1):
        with pytest.raises(ValueError, match=rf"count must be in \[0, 2\^16\], found {count}"):
            sample(kind, 1, count, stream())
    with pytest.raises(TypeError):
        sample(kind, 2.5, 1, stream())  # type: ignore[arg-type]
