"""`[hook.release]`: when answers are released, and how long the policy lasts for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

from labelguard.budget.events import find_event_kind
from labelguard.configuration.loader import validate_settings
from labelguard.configuration.project_file import FILE, HookTable
from labelguard.errors import ConnectorError, PolicyError
from labelguard.project.opening import Where
from labelguard.project.policy_facts import PolicyDetails
from labelguard.release.mechanisms import AUTO, list_mechanisms
from labelguard.report import overview
from labelguard.report.overview import Usage
from labelguard.text import pluralize

_WHERE = f"{FILE}: hook.release"
_STATISTIC = "statistic"
NO_POLICY = (
    "nothing is released, for no policy is in force; what is delivered is kept until there is one "
    "(labelguard policy new, policy activate), or a first release by hand (labelguard privatize)"
)


@runtime_checkable
class CountsCompletion(Protocol):
    """A connector whose tool says when all is answered."""

    def is_completed(self) -> bool:
        """Return True if every task has all the answers that it waits for."""
        ...


@dataclass(frozen=True)
class Schedule:
    """A schedule: when releases are made, how, and if they go back to the tools.

    `when` is manual, every (`count` new answers of a source), completed or daily.
    """

    when: str
    count: int
    push: bool
    # of `privatize`: mechanism, exhausted, bad_rows
    options: Mapping[str, Any]

    @classmethod
    def of(cls, hook: Mapping[str, Any]) -> Self:
        """From `[hook]`. Raises `ConnectorError` for what it cannot be."""
        own = validate_settings(HookTable, hook, FILE, at=("hook",), error=ConnectorError).release
        if own.mechanism not in (mechanisms := [*list_mechanisms(), AUTO]):
            raise ConnectorError(f"{_WHERE}.mechanism: expected one of {', '.join(mechanisms)}")
        when, _, count = own.when.partition(":")
        options = own.model_dump(include={"mechanism", "exhausted", "bad_rows"})
        return cls(when, int(count or 0), own.push, options)

    def describe_releases_and_allowance(self, where: Where) -> list[str]:
        """Return how long the allowance of the policy in force lasts for these releases, as
        sentences.

        Raises `PolicyError` where the policy in force does not name what these releases would use
        up: a machine agrees to nothing.
        """
        if self.when == "manual":
            return ["nothing is released automatically"]
        budget = overview.read_budget(where)
        if (policy := budget.policy) is None:
            return [NO_POLICY]
        mechanism = self._choose_mechanism(policy, where)
        self._check_statistic_allowance(mechanism, policy)
        event = _STATISTIC if mechanism == _STATISTIC else "rr"
        releases = f"releases {self} by {mechanism}, under policy {policy.name}"
        usage = next((usage for usage in budget.allowances if usage.event == event), None)
        return [releases, _describe_allowance(event, policy, usage)]

    def __str__(self) -> str:
        return f"every {self.count:,} new answers" if self.count else self.when

    def _choose_mechanism(self, policy: PolicyDetails, where: Where) -> str:
        """Return the one that was named, else that of the newest release, else what the policy
        pays.
        """
        if (mechanism := str(self.options["mechanism"])) != AUTO:
            return mechanism
        mechanisms = [
            line.mechanism
            for line in overview.list_releases(where)
            if line.state == "committed" and line.part == "training"
        ]
        if mechanisms:
            return mechanisms[-1]
        events = {allowance.event for allowance in policy.allowances}
        return _STATISTIC if events == {_STATISTIC} else "rr"

    def _check_statistic_allowance(self, mechanism: str, policy: PolicyDetails) -> None:
        if mechanism != _STATISTIC or self.when != "every":
            return
        allowances = [a.allowed or 1 for a in policy.allowances if a.event == _STATISTIC]
        if (allowed := max(allowances, default=0)) < 2:
            raise PolicyError(
                f'{_WHERE}: when = "every:{self.count}" takes one statistic release of every '
                f"labeler each time, and policy {policy.name} allows "
                f"{allowed}; let a policy name how many "
                "(labelguard policy new --allow statistic:releases=52), or take mechanism rr"
            )


def _describe_allowance(event: str, policy: PolicyDetails, usage: Usage | None) -> str:
    allowed = [a.allowed for a in policy.allowances if a.event == event]
    if not allowed:
        return f"the policy pays for no {event}: every release will be refused"
    noun = find_event_kind(event).noun
    if usage is None or not usage.labelers:
        count = pluralize(allowed[0], noun)
        return f"no labeler was charged yet; it lasts for {count} of each labeler"
    left = pluralize(usage.left_per_labeler["median"], noun)
    spent = pluralize(usage.exhausted_labelers, "labeler")
    spent += " has" if usage.exhausted_labelers == 1 else " have"
    return f"{left} of the median labeler are left; {spent} none left"
