"""What the audits are asked for."""

from __future__ import annotations

from labelguard.errors import PolicyError

FEWEST_RUNS = 100


def check_sizes(*, labels: int, runs: int, pipeline_runs: int) -> None:
    """Refuse sizes with which an audit could not say anything."""
    if labels < 1:
        raise PolicyError(f"labels must be at least 1, found {labels}")
    if runs < FEWEST_RUNS:
        raise PolicyError(f"runs must be at least {FEWEST_RUNS}, found {runs}")
    if pipeline_runs < 0:
        raise PolicyError(f"pipeline-runs must be at least 0, found {pipeline_runs}")
