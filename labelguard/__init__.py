"""labelguard: preference labels in, labeler-level private releases out, every budget accounted.

    import labelguard as lg
    release = lg.privatize("labels.parquet", epsilon=3, delta=1e-5)
    frame = lg.load(release)

Importing it is light; the engine loads at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labelguard._version import __version__ as __version__

if TYPE_CHECKING:
    from labelguard.project.opening import init
    from labelguard.project.project import Project, find
    from labelguard.project.waiting import waiting
    from labelguard.release.pipeline import privatize
    from labelguard.release.score import score
    from labelguard.release.writer import Release, load
    from labelguard.report.inspection import Inspection, inspect
    from labelguard.simulation import SimulationConfig, simulate

_HOMES = {
    "privatize": "labelguard.release.pipeline",
    "load": "labelguard.release.writer",
    "Release": "labelguard.release.writer",
    "Project": "labelguard.project.project",
    "find": "labelguard.project.project",
    "init": "labelguard.project.opening",
    "waiting": "labelguard.project.waiting",
    "score": "labelguard.release.score",
    "inspect": "labelguard.report.inspection",
    "Inspection": "labelguard.report.inspection",
    "SimulationConfig": "labelguard.simulation",
    "simulate": "labelguard.simulation",
}

__all__ = [
    "Inspection",
    "Project",
    "Release",
    "SimulationConfig",
    "find",
    "init",
    "inspect",
    "load",
    "privatize",
    "score",
    "simulate",
    "waiting",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'labelguard' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
