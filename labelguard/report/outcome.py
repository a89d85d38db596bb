"""What one mechanism gave in the demonstration, its name for people, and a picture of several."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from labelguard.planner.advice import NAMES

__all__ = ["Outcome", "name", "picture"]


@dataclass(frozen=True)
class Outcome:
    """What one mechanism gave."""

    mechanism: str
    """rr, statistic or non-private"""
    max_labels_per_labeler: int | None
    """the bound of randomized response; null: all labels"""
    released: int
    """labels released"""
    label_error: float
    """share of released labels that differ from what the labeler said, ties aside"""
    accuracy: float
    """share of fresh labelers' strict labels that a head trained on the release gets right"""
    path: str | None
    """the release; null without privacy"""


def name(outcome: Outcome) -> str:
    """A mechanism for people: randomized response, ≤ 2 a labeler."""
    bound = outcome.max_labels_per_labeler
    if bound is not None:
        return f"{NAMES[outcome.mechanism]}, ≤ {bound} a labeler"
    return NAMES[outcome.mechanism] + (", all labels" if outcome.mechanism == "rr" else "")


def picture(outcomes: Sequence[Outcome]) -> bytes:
    """Two bars a mechanism as PNG; the same outcomes give the same bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 2.8), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    names = [name(one) for one in outcomes]
    left.barh(names, [one.label_error for one in outcomes], color="#c1440e", height=0.6)
    left.set_xlabel("released labels that differ\nfrom what labelers said")
    right.barh(names, [one.accuracy for one in outcomes], color="#0b6e4f", height=0.6)
    right.set_xlabel("fresh labelers' labels that\na model trained on it gets right")
    right.axvline(0.5, color="#333", lw=0.8, ls=":")
    left.invert_yaxis()
    for axes, most in ((left, 0.6), (right, 1.0)):
        axes.set_xlim(0, most)
        axes.spines[["top", "right"]].set_visible(False)
        axes.bar_label(axes.containers[0], fmt="%.2f", padding=3)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
