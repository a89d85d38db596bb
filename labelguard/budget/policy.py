"""The policy of a project: what one labeler may lose, and by how many events. Immutable."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

from labelguard.budget import events
from labelguard.budget.event_kind import AllowanceTerms, EventKind, Sampling
from labelguard.budget.events import RANDOMIZED_LABELS
from labelguard.budget.label_values import Skips, Ties, Turns, parse_public_columns
from labelguard.errors import PolicyError
from labelguard.text import format_budget

Unit = Literal["labeler", "item"]
# Of policies for labels, and of those for whole records.
AnyUnit = Literal["labeler", "item", "user", "record"]


def check_budget(epsilon: float, delta: float) -> None:
    """Raise `PolicyError` unless ε is finite and 1e-12 or more, and δ at least 0 and below 1."""
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise PolicyError(f"epsilon must be a finite number above 0, found {epsilon}")
    if epsilon < LEAST_EPSILON:
        raise PolicyError(
            f"epsilon must be at least {LEAST_EPSILON:g}, found {epsilon:g}: at so little nothing "
            "but noise would be released"
        )
    if not (0 <= delta < 1):
        raise PolicyError(f"delta must be at least 0 and below 1, found {delta}")


# The smallest ε that noise is computed for.
LEAST_EPSILON = 1e-12
# ε where nobody says one.
USUAL_EPSILON = 3.0
# δ where nobody says one, unless labelers are many.
MOST_DELTA = 1e-5
# The largest share of units that a policy may hold out.
MOST_HELD_OUT = 0.5


def choose_usual_delta(units: int) -> float:
    """δ where nobody says one: a power of ten below 1/(10 · units), and 1e-5 at most.

    δ bounds what a mechanism may do at worst: give one unit away with that probability. With n of
    them, 1/n would allow to publish one whole; a tenth of it is customary.
    """
    return min(MOST_DELTA, 10.0 ** (-math.floor(math.log10(10 * max(units, 1))) - 1))


def parse_budget(option: str, text: str) -> tuple[float, float]:
    """`3,1e-5`, the value of an option, as ε and δ. Raises `PolicyError` for anything else."""
    try:
        epsilon, delta = map(float, text.split(","))
    except ValueError:
        raise PolicyError(
            f"{option} expects EPSILON,DELTA, for example 3,1e-5; found {text!r}"
        ) from None
    check_budget(epsilon, delta)
    return epsilon, delta


@dataclass(frozen=True)
class Allowance(AllowanceTerms):
    """A number of events of one kind (by its name in `events`) that may touch a labeler.

    `rr`: in so many releases the labeler's new labels may be randomized, up to `block` of them
    together; more of them are further uses. `statistic`: so many
    statistic releases may use any number of the labeler's labels. A single one may have ball noise;
    its scale is made for the fewest components that are meant, and serves any larger number. `uls`,
    `els`, `els-group`, `aup`: so many training runs with a sampling that is fixed here.
    """

    def __post_init__(self) -> None:
        events.find_event_kind(self.event)
        if self.allowed < 1:
            raise PolicyError(f"an allowance of {self.event} must be at least 1")
        if not (math.isfinite(self.share) and self.share > 0):
            raise PolicyError(f"a share must be a finite number above 0, found {self.share}")
        self.kind.check_allowance(self)

    @property
    def kind(self) -> EventKind:
        """The kind of its event."""
        return events.find_event_kind(self.event)


@dataclass(frozen=True)
class Policy:
    """(ε, δ) of each labeler under `replace_labels`, and the events that it pays for.

    Of whole records it is (ε, δ) of each user, or record, under `zero_out`; such a policy pays for
    nothing else.

    All allowances together, used in any adaptive order, compose to at most (epsilon, delta). That
    is what the policy costs, used or not: crediting what is left at a moment chosen after seeing
    releases is unsound (docs/guarantees.md).

    Example:
        >>> lg.Policy(3, 1e-5)
        Policy(ε = 3, δ = 1e-5 of each labeler; rr:uses=1; ties coin)
    """

    # ε of a labeler, all events together
    epsilon: float
    # δ of a labeler, all events together
    delta: float
    # the events that it pays for
    allowances: tuple[Allowance, ...] = (Allowance(RANDOMIZED_LABELS.name, 1),)
    # what becomes of ties
    ties: Ties = "coin"
    # whether it is no secret which labels are ties
    tie_status_public: bool = False
    # what is protected as a whole
    unit: AnyUnit = "labeler"
    # what becomes of blank labels
    skips: Skips = "public"
    # whether who labels what reacts to labels: a condition on every card
    assignment_reactive: bool = False
    # share of units whose labels evaluate and never train; drawn once in a project's life
    held_out: float = 0.0
    # whether events are paid for whose price is as published, and not proven
    accept_unproven: bool = False
    # what becomes of prompts with earlier responses; `independent` is a condition on every card
    turns: Turns = "stop"
    # columns that features may read: declared to be made without answers, a condition on every card
    public_columns: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_words()})"

    def in_words(self) -> str:
        """Return what it promises to whom, and what it pays for."""
        allowed = ", ".join(map(events.format_allowance, self.allowances))
        return f"{format_budget(self)} of each {self.unit}; {allowed}; ties {self.ties}"

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta)
        object.__setattr__(self, "public_columns", parse_public_columns(self.public_columns))
        for name, allowed in (
            ("ties", Ties),
            ("unit", AnyUnit),
            ("skips", Skips),
            ("turns", Turns),
        ):
            if getattr(self, name) not in get_args(allowed):
                raise PolicyError(
                    f"{name} must be one of {', '.join(get_args(allowed))}, "
                    f"found {getattr(self, name)!r}"
                )
        if self.ties == "drop" and not self.tie_status_public:
            raise PolicyError(
                "--ties drop shows which labels are ties; if that is public anyway, declare it "
                "with --tie-status-public"
            )
        if self.skips == "tie" and self.tie_status_public:
            raise PolicyError(
                "--skips tie hides skips among ties, which --tie-status-public shows; "
                "leave one of them out"
            )
        if not 0 <= self.held_out <= MOST_HELD_OUT:
            raise PolicyError(
                f"held-out must be a share between 0 and {MOST_HELD_OUT:g} of the {self.unit}s, "
                f"found {self.held_out}"
            )
        self._check_allowances()

    def _check_allowances(self) -> None:
        """Refuse allowances that have no joint price, and options that belong to others."""
        if not self.events or len(set(self.events)) != len(self.events):
            raise PolicyError("a policy allows each kind of event once, and at least one")
        alone = len(self.allowances) == 1
        if len({allowance.kind.adjacency for allowance in self.allowances}) > 1:
            raise PolicyError(
                "whole records (records) and labels are protected under different adjacencies, "
                "which have no price together; use another project for one of them"
            )
        if self.held_out and self.adjacency == "zero_out":
            raise PolicyError(
                "whole records (records) are trained on, whoever's they are: leave --held-out out"
            )
        for allowance in self.allowances:
            if self.unit not in allowance.kind.units:
                raise PolicyError(
                    f"a policy for {allowance.event} protects one "
                    f"{' or '.join(allowance.kind.units)} as a whole, found unit {self.unit}"
                )
            allowance.kind.check_policy_terms(self.delta, self.ties, alone=alone)
            if not (allowance.kind.proven or self.accept_unproven):
                raise PolicyError(
                    f"the guarantee of {allowance.event} is as published, and not proven "
                    "(docs/guarantees.md): a policy pays for it with --accept-unproven only; uls "
                    "is proven"
                )

    @property
    def events(self) -> tuple[str, ...]:
        """The kinds of events it pays for."""
        return tuple(allowance.event for allowance in self.allowances)

    @property
    def adjacency(self) -> str:
        """Return what neighbours differ in."""
        return self.allowances[0].kind.adjacency

    def allowance(self, event: str) -> Allowance:
        """Return the allowance for a kind of event; `PolicyError` if there is none."""
        for allowance in self.allowances:
            if allowance.event == event:
                return allowance
        raise PolicyError(
            f"this project's policy pays for {' and '.join(self.events)}, not for {event} "
            "(mechanism props works on rr); "
            "change the policy (labelguard policy new) or use another project"
        )

    def ties_of(self, event: str) -> Ties:
        """Return what becomes of ties in an event of this kind."""
        return events.find_event_kind(event).ties_of(self.ties)

    def to_json(self) -> str:
        """Return canonical JSON, as the ledger keeps it."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the inverse of `to_json`."""
        settings = json.loads(text)
        return cls(
            **settings | {"allowances": tuple(map(_allowance_from_dict, settings["allowances"]))}
        )


def _allowance_from_dict(settings: dict[str, Any]) -> Allowance:
    """Return the inverse of `asdict`."""
    sampling = settings.get("sampling")
    return Allowance(**settings | {"sampling": Sampling(**sampling) if sampling else None})


@dataclass(frozen=True)
class Bound:
    """The number of uses that units are allowed, and the meaning of one.

    `allowed` for everybody. `block`: so many new labels of a unit are a use; None: all of a release
    are one. `most_labels` of a unit are in a release; None: all. `contents` as units are never
    exhausted: what is beyond their allowance is left out. `once`: a content that was released takes
    no further labels, because nothing tells these from those released.
    """

    allowed: int
    block: int | None = None
    most_labels: int | None = None
    contents: bool = False
    once: bool = False

    @classmethod
    def of(cls, policy: Policy, event: str, most_labels: int | None, *, named: bool) -> Self:
        """Return the bound that a policy sets for one kind of event, and a request for its labels.

        `named`: rows of the input have a labeler or a record id, which tells them apart.
        """
        allowance = policy.allowance(event)
        return cls(
            allowance.allowed,
            allowance.block if allowance.kind.keeps_values else None,
            most_labels,
            contents=policy.unit == "item",
            once=not named,
        )
