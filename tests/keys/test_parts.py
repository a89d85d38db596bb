"""Who is held out: a share of units, by their keys and the project's alone."""

from __future__ import annotations

import hmac

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from labelguard.keys.keyring import KeyRing
from labelguard.keys.prf import Splits

UNITS = np.random.default_rng(0).integers(0, 2**63, (100_000, 2)).astype(np.uint64)


@pytest.fixture
def keys(tmp_path):
    return KeyRing.create(tmp_path / "keys")


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_about_a_share_of_units_is_held_out_and_everybody_is_in_one_part(share, keys):
    held_out = keys.splits(share).is_in(UNITS, "held-out")
    assert (held_out != keys.splits(share).is_in(UNITS, "training")).all()
    # Five standard errors: fails falsely once in 10^6.
    assert abs(held_out.mean() - share) < 5 * np.sqrt(share * (1 - share) / len(UNITS))


def test_nobody_is_held_out_of_no_share(keys):
    assert not keys.splits(0.0).is_in(UNITS, "held-out").any()
    assert keys.splits(0.0).is_in(UNITS, "training").all()
    assert keys.splits(0.5).is_in(UNITS[:0], "held-out").shape == (0,)


def test_a_part_is_each_units_own_whoever_else_is_there(keys):
    parts = keys.splits(0.3)
    held_out = parts.is_in(UNITS, "held-out")
    some = np.random.default_rng(1).permutation(len(UNITS))[:1000]
    assert (parts.is_in(UNITS[some], "held-out") == held_out[some]).all()


def test_parts_of_two_projects_are_independent(keys, tmp_path):
    other = KeyRing.create(tmp_path / "other")
    one, two = (ring.splits(0.5).is_in(UNITS, "held-out") for ring in (keys, other))
    assert abs((one == two).mean() - 0.5) < 5 * 0.5 / np.sqrt(len(UNITS))


def test_a_larger_share_keeps_who_was_held_out(keys):
    few, more = (keys.splits(share).is_in(UNITS, "held-out") for share in (0.1, 0.4))
    assert (few <= more).all()


def test_parts_show_no_key(keys):
    assert repr(keys.splits(0.1)) == "Splits(share=0.1)"
    assert isinstance(keys.splits(0.1), Splits)


def test_the_draw_is_as_the_format_says(keys):
    """MAC of one block: AES-256 of the unit under HMAC-SHA256(project key, name of the purpose)."""
    secret = keys._secret
    key = hmac.digest(secret, b"labelguard/key/1/held-out", "sha256")
    encrypted = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    some = UNITS[:200]
    first = [
        int.from_bytes(
            encrypted.update(int(hi).to_bytes(8, "big") + int(lo).to_bytes(8, "big"))[:8]
        )
        for hi, lo in some
    ]
    expected = [word < 0.25 * 2**64 for word in first]
    assert keys.splits(0.25).is_in(some, "held-out").tolist() == expected
