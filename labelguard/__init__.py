"""labelguard: preference labels in, labeler-level private releases out, every budget accounted.

    import labelguard as lg
    lg.init()
    release = lg.privatize("labels.parquet", label_values="1-0", epsilon=3, delta=1e-5, once=True)
    frame = lg.load(release)

Importing it is light; the engine loads at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labelguard._version import __version__ as __version__

if TYPE_CHECKING:
    from labelguard import errors as errors
    from labelguard.accounting import account as account
    from labelguard.analysis.agreement import score as score
    from labelguard.analysis.reward import reward as reward
    from labelguard.budget.policy import Policy as Policy
    from labelguard.options import Reading as Reading
    from labelguard.planner.forecast import plan as plan
    from labelguard.project import policies as policies
    from labelguard.project.opening import init as init
    from labelguard.project.project import Project as Project
    from labelguard.project.project import find as find
    from labelguard.project.project import waiting as waiting
    from labelguard.release.export import export as export
    from labelguard.release.privatize import privatize as privatize
    from labelguard.release.publication import publish as publish
    from labelguard.release.writer import Release as Release
    from labelguard.release.writer import load as load
    from labelguard.report.inspection import inspect as inspect
    from labelguard.simulation import simulate as simulate

_HOMES = {
    "Policy": "labelguard.budget.policy:Policy",
    "Project": "labelguard.project.project:Project",
    "Reading": "labelguard.options:Reading",
    "Release": "labelguard.release.writer:Release",
    "account": "labelguard.accounting.account",
    "errors": "labelguard.errors",
    "export": "labelguard.release.export:export",
    "find": "labelguard.project.project:find",
    "init": "labelguard.project.opening:init",
    "inspect": "labelguard.report.inspection:inspect",
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

__all__ = ["__version__", *_HOMES]


if not TYPE_CHECKING:  # a type checker is to find names that there are not

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            from labelguard.text import suggest

            near = suggest(name, _HOMES)
            raise AttributeError(f"module 'labelguard' has no attribute {name!r}{near}")
        from pkgutil import resolve_name

        return resolve_name(_HOMES[name])


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
