"""Sums of labelers' clipped gradients and their noise, on whatever device the model is.

As `labelguard.mechanisms.geometry`: norms in double precision, rounded up, and parts rounded toward
zero on a grid, so that their sum is exact and in no order. Squares of single-precision numbers
neither vanish nor overflow in double precision: nothing has to be scaled.

Noise is made of secret bytes. AES-256 in counter mode makes 64 bits for each uniform number, and
192 for one below 2^-32, Box and Muller's transform the normals, in float64. What lies beyond the
largest normal that can be drawn so is charged (`accounting.gaussian`). That numbers in floating
point are discrete is the weakness of all floating-point DP-SGD, which no guarantee covers. Not
torch's generators: on a CPU a seed of theirs has 32 bits, which can be tried out, and what they
draw next can be computed from what they drew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from torch import Tensor

from labelguard.mechanisms.statistic import STEP_BITS

_CHUNK = 1 << 22  # numbers that are in double precision at once


class ClippedSum:
    """Σ_u clip_C(g_u): one labeler moves it by at most 2C, whatever their labels are.

    A gradient whose norm is not finite counts as zero: left in, it would undo the bound.
    """

    def __init__(self, size: int, clip: float, device: torch.device) -> None:
        if not 0 < clip < math.inf:
            raise ValueError(f"clip must be positive and finite, found {clip}")
        self._clip, self._step = clip, math.ldexp(1.0, math.frexp(clip)[1] - STEP_BITS)
        self._whole = torch.zeros(size, dtype=torch.float64, device=device)

    @property
    def total(self) -> Tensor:
        """The sum, float64, shape (size,)."""
        return self._whole * self._step

    def add(self, gradient: Tensor) -> None:
        """Add a labeler's gradient, float32, shape (size,)."""
        length = bound_norm(gradient)
        factor = self._clip / length.clamp(min=self._clip) / self._step
        for part, values in zip(_chunks(self._whole), _chunks(gradient), strict=True):
            # Whole numbers of the grid below 2^53 are added exactly.
            part += (values.double() * factor).trunc_().where(length.isfinite(), 0.0)


def bound_norm(gradient: Tensor) -> Tensor:
    """Return an upper bound of the ℓ2 norm of float32 numbers (size,), float64; infinite if not
    finite.
    """
    squares = torch.stack([part.double().square().sum() for part in _chunks(gradient)]).sum()
    bound = squares.sqrt() * (1 + (len(gradient) + 4) * 2.0**-52)
    return bound.where(bound.isfinite(), math.inf)


def _chunks(flat: Tensor) -> Iterator[Tensor]:
    return iter(torch.split(flat, _CHUNK))


_NORMALS = 1 << 21  # at a time
_WORD = 8
# A uniform number with so many leading zeros gets 128 bits more.
_FEW_BITS = 32

Words = NDArray[np.uint64]


def add_normals(total: Tensor, deviation: float, seed: bytes) -> Tensor:
    """`total` plus independent normals of that standard deviation, float32, as long as `total`.

    They are added in float64 and rounded once; the normals are the same on every device. Raises
    ValueError unless `seed` has 32 bytes; a seed is used for one call.
    """
    if len(seed) != 32:
        raise ValueError(f"a seed has 32 bytes, found {len(seed)}")
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()

    def draw_words(count: int) -> Words:
        return np.frombuffer(stream.update(bytes(count * _WORD)), np.dtype("<u8"))

    noisy = torch.empty(len(total), dtype=torch.float32, device=total.device)
    chunks = (torch.split(each, _NORMALS) for each in (total, noisy))
    for summed, part in zip(*chunks, strict=True):
        pairs = (len(part) + 1) // 2
        uniform = torch.from_numpy(uniforms(draw_words(2 * pairs), draw_words)).to(total.device)
        radius = (-2 * uniform[:pairs].log()).sqrt() * deviation
        angle = uniform[pairs:] * (2 * math.pi)
        part.copy_(summed + torch.cat([radius * angle.cos(), radius * angle.sin()])[: len(part)])
    return noisy


def uniforms(words: Words, further: Callable[[int], Words]) -> NDArray[np.float64]:
    """Numbers in (0, 1], each of a word of 64 bits: (w + ½)/2^64, or finer where w is below 2^32.

    There `further`, which makes words, gives 128 bits more: the least number is 2^-193.
    """
    numbers = (words.astype(np.float64) + 0.5) * 2.0**-64
    few = np.flatnonzero(words < 2**_FEW_BITS)
    high, low = further(2 * len(few)).reshape(2, len(few))
    numbers[few] = (words[few] + (high + (low + 0.5) * 2.0**-64) * 2.0**-64) * 2.0**-64
    return numbers
