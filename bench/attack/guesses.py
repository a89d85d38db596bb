"""Guesses of the targets' labels from margins, how good they are, and the bound that ε gives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from dpo.grammar import Floats
from dpo.labels import DELTA
from scipy.stats import sem, t
from utility.tables import Table

from attack.models import RAW

_NUMBERS = {"accuracy": "fresh pairs", "right": "right", "auc": "AUC", "true_positives": "TPR"}
_ADVANTAGES = ("margin", "calibrated", "labeler")


def bound(epsilon: float | None) -> float:
    """The largest advantage that (ε, δ) leaves; 1 without privacy.

    Source: Kairouz, Oh and Viswanath, 2015, the region of errors, at equal odds.
    """
    return 1.0 if epsilon is None else (math.expm1(epsilon) + 2 * DELTA) / (math.exp(epsilon) + 1)


def results(records: Iterable[Mapping[str, Any]], labels: int) -> list[dict[str, Any]]:
    """A line for each kind of labels and attacked model, over all seeds."""
    names = ("labels", "epsilon", "model", "epochs")
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for record in records:
        groups.setdefault(tuple(record[name] for name in names), []).append(record)
    return [
        {**dict(zip(names, group, strict=True)), **_result(group[1], members, labels)}
        for group, members in groups.items()
    ]


def _result(epsilon: float | None, records: list[Mapping[str, Any]], labels: int) -> dict[str, Any]:
    """Advantages with intervals; arrays are of shape (seeds, worlds, targets, labels)."""
    answers, known, margins = (
        np.array([record[name] for record in records], float)
        for name in ("answers", "known", "margins")
    )
    scores = np.stack([calibrate(*pair) for pair in zip(margins, known, strict=True)])
    shape = (*answers.shape[:2], -1, labels)
    evidence = (scores * answers).reshape(shape)
    single, whole = np.sign(evidence), np.sign(evidence.sum(-1, keepdims=True))
    area, true_positives = rates(scores.ravel(), answers.ravel() > 0)
    fresh = [record["accuracy"] for record in records if record["accuracy"] is not None]
    return {
        "accuracy": float(np.mean(fresh)) if fresh else None,
        "bound": bound(epsilon),
        "margin": interval(np.sign(margins * answers).reshape(shape)),
        "right": float((1 + single.mean()) / 2),
        "calibrated": interval(single),
        "by_seed": [interval(single[[seed]]) for seed in range(len(single))],
        "auc": area,
        "true_positives": true_positives,
        "labeler": interval(whole),
    }


def calibrate(margins: Floats, known: Floats) -> Floats:
    """Margins (2, n) of two worlds, each less what the other says of its pair without its label.

    The attacker knows the labels ±1 that went into their own model, so also how far such a label
    moves its margin on average, and takes that off.
    """
    shifts = (margins * known).mean(axis=1, keepdims=True)
    return np.asarray(margins - (margins - shifts * known)[::-1])


def interval(values: Floats) -> tuple[float, float, float]:
    """Mean and 95% interval of values (seeds, worlds, targets, guesses), robust by labeler."""
    means = values.mean(axis=(1, 3)).ravel()
    mean, half = float(means.mean()), float(t.ppf(0.975, len(means) - 1) * sem(means))
    return mean, max(-1.0, mean - half), min(1.0, mean + half)


def rates(scores: Floats, positive: Any) -> tuple[float, float]:
    """Area under the ROC curve, and the true-positive rate at 1% false positives on it."""
    _, step = np.unique(-scores, return_inverse=True)
    curve = [
        np.concatenate([[0.0], np.cumsum(np.bincount(step[which], minlength=step.max() + 1))])
        for which in (~positive, positive)
    ]
    false, true = (counts / counts[-1] for counts in curve)
    return float(np.trapezoid(true, false)), float(np.interp(0.01, false, true))


def table(lines: Iterable[Mapping[str, Any]]) -> Table:
    """A row for each result; means without a leading zero."""
    names = [*_NUMBERS.values(), *(f"{name} (95%)" for name in _ADVANTAGES)]
    return [["labels (bound)", "attacked", "epochs", *names], *map(_row, lines)]


def _row(line: Mapping[str, Any]) -> list[str]:
    epsilon, epochs = line["epsilon"], str(line["epochs"] or "")
    budget = "" if epsilon is None else f", ε = {epsilon:g} ({_short(line['bound'])})"
    numbers = ["" if line[name] is None else _short(line[name]) for name in _NUMBERS]
    advantages = [_with_interval(line[name]) for name in _ADVANTAGES]
    return [line["labels"] + budget, line["model"], epochs, *numbers, *advantages]


def control(lines: Iterable[Mapping[str, Any]]) -> str:
    """The advantages on raw labels by seed; where a model learnt long, they must be above 0."""
    return "\n".join(
        f"control, {line['model']}, {line['epochs']} epochs, by seed: "
        + "; ".join(map(_with_interval, line["by_seed"]))
        for line in lines
        if line["labels"] == RAW
    )


def _with_interval(values: tuple[float, float, float]) -> str:
    mean, low, high = map(_short, values)
    return f"{mean} [{low}, {high}]"


def _short(value: float) -> str:
    """.656, −.012 or 1.000"""
    return f"{round(value, 3) + 0.0:.3f}".replace("-", "−").replace("0.", ".", 1)
