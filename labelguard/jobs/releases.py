"""The release of a run: made if enough labels are new, and never made twice.

Before it is charged, the run writes down the request that identifies it, so that a run that is
resumed finds its release whatever labels came in since. A release that was only begun is finished
by the same request or, where new labels make it another request, by a release of all of them:
labels that were drawn keep their value and cost nothing again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from labelguard.errors import BudgetExceeded, LabelguardError
from labelguard.inputs.sources import Input
from labelguard.jobs.state import RunInProgress
from labelguard.ledger.records import ReleaseRecord
from labelguard.project.opening import OpenProject, abandon
from labelguard.project.project import Project
from labelguard.release.mechanisms import open_mechanism
from labelguard.release.plan import Preview
from labelguard.release.privatize import plan, privatize
from labelguard.report import overview
from labelguard.report.overview import Usage
from labelguard.text import Progress, pluralize


@dataclass(frozen=True)
class JobRelease:
    """A release to make once it has at least `min_new_labels`.

    `options` are further keywords of `privatize`. `check` raises for a release that a run could not
    go on from; it is called with the preview of one, before anything is charged.
    """

    mechanism: str
    min_new_labels: int
    source: Input | None
    options: Mapping[str, Any]
    check: Callable[[Preview], None] = lambda _: None


@dataclass(frozen=True)
class ReleaseOutcome:
    """The result of a release step.

    `release` is the one that was made, or that answers the same request; None if nothing was
    released. `exhausted`: enough labels are new, but their labelers have no allowance left.
    `notes` are those of `privatize`.
    """

    release: str | None
    why: str
    new_labels: int = 0
    charged: int = 0
    exhausted: bool = False
    notes: tuple[str, ...] = ()


NOTHING_NEW = "nothing new since it was made"
NO_ALLOWANCE = ReleaseOutcome(None, "labelers lack allowance for the new labels", exhausted=True)


class NotEnoughLabels(Exception):
    """Too few labels are new."""

    def __init__(self, outcome: ReleaseOutcome) -> None:
        self.outcome = outcome


def make_release(
    request: JobRelease, home: Project, run: RunInProgress, progress: Progress
) -> ReleaseOutcome:
    """Make the release of a run, or finish the one it began; raise what `privatize` raises."""
    ledger = OpenProject.open(home).ledger
    begun = find_begun_release(request, home, run)
    if begun and begun.state == "committed":
        return _describe_made_release(begun)
    newest = max((record.number for record in ledger.releases.all()), default=0)

    def review(preview: Preview) -> None:
        if begun is None and (outcome := explain_no_release(preview, request.min_new_labels)):
            raise NotEnoughLabels(replace(outcome, notes=tuple(preview.notes)))
        request.check(preview)
        run.record_intent(request.mechanism, request=preview.request)

    options = {"mechanism": request.mechanism, "progress": progress, **request.options}
    try:
        release = privatize(request.source, project=home, review=review, **options)
    except NotEnoughLabels as stop:
        return stop.outcome
    except BudgetExceeded:
        return NO_ALLOWANCE
    if begun and begun.id != release.id and begun.is_unfinished:
        with contextlib.suppress(LabelguardError):  # another process finishes it, or gave it up
            abandon(begun.id, home)
    record = ledger.releases.get(release.id)
    assert record is not None
    if release.reused and record.number <= newest:
        outcome = _describe_reused_release(record, request.min_new_labels)
    else:
        outcome = _describe_made_release(record)
    return replace(outcome, notes=release.notes)


def preview_release(
    request: JobRelease, home: Project, run: RunInProgress | None, progress: Progress
) -> tuple[bool, ReleaseOutcome, Mapping[str, float]]:
    """Return whether `make_release` would make a release, its outcome, and the allowances left."""
    ledger = OpenProject.open(home).ledger
    begun = find_begun_release(request, home, run)
    finishes = "finishes the release already begun, charges nothing more"
    if begun and begun.state == "committed":
        return True, ReleaseOutcome(begun.id, finishes, begun.drawn or 0), {}
    try:
        options = {"mechanism": request.mechanism, "progress": progress, **request.options}
        preview = plan(request.source, project=home, **options).preview
    except BudgetExceeded:
        return False, NO_ALLOWANCE, {}
    if begun and preview.request == _recorded_request(request, run):
        drawn = preview.new_labels if begun.drawn is None else begun.drawn
        return True, ReleaseOutcome(begun.id, finishes, drawn), {}
    if preview.reused:
        earlier = ledger.releases.get(preview.reused)
        assert earlier is not None
        return False, _describe_reused_release(earlier, request.min_new_labels), preview.left
    if begun is None and (outcome := explain_no_release(preview, request.min_new_labels)):
        return False, outcome, preview.left
    request.check(preview)
    why = pluralize(preview.new_labels, "new label")
    return True, ReleaseOutcome(None, why, preview.new_labels, preview.charged), preview.left


def find_newest_release(home: Project, mechanism: str, preferred: str | None = None) -> str | None:
    """Return `preferred`, or the newest committed release by a mechanism that is still on disk."""
    ids = [
        record.id
        for record in OpenProject.open(home).ledger.releases.list_committed()
        if record.settings["mechanism"] == mechanism and (home.releases / record.id).is_dir()
    ]
    return preferred if preferred in ids else next(reversed(ids), None)


def find_begun_release(
    request: JobRelease, home: Project, run: RunInProgress | None
) -> ReleaseRecord | None:
    """Return the release that a run had begun when it was killed, found by its request."""
    recorded = _recorded_request(request, run)
    return OpenProject.open(home).ledger.releases.find(recorded) if recorded else None


def _recorded_request(request: JobRelease, run: RunInProgress | None) -> str | None:
    intent = run.read_intent(request.mechanism) if run else None
    return intent["request"] if intent else None


def explain_no_release(preview: Preview, min_new_labels: int) -> ReleaseOutcome | None:
    """Return why too little is new for a release; None if one is made."""
    new = preview.new_labels
    if new >= min_new_labels:
        return None
    exhausted = new + preview.left_out >= min_new_labels
    why = f"{pluralize(new, 'new label')}; at least {min_new_labels:,} are needed"
    if exhausted:
        why += f"; {pluralize(preview.left_out, 'label')} beyond their labelers' allowance"
    return ReleaseOutcome(None, why, exhausted=exhausted)


def _describe_made_release(record: ReleaseRecord) -> ReleaseOutcome:
    new = record.drawn or 0
    return ReleaseOutcome(record.id, f"{pluralize(new, 'new label')} released", new, record.charged)


def _describe_reused_release(record: ReleaseRecord, min_new_labels: int) -> ReleaseOutcome:
    """Return the outcome of a request that an earlier release answers."""
    left_out = record.settings.get("dropped_by_bound", 0)
    if left_out < min_new_labels:
        return ReleaseOutcome(record.id, NOTHING_NEW)
    labels = f"{pluralize(left_out, 'label')} {'is' if left_out == 1 else 'are'}"
    why = f"nothing new can be released: {labels} beyond their labelers' allowance"
    return ReleaseOutcome(record.id, why, exhausted=True)


def find_usage(mechanism: str, home: Project) -> Usage | None:
    """Return how far what a mechanism charges is used; None before it charged anybody."""
    event = str(open_mechanism(mechanism).priced)
    used = (
        one for one in overview.read_budget(home).allowances if one.event == event and one.labelers
    )
    return next(used, None)
