"""The scale of a released head's probabilities, from the release on simulated labels.

A labeler who agrees with themselves has a contribution longer than the clip C, and the ridge
shrinks what noise may have made up: a head says .60 where .70 are right. Where labelers are few and
ε is small, noise makes margins of its own, and a head says .70 where .60 are right. Its
probabilities are σ(c·xᵀθ), and the one number c is found without any label: labels are simulated
over the real public pairs, labelers and counts, run through this very release (weights, clip,
noise, ridge, fit), and c minimises the mean log loss of fresh simulated labelers' strict labels.
Accuracy and order are those of c = 1; a probability says how often a fresh labeler who does not
call a tie prefers that side.

Nothing here has an argument that could hold labels. The numbers are functions of public columns and
a prior.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from labelguard.learning.heads import fit_statistic
from labelguard.mechanisms.geometry import Basis, Shape, clip_rows, compute_spectrum
from labelguard.mechanisms.noise import NoiseKind, ReleasedNoise
from labelguard.mechanisms.statistic import Bounds, Rows, compute_noise_aware_ridge
from labelguard.planner import trials
from labelguard.planner.prior import Draw, Population, Prior
from labelguard.text import Progress, no_progress

WORLDS = 45
# At the smallest scale every probability is about ½, and pairs are still in the head's order. Above
# the largest the head is nearly nothing, and no simulation of its size should be trusted.
SMALLEST, LARGEST = 0.01, 10.0

# Along which simulated utility is linear, as where shapes are chosen.
AXES = 128
_MOST_ROWS = 120_000
_MOST_PAIRS = 20_000  # that principal axes are found from
_PRECISION = 1e-3

Floats = NDArray[np.float64]
Small = NDArray[np.float32]


def calibrate_head(
    x: NDArray[np.float32],
    rows: Rows,
    basis: Basis,
    shape: Shape,
    bounds: Bounds,
    noise: float,
    kind: NoiseKind = "gaussian",
    prior: Prior | None = None,
    *,
    windows: float = 1.0,
    worlds: int = WORLDS,
    progress: Progress = no_progress,
) -> float:
    """Return the scale c of one release, by simulation, to two digits.

    `x` (pairs, d) are public features; `rows`, `basis`, `shape` and `bounds` are the release's own,
    and `noise` the standard deviation of its noise for each component, in units of the statistic.
    Where a head is of the sum of several windows, these rows stand for `windows` times as many, and
    `noise` is that of the sum. Of more than 120,000 rows those of some labelers are simulated,
    drawn at random, and the noise is scaled to them.

    The same for every order of rows. Raises `InvalidLabels` as `geometry.compute_spectrum`.
    """
    prior = prior or Prior()
    release = _SimulatedRelease.of(x, rows, basis, shape, bounds, noise, windows)
    generator = np.random.default_rng([prior.seed, WORLDS])
    shocks = ReleasedNoise(kind, release.noise).draws(len(basis.metric), generator, worlds)
    simulated = []
    for number, draw in enumerate(release.population(prior).draws(worlds)):
        progress("simulating calibration", number / worlds)
        simulated.append(release.simulate_world(draw, shocks[number]))
    margin, gain, strict = map(np.concatenate, zip(*simulated, strict=True))
    return round(find_best_scale(margin, gain, strict), 2)


@dataclass(frozen=True, eq=False)
class _SimulatedRelease:
    """A release over the sampled labelers, each of whom stands for as many as `noise` is scaled by.

    `z` (pairs, components) are its coordinates, `axes` (pairs, axes) principal ones and `values`
    what these vary by. `rows` are grouped by labeler, `weight` is that of each row's labeler,
    and `likelihood` (pairs,) what each pair weighs in the fit.
    """

    z: Small
    axes: Small
    values: Floats
    rows: Rows
    weight: Floats
    likelihood: Floats
    clip: float
    noise: float
    ridge: Floats

    @classmethod
    def of(
        cls,
        x: Small,
        rows: Rows,
        basis: Basis,
        shape: Shape,
        bounds: Bounds,
        noise: float,
        windows: float,
    ) -> _SimulatedRelease:
        mine, units, scale = sample_labelers(rows)
        scale *= windows
        used, pair = np.unique(mine.pair, return_inverse=True)
        x, mine = x[used], replace(mine, pair=pair.astype(np.intp))
        counts = np.bincount(mine.pair)
        every = slice(None, None, -(-len(x) // _MOST_PAIRS))
        principal = compute_spectrum(x[every], counts[every])
        size = min(AXES, principal.rank)
        z = basis.coordinates(x)
        weight = bounds.weight[units][mine.unit]
        likelihood = np.bincount(mine.pair, weight * 4 * mine.information()).astype(np.float64)
        # The sum, its noise and its ridge are all those of the whole, over `scale`.
        ridge = compute_noise_aware_ridge(
            z, likelihood * scale, shape.ridge * basis.metric**2, noise
        )
        return cls(
            z,
            x @ principal.axes[:, :size].astype(np.float32),
            principal.values[:size],
            mine,
            weight,
            likelihood,
            bounds.clip,
            noise / scale,
            ridge / scale,
        )

    def population(self, prior: Prior) -> Population:
        """Labelers who label these pairs."""
        return Population(self.axes, self.values, self.rows, prior)

    @cached_property
    def curvature(self) -> Floats:
        """¼ Σ w z zᵀ, shape (components, components)."""
        weight = (self.likelihood / 4).astype(np.float32)
        return np.asarray((self.z * weight[:, None]).T @ self.z, np.float64)

    @cached_property
    def pair_shares(self) -> Floats:
        """The share of all rows that each pair has."""
        return np.bincount(self.rows.pair) / len(self.rows)

    def clipped_sum(self, half: Small) -> Floats:
        """Σ_u clip_C(w_u Σ_j share half z), shape (components,)."""
        factor = half * self.rows.row_weights() * self.weight
        part = trials.sums_by_labeler(self.z, self.rows, factor)
        return np.asarray(clip_rows(part, self.clip).sum(axis=0))

    def simulate_world(self, draw: Draw, shock: Floats) -> tuple[Floats, Floats, Floats]:
        """Return margins of the pairs under the head of one world, and what fresh labelers do."""
        total = self.clipped_sum(draw.half)
        theta = fit_statistic(
            self.z, self.likelihood, total + shock, self.ridge, curvature=self.curvature
        )
        margin = (self.z @ theta.astype(np.float32)).astype(np.float64)
        return margin, self.pair_shares * draw.gain, self.pair_shares * draw.strict


def find_best_scale(margin: Floats, gain: Floats, strict: Floats) -> float:
    """Return the c at which the mean log loss of fresh labelers' strict labels is least.

    Of pairs of all worlds, each (pairs,): their margin, E[label − ½] and P(no tie), both times what
    a pair weighs. Σ strict · log 2cosh(c m/2) − gain · c m is convex in c.
    """
    from scipy.optimize import brentq

    gained = float(gain @ margin)
    pull = strict * margin / 2

    def slope(scale: float) -> float:
        return float(pull @ np.tanh(scale * margin / 2)) - gained

    if slope(SMALLEST) >= 0:
        return SMALLEST
    if slope(LARGEST) <= 0:
        return LARGEST
    return float(brentq(slope, SMALLEST, LARGEST, xtol=_PRECISION))


def sample_labelers(rows: Rows) -> tuple[Rows, NDArray[np.intp], float]:
    """Rows grouped by labeler, of all or of some; who these are; how many each stands for."""
    counts = np.bincount(rows.unit, minlength=rows.units)
    units = trials.sample_labelers(counts, np.random.default_rng(0), _MOST_ROWS)
    mine = trials.select_rows_of_labelers(rows, units, by_pair=True)
    return mine, units, np.count_nonzero(counts) / len(units)
