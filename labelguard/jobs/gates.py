"""Whether a candidate replaces the model in use: told from what may be read, and nothing else.

Three measures read no raw label (mechanisms that evaluate are releases too): public probes; flipped
labels of items that neither model learned from, corrected for the flips (PROPS eq. 8); and one
charged statistic of labelers who are held out (`release.evaluation`). Both models are asked about
the same rows, and the error is that of their difference.
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
from labelguard.jobs.promoting import Models
from labelguard.jobs.settings import Gate
from labelguard.jobs.steps import Step
from labelguard.mechanisms.clustered import paired_standard_error, standard_error
from labelguard.mechanisms.props import vote
from labelguard.release.head import Head
from labelguard.release.pairs_file import (
    PAIRS,
    check_pairs,
    hold_out,
    item_keys,
    length_margins,
    read_preferred,
)

__all__ = ["Judgement", "check", "judge"]

ACCURACY, LIKELIHOOD = "accuracy", "log-likelihood per label"
# What a coin reaches.
CHANCE = {ACCURACY: 0.5, LIKELIHOOD: -math.log(2)}
_RANGE = {ACCURACY: (0.0, 1.0), LIKELIHOOD: (-math.inf, 0.0)}
# How sure each end of an interval is; 95% lie between them.
_SURE = 0.975
_FREE = "nothing"
_CHARGED = "one statistic release of the labelers who are held out"


@dataclass(frozen=True)
class Judgement:
    """Whether a candidate replaces the model in use, and by which evidence."""

    # released, probes, held-out or none
    by: str
    # whether it does
    promote: bool
    # in a sentence
    why: str
    # what the candidate reaches, within what is possible; null without a gate
    candidate: float | None
    # where that lies with 95% confidence, or more if the gate asks for more
    interval: tuple[float, float] | None
    # what the model in use reaches; null if there is none
    current: float | None
    # candidate less current
    difference: float | None
    # of the difference; without a model in use, of the candidate
    standard_error: float | None
    # accuracy, or log-likelihood per label
    measure: str
    # pairs, rows or weighted labels it was measured on
    rows: int
    # what was charged for it
    cost: str
    # what the same pairs say of longer_response, which needs no model
    baselines: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Found:
    """What a gate measured."""

    candidate: float
    current: float | None
    standard_error: float
    rows: int
    # how far above the truth the difference is, at the confidence that the gate asks for
    reach: float
    # of the candidate's interval
    half_width: float
    baselines: Mapping[str, float]
    measure: str = ACCURACY
    cost: str = _FREE
    note: str = ""


def unseen(step: Step, models: Models) -> float:
    """The share of items that neither the models of a step nor the model in use learned from.

    Shares are nested: a smaller one holds out some of the items of a larger one. A statistic, or a
    release of PROPS, is made of the labels of all items.
    """
    for entry in models.registry:
        if entry["model"] == models.in_use:
            known = entry["options"].get("holdout", 0.0) if entry["mechanism"] == "rr" else 0.0
            return min(step.holdout, float(known))
    return step.holdout


def check(gate: Gate, step: Step, mechanism: str, models: Models, base: Path) -> None:
    """Raise `LabelguardError` for a gate that cannot judge, before anything is charged.

    `mechanism` is how the job releases; `base` is what paths refer to.
    """
    if gate.by == "probes":
        if gate.probes is None:
            raise LabelguardError("gate.by: probes needs gate.probes, a file of public pairs")
        check_pairs(base / gate.probes)
    if gate.by == "released" and mechanism != "rr":
        raise LabelguardError(
            f"gate.by: released needs labels with known flips, of mechanism rr, not {mechanism}; "
            "take held-out or probes"
        )
    if gate.by == "released" and not step.holdout:
        raise LabelguardError("gate.by: released needs items to judge by: train.options.holdout")
    if gate.by == "released" and not unseen(step, models):
        raise LabelguardError(
            f"gate.by: released: the model in use ({models.in_use}) may have learned from all "
            "items, and cannot be judged by their labels; take another gate until there is one "
            "that was learned by rr with a train.options.holdout"
        )
    if gate.by != "none" and gate.by not in step.gates:
        raise LabelguardError(
            f"gate.by: {gate.by} cannot judge {step.name}; take {' or '.join(step.gates)}"
        )


def judge(
    gate: Gate,
    step: Step,
    *,
    release: Path,
    candidate: Path,
    current: Path | None,
    unseen: float,
    evaluation: Path | None,
    charged: int,
    base: Path,
) -> Judgement:
    """Ask both models what the gate asks. Post-processing of releases and public files.

    `unseen` is the share of items that no model of them learned from, `evaluation` the release that
    `held-out` reads, for which this run `charged` so much. Raises `LabelguardError` where there is
    nothing to judge by.
    """
    models = [candidate] if current is None else [candidate, current]
    if gate.by == "none":
        return Judgement(
            "none", True, "there is no gate", None, None, None, None, None, ACCURACY, 0, _FREE
        )
    if gate.by == "probes":
        assert gate.probes is not None
        found = _by_probes(gate, step, models, base / gate.probes)
    elif gate.by == "released":
        found = _by_released(gate, step, models, release, unseen)
    else:
        assert evaluation is not None
        found = _by_held_out(gate, models, evaluation, charged)
    return _judged(gate, found)


def _by_probes(gate: Gate, step: Step, models: list[Path], file: Path) -> _Found:
    pairs = read_preferred(file)
    return _accuracies(gate, step, models, pairs, np.zeros(len(pairs)), np.arange(len(pairs)))


def _by_released(
    gate: Gate, step: Step, models: list[Path], release: Path, unseen: float
) -> _Found:
    file = release / "data.parquet"
    items = item_keys(file)
    rows = pl.read_parquet(file, columns=[*PAIRS, "flip_probability"])
    out = hold_out(items, unseen) & rows["flip_probability"].is_not_null().to_numpy()
    if not out.any():
        raise LabelguardError(
            f"no released label is of an item that is held out ({unseen:g} of all items); "
            "take a larger train.options.holdout, or another gate"
        )
    rows = rows.filter(pl.Series(out))
    flips = rows["flip_probability"].to_numpy()
    found = _accuracies(gate, step, models, rows.select(PAIRS).to_arrow(), flips, items[out])
    if unseen == step.holdout:
        return found
    return replace(found, note=f"; of the {unseen:g} of items that are held out of both models")


def _accuracies(
    gate: Gate,
    step: Step,
    models: list[Path],
    pairs: pa.Table,
    flips: NDArray[np.float64],
    items: NDArray[np.generic],
) -> _Found:
    """How often models are right about rows whose label was flipped with probability `flips`.

    With s = 1 − 2γ and d = 1 where a model disagrees with the released label, accuracy is
    1 − Σ s (d − γ) / Σ s²; that of two models differs by Σ s (d′ − d) / Σ s².
    """
    wrong = [1 - vote(step.margins(model, pairs)) for model in models]
    wrong.append(1 - vote(length_margins(pairs)))
    signal = 1 - 2 * flips
    information = float(signal @ signal)
    if not information:
        raise LabelguardError(
            "the released labels are coins (γ = ½): no model can be judged by them"
        )
    accuracy = [1 - float(signal @ (d - flips)) / information for d in wrong]
    # No noise is in it but that of coins: a sum over items, taken for normal.
    beside = {"longer_response": accuracy[-1]}
    own, normal = standard_error(wrong[0], flips, items), NormalDist().inv_cdf
    half_width = normal(max(gate.confidence, _SURE)) * own
    if len(models) == 1:
        return _Found(accuracy[0], None, own, len(pairs), 0.0, half_width, beside)
    error = paired_standard_error(wrong[0] - wrong[1], flips, items)
    reach = normal(gate.confidence) * error if gate.confidence > 0.5 else 0.0  # 0 · ∞ is no number
    return _Found(accuracy[0], accuracy[1], error, len(pairs), reach, half_width, beside)


def _by_held_out(gate: Gate, models: list[Path], evaluation: Path, charged: int) -> _Found:
    from labelguard.release.evaluation import Evaluation

    found, heads = Evaluation.load(evaluation), [Head.load(model) for model in models]
    values = [found.likelihood(head) for head in heads]
    chance = replace(heads[0], coefficients=0 * heads[0].coefficients)
    other = heads[1] if len(heads) > 1 else chance
    error = found.difference(heads[0], other)[1]
    reach = found.reach(heads[0], other, gate.confidence)
    half_width = found.reach(heads[0], chance, max(gate.confidence, _SURE))
    current = values[1] if len(values) > 1 else None
    cost = _CHARGED if charged else f"{_FREE}: evaluation {evaluation.name} was read again"
    rows = round(found.labels)
    return _Found(values[0], current, error, rows, reach, half_width, {}, LIKELIHOOD, cost)


def _judged(gate: Gate, found: _Found) -> Judgement:
    """The rule is asked about estimates as they are; what is shown of them is what is possible."""
    least, most = _RANGE[found.measure]

    def possible(value: float) -> float:
        return min(max(value, least), most)

    error, candidate = found.standard_error, found.candidate
    ends = (candidate - found.half_width, candidate + found.half_width)
    low, high = map(possible, ends)
    difference = None if found.current is None else candidate - found.current
    beside = {name: possible(value) for name, value in found.baselines.items()}
    others = [f"; {name.replace('_', ' ')} {value:.3f}" for name, value in beside.items()]
    value = f"{found.measure} {possible(candidate):.3f} ({low:.3f} to {high:.3f}{''.join(others)})"
    promote, why = _verdict(gate, found, difference, value)
    return Judgement(
        gate.by,
        promote,
        why + found.note,
        possible(candidate),
        (low, high) if math.isfinite(low) and math.isfinite(high) else None,
        None if found.current is None else possible(found.current),
        difference,
        error if math.isfinite(error) else None,
        found.measure,
        found.rows,
        found.cost,
        beside,
    )


def _verdict(gate: Gate, found: _Found, difference: float | None, value: str) -> tuple[bool, str]:
    """The rule: a first model is above `at_least` with its whole interval; a later one is not below
    it, nor worse than the model in use by `margin` or more. `value` is the estimate as it is shown.
    """
    if difference is None:
        least = CHANCE[found.measure] if gate.at_least is None else gate.at_least
        if found.candidate - found.half_width >= least:
            return True, f"{value}; there was no model before"
        return False, (
            f"{value}: a first model needs an interval that begins at {least:.3f} or above; wait "
            "for more labels, or lower gate.at_least"
        )
    if gate.at_least is not None and found.candidate < gate.at_least:
        return False, f"{value} is below {gate.at_least:g}, which job.yaml asks for"
    lowest = difference - found.reach
    shown = f"{value}, {difference:+.3f} ± {found.standard_error:.3f} to the model in use"
    if lowest >= -gate.margin:
        return True, shown
    return False, f"{shown}: not enough (margin {gate.margin:g}, confidence {gate.confidence:g})"
