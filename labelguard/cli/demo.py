"""The demonstration: simulated labelers, one release, what it says."""

from __future__ import annotations

from pathlib import Path

import click

from labelguard.cli.options import HELP
from labelguard.cli.release import Made, print_made
from labelguard.cli.terminal import prints, progress
from labelguard.errors import ProjectError


@click.command(
    context_settings=HELP, short_help="A release of simulated labels, from start to end."
)
@click.argument("directory", type=click.Path(path_type=Path), default="labelguard-demo")
@prints(print_made)
def demo(directory: Path) -> Made:
    """Simulate labelers in DIRECTORY, release their labels at ε = 3, show what comes out.

    \b
    Example:
      labelguard demo
    """
    import pyarrow.parquet as pq

    from labelguard.project.opening import init
    from labelguard.release.pipeline import privatize
    from labelguard.simulation import SimulationConfig, simulate

    if directory.exists() and any(directory.iterdir()):
        raise ProjectError(f"{directory} is not empty; remove it or name another directory")
    directory.mkdir(parents=True, exist_ok=True)
    labels = directory / "labels.parquet"
    with progress() as report:
        report("simulating labelers", None)
        pq.write_table(simulate(SimulationConfig()), labels, compression="zstd")
        project = init(directory)
        release = privatize(labels, epsilon=3.0, delta=1e-5, project=project, progress=report)
    return Made.of(
        release,
        (
            f"labelguard budget show --project {directory}",
            f"labelguard privatize {labels} --epsilon 3 --delta 1e-5 --project {directory}",
        ),
    )
