"""The picture of a training: loss and agreement against steps."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from labelguard.storage.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw"]

Lines: TypeAlias = Sequence[Mapping[str, Any]]

_PANELS = (("loss", "loss"), ("agreement", "agreement with its rows' labels"))
_PARTS = (("", "training", "#0b6e4f"), ("eval_", "held out", "#c1440e"))


def draw(lines: Lines, directory: Path) -> tuple[Path, ...]:
    """Write `curves.svg` and `curves.png` and return them; the same lines, the same bytes.

    `lines` are those of `metrics.jsonl`: `step`, and any of `loss`, `agreement`, and the same of
    held-out rows with `eval_` before it.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (name, title) in zip(figure.subplots(1, len(_PANELS)), _PANELS, strict=True):
        _panel(axes, lines, name)
        axes.set(xlabel="step", title=title)
    paths = []
    # A hash with a salt of its own, and no date: else each picture would be another file.
    with rc_context({"svg.hashsalt": "labelguard", "svg.fonttype": "none"}):
        for kind, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=120, metadata=metadata)
            path = directory / f"curves.{kind}"
            write_atomically(path, buffer.getvalue())
            paths.append(path)
    return tuple(paths)


def _panel(axes: Axes, lines: Lines, name: str) -> None:
    for prefix, label, color in _PARTS:
        found = [line for line in lines if line.get(prefix + name) is not None]
        if found:
            steps, values = ([line[key] for line in found] for key in ("step", prefix + name))
            axes.plot(steps, values, ".-", color=color, label=label, linewidth=1)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(frameon=False)
