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

Quantiles along one direction, where some of the noise is of the ball: ball noise Y in D dimensions,
of a density proportional to e^(−‖y‖/s), has the characteristic function (1 + s²‖t‖²)^(−(D+1)/2).
Along a unit vector that is the one of s √(2G) · N with G of law Gamma((D+1)/2) and N standard
normal, independent (a symmetric variance-gamma law; D = 1 is Laplace's). So it is normal given G,
and what is normal beside it only adds to its variance:

    P(N(0, v) + Σ_i l_i Y_i > t) = E Φ(−t / √(v + 2 Σ_i (s_i l_i)² G_i)).

At one variance these tails are heavier than those of a normal law: beyond 2.326 standard deviations
lie .0187 of D = 1, not .01.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from flint import arb, ctx
from numpy.typing import NDArray

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


def draw_noise(kind: NoiseKind, scale: int, count: int, stream: NoiseStream) -> list[int]:
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
    normals = list(_yield_normals(directions))[:count]
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


def _yield_normals(uniforms: list[int]) -> Iterator[arb]:
    """Box and Muller: √(−2 ln U)·(cos 2πV, sin 2πV) of each two uniforms U, V."""
    for first, second in zip(uniforms[::2], uniforms[1::2], strict=True):
        radius = (_MINUS_TWO * (_UNIT * first).log()).sqrt()
        sine, cosine = (_TWO_UNITS * second).sin_cos_pi()
        yield radius * cosine
        yield radius * sine


_EDGES = np.linspace(-34.0, 34.0, 2**13)  # of bins of G, as logits of its distribution function
_FEW_EDGES = np.linspace(-34.0, 34.0, 2**10)
_PRECISION = 1e-6

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ReleasedNoise:
    """Public: the noise of one window. Its `kind`, the standard deviation of each component, and in
    how many dimensions at `least` it was drawn.
    """

    kind: NoiseKind
    deviation: float
    least: int = 1

    def dimension(self, components: int) -> int:
        """In how many dimensions noise of so many components was drawn."""
        return max(components, self.least)

    def draws(self, components: int, rng: np.random.Generator, count: int) -> Floats:
        """Simulated noise, shape (count, components)."""
        normal = rng.standard_normal((count, components))
        if self.kind == "gaussian":
            return np.asarray(self.deviation * normal)
        dimension = self.dimension(components)
        length = np.einsum("ij,ij->i", normal, normal)
        if dimension > components:  # of the coordinates that are dropped the length is enough
            length += rng.chisquare(dimension - components, count)
        radius = rng.gamma(dimension, self.deviation / np.sqrt(dimension + 1), count)
        return np.asarray((radius / np.sqrt(length))[:, None] * normal)


def bound_quantile(
    probability: float,
    variance: float,
    noises: Sequence[ReleasedNoise],
    length: float,
    components: int,
) -> float:
    """Return a t that N + Σ cᵀY_i exceeds with at most this `probability`, in (0, ½], `length` =
    ‖c‖.

    N is normal with at most this `variance`; the Y_i are independent noise of so many `components`.
    Never too small: Σ s_i² G_i is rounded up to the end of a bin, which adds less than 1 % to t
    for a window, and about 1 % for each further one of another scale.
    """
    from scipy.special import ndtr, ndtri

    if not 0 < probability <= 0.5:
        raise ValueError(f"expected a probability in (0, 1/2], found {probability}")
    normal = variance + sum((n.deviation * length) ** 2 for n in noises if n.kind == "gaussian")
    balls = [n for n in noises if n.kind == "ball" and n.deviation * length]
    bell = -float(ndtri(probability)) * math.sqrt(normal)
    if not balls or probability == 0.5:
        return bell
    parts = [(one.deviation**2, one.dimension(components) + 1) for one in balls]
    ends, weights = _gamma_sum_bins(tuple(sorted(parts)))
    spread = np.sqrt(normal + length**2 * ends)

    def probability_beyond(t: float) -> float:
        return float(weights @ ndtr(-t / spread))

    low, high = 0.0, bell + length * math.sqrt(sum(each for each, _ in parts))
    while probability_beyond(high) > probability:
        low, high = high, 2 * high
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if probability_beyond(middle) > probability else (low, middle)
    return high


@lru_cache(maxsize=64)
def _gamma_sum_bins(parts: tuple[tuple[float, int], ...]) -> tuple[Floats, Floats]:
    """Upper ends of bins of Σ 2 s_i² G_i, the last one at infinity, and their chances.

    `parts` are (variance, dimensions + 1) of each noise, so that 2 s² = 2 · variance / (D + 1).
    """
    from scipy.special import expit, gammaincinv

    total: tuple[Floats, Floats] | None = None
    for (variance, halves), several in groupby(parts):
        shape = halves * len(list(several)) / 2  # of equal scales the sum is a Gamma variable too
        edges = _EDGES if len(set(parts)) == 1 else _FEW_EDGES
        ends = np.append(gammaincinv(shape, expit(edges)), math.inf) * 2 * variance / halves
        weights = np.diff(expit(edges), prepend=0.0, append=1.0)
        total = (ends, weights) if total is None else _sum_in_bins(*total, ends, weights)
    assert total is not None
    return total


def _sum_in_bins(
    one: Floats, chance: Floats, other: Floats, other_chance: Floats
) -> tuple[Floats, Floats]:
    """Return the sum of two independent variables, rounded up to as many bins."""
    from scipy.special import expit

    values, weights = np.add.outer(one, other).ravel(), np.outer(chance, other_chance).ravel()
    order = np.argsort(values, kind="stable")
    values, below = values[order], np.cumsum(weights[order])
    last = np.searchsorted(below, expit(_FEW_EDGES)).clip(max=len(values) - 1)
    ends = np.append(values[last], math.inf)
    return ends, np.diff(np.append(below[last], 1.0), prepend=0.0).clip(min=0.0)
