"""What an audit found: one lower bound from each check, and whether the claim survives them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from labelguard.errors import PolicyError

FALSE_ALARM = 1e-6
"""How likely an audit condemns a mechanism that keeps its claim, over noise and coins."""

FEWEST_RUNS = 100

Verdict = Literal["holds", "violated"]


@dataclass(frozen=True)
class Check:
    """One distinguisher: the ε that it proves the canary to lose at the audit's δ, and how."""

    name: str
    """what it looks at"""
    lower_bound: float
    """0 if the worlds look alike; infinite (null) if they differ in what no noise touches"""
    detail: str
    """what was seen"""


@dataclass(frozen=True)
class AuditResult:
    """A claim (ε, δ) of one labeler under `replace_labels`, and the largest lower bound on ε.

    All bounds hold at once with probability `confidence`; where a check takes the stated noise as
    given, its detail says so.
    """

    mechanism: str
    """what was attacked"""
    claim_epsilon: float
    """the ε that it claims"""
    delta: float
    """at this δ"""
    lower_bound: float
    """the largest ε that was proven"""
    confidence: float
    """how likely no bound is wrong"""
    runs: int
    """how often each world was run"""
    verdict: Verdict
    """holds if and only if the lower bound is at most the claim"""
    checks: tuple[Check, ...]
    """each bound"""

    @classmethod
    def of(
        cls, mechanism: str, epsilon: float, delta: float, runs: int, checks: Sequence[Check]
    ) -> AuditResult:
        """The result of `checks` whose probabilities of a false alarm add up to FALSE_ALARM."""
        bound = max(check.lower_bound for check in checks)
        verdict: Verdict = "holds" if bound <= epsilon else "violated"
        confidence = 1 - FALSE_ALARM
        return cls(mechanism, epsilon, delta, bound, confidence, runs, verdict, tuple(checks))

    @property
    def holds(self) -> bool:
        """Whether no check contradicts the claim."""
        return self.verdict == "holds"

    @property
    def violated(self) -> tuple[str, ...]:
        """The names of the checks that contradict the claim."""
        found = (check for check in self.checks if check.lower_bound > self.claim_epsilon)
        return tuple(check.name for check in found)

    def to_dict(self) -> dict[str, Any]:
        """JSON data; an infinite bound is null."""
        data = asdict(self) | {"checks": [asdict(check) for check in self.checks]}
        for part in (data, *data["checks"]):
            if math.isinf(part["lower_bound"]):
                part["lower_bound"] = None
        return data


def check_sizes(*, labels: int, runs: int, pipeline_runs: int) -> None:
    """Refuse sizes with which an audit could not say anything."""
    if labels < 1:
        raise PolicyError(f"labels must be at least 1, found {labels}")
    if runs < FEWEST_RUNS:
        raise PolicyError(f"runs must be at least {FEWEST_RUNS}, found {runs}")
    if pipeline_runs < 0:
        raise PolicyError(f"pipeline-runs must be at least 0, found {pipeline_runs}")
