"""Evaluation of a model on preferences that it has not seen, from public values alone.

Nothing here reads a raw label. Rows of a release say what their labels are worth, and each kind is
measured in its own way; public pairs (`Probes`) may be measured as they are. z is the margin of
`chosen` over `rejected`, shape (n,).

Baselines predict preferences without any training: the longer response; the side that the released
labels of the training rows prefer on the whole, of the two as they are sorted by content, as a
release knows no other order; and the release's head, where it has one. All are functions of the
release and of public pairs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray
from scipy.special import entr

from labelguard.errors import LabelguardError
from labelguard.learning.columns import parse_feature_columns
from labelguard.mechanisms.props import estimate_error, vote
from labelguard.mechanisms.randomized_response import BlockLaws, standard_error
from labelguard.release.head import FILE, Head
from labelguard.release.item_keys import PAIRS
from labelguard.release.pairs_file import (
    compute_item_keys_and_sides,
    compute_length_margins,
    read_preference_pairs,
    scan_pairs,
)
from labelguard.text import Progress
from labelguard_trainer.training.request import TrainingRequest

Floats: TypeAlias = NDArray[np.float64]
_NONE: Mapping[str, ArrayLike] = MappingProxyType({})
TEACHER = "teacher"


@dataclass(frozen=True)
class Accuracy:
    """Share of pairs on which a model agrees with what people prefer."""

    # rows it is measured on
    rows: int
    # the share; of flipped labels 1 − γ̂, unbiased, which may leave [0, 1]
    accuracy: float
    # its standard error, clustered by item (`joint_flips.standard_error`)
    standard_error: float
    # whether the error is too large to tell the model from the labels, or from a coin
    uninformative: bool
    # what the same rows say of who needs no training: longer_response, majority_side, and teacher
    # where the release has a head
    baselines: Mapping[str, float]


@dataclass(frozen=True)
class TeacherAgreement:
    """Closeness of a model to a teacher's probabilities, not to people."""

    # rows with a label_probability
    rows: int
    # mean cross-entropy with the teacher's probabilities, in nats
    log_loss: float
    # that of the teacher itself
    least_log_loss: float
    # how often the model prefers what the teacher prefers; a model or teacher at ½ counts half
    agreement: float
    # the agreement of longer_response and majority_side
    baselines: Mapping[str, float]


@dataclass(frozen=True)
class LabelAgreement:
    """Share of rows on which a model agrees with labels taken as they are, right or wrong."""

    # rows that say no probability
    rows: int
    # the share
    agreement: float
    # its standard error, clustered by item (`joint_flips.standard_error`)
    standard_error: float
    # as those of an accuracy
    baselines: Mapping[str, float]


@dataclass(frozen=True)
class ModelEvaluation:
    """Measurements of a model on held-out rows and public pairs; null where there are none."""

    # by held-out rows with a flip_probability, corrected for the flips
    flipped: Accuracy | None
    # by held-out rows with a label_probability, unless all of them are public ties (½)
    teacher: TeacherAgreement | None
    # by held-out rows whose labels are taken as they are
    labels: LabelAgreement | None
    # by the public pairs of --probes
    probes: Accuracy | None
    # held-out rows that measure nothing: their sides are equal once they are cut to length
    left_out: int

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
    blocks: BlockLaws = (),
) -> ModelEvaluation:
    """Return an evaluation from margins z, shape (n,), and what the rows say, NaN for nothing.

    `items` names the item of each row: labels of one pair are no independent witnesses. Rows whose
    z is NaN, for sides that are equal within `max_length`, are counted and left out. Flipped rows
    give 1 − γ̂ by `estimate_error` (PROPS eq. 8): every released label says `chosen`, and the model
    errs where z < 0. Where every `label_probability` is ½, these are public ties, which nobody can
    agree with, and there is no teacher. `probes` are margins of public pairs whose preference is
    known, an item each. `blocks` are those of the release's card, whose labels were flipped
    together. `baselines` and `probe_baselines` are margins of the same rows and pairs by
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
    parts: dict[str, Any] = dict.fromkeys(("flipped", "teacher", "labels", "probes"))
    if flipped.any():
        of_flipped = _select_rows(others, flipped)
        parts["flipped"] = _estimate_true_accuracy(
            *(z[flipped], gamma[flipped], names[flipped], of_flipped, blocks)
        )
    if soft.any():
        parts["teacher"] = _compare_with_teacher(z[soft], target[soft], _select_rows(others, soft))
    if rest.any():
        share = _compute_mean_with_error(vote(z[rest]), names[rest])
        parts["labels"] = LabelAgreement(
            int(rest.sum()), *share, _means(_select_rows(others, rest))
        )
    if probes is not None and np.size(probes):
        parts["probes"] = accuracy(probes, probe_baselines)
    return ModelEvaluation(**parts, left_out=int((~measured).sum()))


def accuracy(margins: ArrayLike, baselines: Mapping[str, ArrayLike] = _NONE) -> Accuracy:
    """Return the accuracy on pairs whose preference is known, n >= 1, an item each; z = 0 counts
    half.
    """
    right = vote(margins)
    share, error = _compute_mean_with_error(right, np.arange(len(right)))
    others = _means({name: vote(values) for name, values in baselines.items()})
    return Accuracy(len(right), share, error, uninformative=False, baselines=others)


def _select_rows(votes: Mapping[str, Floats], rows: NDArray[np.bool_]) -> dict[str, Floats]:
    return {name: values[rows] for name, values in votes.items()}


def _means(votes: Mapping[str, Floats]) -> dict[str, float]:
    return {name: float(values.mean()) for name, values in votes.items()}


def _estimate_true_accuracy(
    z: Floats, gamma: Floats, items: NDArray[Any], votes: Mapping[str, Floats], blocks: BlockLaws
) -> Accuracy:
    released = np.ones(len(z))
    estimate = estimate_error(released, vote(z), gamma)
    error = standard_error(1 - vote(z), gamma, items, blocks)
    uninformative = bool(error > (0.5 - float(gamma.min())) / 2)
    others = {
        name: 1 - estimate_error(released, values, gamma).rate for name, values in votes.items()
    }
    return Accuracy(estimate.rows, 1 - estimate.rate, error, uninformative, others)


def _compare_with_teacher(
    z: Floats, target: Floats, votes: Mapping[str, Floats]
) -> TeacherAgreement:
    def compute_agreement(values: Floats) -> float:
        return float(1 - np.abs(values - vote(target - 0.5)).mean())

    log_loss = target * np.logaddexp(0, -z) + (1 - target) * np.logaddexp(0, z)
    least = entr(target) + entr(1 - target)
    others = {name: compute_agreement(values) for name, values in votes.items() if name != TEACHER}
    return TeacherAgreement(
        len(z), float(log_loss.mean()), float(least.mean()), compute_agreement(vote(z)), others
    )


def _compute_mean_with_error(right: Floats, items: NDArray[Any]) -> tuple[float, float]:
    """Return a mean of n values in [0, 1], and its standard error."""
    return float(right.mean()), standard_error(1 - right, np.zeros(len(right)), items)


@dataclass(frozen=True)
class TrainingResult:
    """A model that was trained."""

    # its directory
    path: str
    # dpo or reward
    kind: str
    # the release that it learned from; null if that was raw labels
    release: str | None
    # ε of the release, which is the model's too if its base is public; null for raw labels
    epsilon: float | None
    # its δ
    delta: float | None
    # what it protects as a whole
    unit: str | None
    # the model it began from
    model: str
    # the loss of rows: forward, robust, soft or plain
    loss: str
    # rows it was trained on
    rows: int
    # rows whose sides are equal once they are cut to length
    left_out: int
    # rows kept out of training, for evaluation
    held_out: int
    # rows of these that were evaluated, always the same ones
    evaluated: int
    # steps of the optimizer, those before an interruption among them
    steps: int
    # whether an interrupted training was finished
    resumed: bool
    # what can be told of its quality
    evaluation: ModelEvaluation
    # what the user should know
    notes: list[str]


Margins = dict[str, NDArray[np.float64]]


def release_baselines(request: TrainingRequest, progress: Progress) -> Margins:
    """Margins of `chosen` in the rows that are evaluated, by baseline, shape (n,) each."""
    rows = request.evaluated
    frame = scan_pairs(request.source.file).select(PAIRS).filter(pl.Series(rows))
    return _compute_baseline_margins(
        request, frame.collect().to_arrow(), request.first[rows], progress
    )


def probe_baselines(request: TrainingRequest, progress: Progress) -> Margins:
    """Return the same of public pairs, if there are any."""
    if request.probes is None:
        return {}
    first = compute_item_keys_and_sides(request.probes)[1]
    return _compute_baseline_margins(
        request, read_preference_pairs(request.probes), first, progress
    )


def _compute_baseline_margins(
    request: TrainingRequest, pairs: pa.Table, first: NDArray[np.bool_], progress: Progress
) -> Margins:
    margins = {
        "longer_response": compute_length_margins(pairs),
        "majority_side": np.where(first, 1.0, -1.0) * _compute_first_side_preference(request),
    }
    head = request.source.file.parent / FILE
    if request.non_private or not head.exists() or not len(pairs):
        return margins
    progress("asking the teacher", None)
    return margins | _compute_teacher_margins(Head.load(head.parent), pairs, progress)


def _compute_first_side_preference(request: TrainingRequest) -> float:
    """Above 0 where the training rows prefer their items' first sides, below for the second.

    A row counts by how much it says: 1 − 2γ of a flipped label, 2p − 1 of a probability.
    """
    flip, probability = (request.noise_columns[f"{name}_probability"] for name in ("flip", "label"))
    weight = np.where(np.isnan(probability), 1.0, 2 * probability - 1)
    weight = np.where(np.isnan(flip), weight, 1 - 2 * flip)
    rows = ~request.held_out
    return float(weight[rows] @ np.where(request.first[rows], 1.0, -1.0))


def _compute_teacher_margins(head: Head, pairs: pa.Table, progress: Progress) -> Margins:
    """Nothing where its features cannot be computed of texts, or not here."""
    if parse_feature_columns(head.features):
        return {}
    sides = pa.table([pairs[name] for name in PAIRS], names=["prompt", "first", "second"])
    try:
        return {TEACHER: head.predict_log_odds(head.load_provider(progress)(sides))}
    except LabelguardError:
        return {}
