"""`project ceiling`: what all policies of a project may cost, and raising it."""

from __future__ import annotations

from dataclasses import dataclass

from labelguard.budget import pricing
from labelguard.budget.pricing import Total
from labelguard.ledger import policies as ledger_policies
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.policies import Ceiling
from labelguard.project.opening import OpenProject, Where


@dataclass(frozen=True)
class CeilingUse:
    """A ceiling, and how far policies have come below it."""

    # what all policies together may cost
    ceiling: Ceiling
    # what they cost so far
    reached: Total
    # what further ones may cost
    left: Total
    # what it is to be raised to, before that is agreed; null otherwise
    raised: Ceiling | None


def show(project: Where = None, raised: Ceiling | None = None) -> CeilingUse:
    """The ceiling, what the policies so far reach of it, and what is left.

    `raised` is what somebody wants to raise it to; `PolicyError` if that is not above it.
    """
    ledger = OpenProject.open(project).ledger
    ceiling = ledger.policies.ceiling()
    if raised:
        ledger_policies.check_raise(ceiling, raised)
    return _use(ledger, ceiling, raised)


def raise_ceiling(ceiling: Ceiling, project: Where = None) -> CeilingUse:
    """Raise the ceiling, for good; returns what `show` shows afterwards.

    What was promised by the lower one holds no more once policies pass it. Raises `PolicyError` if
    the ceiling would be lowered, or stay.
    """
    with OpenProject.job(project) as opened:
        ledger = opened.ledger
        ledger.policies.raise_ceiling(ledger.begin_job(), ceiling)
        return _use(ledger, ceiling, None)


def _use(ledger: Ledger, ceiling: Ceiling, raised: Ceiling | None) -> CeilingUse:
    reached = pricing.total(ledger.policies.history())
    left = Total(
        max(ceiling.epsilon - reached.epsilon, 0.0), max(ceiling.delta - reached.delta, 0.0)
    )
    return CeilingUse(ceiling, reached, left, raised)
