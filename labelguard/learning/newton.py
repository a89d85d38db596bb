"""Newton's method for penalised losses of linear margins, on matrices too large to copy.

Minimises Σ_i loss_i(x_i·θ) − θ·linear + ½ Σ_k ridge_k θ_k² over θ, ridge > 0. x, of shape
(rows, components), is only multiplied with vectors, in blocks that fit a processor's cache; each is
computed with in float64, whatever the type of x. With a million rows and 384 components a logistic
fit takes about twice as long as one product XᵀX.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]
Matrix: TypeAlias = NDArray[np.float32] | NDArray[np.float64]

# Elements of one block: 1.5 MB in float64, within a processor's cache.
_BLOCK_ELEMENTS = 200_000
# Rows that the preconditioner is computed from: enough to estimate a curvature well, and a small
# share of the work where there are a million.
_PRECONDITIONER_ROWS = 2**16
_RELATIVE_GRADIENT = 1e-8
_ACCEPTED_RELATIVE_GRADIENT = 1e-5
_ROUNDING = 1e-14
_MOST_NEWTON_STEPS = 500
_MOST_CONJUGATE_STEPS = 500
_MOST_HALVINGS = 60


class RowLoss(Protocol):
    """A loss of the margins of some rows: its sum, and its first and second derivative a row."""

    def __call__(self, margin: Floats, rows: slice) -> tuple[float, Floats, Floats]: ...


@dataclass(frozen=True, eq=False, repr=False)
class Point:
    """The objective at theta; `magnitude` is the size of the terms that its value is a sum of, and
    `curvature` what the objective makes its Hessian of.
    """

    theta: Floats
    value: float
    magnitude: float
    gradient: Floats
    curvature: Floats


@dataclass(frozen=True, eq=False, repr=False)
class Objective:
    """Σ_i loss_i(x_i·θ) − θ·linear + ½ Σ_k ridge_k θ_k²."""

    x: Matrix
    loss: RowLoss
    linear: Floats
    ridge: Floats

    def at(self, theta: Floats) -> Point:
        """Return the value, gradient and each row's curvature, in one pass over x."""
        total, row_curvature = 0.0, np.empty(len(self.x))
        gradient = self.ridge * theta - self.linear
        for rows, block in blocks(self.x):
            part, slope, row_curvature[rows] = self.loss(block @ theta, rows)
            total += part
            gradient += slope @ block
        penalty, reward = float(self.ridge @ theta**2) / 2, float(self.linear @ theta)
        value, magnitude = total + penalty - reward, abs(total) + penalty + abs(reward)
        return Point(theta, value, magnitude, gradient, row_curvature)

    def hessian_product(self, point: Point, direction: Floats) -> Floats:
        """Return the Hessian at a point times a direction, in one pass over x."""
        product = self.ridge * direction
        for rows, block in blocks(self.x):
            product += (point.curvature[rows] * (block @ direction)) @ block
        return product


class Smooth(Protocol):
    """A function that Newton's method minimises."""

    @property
    def linear(self) -> Floats: ...
    def at(self, theta: Floats) -> Point: ...
    def hessian_product(self, point: Point, direction: Floats) -> Floats: ...


class Preconditioner:
    """(bound + diag(ridge))⁻¹, the inverse of a bound on the Hessian, or of something near it.

    It decides how fast a fit is, not where it ends.
    """

    def __init__(self, ridge: Floats, bound: ArrayLike) -> None:
        components, bound = len(ridge), np.array(bound, np.float64)
        if bound.shape != (components, components) or not np.isfinite(bound).all():
            raise ValueError(
                f"curvature must be finite, of shape ({components}, {components}), "
                f"found shape {bound.shape}"
            )
        # A curvature summed in float32 may have eigenvalues a little below zero.
        slack = float(np.finfo(np.float32).eps * np.trace(bound))
        bound[np.diag_indices(components)] += ridge + slack
        try:
            self._inverse_root = np.linalg.inv(np.linalg.cholesky(bound))
        except np.linalg.LinAlgError:
            raise ValueError(
                "curvature must be ¼ Xᵀdiag(weight)X, found an indefinite matrix"
            ) from None

    def solve(self, vector: Floats) -> Floats:
        """Return the bound's inverse times a vector."""
        return np.asarray(self._inverse_root.T @ (self._inverse_root @ vector))

    def norm(self, gradient: Floats) -> float:
        """Return the length of a gradient in units that do not depend on the scale of x."""
        return float(np.linalg.norm(self._inverse_root @ gradient))


def minimise(objective: Smooth, preconditioner: Preconditioner, start: Floats | None) -> Floats:
    """Minimise by Newton steps from conjugate gradients, each shortened until the value falls."""
    here = objective.at(np.zeros_like(objective.linear))
    unit = preconditioner.norm(here.gradient)
    if start is not None and start.any():
        here = objective.at(start)
        unit = max(unit, preconditioner.norm(here.gradient))
    for _ in range(_MOST_NEWTON_STEPS):
        norm = preconditioner.norm(here.gradient)
        if norm <= _RELATIVE_GRADIENT * unit:
            return here.theta
        accuracy_of_step = min(0.1, norm / unit)
        step = _newton_step(objective, here, preconditioner, accuracy_of_step)
        there = _descend(objective, here, step)
        if there is None:
            break
        here = there
    norm = preconditioner.norm(here.gradient)
    relative = norm / unit
    # Labels that cancel leave a gradient of rounding errors to begin with. Half its square is what
    # a step could still gain.
    if not (relative <= _ACCEPTED_RELATIVE_GRADIENT or norm**2 <= _ROUNDING * here.magnitude):
        raise ArithmeticError(
            f"the fit stopped at a relative gradient of {relative:.1e} instead of "
            f"{_RELATIVE_GRADIENT:.0e}: scale the features, or raise ridge"
        )
    return here.theta


def blocks(x: Matrix) -> Iterator[tuple[slice, Floats]]:
    """Yield consecutive rows of x as float64."""
    height = max(1, _BLOCK_ELEMENTS // max(1, x.shape[1]))
    for start in range(0, len(x), height):
        rows = slice(start, min(start + height, len(x)))
        yield rows, x[rows].astype(np.float64, copy=False)


def _newton_step(
    objective: Smooth, here: Point, preconditioner: Preconditioner, accuracy: float
) -> Floats:
    """Return a step H⁻¹(−gradient) by preconditioned conjugate gradients, to a relative accuracy.

    Stops at a direction of negative curvature, so that the result always descends (Nocedal and
    Wright 2006, algorithm 7.1).
    """
    step, residual = np.zeros_like(here.theta), -here.gradient
    direction = preconditioner.solve(residual)
    left = float(residual @ direction)
    goal = accuracy**2 * left
    for number in range(_MOST_CONJUGATE_STEPS):
        product = objective.hessian_product(here, direction)
        bend = float(direction @ product)
        if bend <= 0:
            return step if number else direction
        step += left / bend * direction
        residual -= left / bend * product
        solved = preconditioner.solve(residual)
        before, left = left, float(residual @ solved)
        if left <= goal:
            break
        direction = solved + left / before * direction
    return step


def _descend(objective: Smooth, here: Point, step: Floats) -> Point | None:
    """Return the first of step, step/2, step/4, … that lowers the value enough, or None."""
    promised = 1e-4 * float(here.gradient @ step)
    rounding = _ROUNDING * here.magnitude
    for halvings in range(_MOST_HALVINGS):
        share = 0.5**halvings
        there = objective.at(here.theta + share * step)
        if there.value <= here.value + share * promised + rounding:
            return there
    return None


def sampled_curvature(x: Matrix, weight: Floats) -> Floats:
    """Return ¼ Xᵀdiag(weight)X from evenly spaced rows, scaled up to all of them."""
    stride = max(1, len(x) // max(_PRECONDITIONER_ROWS, 16 * x.shape[1]))
    sampled, total = weight[::stride], np.zeros((x.shape[1], x.shape[1]))
    for rows, block in blocks(x[::stride]):
        total += block.T @ (sampled[rows, None] * block)
    return np.asarray(total * (stride / 4))
