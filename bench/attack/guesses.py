"""Guesses of the targets' labels from margins, how good they are, and the bound that ε gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from dpo.grammar import Floats
from dpo.labels import DELTA
from scipy.stats import t
from utility.tables import Table

from attack.models import RAW, ROWS

__all__ = ["bound", "calibrate", "control", "interval", "rates", "results", "table"]

FALSE_POSITIVES = 0.01
_HEAD = [
    "labels (bound)",
    "attacked",
    "epochs",
    "fresh pairs",
    "margin",
    "right",
    "calibrated (95%)",
    "AUC",
    "TPR at 1% FPR",
    "labeler (95%)",
]


def bound(epsilon: float | None) -> float:
    """The largest advantage that (ε, δ) leaves; 1 without privacy.

    Source: Kairouz, Oh and Viswanath, 2015, the region of errors, at equal odds.
    """
    if epsilon is None:
        return 1.0
    return float((np.expm1(epsilon) + 2 * DELTA) / (np.exp(epsilon) + 1))


def results(records: Iterable[Mapping[str, Any]], labels: int) -> list[dict[str, Any]]:
    """A line for each kind of labels and attacked model, over all seeds."""
    names = ("labels", "epsilon", "model", "epochs")
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for record in records:
        groups.setdefault(tuple(record[name] for name in names), []).append(record)
    return [
        {**dict(zip(names, group, strict=True)), **_result(group[1], members, labels)}
        for group, members in sorted(groups.items(), key=lambda item: _place(*item[0]))
    ]


def _place(labels: str, epsilon: float | None, model: str, epochs: int) -> tuple[Any, ...]:
    return labels != RAW, labels, -(epsilon or 0), model != ROWS, model, epochs


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
    plain = np.sign(margins * answers).reshape(shape)
    area, true_positives = rates(scores.ravel(), answers.ravel() > 0)
    fresh = [record["accuracy"] for record in records if record["accuracy"] is not None]
    return {
        "accuracy": float(np.mean(fresh)) if fresh else None,
        "bound": bound(epsilon),
        "margin": interval(plain),
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
    clusters = values.transpose(0, 2, 1, 3).reshape(values.shape[0] * values.shape[2], -1)
    means = clusters.mean(axis=1)
    error = means.std(ddof=1) / len(means) ** 0.5
    half = float(t.ppf(0.975, len(means) - 1) * error)
    mean = float(means.mean())
    return mean, max(-1.0, mean - half), min(1.0, mean + half)


def rates(scores: Floats, positive: Any) -> tuple[float, float]:
    """Area under the ROC curve, and the true-positive rate at 1% false positives on it."""
    _, step = np.unique(-scores, return_inverse=True)
    curve = [
        np.concatenate([[0.0], np.cumsum(np.bincount(step[which], minlength=step.max() + 1))])
        for which in (~positive, positive)
    ]
    false, true = (counts / counts[-1] for counts in curve)
    return float(np.trapezoid(true, false)), float(np.interp(FALSE_POSITIVES, false, true))


def table(lines: Iterable[Mapping[str, Any]]) -> Table:
    """A row for each result; means without a leading zero."""
    return [_HEAD, *(_row(line) for line in lines)]


def _row(line: Mapping[str, Any]) -> list[str]:
    labels = line["labels"]
    if line["epsilon"] is not None:
        labels += f", ε = {line['epsilon']:g} ({_short(line['bound'])})"
    return [
        labels,
        line["model"],
        str(line["epochs"] or ""),
        "" if line["accuracy"] is None else _short(line["accuracy"]),
        _short(line["margin"][0]),
        _short(line["right"]),
        _with_interval(line["calibrated"]),
        _short(line["auc"]),
        _short(line["true_positives"]),
        _with_interval(line["labeler"]),
    ]


def control(lines: Iterable[Mapping[str, Any]]) -> str:
    """The advantage on raw labels at the most epochs in every seed, which must be above 0."""
    raw = [line for line in lines if line["labels"] == RAW]
    most = max(line["epochs"] for line in raw)
    seeds = [
        f"{line['model']} {'; '.join(map(_with_interval, line['by_seed']))}"
        for line in raw
        if line["epochs"] == most
    ]
    return f"control, raw labels, {most} epochs, by seed: {', '.join(seeds)}"


def _with_interval(values: tuple[float, float, float]) -> str:
    mean, low, high = map(_short, values)
    return f"{mean} [{low}, {high}]"


def _short(value: float) -> str:
    """.656, −.012 or 1.000"""
    text = f"{value:.3f}"
    text = "0.000" if text == "-0.000" else text
    return text.replace("-", "−").replace("0.", ".", 1) if abs(value) < 0.9995 else text
