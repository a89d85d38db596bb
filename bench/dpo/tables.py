"""Accuracies by kind of labels and budget, and differences within seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t
from utility.tables import Table

from dpo.labels import Budget
from dpo.runs import BUDGETS, CLEAN, REFERENCE

Accuracies = Mapping[tuple[str, Budget | None], Mapping[int, float]]
"""By kind of labels and budget, then by seed."""

HEAD = ["labels", "ε", "m", "γ", "(1−2γ)√n", "accuracy", "less RR, forward (95%)"]
_COLORS = {"RR": "C3", "PROPS": "C2", "teacher": "C0"}


def accuracies(records: Iterable[Mapping[str, Any]]) -> Accuracies:
    """Records in a form that can be asked."""
    found: dict[tuple[str, Budget | None], dict[int, float]] = {}
    for record in records:
        budget = record["budget"] and Budget(**record["budget"])
        found.setdefault((record["labels"], budget), {})[record["seed"]] = record["accuracy"]
    return found


def table(found: Accuracies, pairs: int) -> Table:
    """A row for each kind of labels; the signal is that of randomized response at its budget."""
    lines = [HEAD]
    if (CLEAN, None) in found:
        lines.append([CLEAN, "", "", "0", f"{pairs**0.5:.1f}", _mean(found[CLEAN, None]), ""])
    for budget, names in BUDGETS:
        run = [name for name in names if (name, budget) in found]
        lines += [_line(found, name, budget, pairs) for name in run]
    return lines


def _line(found: Accuracies, name: str, budget: Budget, pairs: int) -> list[str]:
    own, other = found[name, budget], found.get((REFERENCE, budget), {})
    seeds = sorted(own.keys() & other.keys())
    less = "" if name == REFERENCE else interval([own[s] - other[s] for s in seeds])
    return [
        name,
        f"{budget.epsilon:g}",
        str(budget.labels),
        f"{budget.flip_probability:.3f}",
        f"{budget.signal(pairs):.1f}",
        _mean(own),
        less,
    ]


def interval(differences: list[float]) -> str:
    """The mean and Student's 95% interval; of one difference there is none."""
    if not differences:
        return ""
    mean = float(np.mean(differences))
    if len(differences) == 1:
        return f"{mean:+.3f}"
    half = _half_width(differences)
    return f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]"


def draw(found: Accuracies, path: Path) -> None:
    """Accuracies as points with intervals, a panel for each budget; `path` is without a suffix."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams |= {"svg.hashsalt": "labelguard", "svg.fonttype": "none"}
    figure, panels = pyplot.subplots(1, len(BUDGETS), figsize=(9, 3), sharex=True)
    for panel, (budget, names) in zip(panels, BUDGETS, strict=True):
        shown = [name for name in names if (name, budget) in found]
        for place, name in enumerate(shown):
            values = list(found[name, budget].values())
            color = _COLORS[name.split(",")[0]]
            half = _half_width(values) if len(values) > 1 else 0
            panel.errorbar(np.mean(values), place, xerr=half, fmt="o", color=color, capsize=2)
            panel.plot(values, [place] * len(values), "|", color=color)
        if clean := found.get((CLEAN, None)):
            panel.axvline(np.mean(list(clean.values())), color="0.4", linestyle="--")
        panel.axvline(0.5, color="0.8")
        panel.set_yticks(range(len(shown)), shown)
        panel.invert_yaxis()
        panel.set(title=f"ε = {budget.epsilon:g}, m = {budget.labels}", xlim=(0.3, 1))
        panel.set_xlabel("held-out accuracy")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(path.with_suffix(".png"), dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def _mean(by_seed: Mapping[int, float]) -> str:
    return f"{np.mean(list(by_seed.values())):.3f}"


def _half_width(values: list[float]) -> float:
    degrees = len(values) - 1
    return float(t.ppf(0.975, degrees) * np.std(values, ddof=1) / len(values) ** 0.5)
