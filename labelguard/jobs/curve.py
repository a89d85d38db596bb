"""How good models were, week by week, as a picture and in a line of text."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Week", "picture", "sparkline"]

_BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Week:
    """One week, and how good models are by its preferences: shares of labels that they get right.

    Each of them is known because the labels are simulated.
    """

    week: int
    """from 1 on"""
    outcome: str
    """of the run: promoted, kept, unchanged or failed"""
    model: str
    """the model in use"""
    in_use: float
    """what it gets right"""
    frozen: float
    """what the model in use at half-time gets right; until then that in use"""
    best: float
    """what there is to get right: labelers disagree"""


def sparkline(values: Sequence[float], low: float, high: float) -> str:
    """Values between low and high as blocks of eight heights; outside of them as the nearest."""
    steps = len(_BLOCKS) - 1
    heights = (round((value - low) / (high - low) * steps) for value in values)
    return "".join(_BLOCKS[min(steps, max(0, height))] for height in heights)


def picture(weeks: Sequence[Week]) -> bytes:
    """The curves as PNG; the same weeks give the same bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 3.2), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    at = [one.week for one in weeks]
    half = len(weeks) // 2
    axes.plot(
        at, [one.best for one in weeks], color="#777", lw=1, ls=":", label="known preferences"
    )
    axes.plot(at, [one.in_use for one in weeks], color="#0072b2", lw=1.8, label="the model in use")
    axes.plot(
        at[half:],
        [one.frozen for one in weeks[half:]],
        color="#d55e00",
        lw=1.4,
        ls="--",
        label="that of half-time",
    )
    axes.axvline(half + 0.5, color="#333", lw=0.8, ls=":")
    axes.annotate("policy changed", (half + 0.7, 0.5), fontsize=8)
    axes.set_xlabel("week")
    axes.set_ylabel("labels of the week\nthat it gets right")
    axes.set_ylim(0.48, 0.84)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
