"""The picture of a plan: accuracy against ε, as PNG."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from labelguard.planner.advice import NAMES

if TYPE_CHECKING:
    from labelguard.planner.outcomes import Forecast
    from labelguard.planner.planned import Planned

__all__ = ["accuracy_png"]

_COLORS = {"statistic": "#0b6e4f", "rr": "#c1440e", "props": "#7b5ea7", "uls": "#2b7bba"}


def accuracy_png(plan: Planned) -> bytes:
    """Accuracy of every mechanism against ε; the same plan, the same bytes.

    What serves best lies above the others, with its 90% range.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    chosen = [one.mechanism or one.automatic for one in plan.recommended]
    for found, color in _lines(plan):
        best = found[0].mechanism == max(chosen, key=chosen.count)
        epsilons = [f.epsilon or 0.0 for f in found]
        means = [f.accuracy.mean for f in found]
        if best:
            low, high = zip(*((f.accuracy.low, f.accuracy.high) for f in found), strict=True)
            axes.fill_between(epsilons, low, high, color=color, alpha=0.15, linewidth=0)
        style = {"lw": 2.5, "zorder": 3} if best else {"lw": 1, "ms": 9, "mfc": "none"}
        axes.plot(epsilons, means, "o-", color=color, label=NAMES[found[0].mechanism], **style)
    if every := _all_labels(plan):
        label, color = "randomized response, all labels", _COLORS["rr"]
        means = [f.accuracy.mean for f in every]
        axes.plot([f.epsilon or 0.0 for f in every], means, "o:", color=color, label=label)
    axes.axhline(plan.forecasts[0].accuracy.mean, color="#333", ls="--", label="no privacy")
    axes.axhline(0.5, color="#999", lw=0.8, ls=":")
    axes.set_xscale("log")
    ticks = [one.epsilon for one in plan.recommended]
    axes.set_xticks(ticks, [f"{epsilon:g}" for epsilon in ticks])
    axes.minorticks_off()
    axes.set_xlabel(f"ε of each {plan.unit} (δ = {plan.delta:g})")
    axes.set_ylabel("accuracy on held-out labelers")
    axes.legend(frameon=False, loc="lower right")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _lines(plan: Planned) -> Iterator[tuple[list[Forecast], str]]:
    """The forecasts of each mechanism, with a color; randomized response under its best bounds."""
    for mechanism, color in _COLORS.items():
        of_it = [f for f in plan.forecasts if f.mechanism == mechanism]
        yield list({f.epsilon: f for f in of_it}.values()), color  # the last at each ε


def _all_labels(plan: Planned) -> list[Forecast]:
    """Randomized response with all labels, unless that is best everywhere."""
    found = [f for f in plan.forecasts if f.mechanism == "rr"]
    first = {f.epsilon: f for f in reversed(found)}  # the first at each ε
    return list(first.values())[::-1] if len(first) < len(found) else []
