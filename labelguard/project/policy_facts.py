"""What is said of the policies of a project, as the `policy` commands show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from labelguard.budget.policy import Policy, Unit
from labelguard.budget.pricing import Quote, Total
from labelguard.ledger.policies import Ceiling
from labelguard.notebook import Rows, card
from labelguard.text import format_budget

__all__ = ["Activation", "Closed", "Dropped", "Grouped", "PolicyDetails", "PolicyLine"]


@dataclass(frozen=True)
class Closed:
    """A policy that is closed, or would be, and what it costs then."""

    name: str
    """its name"""
    epsilon: float
    """its ε, used or not"""
    delta: float
    """its δ"""


@dataclass(frozen=True)
class Activation:
    """What putting a policy into force means."""

    activates: str
    """the policy's name"""
    epsilon: float
    """its ε"""
    delta: float
    """its δ"""
    unit: Unit
    """what it protects as a whole"""
    closes: Closed | None
    """the policy that was in force before; null if none was, or it is in force already"""
    total: Total
    """what all policies cost then"""
    ceiling: Ceiling
    """what they may cost"""


@dataclass(frozen=True)
class PolicyState:
    """Which policy it is, and whether it is in force."""

    name: str
    """its name"""
    state: str
    """draft, active or closed"""
    created_at: str
    """when it was made, UTC"""


@dataclass(frozen=True)
class PolicyLine(PolicyState):
    """A policy in a few words."""

    epsilon: float
    """ε of a labeler, all events together"""
    delta: float
    """δ of a labeler, all events together"""
    unit: Unit
    """what is protected as a whole"""
    held_out: float
    """share of units whose labels evaluate and never train"""
    allowances: Mapping[str, int | None]
    """how many of each kind of event it allows; null: the labeler's own number of labels"""
    costs: float | None
    """ε that it costs, used or not; null for a draft"""
    activation: Activation | None
    """what putting a draft into force would mean; null for others, or if it could not follow"""


@dataclass(frozen=True, kw_only=True)
class PolicyDetails(Policy, PolicyState):
    """A policy: what labelers may lose by which events, its state, and what it costs."""

    quote: Quote
    """its price"""
    activation: Activation | None = None
    """what putting a draft into force would mean; null for others, or if it could not follow"""

    def __repr__(self) -> str:
        return f"PolicyDetails({self.name!r}, {self.state}; {self.in_words()})"

    def _repr_html_(self) -> str:
        facts = [
            ("state", self.state),
            ("made", self.created_at),
            ("budget", f"{format_budget(self)} of each {self.unit}"),
            ("ties", self.ties),
            ("skips", self.skips),
            ("held out", f"{self.held_out:.0%}"),
        ]
        prices = [
            (one.event, f"{one.allowed:,}", f"{one.epsilon_alone:.4g}", one.in_words())
            for one in self.quote.events
        ]
        table = Rows(("event", "allowed", "ε alone", "noise"), prices)
        return card(f"Policy {self.name}", facts, tables=[table] if prices else [])


@dataclass(frozen=True)
class Dropped:
    """A draft that was removed."""

    name: str
    """its name, which is free again"""


@dataclass(frozen=True)
class Grouped:
    """Labelers whose groups were read."""

    added: int
    """how many are new among those in groups"""
    labelers: int
    """how many are in groups now"""
    groups: int
    """how many groups there are"""
