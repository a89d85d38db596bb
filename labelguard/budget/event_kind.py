"""What a kind of priced event says of itself: what a use is, what it costs, what it is called."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from labelguard.budget.label_values import Ties
from labelguard.errors import PolicyError

if TYPE_CHECKING:
    from labelguard.accounting.joint import Component
from dataclasses import dataclass

MOST_STEPS = 100_000
MOST_RECORDS = 10_000


@dataclass(frozen=True)
class Sampling:
    """Poisson sampling: in each of `steps` steps everybody, or every label, is in by themselves."""

    probability: float
    """with which a labeler (uls, aup) or a label (els, els-group) is in a step"""
    steps: int
    """number of steps of a run"""
    records: int | None = None
    """els, els-group: labels of a labeler that are in a run at most"""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.probability) and 1e-6 <= self.probability <= 1):
            raise PolicyError(f"q must be in [1e-6, 1], found {self.probability}")
        for name, value, most in (
            ("steps", self.steps, MOST_STEPS),
            ("records", self.records, MOST_RECORDS),
        ):
            if value is not None and not 1 <= value <= most:
                raise PolicyError(f"{name} must be between 1 and {most:,}, found {value}")


Price: TypeAlias = Mapping[str, Any]
"""What one use costs, as named numbers: those of an accounting component but for its count."""

PAIR = 2
"""Responses of a pair, of which a label prefers one."""

UNIFORM_DELTA = 2.0**-100
"""More than the probability that noise from 256-bit uniforms is not what continuous ones give."""


def of_bits(epsilon: float) -> float:
    """(1 + e^ε) · 2^-100: both of two neighbours change with less probability than that."""
    return (1 + math.exp(min(epsilon, 700.0))) * UNIFORM_DELTA


@dataclass(frozen=True)
class Terms:
    """What an allowance says of its events (see `policy.Allowance`)."""

    event: str
    """the kind of event: rr, statistic, uls, els, els-group or aup"""
    allowed: int | None
    """how many; null: the labeler's own number of labels, rounded up"""
    share: float = 1.0
    """what it weighs in the joint price"""
    ball: int | None = None
    """ball noise, for so many components or more; null: Gaussian"""
    sampling: Sampling | None = None
    """how a training run samples; null: it is none"""
    choices: int = PAIR
    """the fewest responses that a label may choose among; 2: pairs, and all choices"""


class EventKind(ABC):
    """One kind of priced event."""

    name: ClassVar[str]
    counts: ClassVar[str]
    """What an allowance counts, in `--allow NAME:COUNTS=NUMBER`."""
    noun: ClassVar[str]
    """One use, for people."""
    taken: ClassVar[str]
    """What a use takes from a labeler who runs short."""
    option: ClassVar[str | None] = None
    """The field of a `Request` that says how often, and belongs to this kind alone, if any does."""
    misplaced: ClassVar[str] = ""
    """What is wrong with that option beside another kind of event."""
    term: ClassVar[str | None] = None
    """A further field of an allowance that is written where it is not as usual: a whole number."""
    form: ClassVar[str]
    """How an allowance is written, for errors."""
    proven: ClassVar[bool] = True
    """Whether what it costs is proven, and not only as published."""
    default_ties: ClassVar[Ties]
    per_label: ClassVar[bool]
    """Whether every label is a use; else a release is one for all labels of a unit."""
    own_number: ClassVar[bool]
    """Whether a labeler's own number of labels may be what is allowed."""

    @property
    def key(self) -> str:
        """Its uses, as a key of JSON."""
        return self.noun.replace(" ", "_") + "s"

    @abstractmethod
    def component(self, price: Price, count: int) -> Component:
        """What the accountants price: so many uses at a price."""

    @abstractmethod
    def calibrated(self, allowance: Terms) -> Callable[[float, float, int], Component]:
        """What finds the component of an ε, a δ and a number of uses, on an allowance's terms."""

    @abstractmethod
    def check_allowance(self, allowance: Terms) -> None:
        """Raise `PolicyError` for terms that this kind does not have, or cannot have."""

    @abstractmethod
    def uniforms(self, epsilon: float, allowance: Terms) -> float:
        """What drawing the noise of one use from finitely many bits costs, of δ."""

    def of_terms(self, terms: Mapping[str, str]) -> dict[str, Any]:
        """The fields of an `Allowance` that `--allow NAME:COUNTS=NUMBER,TERM=VALUE,…` names.

        Raises `PolicyError` for terms of other kinds, KeyError for one that lacks, ValueError for
        a value that is none.
        """
        if unknown := [name for name in terms if name != self.term]:
            raise PolicyError(f"an allowance of {self.name} has no {', '.join(unknown)}")
        return {name: int(value) for name, value in terms.items()}

    def terms_of(self, allowance: Terms) -> dict[str, Any]:
        """The inverse of `of_terms`."""
        own = {self.term: getattr(allowance, self.term)} if self.term else {}
        return {name: value for name, value in own.items() if value != getattr(Terms, name)}

    @abstractmethod
    def ties_of(self, ties: Ties) -> Ties:
        """What becomes of ties in such an event, under a policy's treatment of them."""

    @abstractmethod
    def check(self, delta: float, ties: Ties, *, alone: bool) -> None:
        """Raise `PolicyError` for terms under which no policy pays for such events."""

    @abstractmethod
    def first(self, asked: int | None, unit: str | None) -> int | None:
        """How many uses the first policy of a project allows, where a command asks for `asked`."""

    @abstractmethod
    def knows(self, state: str) -> bool:
        """Whether labels that a release in this state drew were released, for later such events."""

    @abstractmethod
    def noise(self, price: Price) -> dict[str, Any]:
        """A price as people read it: fields of `pricing.EventPrice`."""


class ClippedSums(EventKind):
    """Whatever adds noise to sums over labelers, each clipped: all labels of a labeler at once."""

    default_ties = "zero"
    per_label = False
    own_number = False

    def check_allowance(self, allowance: Terms) -> None:
        """A sum takes choices among any number, at one price."""
        if allowance.choices != PAIR:
            raise PolicyError(
                "choices=K is for rr:labels=N only: a sum takes choices among any number"
            )

    def ties_of(self, ties: Ties) -> Ties:
        """They say that no side is better, or are dropped."""
        return "drop" if ties == "drop" else "zero"

    def check(self, delta: float, ties: Ties, *, alone: bool) -> None:
        """Noise from finitely many bits needs a δ, and a tie adds nothing to a sum."""
        if alone and ties not in ("zero", "drop"):
            raise PolicyError(
                f"--ties {ties} goes with randomized response; in a sum a tie adds nothing "
                "(zero), or, where tie status is public, may be dropped"
            )
        if not delta > 0:
            raise PolicyError(
                f"the noise of a {self.noun} needs a delta above 0: it is drawn from 256-bit "
                "numbers"
            )

    def first(self, asked: int | None, unit: str | None) -> int | None:
        """One."""
        return asked or 1
