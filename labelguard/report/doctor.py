"""Checks of an installation and a project, each with what to do if it fails."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from labelguard import extras
from labelguard.answers import connector as connectors
from labelguard.errors import LabelguardError, NoProject, ProjectError
from labelguard.project import attempts, ingestion
from labelguard.project.opening import OpenProject, located
from labelguard.text import pluralize

if TYPE_CHECKING:
    from labelguard.project.opening import Where

_CORE = (
    "duckdb",
    "polars",
    "pyarrow",
    "numpy",
    "dp-accounting",
    "sqlalchemy",
    "cryptography",
    "scikit-learn",
)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    """what was looked at"""
    ok: bool
    """whether all is well"""
    detail: str
    """what was found, or what to do"""


def examine(project: Where) -> list[Finding]:
    """All checks; a missing project is reported, not an error, unless it was named."""
    checks = [
        Finding("python", sys.version_info >= (3, 11), platform.python_version()),
        Finding("system", os.name == "posix", platform.system()),
        *(_package(name) for name in _CORE),
        Finding("extras", True, _extras()),
        _check("randomized response", _accounting),
    ]
    found = checks + _project_checks(project)
    return [*_failing(project), *found]


def _failing(project: Where) -> list[Finding]:
    """That releases fail, first of all; nothing where none does."""
    with contextlib.suppress(ProjectError):  # which a check below tells
        found = attempts.read(located(project))
        if found.failing:
            return [Finding("releases", False, f"{found.failing}: {found.message}")]
    return []


def _package(name: str) -> Finding:
    try:
        return Finding(name, True, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, False, "not installed; install labelguard again")


def _extras() -> str:
    named = importlib.metadata.metadata("labelguard").get_all("Provides-Extra") or []
    installed = [name for name in named if name != "all" and not extras.missing_packages(name)]
    return ", ".join(installed) or "none installed"


def _accounting() -> str:
    from labelguard.accounting import gaussian
    from labelguard.accounting import randomized_response as rr

    per_label = rr.calibrate(3.0, 1e-5, 50)
    if abs(per_label - 0.104592) > 1e-6:
        raise LabelguardError(f"ε0 for ε=3, δ=1e-5, k=50 is {per_label}, expected 0.104592")
    noise = gaussian.calibrate(1.0, 1e-5)
    if abs(noise - 3.730632) > 1e-6:
        raise LabelguardError(f"σ for ε=1, δ=1e-5 is {noise}, expected 3.730632")
    return f"ε=3, δ=1e-5, 50 labels: ε0 = {per_label:.6f}"


def _project_checks(project: Where) -> list[Finding]:
    from labelguard.project.opening import IGNORE
    from labelguard.report.overview import verify

    try:
        home = located(project)
    except NoProject as error:
        named = project is not None or "LABELGUARD_PROJECT" in os.environ
        return [Finding("project", not named, str(error) if named else "none here")]
    except ProjectError as error:
        return [Finding("project", False, str(error))]

    def writable() -> str:
        if not os.access(home.state, os.W_OK):
            raise ProjectError(f"{home.state} is not writable")
        ignored = home.state / IGNORE
        if not ignored.is_file() or ignored.read_text(errors="replace").split() != ["*"]:
            raise ProjectError(f"git would add keys and labels: write one line, *, to {ignored}")
        return str(home.state)

    def keys() -> str:
        OpenProject.open(home)
        return f"{home.keys}: present, private, and those of the ledger"

    def ledger() -> str:
        verdict = verify(home)
        if verdict.fault:
            raise LabelguardError(verdict.fault)
        entries = pluralize(verdict.journal_entries, "journal entry")
        return f"{entries}, {pluralize(verdict.releases, 'release')}"

    def maps() -> str:
        opened = OpenProject.open(home)
        digests = {record.id: record.map for record in opened.ledger.releases.all() if record.map}
        opened.private_map.check(digests)
        return f"{pluralize(len(digests), 'private map')} as drawn"

    def ingested() -> str:
        opened = OpenProject.open(home)
        broken = ingestion.fault(opened)
        if broken:
            raise ProjectError(broken)
        held = ingestion.held(opened)
        settings = ingestion.settings(home)
        for one in settings.values():
            connectors.connector(one)  # which checks its own options
        names = ", ".join(sorted(settings)) or "none"
        segments = f"{pluralize(held.answers, 'row')} in {pluralize(held.segments, 'segment')}"
        return f"{segments}, {pluralize(held.waiting, 'event')} waiting; connectors: {names}"

    checks = (
        *(("project", writable), ("keys", keys), ("ledger", ledger)),
        *(("private maps", maps), ("ingested answers", ingested)),
    )
    return _said_once([_check(name, work) for name, work in checks])


def _said_once(findings: list[Finding]) -> list[Finding]:
    """What several checks stumbled over is told by the first."""
    first = {one.detail: one.name for one in reversed(findings)}
    return [
        one
        if one.ok or first[one.detail] == one.name
        else replace(one, detail=f"not looked at: see {first[one.detail]}")
        for one in findings
    ]


def _check(name: str, work: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, work())
    except LabelguardError as error:
        return Finding(name, False, str(error))
