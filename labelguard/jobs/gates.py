"""Decide whether a candidate replaces the model in use, by evidence that reads no raw label.

There are three measures: public probes; flipped labels of items that neither model learned from,
corrected for the flips (PROPS eq. 8); and one charged statistic of labelers who are held out
(`release.evaluation`). Both models are measured on the same rows, and the error is that of their
difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.errors import LabelguardError
from labelguard.jobs import releases
from labelguard.jobs.releases import JobRelease, find_newest_release
from labelguard.jobs.settings import GateSettings, Job
from labelguard.jobs.state import Facts, Models, RunInProgress
from labelguard.jobs.steps import Step
from labelguard.mechanisms.props import vote
from labelguard.mechanisms.randomized_response import (
    BlockLaws,
    paired_standard_error,
    standard_error,
)
from labelguard.project.project import Project
from labelguard.release.evaluation import Evaluation, load_coordinates
from labelguard.release.head import FILE, Head
from labelguard.release.item_keys import PAIRS
from labelguard.release.pairs_file import (
    check_pairs,
    compute_item_keys,
    compute_length_margins,
    hold_out,
    read_preference_pairs,
)
from labelguard.release.plan import Preview
from labelguard.release.writer import read_card
from labelguard.storage.buckets import escape_file_names, find_rows_path
from labelguard.text import Progress

EVALUATION = "evaluation"
_REMEDY = (
    "use another gate until there is one, or restart evaluations (labelguard privatize "
    "--mechanism evaluation --again --head DIRECTORY)"
)
_READING_OPTIONS = (
    *("columns", "question", "format", "split", "public_columns", "drop_members"),
    *("bad_rows", "max_input_bytes", "engine", "address", "buckets", "workers"),
)
ACCURACY, LIKELIHOOD = "accuracy", "log-likelihood per label"
# What a coin reaches.
CHANCE = {ACCURACY: 0.5, LIKELIHOOD: -math.log(2)}
_RANGE = {ACCURACY: (0.0, 1.0), LIKELIHOOD: (-math.inf, 0.0)}
# How sure each end of an interval is; 95% lie between them.
_SURE = 0.975
_FREE = "nothing"
_CHARGED = "one statistic release of the held-out labelers"


@dataclass(frozen=True)
class Judgement:
    """The decision of a gate: is the candidate promoted, and by which evidence."""

    # released, probes, held-out or none
    by: str
    # whether it does
    promote: bool
    # in a sentence
    why: str
    # what the candidate reaches, within what is possible; null without a gate
    candidate: float | None = None
    # where that lies with 95% confidence, or more if the gate asks for more
    interval: tuple[float, float] | None = None
    # what the model in use reaches; null if there is none
    current: float | None = None
    # candidate less current
    difference: float | None = None
    # of the difference; without a model in use, of the candidate
    standard_error: float | None = None
    # accuracy, or log-likelihood per label
    measure: str = ACCURACY
    # pairs, rows or weighted labels it was measured on
    rows: int = 0
    # what was charged for it
    cost: str = _FREE
    # what the same pairs say of longer_response, which needs no model
    baselines: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Measurement:
    """Estimates of a candidate and the model in use, before they are cut to what is possible."""

    candidate: float
    current: float | None
    standard_error: float
    rows: int
    # how far above the truth the difference is, at the confidence of the gate
    reach: float
    # of the candidate's interval
    half_width: float
    baselines: Mapping[str, float]
    measure: str = ACCURACY
    cost: str = _FREE
    note: str = ""


def find_unlearned_item_share(step: Step, models: Models) -> float:
    """Return the share of items that neither models of a step nor the model in use learned from.

    Shares are nested: a smaller one holds out some of the items of a larger one. A statistic, or a
    release of PROPS, is made of the labels of all items.
    """
    for entry in models.registry:
        if entry["model"] == models.in_use:
            known = entry["options"].get("holdout", 0.0) if entry["mechanism"] == "rr" else 0.0
            return min(step.holdout, float(known))
    return step.holdout


def check_gate(gate: GateSettings, step: Step, mechanism: str, models: Models, base: Path) -> None:
    """Raise `LabelguardError` for a gate that cannot judge, before anything is charged.

    `mechanism` is how the job releases; `base` is the directory that paths refer to.
    """
    if gate.by == "probes":
        check_pairs(base / str(gate.probes))
    if gate.by == "released":
        _check_released_gate(step, mechanism, models)
    if gate.by != "none" and gate.by not in step.gates:
        raise LabelguardError(
            f"gate.by: {gate.by} cannot judge {step.name}; use {' or '.join(step.gates)}"
        )


def _check_released_gate(step: Step, mechanism: str, models: Models) -> None:
    if mechanism != "rr":
        raise LabelguardError(
            f"gate.by: released needs labels with known flips, of mechanism rr, not {mechanism}; "
            "use held-out or probes"
        )
    if not step.holdout:
        raise LabelguardError("gate.by: released needs held-out items: set train.options.holdout")
    if not find_unlearned_item_share(step, models):
        raise LabelguardError(
            f"gate.by: released: the model in use ({models.in_use}) may have learned from all "
            "items and cannot be judged by their labels; use another gate until a model is in use "
            "that was learned by rr with a train.options.holdout"
        )


def check_basis(
    gate: GateSettings, step: Step, models: Models, home: Project, preview: Preview
) -> None:
    """Raise `LabelguardError` where a gate would have nothing to judge by, before the release of a
    preview is charged. Who and what is held out follows from ids and texts, not from labels.
    """
    lacks = remedy = ""
    if gate.by == "released":
        share = find_unlearned_item_share(step, models)
        lacks = "item" if (preview.least_holdout or 0.0) >= share else ""
        remedy = f"a larger train.options.holdout than {share:g} or "
    elif gate.by == "held-out" and not find_newest_release(home, EVALUATION):
        lacks = "" if preview.other_units else preview.unit
    if lacks:
        raise LabelguardError(
            f"gate.by: {gate.by}: no {lacks} in this input is held out, so no model could be "
            f"judged; nothing was charged: wait for labels of more {lacks}s, or use {remedy}another"
            " gate"
        )


def find_gate_coordinates_directory(home: Project, current: Path | None) -> Path | None:
    """Return the directory with the coordinates of gate `held-out`: the newest evaluation of the
    project or, before there is one, the model in use.
    """
    newest = find_newest_release(home, EVALUATION)
    return home.releases / newest if newest else current


def check_same_coordinates(mechanism: str, home: Project, current: Path | None) -> None:
    """Raise `LabelguardError` where the model in use, or the heads of the job's releases, are not
    in the coordinates of the evaluation.
    """
    directory = find_gate_coordinates_directory(home, current)
    if directory is None:
        return
    if current:
        _check_same_axes(directory, current, "the model in use")
    newest = find_newest_release(home, mechanism)
    if newest and (home.releases / newest / FILE).exists():
        _check_same_axes(directory, home.releases / newest, f"release {newest}")
    elif mechanism == "statistic":
        raise LabelguardError(
            "gate.by: held-out: a first statistic has its own coordinates, and the gate judges "
            f"in those of {directory.name}; {_REMEDY}"
        )


def _check_same_axes(directory: Path, model: Path, name: str) -> None:
    if not (model / FILE).exists():
        raise LabelguardError(f"gate.by: held-out judges heads, and {name} is not one; {_REMEDY}")
    head, coordinates = Head.load(model), load_coordinates(directory)
    try:
        coordinates.convert_to_components(head.identity, head.coefficients)
    except LabelguardError:
        raise LabelguardError(
            f"gate.by: held-out: {name} has other coordinates than {directory.name}, in which "
            f"the gate judges; {_REMEDY}"
        ) from None


def find_or_make_evaluation(
    job: Job,
    home: Project,
    run: RunInProgress,
    candidate: Path,
    current: Path | None,
    progress: Progress,
) -> Facts:
    """Return the release that gate `held-out` judges by, and what it charged.

    The newest evaluation is used again where no labeler who is held out gave a new label that can
    be paid for.
    """
    directory = find_gate_coordinates_directory(home, current)
    if directory:
        for model, name in ((candidate, "the candidate"), (current, "the model in use")):
            if model:
                _check_same_axes(directory, model, name)
    newest = find_newest_release(home, EVALUATION)
    options = {name: value for name, value in job.options.items() if name in _READING_OPTIONS}
    options |= {"namespace": job.settings.source, "exhausted": "drop"}
    if newest is None:
        options["head"] = str(candidate)
    request = JobRelease(EVALUATION, 1, job.source, options)
    outcome = releases.make_release(request, home, run, progress)
    release = outcome.release or find_newest_release(home, EVALUATION)
    if release is None:
        raise LabelguardError(
            f"gate.by: held-out has nothing to judge by ({outcome.why}); wait for labels of "
            "held-out labelers, or use another gate"
        )
    facts = {"charged": outcome.charged, "exhausted": outcome.exhausted, "why": outcome.why}
    return {"release": release} | facts


def judge(
    gate: GateSettings,
    step: Step,
    *,
    release: Path,
    candidate: Path,
    current: Path | None,
    unlearned: float,
    evaluation: Path | None,
    charged: int,
    base: Path,
) -> Judgement:
    """Return whether the candidate replaces the model in use, and by which evidence.

    A function of releases and public files. `unlearned` is the share of items that none of the
    models learned from, `evaluation` the release that `held-out` reads, for which this run charged
    `charged` uses. Raises `LabelguardError` where there is nothing to judge by.
    """
    models = [candidate] if current is None else [candidate, current]
    if gate.by == "none":
        return Judgement("none", True, "no gate")
    if gate.by == "probes":
        pairs = read_preference_pairs(base / str(gate.probes))
        rows = np.arange(len(pairs))
        measured = _measure_accuracy(gate, step, models, pairs, np.zeros(len(pairs)), rows)
    elif gate.by == "released":
        measured = _measure_by_released(gate, step, models, release, unlearned)
    else:
        assert evaluation is not None
        measured = _measure_by_held_out(gate, models, evaluation, charged)
    return _build_judgement(gate, measured)


def _measure_by_released(
    gate: GateSettings, step: Step, models: list[Path], release: Path, unlearned: float
) -> _Measurement:
    file = find_rows_path(release)
    items = compute_item_keys(file)
    rows = pl.read_parquet(escape_file_names(file), columns=[*PAIRS, "flip_probability"])
    is_out = hold_out(items, unlearned) & rows["flip_probability"].is_not_null().to_numpy()
    if not is_out.any():
        raise LabelguardError(
            f"no released label is of a held-out item ({unlearned:g} of all items); "
            "use a larger train.options.holdout, or another gate"
        )
    rows = rows.filter(pl.Series(is_out))
    flips, pairs = rows["flip_probability"].to_numpy(), rows.select(PAIRS).to_arrow()
    blocks = read_card(release)["flip_probability"].get("blocks", ())
    measured = _measure_accuracy(gate, step, models, pairs, flips, items[is_out], blocks)
    if unlearned == step.holdout:
        return measured
    note = f"; on the {unlearned:g} of items held out from both models"
    return replace(measured, note=note)


def _measure_accuracy(
    gate: GateSettings,
    step: Step,
    models: list[Path],
    pairs: pa.Table,
    flips: NDArray[np.float64],
    items: NDArray[np.generic],
    blocks: BlockLaws = (),
) -> _Measurement:
    """Return how often models are right about rows whose label was flipped with probability
    `flips`, in `blocks` as the card has them.

    With s = 1 − 2γ and d = 1 where a model disagrees with the released label, accuracy is
    1 − Σ s (d − γ) / Σ s²; that of two models differs by Σ s (d′ − d) / Σ s².
    """
    wrong = [1 - vote(step.margins(model, pairs)) for model in models]
    wrong.append(1 - vote(compute_length_margins(pairs)))
    signal = 1 - 2 * flips
    information = float(signal @ signal)
    if not information:
        raise LabelguardError(
            "the released labels are pure noise (γ = ½): no model can be judged by them"
        )
    accuracy = [1 - float(signal @ (d - flips)) / information for d in wrong]
    baselines = {"longer_response": accuracy[-1]}
    # No noise is in it but that of flips: a sum over items, taken for normal.
    error, quantile = standard_error(wrong[0], flips, items, blocks), NormalDist().inv_cdf
    half_width = quantile(max(gate.confidence, _SURE)) * error
    current, reach = None, 0.0
    if len(models) > 1:
        current = accuracy[1]
        error = paired_standard_error(wrong[0] - wrong[1], flips, items, blocks)
        if gate.confidence > 0.5:  # 0 · ∞ is no number
            reach = quantile(gate.confidence) * error
    return _Measurement(accuracy[0], current, error, len(pairs), reach, half_width, baselines)


def _measure_by_held_out(
    gate: GateSettings, models: list[Path], evaluation: Path, charged: int
) -> _Measurement:
    evaluated, heads = Evaluation.load(evaluation), [Head.load(model) for model in models]
    values = [evaluated.likelihood(head)[0] for head in heads]
    chance = replace(heads[0], coefficients=0 * heads[0].coefficients)
    reference = heads[1] if len(heads) > 1 else chance
    return _Measurement(
        candidate=values[0],
        current=values[1] if len(values) > 1 else None,
        standard_error=evaluated.difference(heads[0], reference)[1],
        rows=round(evaluated.label_weight),
        reach=evaluated.compute_error_margin(heads[0], reference, gate.confidence),
        half_width=evaluated.compute_error_margin(heads[0], chance, max(gate.confidence, _SURE)),
        baselines={},
        measure=LIKELIHOOD,
        cost=_CHARGED if charged else f"{_FREE}: evaluation {evaluation.name} was reused",
    )


def _build_judgement(gate: GateSettings, measured: _Measurement) -> Judgement:
    """Apply the rule to estimates as they are; show of them what is possible."""
    least, most = _RANGE[measured.measure]

    def clamp(value: float) -> float:
        return min(max(value, least), most)

    error, candidate, current = measured.standard_error, measured.candidate, measured.current
    low, high = (clamp(candidate + sign * measured.half_width) for sign in (-1, 1))
    difference = None if current is None else candidate - current
    baselines = {name: clamp(value) for name, value in measured.baselines.items()}
    beside = [f"; {name.replace('_', ' ')} {value:.3f}" for name, value in baselines.items()]
    interval = f"({low:.3f} to {high:.3f}{''.join(beside)})"
    value = f"{measured.measure} {clamp(candidate):.3f} {interval}"
    promote, why = _decide_promotion(gate, measured, difference, value)
    return Judgement(
        by=gate.by,
        promote=promote,
        why=why + measured.note,
        candidate=clamp(candidate),
        interval=(low, high) if math.isfinite(low) and math.isfinite(high) else None,
        current=None if current is None else clamp(current),
        difference=difference,
        standard_error=error if math.isfinite(error) else None,
        measure=measured.measure,
        rows=measured.rows,
        cost=measured.cost,
        baselines=baselines,
    )


def _decide_promotion(
    gate: GateSettings, measured: _Measurement, difference: float | None, value: str
) -> tuple[bool, str]:
    """Return whether the candidate is promoted, and why; `value` is the estimate as it is shown.

    A first model is above `at_least` with its whole interval; a later one is not below it, nor
    worse than the model in use by `margin` or more.
    """
    if difference is None:
        least = CHANCE[measured.measure] if gate.at_least is None else gate.at_least
        if measured.candidate - measured.half_width >= least:
            return True, f"{value}; there was no model before"
        return False, (
            f"{value}; a first model's interval must begin at {least:.3f} or above: wait "
            "for more labels, or lower gate.at_least"
        )
    if gate.at_least is not None and measured.candidate < gate.at_least:
        return False, f"{value} is below {gate.at_least:g}, which job.yaml requires"
    lowest = difference - measured.reach
    shown = f"{value}, {difference:+.3f} ± {measured.standard_error:.3f} against the model in use"
    if lowest >= -gate.margin:
        return True, shown
    return False, f"{shown}: not enough (margin {gate.margin:g}, confidence {gate.confidence:g})"
