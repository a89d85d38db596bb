"""Whether probabilities mean what they say: reliability in bins, and its error."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from utility.mechanisms import PLANNED
from utility.results import Results

Floats: TypeAlias = NDArray[np.float64]

BINS = 10
_REPEATS = 20


def reliability(margin: Floats, label: NDArray[np.uint8], seed: int = 0) -> dict[str, Any]:
    """Of margins and strict labels (0 or 1), each of shape (n,).

    Labels are put into ten bins of equal size by the probability of the likelier side. The error is
    the mean gap between what is said there and how often it is right; its `floor` is that of labels
    drawn from the probabilities themselves, since a finite test set has one.
    """
    said = 1 / (1 + np.exp(-np.abs(margin)))
    right = np.where(margin >= 0, label, 1 - label).astype(np.float64)
    bins = np.array_split(np.argsort(said, kind="stable"), BINS)
    rng = np.random.default_rng(seed)
    draws = [_error(said, rng.random(len(said)) < said, bins) for _ in range(_REPEATS)]
    error, floor = _error(said, right, bins), float(np.mean(draws))
    return {
        "calibration_error": error,
        "calibration_excess": error - floor,
        "log_loss": float(-np.mean(np.log(np.where(right > 0, said, 1 - said)))),
        "reliability": [[float(said[part].mean()), float(right[part].mean())] for part in bins],
    }


def _error(said: Floats, right: NDArray[Any], bins: Sequence[NDArray[np.intp]]) -> float:
    return float(sum(abs((said[part] - right[part]).sum()) for part in bins) / len(said))


def draw(results: Results, epsilon: float, path: Path) -> Path:
    """The reliability of planned statistics at one ε, scaled and as they are fitted."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(4.4, 4), layout="constrained")
    axes.plot([0.5, 1], [0.5, 1], color="0.6", linestyle="--", linewidth=1, label="as it should be")
    for number, setting in enumerate(results.settings()):
        for measure, style in (("reliability", "-"), ("reliability_unscaled", ":")):
            found = results.lists(setting, PLANNED, epsilon, measure)
            if not found:
                continue
            said, right = np.mean(found, axis=0).T
            label = setting.dataset if style == "-" else None
            axes.plot(said, right, style, color=f"C{number}", marker="o", markersize=3, label=label)
    axes.set(
        xlabel="what the head says",
        ylabel="how often it is right",
        title=f"ε = {epsilon:g}; dotted: before scaling",
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    return path
