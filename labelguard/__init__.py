"""labelguard: preference labels in, labeler-level private releases out, every budget accounted.

    import labelguard as lg
    lg.init("study")
    release = lg.privatize("labels.parquet", epsilon=3, delta=1e-5, project="study")
    frame = lg.load(release)

Importing it is light; the engine loads at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labelguard._version import __version__ as __version__

if TYPE_CHECKING:
    from labelguard import errors
    from labelguard.accounting import account
    from labelguard.analysis.agreement import score
    from labelguard.analysis.leaderboard import leaderboard
    from labelguard.analysis.reward import reward
    from labelguard.budget.policy import Policy
    from labelguard.planner.forecast import plan
    from labelguard.project import policies
    from labelguard.project.opening import init
    from labelguard.project.project import Project, find, waiting
    from labelguard.release.export import export
    from labelguard.release.privatize import privatize
    from labelguard.release.publication import publish
    from labelguard.release.writer import Release, load
    from labelguard.report.inspection import inspect
    from labelguard.simulation import simulate

_HOMES = {
    "Policy": "labelguard.budget.policy:Policy",
    "Project": "labelguard.project.project:Project",
    "Release": "labelguard.release.writer:Release",
    "account": "labelguard.accounting.account",
    "errors": "labelguard.errors",
    "export": "labelguard.release.export:export",
    "find": "labelguard.project.project:find",
    "init": "labelguard.project.opening:init",
    "inspect": "labelguard.report.inspection:inspect",
    "leaderboard": "labelguard.analysis.leaderboard:leaderboard",
    "load": "labelguard.release.writer:load",
    "plan": "labelguard.planner.forecast:plan",
    "policies": "labelguard.project.policies",
    "privatize": "labelguard.release.privatize:privatize",
    "publish": "labelguard.release.publication:publish",
    "reward": "labelguard.analysis.reward:reward",
    "score": "labelguard.analysis.agreement:score",
    "simulate": "labelguard.simulation:simulate",
    "waiting": "labelguard.project.project:waiting",
}

__all__ = [
    "Policy",
    "Project",
    "Release",
    "__version__",
    "account",
    "errors",
    "export",
    "find",
    "init",
    "inspect",
    "leaderboard",
    "load",
    "plan",
    "policies",
    "privatize",
    "publish",
    "reward",
    "score",
    "simulate",
    "waiting",
]


if not TYPE_CHECKING:  # a type checker is to find names that there are not

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            from labelguard.spelling import suggest

            near = suggest(name, _HOMES)
            raise AttributeError(f"module 'labelguard' has no attribute {name!r}{near}")
        from pkgutil import resolve_name

        return resolve_name(_HOMES[name])


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
