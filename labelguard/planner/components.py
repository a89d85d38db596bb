"""The number of components of a statistic, in closed form, from public columns alone.

More components say more about what labelers prefer, and each brings noise. On principal axes x_j of
the pairs' features a head's coefficient has a prior variance v_j; the labels inform about it by
h_j = ¼ Σ w x_j², and the noise of a release with k components, whitened, costs as much as sampling
does r_k times. v_j shrinks with the standard deviation of the axis, and all axes together give
margins the variance that the prior expects of such features (`compute_margin_variance`). The
expected gain of k components is then

    G(k) = Σ_{j≤k} e_j² / (e_j + 1 + r_k),    e_j = v_j h_j,    r_k = 4 k ν_k / n_eff,

with ν_k the noise's variance per coordinate at sensitivity 1, and n_eff = Σ_u w_u b_u² / C² how
many labelers of median length there are. No label is read and nothing is simulated: the choice is
the same whatever the labels are, and it costs no privacy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelguard.accounting import ball, gaussian
from labelguard.errors import InvalidLabels
from labelguard.learning.heads import square_sums
from labelguard.mechanisms import statistic
from labelguard.mechanisms.geometry import Shape, compute_spectrum, project
from labelguard.mechanisms.noise import Noise
from labelguard.mechanisms.statistic import Rows
from labelguard.planner.prior import compute_margin_variance, guess_explained_share

# The numbers of components to choose from: never one direction alone where there are more, since
# labelers may care nothing for it.
COUNTS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128)

# The noise of a release with so many components, in sensitivities.
Noises: TypeAlias = Callable[[int], Noise]

Floats = NDArray[np.float64]

# Coefficients on principal axes vary as the axis's variance to this power.
_POWER = 0.5

_LEADING = 4  # components from which labelers' weights are taken
_WORTH = 1.0005  # a larger number has to gain this much


@dataclass(frozen=True)
class Directions:
    """Public: what labels can say along principal axes.

    `expected` (axes,) is e, `labelers` is n_eff, and `ridge` the penalty of a head, to two digits.
    `rank` counts all directions, and e only those that a number of components is chosen among.
    """

    expected: Floats
    labelers: float
    ridge: float
    rank: int

    @classmethod
    def of_features(cls, x: NDArray[np.float32], rows: Rows, scratch: Path | None = None) -> Self:
        """Of pairs x (pairs, d) and who labels them.

        Raises `InvalidLabels` if there are no rows, or no pair differs in any feature.
        """
        if not len(rows):
            raise InvalidLabels("there is no labeled pair")
        principal = compute_spectrum(x, np.bincount(rows.pair, minlength=len(x)))
        axes = min(principal.rank, COUNTS[-1])
        z = project(x, principal.axes[:, :axes], scratch)
        return cls.of_coordinates(z, principal.values, rows)

    @classmethod
    def of_coordinates(cls, z: NDArray[np.float32], values: Floats, rows: Rows) -> Self:
        """Of principal coordinates z (pairs, axes), along which H has the diagonal `values`, or
        more of them.
        """
        shape, axes = Shape(), min(z.shape[1], COUNTS[-1])
        metric = shape.metric(values[: min(axes, _LEADING)])
        norms = statistic.compute_norms_of_random_labels(
            z[:, :_LEADING] * metric.astype(np.float32), rows
        )
        clip, weight = statistic.choose_clip_and_weights(norms, shape.clip_quantile)
        of_pair = np.bincount(rows.pair, rows.information() * weight[rows.unit], len(z)).astype(
            float
        )
        information = square_sums(z[:, :axes], of_pair)
        square = 4 * float(values.sum()) / len(rows)
        spread = (values[:axes] / values[0]) ** _POWER
        spread *= float(values[:axes].sum()) / float(spread @ values[:axes])
        expected = (
            information * spread * (compute_margin_variance(guess_explained_share(z)) / square)
        )
        rank = int((values > values[0] * 1e-9).sum())
        return cls(expected, float(weight @ norms**2) / clip**2, float(f"{square:.2g}"), rank)

    def choose_shape(self, noises: Noises) -> Shape:
        """Return the best number of components, and the ridge of what is expected of them."""
        return Shape(self.best_component_count(noises), ridge=self.ridge)

    def best_component_count(self, noises: Noises) -> int:
        """Return the number of components of highest gain; a larger one only for .05 % more."""
        chosen, gained = 1, 0.0
        for components, gain in self.gains(noises).items():
            if gain > gained * _WORTH:
                chosen, gained = components, gain
        return chosen

    def gains(self, noises: Noises) -> dict[int, float]:
        """G(k) for every k of `COUNTS` that there are directions for, or for all of them."""
        gains = {}
        for count in sorted({min(count, len(self.expected)) for count in COUNTS}):
            of_noise = 4 * count * noises(count).deviation(count) ** 2 / self.labelers
            leading = self.expected[:count]
            gains[count] = float((leading**2 / (leading + 1 + of_noise)).sum())
        return gains


def make_noise_chooser(epsilon: float, delta: float, releases: int = 1) -> Noises:
    """For every number of components the smaller noise that (epsilon, delta) buys.

    Ball noise is for one release alone: of several, Gaussian noise composes better. Whichever is
    taken has to be fixed with the policy (docs/guarantees.md).
    """
    gaussians = Noise("gaussian", gaussian.calibrate(epsilon, delta, releases))

    def choose_noise(components: int) -> Noise:
        if releases > 1:
            return gaussians
        balls = Noise("ball", ball.calibrate(epsilon, delta, components), components)
        ball_wins = balls.deviation(components) < gaussians.deviation(components)
        return balls if ball_wins else gaussians

    return choose_noise
