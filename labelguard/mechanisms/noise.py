"""The noise of a statistic: continuous, Gaussian or of the ball, rounded to whole numbers exactly.

Gaussian noise is normal in each coordinate. Ball noise in d dimensions has a density proportional
to e^(−‖y‖₂/s): a uniform direction times a radius of law Gamma(d, s). It is the K-norm mechanism of
Hardt and Talwar 2010 with the ball of ℓ2; in one dimension it is Laplace noise.

A sum of whole numbers plus the rounded noise is the rounded sum plus noise: what is released is
post-processing of the continuous mechanism, whose exact price holds as it is. The noise is computed
from uniforms of 256 bits by proven enclosures (arb, of python-flint), at a precision that is raised
until the rounding is certain. 256 bits in place of infinitely many change a release with a
probability below 2^-100, which is part of its price; docs/guarantees.md has the proof.

All randomness comes from a `NoiseStream`. Whoever knows its nonce can subtract the noise: a nonce
serves one release and is forgotten. How long a draw takes depends on the noise and nothing else.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from flint import arb, ctx

NoiseKind = Literal["gaussian", "ball"]

# Length of a stream's nonce.
NONCE_BYTES = 32

SCALE_LIMIT = 2**60
# Scales and numbers of coordinates up to which 256 bits are proven to be enough.
DIMENSION_LIMIT = 2**16

_BITS = 256  # of a uniform
_SPARE_BITS = 64  # a first precision this far below the unit fails for one draw in 2^50
_ZERO, _ONE, _MINUS_TWO, _HALF = arb(0), arb(1), arb(-2), arb((1, -1))
_UNIT, _TWO_UNITS = arb((1, -_BITS - 1)), arb((1, -_BITS))  # of uniforms, exactly
_precision = threading.Lock()  # arb's precision is the process's, not the thread's


@dataclass(frozen=True)
class Noise:
    """Public: which noise a statistic gets, where its sensitivity is 1.

    `scale` is σ, or s for the ball. Ball noise is priced for `least` components or more; fewer get
    the first coordinates of noise in `least` dimensions, which is post-processing.
    """

    # gaussian or ball
    kind: NoiseKind
    # σ, or s of the ball, in sensitivities
    scale: float
    # the fewest components that ball noise is priced for
    least: int = 1

    def dimension(self, components: int) -> int:
        """Return in how many dimensions the noise of so many components is drawn."""
        return max(components, self.least)

    def deviation(self, components: int) -> float:
        """Return the standard deviation of each of so many coordinates: σ, s·√(dimension + 1)."""
        if self.kind == "gaussian":
            return self.scale
        return self.scale * math.sqrt(self.dimension(components) + 1)


def noise_of_price(price: Mapping[str, Any]) -> Noise:
    """Return the noise that a price of a statistic release buys."""
    if "noise_multiplier" in price:
        return Noise("gaussian", float(price["noise_multiplier"]))
    return Noise("ball", float(price["scale"]), int(price["components"]))


class NoiseStream:
    """Uniform numbers from one secret nonce. Its repr shows nothing.

    The bytes are the keystream of AES-256 in counter mode under `nonce` as the key: uniform and
    independent for everyone without the nonce, up to the security of AES. A stream is consumed by
    use and cannot be rewound; make another from the same nonce to see the same numbers again.

    Raises ValueError unless the nonce has 32 bytes.
    """

    def __init__(self, nonce: bytes) -> None:
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce has {NONCE_BYTES} bytes, found {len(nonce)}")
        # The counter may start at zero: the key is used for this stream and nothing else.
        self._keystream = Cipher(algorithms.AES(nonce), modes.CTR(bytes(16))).encryptor()

    def __repr__(self) -> str:
        return "NoiseStream(…)"

    def uniforms(self, count: int) -> list[int]:
        """Draw `count` odd numbers m below 2^257; m/2^257 = (n + ½)/2^256 is uniform in (0, 1)."""
        size = _BITS // 8
        read = self._keystream.update(bytes(count * size))
        return [
            2 * int.from_bytes(read[start : start + size], "big") + 1
            for start in range(0, count * size, size)
        ]


def sample(kind: NoiseKind, scale: int, count: int, stream: NoiseStream) -> list[int]:
    """⌊Y + ½⌋ in every one of `count` coordinates, for Y of this kind and scale in that dimension.

    Exactly that of Y as a function of the stream's uniforms, on every machine and in every version
    of arb. Some 5 µs a coordinate; the whole numbers may be larger than 64 bits hold.

    Sources: Box and Muller 1958 (normals); a sum of exponentials −ln U is the radius of the ball.

    Raises ValueError unless 1 <= scale <= 2^60 and 0 <= count <= 2^16.
    """
    whole = operator.index(scale)  # Python's own integer: products of numpy's wrap around
    if not 1 <= whole <= SCALE_LIMIT:
        raise ValueError(f"scale must be in [1, 2^60], found {scale}; take a coarser grid")
    if not 0 <= count <= DIMENSION_LIMIT:
        raise ValueError(f"count must be in [0, 2^16], found {count}; take fewer components")
    if not count:
        return []
    directions = stream.uniforms(count + count % 2)
    radii = stream.uniforms(count) if kind == "ball" else []
    bits = whole.bit_length() + count.bit_length() + _SPARE_BITS
    while True:
        with _precision, ctx.workprec(bits):
            rounded = _round_noise(whole, count, directions, radii)
        if rounded is not None:
            return rounded
        # No draw stays undecided: of a Gaussian, and in one dimension, Y is transcendental
        # (Lindemann), and elsewhere one that is no multiple of ½ is told from it in the end.
        bits *= 2


def _round_noise(
    scale: int, count: int, directions: list[int], radii: list[int]
) -> list[int] | None:
    """Return the rounded noise, or None if this precision leaves a coordinate undecided."""
    normals = list(_normals(directions))[:count]
    factor = arb(scale)
    if radii:
        norm = sum((x * x for x in normals), _ZERO).sqrt()
        factor *= -math.prod((_UNIT * m for m in radii), start=_ONE).log() / norm
    rounded: list[int] = []
    for normal in normals:
        whole = (factor * normal + _HALF).floor().unique_fmpz()
        if whole is None:
            return None
        rounded.append(int(whole))
    return rounded


def _normals(uniforms: list[int]) -> Iterator[arb]:
    """Box and Muller: √(−2 ln U)·(cos 2πV, sin 2πV) of each two uniforms U, V."""
    for first, second in zip(uniforms[::2], uniforms[1::2], strict=True):
        radius = (_MINUS_TWO * (_UNIT * first).log()).sqrt()
        sine, cosine = (_TWO_UNITS * second).sin_cos_pi()
        yield radius * cosine
        yield radius * sine
