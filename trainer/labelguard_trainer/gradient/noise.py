"""Gaussian noise for gradients, from secret bytes.

AES-256 in counter mode makes 64 bits a coordinate, Box and Muller's transform the normals, in
float64. Not torch's generators: on a CPU a seed of theirs has 32 bits, which can be tried out, and
what they draw next can be computed from what they drew. That the noise is rounded to float32 is the
weakness of all floating-point DP-SGD, and is not repaired here.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

__all__ = ["gaussian"]

_CHUNK = 1 << 20  # pairs of normals at a time
_WORD = 8


def gaussian(count: int, deviation: float, seed: bytes, device: torch.device) -> Tensor:
    """`count` independent normals of that standard deviation, float32, the same on every device.

    Raises `ValueError` unless `seed` has 32 bytes; a seed is used for one call.
    """
    if len(seed) != 32:
        raise ValueError(f"a seed has 32 bytes, found {len(seed)}")
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    found = torch.empty(count, dtype=torch.float32, device=device)
    for at in range(0, count, 2 * _CHUNK):
        part = found[at : at + 2 * _CHUNK]
        pairs = (len(part) + 1) // 2
        words = np.frombuffer(stream.update(bytes(2 * pairs * _WORD)), np.uint64)
        uniform = torch.from_numpy(((words >> np.uint64(11)) + 0.5) * 2.0**-53).to(device)
        radius = (-2 * uniform[:pairs].log()).sqrt() * deviation
        angle = uniform[pairs:] * (2 * math.pi)
        part.copy_(torch.cat([radius * angle.cos(), radius * angle.sin()])[: len(part)])
    return found
