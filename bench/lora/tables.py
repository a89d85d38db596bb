"""Accuracies of reward models: a line for each preference, number of labelers and way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from utility.tables import Table

from lora.training import CLEAN, STATISTIC, ULS

__all__ = ["table", "times"]

Records = Iterable[Mapping[str, Any]]
_LABELERS = "labelers"


def table(records: Records) -> Table:
    """Mean accuracy over seeds, by ε."""
    found: dict[tuple[str, int], dict[tuple[str, float | None], list[float]]] = {}
    for record in records:
        cell = found.setdefault((record["preference"], record[_LABELERS]), {})
        cell.setdefault((record["way"], record["epsilon"]), []).append(record["accuracy"])
    every = {epsilon for cell in found.values() for _, epsilon in cell if epsilon is not None}
    epsilons = sorted(every)
    lines = [["preference", _LABELERS, "learned by", *(f"ε = {e:g}" for e in epsilons)]]
    for (preference, labelers), cell in found.items():
        for way in (STATISTIC, ULS, CLEAN):
            told = [_mean(cell.get((way, None if way == CLEAN else e))) for e in epsilons]
            shown = told if way != CLEAN else [told[0], *[""] * (len(told) - 1)]
            lines.append([preference, f"{labelers:,}", way, *shown])
    return lines


def times(records: Records) -> Table:
    """Median milliseconds of a step, and CPU seconds of a run, by way and number of labelers."""
    found: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for record in records:
        found.setdefault((record["way"], record[_LABELERS]), []).append(record)
    lines = [["learned by", _LABELERS, "ms a step", "CPU seconds a run"]]
    for (way, labelers), of_way in sorted(found.items()):
        step = 1000 * np.median([one["seconds_a_step"] for one in of_way])
        whole = np.median([one["cpu_seconds"] for one in of_way])
        lines.append([way, f"{labelers:,}", f"{step:.0f}", f"{whole:.0f}"])
    return lines


def _mean(values: list[float] | None) -> str:
    """Of all seeds, and the lowest and highest, if there are several."""
    if not values:
        return ""
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{np.mean(values):.3f} ({min(values):.3f}–{max(values):.3f})"
