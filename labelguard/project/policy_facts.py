"""Results of the `policy` commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from labelguard.budget.policy import AnyUnit, Policy
from labelguard.budget.pricing import Quote, Total
from labelguard.ledger.policies import Ceiling
from labelguard.notebook import CardRows, card
from labelguard.text import format_budget

__all__ = ["Activation", "Closed", "Dropped", "Grouped", "PolicyDetails", "PolicyLine"]


@dataclass(frozen=True)
class Closed:
    """A policy that is closed, or would be, and what it costs then."""

    # its name
    name: str
    # its ε, used or not
    epsilon: float
    # its δ
    delta: float


@dataclass(frozen=True)
class Activation:
    """The effect of putting a policy into force."""

    # the policy's name
    activates: str
    # its ε
    epsilon: float
    # its δ
    delta: float
    # what it protects as a whole
    unit: AnyUnit
    # the policy that was in force before; null if none was, or it is in force already
    closes: Closed | None
    # what all policies cost then
    total: Total
    # what they may cost
    ceiling: Ceiling


@dataclass(frozen=True)
class PolicyState:
    """A policy's name, its state and its age."""

    # its name
    name: str
    # draft, active or closed
    state: str
    # when it was made, UTC
    created_at: str


@dataclass(frozen=True)
class PolicyLine(PolicyState):
    """A policy in a few words."""

    # ε of a labeler, all events together
    epsilon: float
    # δ of a labeler, all events together
    delta: float
    # what is protected as a whole
    unit: AnyUnit
    # share of units whose labels evaluate and never train
    held_out: float
    # how many of each kind of event it allows
    allowances: Mapping[str, int]
    # ε that it costs, used or not; null for a draft
    costs: float | None
    # what putting a draft into force would mean; null for others, or if it could not follow
    activation: Activation | None


@dataclass(frozen=True, kw_only=True)
class PolicyDetails(Policy, PolicyState):
    """A policy: what labelers may lose by which events, its state, and what it costs."""

    # its price
    quote: Quote
    # what putting a draft into force would mean; null for others, or if it could not follow
    activation: Activation | None = None

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
        table = CardRows(("event", "allowed", "ε alone", "noise"), prices)
        return card(f"Policy {self.name}", facts, tables=[table] if prices else [])


@dataclass(frozen=True)
class Dropped:
    """A draft that was removed."""

    # its name, which is free again
    name: str


@dataclass(frozen=True)
class Grouped:
    """Labelers whose groups were read."""

    # how many are new among those in groups
    added: int
    # how many are in groups now
    labelers: int
    # how many groups there are
    groups: int
