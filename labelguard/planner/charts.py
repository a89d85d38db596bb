"""The picture of a plan: accuracy against ε, as PNG."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from labelguard.extras import require

if TYPE_CHECKING:
    from labelguard.planner.forecast import PlanResult

__all__ = ["NAMES", "accuracy_png"]

NAMES = {
    "statistic": "statistic",
    "rr": "randomized response",
    "props": "PROPS",
    "non-private": "no privacy",
}
_COLORS = {"statistic": "#0b6e4f", "rr": "#c1440e", "props": "#7b5ea7"}


def accuracy_png(plan: PlanResult) -> bytes:
    """Accuracy of every mechanism against ε with 90% ranges; the same plan, the same bytes.

    Raises `MissingExtra` without matplotlib.
    """
    require("plan", "a picture")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for mechanism, color in _COLORS.items():
        found = [f for f in plan.forecasts if f.mechanism == mechanism]
        epsilons = [f.epsilon or 0.0 for f in found]
        means = [f.accuracy.mean for f in found]
        axes.fill_between(
            epsilons,
            [f.accuracy.low for f in found],
            [f.accuracy.high for f in found],
            color=color,
            alpha=0.12,
            linewidth=0,
        )
        axes.plot(epsilons, means, "o-", color=color, label=NAMES[mechanism])
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
