"""PROPS: labels of randomized response, bettered in stages by models trained on earlier stages.

All labels are released once by randomized response, each flipped with a known probability γ_r.
Units, labelers say, fall into disjoint stages, with all of their labels: those are flipped together
(`accounting.blocks`), and what a model learned of some of them is not independent of the others.
Model 1 learns from the labels of stage 1; for every later stage
the model before predicts the labels, its error rate is estimated from disagreements, predictions
and released labels are combined, and the next model continues on the combined labels.

Guarantee: everything here is a function of released labels, their flip probabilities and public
data, so it costs nothing beyond the randomized response (post-processing). No function takes a raw
label (docs/proofs/randomized-response.md#props).

Source: Teku et al., PROPS: Progressively Private Self-alignment of Large Language Models, equations
4–8, with these differences: stages are of units, not of items; flip probabilities may differ by
row; the standard error of the estimated rate is reported; votes that weigh the same keep the
released label (equation 5 says 1, which depends on the order of the sides); and `soft` combination.

Stages and folds are numbered from 0. Labels are 1 where the first side is preferred, else 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar

from labelguard.learning.heads import forward_loss
from labelguard.mechanisms.randomized_response import coin_variance
from labelguard.storage.blocks import Blocks

Floats = NDArray[np.float64]

# No model is taken to be better than this, however well it agrees.
SMALLEST_ERROR_RATE = 1e-3

_SCALES = np.concatenate([[0.0], np.geomspace(0.01, 10, 13)])


@dataclass(frozen=True)
class ErrorEstimate:
    """Estimate of how often a model's votes differ from the true labels.

    `rate` is unbiased for the mean of the rows' error rates weighted by (1−2γ_r)², and may leave
    [0, 1]; `standard_error` belongs to it; `clamped` is the rate within [1e-3, ½], for use.
    `uninformative` says that the standard error exceeds (½ − min γ_r)/2: the estimate cannot tell
    the model from the released labels, nor from a coin. `rows` is how many it is made from.
    """

    rate: float
    standard_error: float
    clamped: float
    uninformative: bool
    rows: int


def assign_stages(units: Blocks, stages: int) -> NDArray[np.intp]:
    """Return the stage of each unit, shape (n,), from its key, shape (n, 2).

    A function of the unit alone: all its rows share a stage, the same on every machine. Stages are
    equally likely, and independent of the key's high half, which sorts units into buckets.
    """
    return (units[:, 1] % np.uint64(stages)).astype(np.intp)


def assign_folds(units: Blocks, stages: int, folds: int) -> NDArray[np.intp]:
    """Return the fold of each unit, shape (n,), independent of its stage of as many."""
    return (units[:, 1] // np.uint64(stages) % np.uint64(folds)).astype(np.intp)


def vote(margin: ArrayLike) -> Floats:
    """Return a model's label of each margin: 1 above 0, 0 below, and ½, no vote, at 0."""
    return np.asarray((np.sign(np.asarray(margin, np.float64)) + 1) / 2)


def estimate_error(
    released: ArrayLike,
    predicted: ArrayLike,
    flip_probability: ArrayLike,
    noise: ArrayLike | None = None,
) -> ErrorEstimate:
    """Return the error rate of predicted labels, from labels released by randomized response (eq.
    8).

    With d_r = |released − predicted|, whose mean is γ_r + (1−2γ_r)·(error of r),

        rate = Σ (1−2γ_r)(d_r−γ_r) / Σ (1−2γ_r)²,
        variance = Σ (1−2γ_r)² [noise_r/4 + (1−2γ_r)² p(1−p)] / (Σ (1−2γ_r)²)²,

    where the first summand is that of the flips and the second the sampling of rows, at p = the
    rate within [0, 1]. `noise` is `joint_flips.compute_largest_eigenvalue`, a bound for rows that
    were flipped together; by default that of coins, 4γ_r(1−γ_r). Labels count as independent
    otherwise: rows of one item, on which a model errs alike, make the second summand a little too
    small.

    `released` holds 0 and 1, `predicted` 0, 1 and ½ (no vote: an error half the time), both of
    shape (n,); the model must not have seen these rows. Without any row with γ < ½ the rate is ½
    and the standard error infinite.

    Raises ValueError for shapes that do not match, other released labels or γ outside [0, ½].
    """
    labels, flips, votes = _check_columns(released, flip_probability, predicted)
    signal = 1 - 2 * flips
    information = float(signal @ signal)
    if information == 0:
        return ErrorEstimate(0.5, math.inf, 0.5, True, len(labels))
    rate = float(signal @ (np.abs(labels - votes) - flips)) / information
    spread = min(1.0, max(0.0, rate))
    of_flips = coin_variance(flips) if noise is None else np.asarray(noise, np.float64)
    row_variance = of_flips / 4 + signal**2 * (spread * (1 - spread))
    error = math.sqrt(float(signal**2 @ row_variance)) / information
    clamped = min(0.5, max(SMALLEST_ERROR_RATE, rate))
    uninformative = bool(error > (0.5 - float(flips.min())) / 2)
    return ErrorEstimate(rate, error, clamped, uninformative, len(labels))


def combine_hard(
    released: ArrayLike, predicted: ArrayLike, flip_probability: ArrayLike, estimate: ErrorEstimate
) -> tuple[Floats, Floats]:
    """Combined labels 0 or 1 and `residual_flip_estimate`, both of shape (n,) (eq. 4 and 5).

    Of two votes the one with the smaller rate decides: the model's if its clamped estimated rate
    is below γ_r, else the released one; also if the rates are equal, and where the model has no
    vote. The residual rate is γ_r where the released label stands and the clamped estimate where
    the model's does. That is an estimate, and the error of a model is a function of the pair: no
    loss that corrects for random flips applies to it.

    Raises ValueError as `estimate_error`.
    """
    labels, flips, votes = _check_columns(released, flip_probability, predicted)
    model_wins = (votes != 0.5) & (estimate.clamped < flips)
    return np.where(model_wins, votes, labels), np.where(model_wins, estimate.clamped, flips)


def combine_soft(
    released: ArrayLike, margin: ArrayLike, flip_probability: ArrayLike, scale: ArrayLike
) -> Floats:
    """P(true label = 1), shape (n,): logit P = (2·released−1)·log((1−γ_r)/γ_r) + scale·margin.

    Bayes' rule with the model's scaled margin as prior log-odds. `scale` >= 0 is a scalar or has
    shape (n,); at 0 the result is the posterior of randomized response alone. A row with γ = 0
    keeps its label, one with γ = ½ gets the model's probability.

    Raises ValueError for shapes that do not match, values that are not finite, released labels
    other than 0 and 1, or γ outside [0, ½].
    """
    labels, flips, margins = _check_columns(released, flip_probability, margin)
    prior = np.asarray(scale, np.float64) * margins
    with np.errstate(divide="ignore"):  # γ = 0 has infinite log-odds
        evidence = np.log1p(-flips) - np.log(flips)
    return np.asarray((1 + np.tanh(((2 * labels - 1) * evidence + prior) / 2)) / 2)


def fit_scale(
    released: ArrayLike, margin: ArrayLike, flip_probability: ArrayLike, folds: ArrayLike
) -> Floats:
    """Return the scale c in [0, 10] of a model's margins for each row, shape (n,), for
    `combine_soft`.

    Minimises Σ −log[(1−γ)σ(c·m) + γσ(−c·m)] (m is the margin, negated where the released label
    is 0) + c over all rows outside the row's fold. The last term is an exponential prior with mean
    1, the scale of a calibrated model: where the labels say little, c is 0, its mode. That is also
    the result where there is nothing outside a fold.

    `folds`, integers of shape (n,), must hold all rows of a unit in one fold, and the margins must
    come from a model that saw none of these rows: a caller that trains on them has to cross-fit
    the model too.

    Raises ValueError as `combine_soft`.
    """
    labels, flips, margins = _check_columns(released, flip_probability, margin)
    names, number = np.unique(np.asarray(folds), return_inverse=True)
    scales = np.zeros(len(names))
    for fold in range(len(names) if len(names) > 1 else 0):
        outside = number != fold
        scales[fold] = _best_scale(labels[outside], margins[outside], flips[outside])
    return scales[number]


def _best_scale(labels: Floats, margins: Floats, flips: Floats) -> float:
    """Return the penalised maximum likelihood scale: a grid, then a search around its best."""

    def penalized_loss(scale: float) -> float:
        return float(forward_loss(scale * margins, labels, flips).sum()) + scale

    best = int(np.argmin([penalized_loss(float(scale)) for scale in _SCALES]))
    bounds = _SCALES[max(0, best - 1)], _SCALES[min(len(_SCALES) - 1, best + 1)]
    nearby = minimize_scalar(
        penalized_loss, bounds=bounds, method="bounded", options={"xatol": 1e-4}
    )
    # The search never reaches the ends of its interval, and 0 is one that matters.
    return min((0.0, float(nearby.x)), key=penalized_loss)


def _check_columns(
    released: ArrayLike, flip_probability: ArrayLike, values: ArrayLike
) -> tuple[Floats, Floats, Floats]:
    """Labels, flip probabilities and votes or margins as columns of one shape (n,)."""
    columns = [np.asarray(each, np.float64) for each in (released, flip_probability, values)]
    labels, flips, rest = columns
    if labels.ndim != 1 or any(column.shape != labels.shape for column in columns):
        raise ValueError(f"expected columns of one shape (n,), found {[c.shape for c in columns]}")
    if not ((labels == 0) | (labels == 1)).all() or not np.isfinite(rest).all():
        raise ValueError("expected labels 0 and 1, and finite votes or margins")
    if not ((flips >= 0) & (flips <= 0.5)).all():
        raise ValueError("flip_probability must be in [0, ½], found values outside")
    return labels, flips, rest
