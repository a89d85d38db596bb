"""Linear heads on pair differences: P(first side preferred) = σ(x·θ), x = φ(first) − φ(second).

For a head the logistic loss of a label y in [0, 1] splits into a part without the label and a
linear part,

    −[y log σ(z) + (1−y) log σ(−z)] = log(2 cosh(z/2)) − (y−½) z,        z = x·θ,

so that all fits here minimise

    Σ_i weight_i · log(2 cosh(x_i·θ/2)) − θ·S + ½ Σ_k ridge_k θ_k²

for some statistic S, except for the likelihood of flipped labels (`forward_loss`). Functions of
released labels or of a released statistic are post-processing: they cost no privacy.

`x` has shape (pairs, components), float32 or float64, and is read in blocks that fit a processor's
cache; each is computed with in float64, and no copy of the whole is made. `ridge` is a scalar or
has shape (components,), above 0, so that every minimum exists, also where components outnumber
pairs or x is rank-deficient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from labelguard.learning.newton import (
    Floats,
    Matrix,
    Objective,
    Preconditioner,
    blocks,
    minimise,
    sampled_curvature,
)


def fit_statistic(
    x: Matrix,
    weight: ArrayLike,
    statistic: ArrayLike,
    ridge: ArrayLike,
    *,
    curvature: ArrayLike | None = None,
) -> Floats:
    """Return θ, shape (components,), minimising Σ w·log(2 cosh(x·θ/2)) − θ·S + ½ Σ_k ridge_k θ_k².

    `weight`, shape (pairs,) or a scalar, is at least 0; `statistic` is S, shape (components,).
    `curvature`, ¼ Xᵀdiag(weight)X of shape (components, components), bounds the Hessian (Böhning
    and Lindsay 1988) and only preconditions: leave it out unless it is at hand. Newton's method to
    a relative gradient of 1e-8.

    Raises ValueError for values that are not finite, shapes that do not match, weight < 0 or
    ridge <= 0; ArithmeticError if no minimum is reached.
    """
    x = _check_matrix(x)
    weights = broadcast_column(weight, len(x), "weight", "pair")
    linear = broadcast_column(statistic, x.shape[1], "statistic", "component")
    objective = Objective(
        x, _EvenLoss(weights), linear, broadcast_column(ridge, x.shape[1], "ridge", "component")
    )
    bound = sampled_curvature(x, weights) if curvature is None else curvature
    return minimise(objective, Preconditioner(objective.ridge, bound), None)


def fit_flipped(
    x: Matrix,
    label: ArrayLike,
    flip_probability: ArrayLike,
    ridge: ArrayLike = 1.0,
    loss: Literal["forward", "robust"] = "forward",
    weight: ArrayLike | None = None,
    *,
    toward: ArrayLike | None = None,
) -> Floats:
    """Return a head θ, shape (components,), from labels flipped with known probabilities.

    `flip_probability` γ, shape (pairs,) or a scalar, is in [0, ½]; rows with γ = ½ weigh nothing.
    The penalty is ½ Σ_k ridge_k (θ_k − toward_k)², by default toward 0.

    `forward` is the likelihood, −log[(1−γ)σ(z) + γσ(−z)] for label 1: bounded below, not convex;
    Newton's method from `toward`, which never increases the loss, finds a local minimum.

    `robust` is the unbiased loss [(1−γ)ℓ(y) − γℓ(1−y)]/(1−2γ) (Chowdhury, Kini and Natarajan
    2024) with rows weighted by (1−2γ)². The split above turns it into
    log(2 cosh(z/2)) − (y−½)z/(1−2γ), that is `fit_statistic` with weight (1−2γ)² and
    S = Σ (1−2γ)(y−½)x: convex, with E[S] = Σ (1−2γ)²(true label − ½)x.

    Raises as `fit_statistic`, and ValueError for a label outside [0, 1], γ outside [0, ½] or an
    unknown loss.
    """
    x = _check_matrix(x)
    pairs, components = x.shape
    weights = broadcast_column(1.0 if weight is None else weight, pairs, "weight", "pair")
    labels = broadcast_column(label, pairs, "label", "pair")
    flips = broadcast_column(flip_probability, pairs, "flip_probability", "pair")
    penalty = broadcast_column(ridge, components, "ridge", "component")
    center = broadcast_column(0.0 if toward is None else toward, components, "toward", "component")
    signal = 1 - 2 * flips
    if loss == "robust":
        statistic = label_statistic(x, labels, weights * signal)
        return fit_statistic(x, weights * signal**2, statistic + penalty * center, penalty)
    if loss != "forward":
        raise ValueError(f"loss must be 'forward' or 'robust', found {loss!r}")
    objective = Objective(x, _ForwardLoss(weights, labels, flips), penalty * center, penalty)
    bound = sampled_curvature(x, weights * signal**2)
    return minimise(objective, Preconditioner(penalty, bound), center)


def label_statistic(x: Matrix, label: ArrayLike, weight: ArrayLike = 1.0) -> Floats:
    """Return Σ_i weight_i (label_i − ½) x_i, (components,): all that a head sees of labels.

    Raises ValueError as `fit_statistic`, and for a label outside [0, 1].
    """
    x = _check_matrix(x)
    coefficient = broadcast_column(weight, len(x), "weight", "pair") * (
        broadcast_column(label, len(x), "label", "pair") - 0.5
    )
    total = np.zeros(x.shape[1])
    for rows, block in blocks(x):
        total += coefficient[rows] @ block
    return total


def square_sums(x: Matrix, weight: Floats) -> Floats:
    """Return Σ_i weight_i x_i², shape (components,), computed in float64 whatever the type of x."""
    total = np.zeros(x.shape[1])
    for rows, block in blocks(x):
        total += weight[rows] @ np.square(block)
    return total


def margins(x: Matrix, theta: Floats) -> Floats:
    """Return x·θ, shape (pairs,), computed in float64 whatever the type of x."""
    result = np.empty(len(x))
    for rows, block in blocks(x):
        result[rows] = block @ theta
    return result


def forward_loss(margin: Floats, label: Floats, flip_probability: Floats) -> Floats:
    """Return −log P(label) of flipped labels, shape (n,): P(1) = (1−γ)σ(margin) + γσ(−margin).

    A soft label in (0, 1) averages the losses of 1 and 0. Finite for every finite margin. The
    arguments have shape (n,) or broadcast to it, and are not checked.
    """
    size = np.abs(margin)
    agreeing = np.where(margin >= 0, label, 1 - label)
    with np.errstate(divide="ignore"):  # log 0 = −∞ is what logaddexp needs at γ = 0
        log_against = np.logaddexp(np.log(flip_probability), np.log1p(-flip_probability) - size)
    log_agree = np.log1p(flip_probability * np.expm1(-size))
    loss = np.log1p(np.exp(-size)) - agreeing * log_agree - (1 - agreeing) * log_against
    return np.asarray(loss, np.float64)


def accuracy(margin: ArrayLike, label: ArrayLike) -> float:
    """Return the share of strict labels (0 or 1) that the margin's sign gets right; 0 is half one.

    Both have shape (n,); other labels (ties) do not count. Raises ValueError without a strict one.
    """
    scores, labels = np.asarray(margin, np.float64), np.asarray(label, np.float64)
    strict = (labels == 0) | (labels == 1)
    if not strict.any():
        raise ValueError("accuracy needs at least one label that is 0 or 1, found none")
    return float((1 + np.sign(scores[strict]) * (2 * labels[strict] - 1)).mean() / 2)


@dataclass(frozen=True, eq=False, repr=False)
class _EvenLoss:
    """weight · log(2 cosh(z/2))."""

    weight: Floats

    def __call__(self, margin: Floats, rows: slice) -> tuple[float, Floats, Floats]:
        weight, size = self.weight[rows], np.abs(margin)
        tail = np.exp(-size)
        value = float(weight @ (size / 2 + np.log1p(tail)))
        half_slope = np.copysign((1 - tail) / (1 + tail) / 2, margin)
        return value, weight * half_slope, weight * tail / (1 + tail) ** 2


@dataclass(frozen=True, eq=False, repr=False)
class _ForwardLoss:
    """weight · `forward_loss`.

    With e = exp(−|z|), the slope along |z| is −(1−2γ)e/((1+e)(1−γ+γe)) for a label that agrees
    with the margin and (1−2γ)/((1+e)(1−γ+γ/e)) for one against it; the second derivative of
    either is slope² − tanh(|z|/2)·slope.
    """

    weight: Floats
    label: Floats
    flip_probability: Floats

    def __call__(self, margin: Floats, rows: slice) -> tuple[float, Floats, Floats]:
        weight, label, flip = self.weight[rows], self.label[rows], self.flip_probability[rows]
        value = float(weight @ forward_loss(margin, label, flip))
        # Beyond 700 the slopes are constant to the last digit, and 1/e would overflow.
        tail = np.exp(-np.minimum(np.abs(margin), 700))
        common = (1 - 2 * flip) / (1 + tail)
        agree = -common * tail / (1 - flip + flip * tail)
        against = common / (1 - flip + flip / tail)
        share = np.where(margin >= 0, label, 1 - label)
        slope = share * agree + (1 - share) * against
        bend = share * agree**2 + (1 - share) * against**2 - (1 - tail) / (1 + tail) * slope
        return value, weight * np.where(margin >= 0, slope, -slope), weight * bend


def _check_matrix(x: Matrix) -> Matrix:
    if not isinstance(x, np.ndarray) or x.ndim != 2 or x.dtype not in (np.float32, np.float64):
        kind = f"{x.dtype} {x.shape}" if isinstance(x, np.ndarray) else type(x).__name__
        raise ValueError(f"x must be a float32 or float64 array (pairs, components), found {kind}")
    ones = np.ones(x.shape[1])
    for _, block in blocks(x):
        # A row's sum is finite unless one of its values is not, and costs less than a test of each.
        if not np.isfinite(block @ ones).all():
            raise ValueError("x must be finite, found NaN or infinite values")
    return x


_RANGES: Mapping[str, tuple[float, float, str]] = {
    "weight": (0, np.inf, ">= 0"),
    "ridge": (np.nextafter(0, 1), np.inf, "> 0"),
    "label": (0, 1, "in [0, 1]"),
    "flip_probability": (0, 0.5, "in [0, ½]"),
}


def broadcast_column(values: ArrayLike, size: int, name: str, counted: str) -> Floats:
    """Return a scalar or `size` values, one for each of what is `counted`, as (size,).

    Raises ValueError for other shapes, and for values that are not finite or not in the range of
    this `name`.
    """
    column = np.asarray(values, np.float64)
    if column.shape not in ((), (size,)):
        raise ValueError(
            f"{name} must have one value per {counted}, shape ({size},), found {column.shape}"
        )
    if not np.isfinite(column).all():
        raise ValueError(f"{name} must be finite, found NaN or infinite values")
    least, most, span = _RANGES.get(name, (-np.inf, np.inf, ""))
    outside = column[(column < least) | (column > most)]
    if len(outside):
        value = "values outside" if name == "label" else str(outside[0])  # labels are private
        raise ValueError(f"{name} must be {span}, found {value}")
    return np.ascontiguousarray(np.broadcast_to(column, (size,)))
