"""The options of a command that concern a project's policy, and how often its releases recur."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, fields, replace
from fractions import Fraction
from typing import Self

from labelguard.budget import events
from labelguard.budget.event_kind import MOST_LABELS, Sampling
from labelguard.budget.events import RANDOMIZED_LABELS
from labelguard.budget.label_values import (
    Skips,
    Ties,
    Turns,
    parse_public_columns,
)
from labelguard.budget.policy import (
    MOST_DELTA,
    USUAL_EPSILON,
    Allowance,
    Policy,
    Unit,
    check_budget,
    choose_usual_delta,
)
from labelguard.errors import PolicyError
from labelguard.options import check_option_values, option, option_declarations


@dataclass(frozen=True)
class PolicyRequest:
    """Options that a command was given; None means: as the policy has it, or the default."""

    epsilon: float | None = option("ε of each labeler; default: the policy's, 3 for the first.")
    delta: float | None = option(
        "δ of each labeler; default: the policy's; for the first, the largest power of "
        "ten below 1/(10 · labelers), and 1e-5 at most."
    )
    ties: Ties | None = option(
        "How ties are handled; default coin, for statistics alone zero. drop needs "
        "--tie-status-public."
    )
    tie_status_public: bool | None = option("Declare that it is public which labels are ties.")
    unit: Unit | None = option(
        "What is protected as a whole: all labels of a labeler and of ids linked with theirs "
        "(default), or all labels of a content."
    )
    block: int | None = option(
        "rr: the most labels of a labeler that a release randomizes together, as one use; default "
        f"{MOST_LABELS:,}, more of them take further uses; 1: each by itself.",
        metavar="B",
        least=1,
    )
    skips: Skips | None = option(
        "Leave out blank labels, which makes them public (default), or count them as ties."
    )
    assignment_reactive: bool | None = option(
        "Declare that assignment of items reacts to labels; the card states the condition "
        "of the guarantee."
    )
    turns: Turns | None = option(
        "Prompts that go on with a response of another item: stop (default), read only items whose "
        "prompt has no earlier response (first), or declare that conversations went on "
        "independently of what was chosen (independent); the card states that.",
    )
    accept_unproven: bool | None = option(
        "Also pay for mechanisms whose guarantee is published but not proven (aup)."
    )
    public_columns: tuple[str, ...] | None = option(
        "Declare that a column (NAME, or NAME_a and NAME_b) was made from prompts and responses, "
        "not from answers, so that features may read it; once for each. It belongs to the "
        "policy.",
        metavar="NAME",
        flag="--public-column",
        in_jobs=True,
    )
    event: str = RANDOMIZED_LABELS.name
    # of a first policy (`options.RunOptions`)
    uses: int | None = None
    # of a first policy, as the planner proposes it (`Allowance.ball`)
    ball: int | None = None
    # of a first policy, as a mechanism of training runs proposes it (`Allowance.sampling`)
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        check_option_values(PolicyRequest, vars(self))
        # Plain numbers, which the ledger can write down.
        for name in ("epsilon", "delta"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, float(getattr(self, name)))
        if self.public_columns is not None:
            object.__setattr__(self, "public_columns", parse_public_columns(self.public_columns))
        if self.uses is not None and not events.find_event_kind(self.event).counts_uses:
            raise PolicyError(
                f"--uses counts releases of rr and statistic; runs of {self.event} are allowed by "
                "labelguard policy new"
            )
        if self.block is not None and self.event != RANDOMIZED_LABELS.name:
            raise PolicyError("--block goes with randomized response (rr, props)")
        check_budget(
            USUAL_EPSILON if self.epsilon is None else self.epsilon,
            MOST_DELTA if self.delta is None else self.delta,
        )

    def first_policy(self, units: int) -> Policy:
        """Return the policy that the first release of a project writes, where so many units gave
        labels.

        ε and δ are the usual ones unless they were asked for.
        """
        kind = events.find_event_kind(self.event)
        block = self.block or MOST_LABELS
        allowance = Allowance(self.event, self.uses or 1, 1.0, self.ball, self.sampling, block)
        of_policy = {field.name for field in fields(Policy)} - {"epsilon", "delta"}
        values = {name: getattr(self, name) for name in option_declarations(PolicyRequest)}
        terms = {n: v for n, v in values.items() if v is not None and n in of_policy}
        return Policy(
            USUAL_EPSILON if self.epsilon is None else self.epsilon,
            choose_usual_delta(units) if self.delta is None else self.delta,
            (allowance,),
            **{"ties": kind.default_ties} | terms,
        )

    def check_fits_policy(self, policy: Policy) -> Policy:
        """Return the policy, if the request fits it; `PolicyError` where it contradicts it.

        ε and δ are judged by what the whole project costs (`check_covers_earlier_policies`).
        """
        allowance = policy.allowance(self.event)
        replace(
            self,
            epsilon=policy.epsilon,
            delta=policy.delta,
            sampling=allowance.sampling,
            accept_unproven=policy.accept_unproven,
        ).first_policy(1)
        fixed = {field.name: getattr(policy, field.name) for field in fields(policy)}
        fixed |= {"ties": policy.ties_of(self.event)}
        if allowance.kind.counts_uses:
            fixed |= {"uses": allowance.allowed, "block": allowance.block}
        # Either is stricter than any policy.
        stricter = {"turns"} if self.turns in ("stop", "first") else set[str]()
        for name, value in asdict(self).items():
            if name in fixed.keys() - {"epsilon", "delta"} - stricter and value not in (
                None,
                fixed[name],
            ):
                option, has = name.replace("_", "-"), fixed[name]
                if name == "public_columns":
                    option = "public-column"
                    has, value = (", ".join(names) or "none" for names in (has, value))
                raise PolicyError(
                    f"this project's policy has --{option} = {has}, fixed when it was made; "
                    f"requested: {value}; leave the option out or use another project"
                )
        return policy

    def check_covers_earlier_policies(self, epsilon: float, delta: float) -> None:
        """Refuse a request for less than what all policies of the project cost together."""
        most = math.inf if self.epsilon is None else self.epsilon
        most_delta = 1.0 if self.delta is None else self.delta
        if epsilon > most or delta > most_delta:
            requested = {"ε": ("--epsilon", self.epsilon), "δ": ("--delta", self.delta)}
            limits = {f"{n} = {v:g}": name for n, (name, v) in requested.items() if v is not None}
            raise PolicyError(
                f"this project costs ε = {epsilon:g}, δ = {delta:g} over its life, fixed with its "
                f"policies; the stricter {', '.join(limits)} cannot be had: omit "
                f"{' and '.join(limits.values())}, or use another project"
            )


_YEAR = Fraction(365)
_DAYS = {"d": Fraction(1), "w": Fraction(7), "m": _YEAR / 12, "y": _YEAR}
_PERIODS = {"daily": _DAYS["d"], "weekly": _DAYS["w"], "monthly": _DAYS["m"]}

# Periods after which releases may recur.
EVERY = tuple(_PERIODS)


@dataclass(frozen=True)
class Horizon:
    """Releases that recur for some time.

    every: daily, weekly or monthly.
    length: a number with d, w, m or y: 90d, 26w, 6m, 1y.

    Raises `PolicyError` for anything else, and for less time than one period.
    """

    every: str
    length: str

    def __post_init__(self) -> None:
        if self.every not in _PERIODS:
            raise PolicyError(f"--recurring is {', '.join(EVERY)}, found {self.every!r}")
        if not re.fullmatch(r"[1-9][0-9]{0,3}[dwmy]", self.length):
            raise PolicyError(
                "--for expects a number of days, weeks, months or years, for example 90d, 26w, "
                f"6m or 1y; found {self.length!r}"
            )
        if not self.releases:
            raise PolicyError(
                f"--for {self.length} is too short for one {self.every} release; take it longer"
            )

    @classmethod
    def parse(cls, recurring: str | None, duration: str | None) -> Self | None:
        """From the two options, which go together; None without both."""
        if recurring is None and duration is None:
            return None
        if recurring is None or duration is None:
            raise PolicyError(
                "give --recurring and --for together, or neither: --recurring weekly --for 1y"
            )
        return cls(recurring, duration)

    @property
    def releases(self) -> int:
        """The number of releases, to the nearest: 12 months, 52 weeks or 365 days are a year."""
        days = int(self.length[:-1]) * _DAYS[self.length[-1]]
        return int(days / _PERIODS[self.every] + Fraction(1, 2))

    def __str__(self) -> str:
        return f"{self.every} for {self.length}"
