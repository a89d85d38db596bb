"""What somebody has to do about a project, in one short list."""

from __future__ import annotations

from collections.abc import Iterator

from labelguard.policy import events
from labelguard.project.verdict import Verdict
from labelguard.release.sections import Section
from labelguard.report.page.project import Seen
from labelguard.terms import counted


def section(seen: Seen, found: Verdict) -> Section:
    """Faults, allowances that are used up, and what was begun and not finished."""
    points = tuple(_points(seen, found))
    return Section(
        "to-do", "What needs doing", () if points else ("Nothing to do.",), points=points
    )


def _points(seen: Seen, found: Verdict) -> Iterator[str]:
    if seen.failing:
        yield f"Releases fail: {seen.failing}. `labelguard doctor` says more."
    if not found.ok:
        yield "Something does not hold: stop all jobs until a true copy is back."
    if seen.policies and seen.policy is None:
        yield "No policy is in force: nothing can be released before one is."
    for use in seen.budget.allowances:
        if use.exhausted_labelers:
            due = ": a new policy is due" * (2 * use.exhausted_labelers >= use.labelers)
            yield (
                f"{use.exhausted_labelers:,} of {counted(use.labelers, seen.unit)} have no "
                f"{events.kind(use.event).noun}s left{due}."
            )
    for policy in seen.policies:
        if policy.state == "draft":
            yield f"Policy {policy.name} is a draft: put it into force, or drop it."
    for release in seen.releases:
        if release.unfinished:
            yield f"Release {release.id} is unfinished: run its command again, or abandon it."
