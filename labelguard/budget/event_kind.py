"""A kind of priced event: the meaning, the price and the name of one use."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from labelguard.budget.label_values import Ties
from labelguard.errors import PolicyError

if TYPE_CHECKING:
    from labelguard.accounting.components import Component

MOST_STEPS = 100_000
MOST_RECORDS = 10_000
MOST_UPDATES = 100


@dataclass(frozen=True)
class Sampling:
    """Poisson sampling: in each of `steps` steps everybody, or every label, is in by themselves."""

    # with which a labeler (uls, aup) or a label (els, els-group) is in a step
    probability: float
    # number of steps of a run
    steps: int
    # els, els-group: labels of a labeler that are in a run at most
    records: int | None = None
    # records: noised sums of the cohort of each step
    updates: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.probability) and 1e-6 <= self.probability <= 1):
            raise PolicyError(f"q must be in [1e-6, 1], found {self.probability}")
        for name, value, most in (
            ("steps", self.steps, MOST_STEPS),
            ("records", self.records, MOST_RECORDS),
            ("updates", self.updates, MOST_UPDATES),
        ):
            if value is not None and not 1 <= value <= most:
                raise PolicyError(f"{name} must be between 1 and {most:,}, found {value}")


# Price of one use, as named numbers: those of an accounting component but for its count.
Price: TypeAlias = Mapping[str, Any]

# Labels of a labeler that one use of randomized response draws together at most: what they tell
# does not grow with their number, and tables do (`accounting.blocks`).
MOST_LABELS = 16_384

# More than the probability that noise from 256-bit uniforms is not what continuous ones give.
UNIFORM_DELTA = 2.0**-100


def delta_of_finite_bits(epsilon: float) -> float:
    """(1 + e^ε) · 2^-100: both of two neighbours change with less probability than that."""
    return (1 + math.exp(min(epsilon, 700.0))) * UNIFORM_DELTA


@dataclass(frozen=True)
class AllowanceTerms:
    """The terms of an allowance (see `policy.Allowance`)."""

    # the kind of event: rr, statistic, uls, els, els-group or aup
    event: str
    # how many
    allowed: int
    # what it weighs in the joint price
    share: float = 1.0
    # ball noise, for so many components or more; null: Gaussian
    ball: int | None = None
    # how a training run samples; null: it is none
    sampling: Sampling | None = None
    # labels of a labeler that one use of rr randomizes together at most
    block: int = MOST_LABELS


class EventKind(ABC):
    """One kind of priced event."""

    name: ClassVar[str]
    # What an allowance counts, in `--allow NAME:COUNTS=NUMBER`.
    counts: ClassVar[str]
    # One use, for people.
    noun: ClassVar[str]
    # What a use takes from a labeler who runs short.
    shortage_noun: ClassVar[str]
    # True if `--uses` says how many a first policy allows; else it is made by `policy new`.
    counts_uses: ClassVar[bool] = True
    # A further field of an allowance that is written where it is not as usual: a whole number.
    term: ClassVar[str | None] = None
    # How an allowance is written, for errors.
    form: ClassVar[str]
    # True if what it costs is proven, and not only as published.
    proven: ClassVar[bool] = True
    default_ties: ClassVar[Ties]
    # True if a label that was drawn keeps its value in later releases, which is free.
    keeps_values: ClassVar[bool] = False
    # What neighbours differ in.
    adjacency: ClassVar[str] = "replace_labels"
    # What it protects as a whole, one of these.
    units: ClassVar[tuple[str, ...]] = ("labeler", "item")

    @abstractmethod
    def component(self, price: Price, count: int) -> Component:
        """Return what the accountants price: so many uses at a price."""

    @abstractmethod
    def make_noise_finder(
        self, allowance: AllowanceTerms
    ) -> Callable[[float, float, int], Component]:
        """Return what finds the component of an ε, a δ and a number of uses, on an allowance's
        terms.
        """

    @abstractmethod
    def check_allowance(self, allowance: AllowanceTerms) -> None:
        """Raise `PolicyError` for terms that this kind does not have, or cannot have."""

    @abstractmethod
    def discretization_delta(self, epsilon: float, allowance: AllowanceTerms) -> float:
        """Return what drawing the noise of one use from finitely many bits costs, of δ."""

    def parse_terms(self, terms: Mapping[str, str]) -> dict[str, Any]:
        """Return the fields of an `Allowance` that `--allow NAME:COUNTS=NUMBER,TERM=VALUE,…` names.

        Raises `PolicyError` for terms of other kinds, KeyError for one that lacks, ValueError for
        a value that is none.
        """
        if unknown := [name for name in terms if name != self.term]:
            raise PolicyError(f"an allowance of {self.name} has no {', '.join(unknown)}")
        return {name: int(value) for name, value in terms.items()}

    def format_terms(self, allowance: AllowanceTerms) -> dict[str, Any]:
        """Return the inverse of `parse_terms`."""
        values = {self.term: getattr(allowance, self.term)} if self.term else {}
        return {
            name: value for name, value in values.items() if value != getattr(AllowanceTerms, name)
        }

    @abstractmethod
    def ties_of(self, ties: Ties) -> Ties:
        """Return what becomes of ties in such an event, under a policy's treatment of them."""

    @abstractmethod
    def check_policy_terms(self, delta: float, ties: Ties, *, alone: bool) -> None:
        """Raise `PolicyError` for terms under which no policy pays for such events."""

    @abstractmethod
    def allows_reuse_of_labels(self, state: str) -> bool:
        """Return True if labels that a release in this state drew were released, for later such
        events.
        """

    @abstractmethod
    def describe_noise(self, price: Price) -> dict[str, Any]:
        """Return a price as people read it: fields of `pricing.EventPrice`."""


class ClippedSums(EventKind):
    """Whatever adds noise to sums over labelers, each clipped: all labels of a labeler at once."""

    default_ties = "zero"

    def check_allowance(self, allowance: AllowanceTerms) -> None:
        """A sum takes any number of labels at one price."""
        if allowance.block != MOST_LABELS:
            raise PolicyError("block=B is for rr:uses=K only: a sum takes any number of labels")

    def ties_of(self, ties: Ties) -> Ties:
        """They say that no side is better, or are dropped."""
        return "drop" if ties == "drop" else "zero"

    def check_policy_terms(self, delta: float, ties: Ties, *, alone: bool) -> None:
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
