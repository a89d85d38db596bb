"""The demonstration: simulated labelers, one release, what it says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from labelguard.errors import ProjectError
from labelguard.project.opening import init
from labelguard.release.pipeline import privatize
from labelguard.release.writer import Release
from labelguard.simulation import SimulationConfig, simulate
from labelguard.terms import Progress


@dataclass(frozen=True)
class Demo:
    """The release that was made, and commands worth trying next."""

    release: Release
    next_steps: tuple[str, ...]


def demo(directory: Path, progress: Progress) -> Demo:
    """Make a project in `directory` with simulated labels and release them at ε = 3, δ = 1e-5."""
    if directory.exists() and any(directory.iterdir()):
        raise ProjectError(f"{directory} is not empty; remove it or name another directory")
    directory.mkdir(parents=True, exist_ok=True)
    progress("simulating labelers", None)
    labels = directory / "labels.parquet"
    pq.write_table(simulate(SimulationConfig()), labels, compression="zstd")
    project = init(directory)
    release = privatize(labels, epsilon=3.0, delta=1e-5, project=project, progress=progress)
    return Demo(
        release,
        (
            f"labelguard budget show --project {directory}",
            f"labelguard privatize {labels} --epsilon 3 --delta 1e-5 --project {directory}",
        ),
    )
