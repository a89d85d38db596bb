"""`project ceiling`: what all policies of a project may cost, and raising it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from labelguard.ledger import ceilings
from labelguard.ledger.ceilings import Ceiling
from labelguard.ledger.ledger import Ledger
from labelguard.policy import lifetime
from labelguard.project import policies
from labelguard.project.opening import OpenProject
from labelguard.project.project import Project


def show(
    project: Project | str | Path | None = None, raised: Ceiling | None = None
) -> dict[str, Any]:
    """The ceiling, what the policies so far reach of it, and what is left.

    `raised` is what somebody wants to raise it to; `PolicyError` if that is not above it.
    """
    ledger = OpenProject.open(project).ledger
    ceiling = ledger.ceiling()
    if raised:
        ceilings.check_raise(ceiling, raised)
    return _described(ledger, ceiling) | {"raised": asdict(raised) if raised else None}


def raise_ceiling(ceiling: Ceiling, project: Project | str | Path | None = None) -> dict[str, Any]:
    """Raise the ceiling, for good; returns what `show` shows afterwards.

    What was promised by the lower one holds no more once policies pass it. Raises `PolicyError` if
    the ceiling would be lowered, or stay.
    """
    with OpenProject.job(project) as opened:
        ledger = opened.ledger
        with ledger.transaction(ledger.begin_job()) as connection:
            ceilings.raise_to(connection, ceiling)
        return _described(ledger, ceiling) | {"raised": None}


def _described(ledger: Ledger, ceiling: Ceiling) -> dict[str, Any]:
    reached = lifetime.total(policies.life(ledger))
    left = {
        "epsilon": max(ceiling.epsilon - reached.epsilon, 0.0),
        "delta": max(ceiling.delta - reached.delta, 0.0),
    }
    return {"ceiling": asdict(ceiling), "reached": asdict(reached), "left": left}
