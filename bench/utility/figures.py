"""Held-out accuracy against ε, one small picture for each setting."""

from __future__ import annotations

import re
from pathlib import Path

from utility.mechanisms import NON_PRIVATE_WIDE, PLANNED
from utility.results import Results, Setting

_STYLES = {
    PLANNED: ("statistic, planned", "C0", "o"),
    "statistic": ("statistic, fixed", "C9", "s"),
    "props-hard": ("PROPS, hard", "C2", "^"),
    "rr": ("randomized response", "C3", "v"),
}


def draw(results: Results, setting: Setting, directory: Path) -> Path:
    """Writes the picture of a setting and returns its path. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    epsilons = results.epsilons(setting)
    figure, axes = pyplot.subplots(figsize=(5, 3.2), layout="constrained")
    bound = results.mean(setting, NON_PRIVATE_WIDE, None, "accuracy")
    if bound is not None:
        axes.axhline(bound.value, color="0.4", linestyle="--", label="without privacy")
    for mechanism, (label, color, marker) in _STYLES.items():
        means = [results.mean(setting, mechanism, epsilon, "accuracy") for epsilon in epsilons]
        points = [(e, m.value, m.error) for e, m in zip(epsilons, means, strict=True) if m]
        if points:
            x, y, error = zip(*points, strict=True)
            axes.errorbar(
                x, y, error, capsize=2, color=color, marker=marker, markersize=4, label=label
            )
    axes.set(xscale="log", xlabel="ε", ylabel="held-out accuracy", title=str(setting))
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    directory.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "-", f"{setting.dataset} {setting.features} {setting.ties}")
    path = directory / f"utility-{name}.png"
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    return path
