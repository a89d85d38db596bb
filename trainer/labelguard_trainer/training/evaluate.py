"""How well a model predicts preferences that it has not seen, told from what may be read.

Nothing here reads a raw label. Rows of a release say what their labels are worth, and each kind is
measured in its own way; public pairs (`Probes`) may be measured as they are. z is the margin of
`chosen` over `rejected`, shape (n,).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import entr

from labelguard.mechanisms.clustered import standard_error
from labelguard.mechanisms.props import estimate_error, vote

__all__ = [
    "Accuracy",
    "Evaluation",
    "LabelAgreement",
    "TeacherAgreement",
    "WinTieLoss",
    "accuracy",
    "evaluate",
    "win_tie_loss",
]

Floats: TypeAlias = NDArray[np.float64]
_NONE: Mapping[str, ArrayLike] = MappingProxyType({})
TEACHER = "teacher"


@dataclass(frozen=True)
class Accuracy:
    """How often a model agrees with what people prefer."""

    rows: int
    """rows it is measured on"""
    accuracy: float
    """the share; of flipped labels 1 − γ̂, unbiased, which may leave [0, 1]"""
    standard_error: float
    """its standard error, clustered by item (`clustered.standard_error`)"""
    uninformative: bool
    """whether the error is too large to tell the model from the labels, or from a coin"""
    baselines: Mapping[str, float]
    """what the same rows say of who needs no training: longer_response, majority_side, and teacher
    where the release has a head"""


@dataclass(frozen=True)
class TeacherAgreement:
    """How close a model comes to a teacher's probabilities, not to people."""

    rows: int
    """rows with a label_probability"""
    log_loss: float
    """mean cross-entropy with the teacher's probabilities, in nats"""
    least_log_loss: float
    """that of the teacher itself"""
    agreement: float
    """how often the model prefers what the teacher prefers; a model or teacher at ½ counts half"""
    baselines: Mapping[str, float]
    """the agreement of longer_response and majority_side"""


@dataclass(frozen=True)
class LabelAgreement:
    """How often a model agrees with labels taken as they are, right or wrong."""

    rows: int
    """rows that say no probability"""
    agreement: float
    """the share"""
    standard_error: float
    """its standard error, clustered by item (`clustered.standard_error`)"""
    baselines: Mapping[str, float]
    """as those of an accuracy"""


@dataclass(frozen=True)
class Evaluation:
    """What held-out rows and public pairs say of a model; null where there are none."""

    flipped: Accuracy | None
    """by held-out rows with a flip_probability, corrected for the flips"""
    teacher: TeacherAgreement | None
    """by held-out rows with a label_probability, unless all of them are public ties (½)"""
    labels: LabelAgreement | None
    """by held-out rows whose labels are taken as they are"""
    probes: Accuracy | None
    """by the public pairs of --probes"""
    left_out: int
    """held-out rows that measure nothing: their sides are equal once they are cut to length"""

    def to_json(self) -> str:
        """As `evaluation.json` has it."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"


def evaluate(
    margins: ArrayLike,
    *,
    flip_probability: ArrayLike,
    label_probability: ArrayLike,
    items: ArrayLike,
    baselines: Mapping[str, ArrayLike] = _NONE,
    probes: ArrayLike | None = None,
    probe_baselines: Mapping[str, ArrayLike] = _NONE,
) -> Evaluation:
    """An evaluation from margins z, shape (n,), and what the rows say, NaN for nothing.

    `items` names the item of each row: labels of one pair are no independent witnesses. Rows whose
    z is NaN, for sides that are equal within `max_length`, are counted and left out. Flipped rows
    give 1 − γ̂ by `estimate_error` (PROPS eq. 8): every released label says `chosen`, and the model
    errs where z < 0. Where every `label_probability` is ½, these are public ties, which nobody can
    agree with, and there is no teacher. `probes` are margins of public pairs whose preference is
    known, an item each. `baselines` and `probe_baselines` are margins of the same rows and pairs by
    name, of which none is NaN. Post-processing: nothing is charged.
    """
    z, gamma, target = (
        np.asarray(values, np.float64) for values in (margins, flip_probability, label_probability)
    )
    names = np.asarray(items)
    measured = ~np.isnan(z)
    flipped = measured & ~np.isnan(gamma)
    soft = measured & ~np.isnan(target) & ~flipped
    rest = measured & ~flipped & ~soft
    if (target[soft] == 0.5).all():
        soft[:] = False
    others = {name: vote(values) for name, values in baselines.items()}
    return Evaluation(
        _corrected(z[flipped], gamma[flipped], names[flipped], _of(others, flipped))
        if flipped.any()
        else None,
        _taught(z[soft], target[soft], _of(others, soft)) if soft.any() else None,
        LabelAgreement(
            int(rest.sum()), *_share(vote(z[rest]), names[rest]), _means(_of(others, rest))
        )
        if rest.any()
        else None,
        accuracy(probes, probe_baselines) if probes is not None and np.size(probes) else None,
        int((~measured).sum()),
    )


def accuracy(margins: ArrayLike, baselines: Mapping[str, ArrayLike] = _NONE) -> Accuracy:
    """That on pairs whose preference is known, n >= 1, an item each; z = 0 counts half."""
    right = vote(margins)
    share, error = _share(right, np.arange(len(right)))
    others = _means({name: vote(values) for name, values in baselines.items()})
    return Accuracy(len(right), share, error, uninformative=False, baselines=others)


@dataclass(frozen=True)
class WinTieLoss:
    """Pairwise comparisons of two models' responses by a judge."""

    wins: int
    """the first model's response was preferred in both positions"""
    ties: int
    """neither was"""
    losses: int
    """the second model's was preferred in both positions"""


def win_tie_loss(shown_first: ArrayLike, shown_second: ArrayLike) -> WinTieLoss:
    """Count a judge's margins of the first model's response over the second's, both shape (n,).

    `shown_first` are its margins with the first model's response shown first, `shown_second` with
    the two swapped: a judge that favours a position must not decide. What is not preferred both
    times is a tie (PROPS A.7 asks for an order that does not matter; its judge saw one).
    """
    one, two = (np.asarray(values, np.float64) for values in (shown_first, shown_second))
    wins = int(((one > 0) & (two > 0)).sum())
    losses = int(((one < 0) & (two < 0)).sum())
    return WinTieLoss(wins, len(one) - wins - losses, losses)


def _of(votes: Mapping[str, Floats], rows: NDArray[np.bool_]) -> dict[str, Floats]:
    return {name: values[rows] for name, values in votes.items()}


def _means(votes: Mapping[str, Floats]) -> dict[str, float]:
    return {name: float(values.mean()) for name, values in votes.items()}


def _corrected(
    z: Floats, gamma: Floats, items: NDArray[Any], votes: Mapping[str, Floats]
) -> Accuracy:
    released = np.ones(len(z))
    found = estimate_error(released, vote(z), gamma)
    error = standard_error(1 - vote(z), gamma, items)
    uninformative = bool(error > (0.5 - float(gamma.min())) / 2)
    others = {
        name: 1 - estimate_error(released, values, gamma).rate for name, values in votes.items()
    }
    return Accuracy(found.rows, 1 - found.rate, error, uninformative, others)


def _taught(z: Floats, target: Floats, votes: Mapping[str, Floats]) -> TeacherAgreement:
    def agreement(values: Floats) -> float:
        return float(1 - np.abs(values - vote(target - 0.5)).mean())

    log_loss = target * np.logaddexp(0, -z) + (1 - target) * np.logaddexp(0, z)
    least = entr(target) + entr(1 - target)
    others = {name: agreement(values) for name, values in votes.items() if name != TEACHER}
    return TeacherAgreement(
        len(z), float(log_loss.mean()), float(least.mean()), agreement(vote(z)), others
    )


def _share(right: Floats, items: NDArray[Any]) -> tuple[float, float]:
    """A mean of n values in [0, 1], and its standard error."""
    return float(right.mean()), standard_error(1 - right, np.zeros(len(right)), items)
