"""Who is in a step: everybody by a secret coin of their own, which is never stored.

Poisson sampling for real. A shuffled order, or cohorts of a fixed size, would have another price.
"""

from __future__ import annotations

import math

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

__all__ = ["COIN_RANGE", "cohort", "threshold"]

COIN_RANGE = 2**64


def threshold(probability: float) -> int:
    """q as a number of the 2^64 outcomes of a coin, rounded down: less than q is priced for."""
    return math.floor(probability * COIN_RANGE)


def cohort(secret: bytes, threshold: int, units: int) -> NDArray[np.intp]:
    """SECRET: the units of one step, each with probability threshold/2^64; ascending.

    The coins are the keystream of AES-256 in counter mode under 32 secret bytes, which serve one
    step: independent and uniform for everyone without them, up to the security of AES.
    """
    if threshold >= COIN_RANGE:
        return np.arange(units)
    stream = Cipher(algorithms.AES(secret), modes.CTR(bytes(16))).encryptor()
    coins = np.frombuffer(stream.update(bytes(8 * units)), np.dtype("<u8"))
    return np.flatnonzero(coins < np.uint64(threshold))
