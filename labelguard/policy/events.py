"""The kinds of events that a policy prices: what a use is, what it costs, what it is called.

Policies, ledger and cards name a kind (`rr`, `statistic`) and ask it here for everything in which
kinds differ. Kinds are the core's alone; a mechanism says which one it works on.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from labelguard.errors import PolicyError
from labelguard.policy.label_values import Ties
from labelguard.terms import counted

if TYPE_CHECKING:
    from labelguard.accounting.joint import Component

ITEM_BOUND = 1
"""How many labels of a content may be randomized over its life, unless more are asked for."""

Price: TypeAlias = Mapping[str, Any]
"""What one use costs, as named numbers: those of an accounting component but for its count."""


class EventKind(ABC):
    """One kind of priced event."""

    name: ClassVar[str]
    counts: ClassVar[str]
    """What an allowance counts, in `--allow NAME:COUNTS=NUMBER`."""
    noun: ClassVar[str]
    """One use, for people."""
    taken: ClassVar[str]
    """What a use takes from a labeler who runs short."""
    option: ClassVar[str]
    """The field of a `Request` that says how often, and belongs to this kind alone."""
    misplaced: ClassVar[str]
    """What is wrong with that option beside another kind of event."""
    default_ties: ClassVar[Ties]
    per_label: ClassVar[bool]
    """Whether every label is a use; else a release is one for all labels of a unit."""
    own_number: ClassVar[bool]
    """Whether a labeler's own number of labels may be what is allowed."""
    grid_share: ClassVar[float] = 0.0
    """Of δ, what is set aside for noise on a grid instead of continuous noise."""

    @property
    def key(self) -> str:
        """Its uses, as a key of JSON."""
        return self.noun.replace(" ", "_") + "s"

    @abstractmethod
    def component(self, ties: Ties) -> type[Component]:
        """What the accountants price; its `calibrated` finds a price for k uses."""

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
    def noise(self, price: Price, ties: Ties) -> dict[str, float]:
        """A price as people read it."""


class RandomizedLabels(EventKind):
    """Labels answered by randomized response, which `rr` releases and `props` works on."""

    name = "rr"
    counts = "labels"
    noun = "randomized label"
    taken = "label"
    option = "max_labels_per_labeler"
    misplaced = (
        "a statistic takes all labels of a labeler, clipped: --max-labels-per-labeler goes with "
        "randomized response"
    )
    default_ties = "coin"
    per_label = True
    own_number = True

    def component(self, ties: Ties) -> type[Component]:
        """Binary answers, or ternary ones."""
        from labelguard.accounting.joint import BinaryAnswers, TernaryAnswers

        return TernaryAnswers if ties == "ternary" else BinaryAnswers

    def ties_of(self, ties: Ties) -> Ties:
        """As the policy has it."""
        return ties

    def check(self, delta: float, ties: Ties, *, alone: bool) -> None:
        """Ties are labels, and add to no sum."""
        if ties == "zero":
            raise PolicyError("--ties zero is for policies of statistics alone")

    def first(self, asked: int | None, unit: str | None) -> int | None:
        """A labeler's own number of labels; of a content a few over its life."""
        return asked or (ITEM_BOUND if unit == "item" else None)

    def knows(self, state: str) -> bool:
        """What was drawn keeps its value, even in a release that was given up."""
        return True

    def noise(self, price: Price, ties: Ties) -> dict[str, float]:
        """The probability of a flip."""
        return {"flip_probability": self.flip_probability(price["threshold"], ties)}

    def flip_probability(self, threshold: int, ties: Ties) -> float:
        """The probability that a strict label was flipped, for a released strict label."""
        change = threshold / 2**64
        if ties == "ternary":
            # Released ties are dropped: among released strict labels, r / (p + r).
            return (change / 2) / (1 - change / 2)
        return change


class StatisticReleases(EventKind):
    """Noisy sums over all labels of a labeler, clipped."""

    name = "statistic"
    counts = "releases"
    noun = taken = "statistic release"
    option = "releases"
    misplaced = "--ties zero and --releases go with --mechanism statistic only"
    default_ties = "zero"
    per_label = False
    own_number = False
    grid_share = 2.0**-10

    def component(self, ties: Ties) -> type[Component]:
        """Gaussian noise."""
        from labelguard.accounting.joint import Gaussians

        return Gaussians

    def ties_of(self, ties: Ties) -> Ties:
        """They add nothing, or are dropped."""
        return "drop" if ties == "drop" else "zero"

    def check(self, delta: float, ties: Ties, *, alone: bool) -> None:
        """Gaussian noise needs a δ, and a half tie adds nothing to a sum."""
        if alone and ties not in ("zero", "drop"):
            raise PolicyError(
                f"--ties {ties} goes with randomized response; in a statistic a tie adds "
                "nothing (zero), or, where tie status is public, may be dropped"
            )
        if not delta > 0:
            raise PolicyError("the statistic's noise is Gaussian: it needs a delta above 0")
        if ties == "half":
            raise PolicyError("--ties half goes with randomized response alone")

    def first(self, asked: int | None, unit: str | None) -> int | None:
        """One release."""
        return asked or 1

    def knows(self, state: str) -> bool:
        """What was summed in a release that was given up is in no sum."""
        return state != "abandoned"

    def noise(self, price: Price, ties: Ties) -> dict[str, float]:
        """The noise multiplier."""
        return dict(price)


RANDOMIZED_LABELS = RandomizedLabels()
STATISTIC_RELEASES = StatisticReleases()
EVENTS: Mapping[str, EventKind] = {one.name: one for one in (RANDOMIZED_LABELS, STATISTIC_RELEASES)}


def kind(name: str) -> EventKind:
    """The kind of that name; `PolicyError` if there is none."""
    if name not in EVENTS:
        raise PolicyError(
            f"an allowance is for {' or '.join(EVENTS)}, found {name!r}; "
            "write rr:labels=50 or statistic:releases=12"
        )
    return EVENTS[name]


def in_words(uses: Mapping[str, int]) -> str:
    """Uses by kind of event, for people: 30 randomized labels and 6 statistic releases."""
    told = [counted(number, kind(name).noun) for name, number in uses.items() if number]
    return " and ".join(told) or "nothing"


def default_ties(names: Iterable[str]) -> Ties:
    """What becomes of ties, unless something else is asked for, where all of these are allowed."""
    found = {kind(name).default_ties for name in names}
    return found.pop() if len(found) == 1 else RANDOMIZED_LABELS.default_ties


def parse(text: str) -> tuple[str, int]:
    """`rr:labels=50` as ("rr", 50); `PolicyError` for anything else."""
    for one in EVENTS.values():
        match = re.fullmatch(rf"{one.name}:{one.counts}=([0-9]+)", text.strip())
        if match:
            return one.name, int(match[1])
    forms = " or ".join(f"{one.name}:{one.counts}=NUMBER" for one in EVENTS.values())
    raise PolicyError(f"--allow expects {forms}, found {text!r}")
