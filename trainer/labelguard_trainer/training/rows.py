"""The noise of released rows, as a loss takes it: a target, the probability of a flip, a weight.

A released row says one of three things of its `chosen`: that its label was flipped with probability
`flip_probability`; that it is preferred with `label_probability`; or, with only a
`residual_flip_estimate`, that it is to be taken as it is. A row that says none is a raw label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from labelguard.errors import LabelguardError

# The loss of rows. `auto` is what the card's `train_with` says: `forward` with each row's γ, the
# cross-entropy with each row's probability, or each label as it is.
PreferenceLoss: TypeAlias = Literal["auto", "forward", "robust", "soft", "plain"]

AUTO: PreferenceLoss = "auto"
TARGET, FLIP, WEIGHT = "target_probability", "flip_probability", "row_weight"
# The columns of a prepared data set, which go into every batch as tensors of shape (n,).
COLUMNS = (TARGET, FLIP, WEIGHT)

NOISE_COLUMNS = ("label_probability", "flip_probability", "residual_flip_estimate")
Floats: TypeAlias = NDArray[np.float64]


class RawLabels(LabelguardError):
    """Rows that say nothing of their noise: labels as people gave them, not a release."""


@dataclass(frozen=True, eq=False, repr=False)
class NoisyRows:
    """`COLUMNS` of shape (n,), see `losses`: targets, flip probabilities, weights with mean 1.

    The weights of `robust` are (1−2γ)² over their mean: the variance of a row's gradient grows with
    1/(1−2γ)², so that rows with γ → ½ would drown the others. Over the data set and not the batch,
    or a row's weight would depend on the rows beside it. Other losses, and equal γ, have weight 1.
    """

    target: Floats
    flip_probability: Floats
    weight: Floats

    @classmethod
    def from_columns(
        cls, columns: Mapping[str, Any], loss: str = AUTO, *, non_private: bool = False
    ) -> NoisyRows:
        """Return what a loss gets of a release's columns (`read_noise_columns`), of shape (n,).

        `non_private`: rows that say nothing of their noise are taken as they are.

        Raises `RawLabels` for such rows otherwise, and `LabelguardError` for an unknown loss, one
        that these rows cannot be given, a probability outside [0, 1], and γ ≥ ½ (which tells
        nothing).
        """
        if loss not in get_args(PreferenceLoss):
            raise LabelguardError(f"loss must be {', '.join(get_args(PreferenceLoss))}: {loss!r}")
        probability, flip, residual = (_to_floats(columns[name], name) for name in NOISE_COLUMNS)
        raw = np.isnan(probability) & np.isnan(flip) & np.isnan(residual)
        if raw.any() and not non_private:
            raise RawLabels(
                f"{int(raw.sum()):,} of {len(raw):,} rows have none of {', '.join(NOISE_COLUMNS)}: "
                "raw labels are no release; privatize them first, or declare training without a "
                "guarantee: --non-private, in Python non_private=True"
            )
        flipped, soft = ~np.isnan(flip), ~np.isnan(probability)
        _check_range(flip[flipped], "flip_probability", 0.5, "[0, ½)", open_above=True)
        _check_range(probability[soft], "label_probability", 1.0, "[0, 1]")
        _check_loss_fits(loss, flipped, soft)
        target = np.where(soft & ~flipped, probability, 1.0)
        gamma = np.where(flipped, flip, 0.0)
        if loss == "plain":
            target, gamma = np.ones(len(raw)), np.zeros(len(raw))
        signal = (1 - 2 * gamma) ** 2 if loss == "robust" else np.ones(len(raw))
        weight = signal / signal.mean() if len(signal) else signal
        return cls(target, gamma, weight)


def read_noise_columns(dataset: Any) -> dict[str, Any]:
    """Return the columns of a `datasets.Dataset` that say something of its rows' noise; NaN where
    absent.

    A column that is not there is all NaN.
    """
    present = [name for name in NOISE_COLUMNS if name in dataset.column_names]
    table = dataset.select_columns(present).with_format("arrow")[:] if present else {}
    absent = np.full(len(dataset), np.nan)
    return {name: table[name] if name in present else absent for name in NOISE_COLUMNS}


def add_loss_columns(dataset: Any, loss: str = AUTO, *, non_private: bool = False) -> Any:
    """Return a `datasets.Dataset` with `COLUMNS`, by `NoisyRows.from_columns`, weights over the
    whole of it.

    One that has a target and a weight is prepared already: without γ its targets are as they are.
    """
    if {TARGET, WEIGHT} <= set(dataset.column_names):
        if FLIP in dataset.column_names:
            return dataset
        return dataset.add_column(FLIP, np.zeros(len(dataset)))
    rows = NoisyRows.from_columns(read_noise_columns(dataset), loss, non_private=non_private)
    if FLIP in dataset.column_names:
        dataset = dataset.remove_columns(FLIP)
    for name, values in zip(COLUMNS, vars(rows).values(), strict=True):
        dataset = dataset.add_column(name, values)
    return dataset


def _to_floats(values: Any, name: str) -> Floats:
    if hasattr(values, "to_numpy"):  # an Arrow column, with nulls
        values = values.to_numpy()
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise LabelguardError(f"column {name} must hold numbers") from None


def _check_range(
    values: Floats, name: str, most: float, span: str, *, open_above: bool = False
) -> None:
    outside = (values < 0) | (values >= most if open_above else values > most)
    if outside.any():
        raise LabelguardError(
            f"{name} must be in {span}, found {int(outside.sum()):,} rows outside"
        )


def _check_loss_fits(loss: str, flipped: NDArray[np.bool_], soft: NDArray[np.bool_]) -> None:
    if loss in ("forward", "robust") and not flipped.any():
        raise LabelguardError(
            f"loss {loss} corrects for flips, and no row has a flip_probability; use auto"
        )
    if loss == "soft" and not (soft & ~flipped).all():
        raise LabelguardError("loss soft needs a label_probability in every row; use auto")
