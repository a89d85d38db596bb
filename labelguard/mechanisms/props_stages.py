"""Relabelling in stages (PROPS, algorithm 1): trains, predicts, combines, and trains on.

The first model learns from released labels with their flip probabilities. Each later one continues
from the model before: of `hard` combination on its stage's combined labels, of which those that the
model decided count as they are and released ones keep their flip probability; of `soft` on the
released labels with their flip probabilities, as the first.

Soft labels are no target to train on: n posteriors near ½ would count as n labels without flips,
which tell 1/(1−2γ)² times as much, so that no ridge or prior holds against their noise; and the
part of them that the model before said is no evidence.

Guarantee: post-processing of released labels, no further cost
(docs/proofs/randomized-response.md#props).
Deterministic, if the learner is: nothing here is drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelguard.learning.learners import Learner, Scorer, State
from labelguard.mechanisms import props

Combination: TypeAlias = Literal["hard", "soft"]
Floats: TypeAlias = NDArray[np.float64]
_SCORER = "scorer."


@dataclass(frozen=True, eq=False, repr=False)
class ReleasedLabels:
    """Labels from randomized response, one a row; every column has shape (n,).

    `pair` numbers the row's pair among all, `unit` names who is protected, `stage` and `fold` are
    those that `props.assign_stages` and `props.assign_folds` give the unit, `released` is 0 or 1,
    `flip_probability` in [0, ½] and `noise` as `props.estimate_error` takes it.

    Raises ValueError for columns of other shapes, negative stages or a unit in two stages.
    """

    pair: NDArray[np.intp]
    unit: NDArray[np.intp]
    stage: NDArray[np.intp]
    fold: NDArray[np.intp]
    released: NDArray[np.uint8]
    flip_probability: Floats
    noise: Floats | None = None

    def __post_init__(self) -> None:
        columns: list[NDArray[Any]] = [self.unit, self.stage, self.fold, self.released]
        columns += [self.flip_probability, *([] if self.noise is None else [self.noise])]
        if self.pair.ndim != 1 or any(column.shape != self.pair.shape for column in columns):
            shapes = ", ".join(str(column.shape) for column in (self.pair, *columns))
            raise ValueError(f"all columns must have one shape (n,), found {shapes}")
        if len(self.pair) and min(self.pair.min(), self.stage.min()) < 0:
            raise ValueError("pair and stage must be >= 0, found negative numbers")
        _, first, number = np.unique(self.unit, return_index=True, return_inverse=True)
        if (self.stage[first][number] != self.stage).any():
            raise ValueError("all rows of a unit must be in one stage: use props.assign_stages")

    def rows_of(self, stage: int) -> NDArray[np.intp]:
        """Return the indices of a stage's rows, ascending."""
        return np.flatnonzero(self.stage == stage)

    def estimate_error(self, rows: NDArray[np.intp], predicted: Floats) -> props.ErrorEstimate:
        """Return the error rate of labels predicted for some rows."""
        noise = None if self.noise is None else self.noise[rows]
        flips = self.flip_probability[rows]
        return props.estimate_error(self.released[rows], predicted, flips, noise)


@dataclass(frozen=True)
class StageReport:
    """Result of a stage's combination; nothing but `rows` applies to stage 0.

    `error` is the estimated error of the model before, `model_rows` how many rows took its label
    (`hard`) and `scale` the mean scale of its margins (`soft`), else NaN.
    """

    stage: int
    rows: int
    error: props.ErrorEstimate | None = None
    model_rows: int = 0
    scale: float = math.nan


@dataclass(frozen=True, eq=False, repr=False)
class StageResult:
    """One stage's rows: their indices, labels or probabilities, residual rates, and the model.

    `residual_flip_estimate` is as `props.combine_hard` gives it, and NaN for `soft`.
    """

    rows: NDArray[np.intp]
    target: Floats
    residual_flip_estimate: Floats
    report: StageReport
    scorer: Scorer

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the result as arrays, to be saved and given to `run_stages` as `finished`."""
        error = self.report.error
        estimate = () if error is None else (error.rate, error.standard_error, error.clamped)
        return {
            "rows": self.rows,
            "target": self.target,
            "residual_flip_estimate": self.residual_flip_estimate,
            "counts": np.array([self.report.stage, self.report.rows, self.report.model_rows]),
            "scale": np.array(self.report.scale),
            "estimate": np.array(estimate, np.float64),
            "uninformative": np.array(error is not None and error.uninformative),
            **{_SCORER + name: values for name, values in self.scorer.state().items()},
        }

    @classmethod
    def restore(cls, state: State, learner: Learner) -> StageResult:
        """Return the result whose `state()` this is; raises KeyError where an array is missing."""
        stage, rows, model_rows = (int(count) for count in state["counts"])
        error = None
        if len(state["estimate"]):
            rate, standard_error, clamped = (float(value) for value in state["estimate"])
            uninformative = bool(state["uninformative"])
            error = props.ErrorEstimate(rate, standard_error, clamped, uninformative, rows)
        report = StageReport(stage, rows, error, model_rows, float(state["scale"]))
        trained = {
            name.removeprefix(_SCORER): values
            for name, values in state.items()
            if name.startswith(_SCORER)
        }
        columns = (state["rows"], state["target"], state["residual_flip_estimate"])
        return cls(*columns, report, learner.restore(trained))


def join_stages(results: Sequence[StageResult]) -> tuple[Floats, Floats]:
    """`target` and `residual_flip_estimate` of all stages, in the order of the released labels.

    Rows of stage 0 keep the released label (`hard`), or have its posterior (`soft`).
    """
    target, residual = np.empty((2, sum(len(result.rows) for result in results)))
    for result in results:
        target[result.rows] = result.target
        residual[result.rows] = result.residual_flip_estimate
    return target, residual


def run_stages(
    pairs: NDArray[Any],
    labels: ReleasedLabels,
    learner: Learner,
    *,
    stages: int = 2,
    combine: Combination = "hard",
    finished: Sequence[State] = (),
) -> Iterator[StageResult]:
    """Yield one result a stage, each as soon as its model is trained.

    To resume, give the `state()` of the stages that were finished, in order: they are restored and
    yielded without being computed again, and what follows is the same as without interruption.

    Raises ValueError for a stage number >= stages, or finished states that are not of these stages'
    rows.
    """
    if len(labels.stage) and labels.stage.max() >= stages:
        raise ValueError(f"stages must be above every row's stage, found {stages}")
    scorer: Scorer | None = None
    for stage in range(stages):
        rows = labels.rows_of(stage)
        if stage < len(finished):
            result = _restore_result(finished[stage], stage, rows, learner)
        else:
            result = _run_stage(pairs, labels, rows, learner, stage, combine, scorer)
        scorer = result.scorer
        yield result


def _restore_result(
    state: State, stage: int, rows: NDArray[np.intp], learner: Learner
) -> StageResult:
    result = StageResult.restore(state, learner)
    if result.report.stage != stage or not np.array_equal(result.rows, rows):
        raise ValueError(f"the finished state of stage {stage} is not of these rows: start anew")
    return result


@dataclass(frozen=True, eq=False, repr=False)
class _Combined:
    """A stage's labels, and what its model learns: targets and their flip probabilities."""

    target: Floats
    residual_flip_estimate: Floats
    training_target: Floats
    training_flip_probability: Floats
    report: StageReport


def _run_stage(
    pairs: NDArray[Any],
    labels: ReleasedLabels,
    rows: NDArray[np.intp],
    learner: Learner,
    stage: int,
    combine: Combination,
    before: Scorer | None,
) -> StageResult:
    if before is None:
        combined = _keep_released(labels, rows, stage, combine)
    else:
        margin = _score_rows(pairs, labels.pair[rows], before)
        combination = _combine_hard if combine == "hard" else _combine_soft
        combined = combination(labels, rows, stage, margin)
    scorer = learner.fit(
        pairs[labels.pair[rows]],
        combined.training_target,
        combined.training_flip_probability,
        before,
    )
    return StageResult(
        rows, combined.target, combined.residual_flip_estimate, combined.report, scorer
    )


def _keep_released(
    labels: ReleasedLabels, rows: NDArray[np.intp], stage: int, combine: Combination
) -> _Combined:
    released, flips = labels.released[rows].astype(np.float64), labels.flip_probability[rows]
    report = StageReport(stage, len(rows))
    if combine == "hard":
        return _Combined(released, flips, released, flips, report)
    posterior = props.combine_soft(released, np.zeros(len(rows)), flips, 0.0)
    return _Combined(posterior, np.full(len(rows), np.nan), released, flips, report)


def _combine_hard(
    labels: ReleasedLabels, rows: NDArray[np.intp], stage: int, margin: Floats
) -> _Combined:
    released, flips = labels.released[rows], labels.flip_probability[rows]
    predicted = props.vote(margin)
    error = labels.estimate_error(rows, predicted)
    target, residual = props.combine_hard(released, predicted, flips, error)
    from_model = residual != flips  # a model's rate is below the flip probability where it decides
    report = StageReport(stage, len(rows), error, int(from_model.sum()))
    return _Combined(target, residual, target, np.where(from_model, 0.0, flips), report)


def _combine_soft(
    labels: ReleasedLabels, rows: NDArray[np.intp], stage: int, margin: Floats
) -> _Combined:
    released, flips = labels.released[rows], labels.flip_probability[rows]
    error = labels.estimate_error(rows, props.vote(margin))
    scale = props.fit_scale(released, margin, flips, labels.fold[rows])
    target = props.combine_soft(released, margin, flips, scale)
    mean_scale = float(scale.mean()) if len(scale) else math.nan
    report = StageReport(stage, len(rows), error, scale=mean_scale)
    nothing = np.full(len(rows), np.nan)
    return _Combined(target, nothing, released.astype(np.float64), flips, report)


def _score_rows(pairs: NDArray[Any], pair: NDArray[np.intp], scorer: Scorer) -> Floats:
    """Return a margin for each row; each distinct pair is scored once."""
    distinct, number = np.unique(pair, return_inverse=True)
    return scorer(pairs[distinct])[number]
