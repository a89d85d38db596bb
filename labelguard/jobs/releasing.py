"""The release of a run: made if there is enough that is new, and never made twice.

Before it is charged, the run writes down the request that it will be known by. So a run that is
taken up finds what it made before it was killed, whatever came in since. What it only began is
finished by the same request or, where labels came in and the request is another one, by a release
of all of them: labels that were drawn keep their value and cost nothing again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from labelguard.errors import BudgetExceeded, LabelguardError
from labelguard.inputs.sources import Input
from labelguard.jobs.state import UnderWay
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.records import ReleaseRecord
from labelguard.options import Exhausted
from labelguard.project import recovery
from labelguard.project.opening import OpenProject
from labelguard.project.project import Project
from labelguard.release.plan import Preview
from labelguard.release.privatize import privatize
from labelguard.text import Progress, pluralize


@dataclass(frozen=True)
class Wanted:
    """A release that is made if it would have `enough` new labels."""

    mechanism: str
    enough: int
    source: Input | None
    namespace: str | None
    exhausted: Exhausted
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Found:
    """What came of it.

    `release` is the one that was made, or that answers the very request; None if nothing was
    released. `exhausted` says that there would be enough new labels but for labelers who have
    nothing left.
    """

    release: str | None
    why: str
    new_labels: int = 0
    charged: int = 0
    exhausted: bool = False
    # what `privatize` says beside it, such as rows of who left
    notes: tuple[str, ...] = ()


EXHAUSTED = Found(None, "labelers lack allowance for what is new", exhausted=True)


class _NotNow(Exception):
    """Too little is new."""

    def __init__(self, found: Found) -> None:
        self.found = found


def release(wanted: Wanted, home: Project, run: UnderWay, progress: Progress) -> Found:
    """Make the release of a run, or take up what it made. Raises what `privatize` raises."""
    ledger = OpenProject.open(home).ledger
    intent = run.intent(wanted.mechanism)
    begun = begun_by(intent, ledger)
    if begun and begun.state == "committed":
        return _made(begun)
    number = max((record.number for record in ledger.releases.all()), default=0)

    def review(found: Preview) -> None:
        if begun is None and (stopped := not_now(found, wanted.enough)):
            raise _NotNow(replace(stopped, notes=tuple(found.notes)))
        run.intend(wanted.mechanism, request=found.request)

    options = {"mechanism": wanted.mechanism, "exhausted": wanted.exhausted, **wanted.options}
    try:
        made = privatize(
            wanted.source,
            namespace=wanted.namespace,
            project=home,
            progress=progress,
            review=review,
            **options,
        )
    except _NotNow as stop:
        return stop.found
    except BudgetExceeded:
        return EXHAUSTED
    if begun and begun.id != made.id and begun.is_unfinished:
        with contextlib.suppress(LabelguardError):  # somebody finishes it, or gave it up
            recovery.abandon(begun.id, home)
    record = ledger.releases.get(made.id)
    assert record is not None
    if made.reused and record.number <= number:
        return replace(nothing_new(record, wanted.enough), notes=made.notes)
    return replace(_made(record), notes=made.notes)


def newest(home: Project, mechanism: str, preferred: str | None) -> str | None:
    """The release to learn from where none was made: `preferred`, or the newest by a mechanism."""
    records = OpenProject.open(home).ledger.releases.all()
    found = [one.id for one in records if one.state == "committed" and _by(one) == mechanism]
    found = [one for one in found if (home.releases / one).is_dir()]
    return preferred if preferred in found else next(reversed(found), None)


def _by(record: ReleaseRecord) -> str:
    return str(record.settings["mechanism"])


def _made(record: ReleaseRecord) -> Found:
    new = record.drawn or 0
    return Found(record.id, f"{pluralize(new, 'new label')} released", new, record.charged)


def nothing_new(record: ReleaseRecord, enough: int) -> Found:
    """What comes of a request that a release answers already, which left out what it had to."""
    left_out = record.settings.get("dropped_by_bound", 0)
    if left_out < enough:
        return Found(record.id, "nothing is new since it was made")
    why = f"nothing new can be released: {pluralize(left_out, 'label')} {_are(left_out)} beyond "
    return Found(record.id, f"{why}their labelers' allowance", exhausted=True)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def not_now(found: Preview, enough: int) -> Found | None:
    """Why a release is not made now; None if it is."""
    new = found.new_labels
    if new >= enough:
        return None
    exhausted = new + found.left_out >= enough
    why = f"{pluralize(new, 'new label')}, of {enough:,} that a release takes"
    if exhausted:
        why += f"; {pluralize(found.left_out, 'label')} beyond their labelers' allowance"
    return Found(None, why, exhausted=exhausted)


def begun_by(intent: Mapping[str, Any] | None, ledger: Ledger) -> ReleaseRecord | None:
    """The release that a run had begun when it was killed, by its request."""
    return ledger.releases.find(intent["request"]) if intent else None
