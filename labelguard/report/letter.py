"""A letter to a labeler who asks, or leaves: what was recorded and used, and what that means."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelguard import clock
from labelguard._version import __version__
from labelguard.budget import events
from labelguard.errors import LedgerError
from labelguard.project import erasure
from labelguard.project.opening import OpenProject, Where
from labelguard.report.facts import guess_accuracy, odds_factor
from labelguard.report.render import Report, format_time, markdown, section
from labelguard.report.sections import NOT_STATED, state_organisation
from labelguard.storage.files import write_atomically

_CONTACTS = ("controller", "contact", "purpose", "legal basis", "recipients", "retention")


@dataclass(frozen=True)
class LabelerLetter:
    """A letter, in Markdown."""

    # their pseudonym
    labeler: str
    # its text, in Markdown
    text: str
    # the file that it was written to; null without one
    path: str | None
    # what labelguard.toml does not say of the organisation, so that the letter does not either
    not_stated: list[str]


def write_letter(
    labeler_id: str, output: Path | None = None, project: Where = None
) -> LabelerLetter:
    """Return the letter to a labeler, by `ID`, `SOURCE:ID` or a pseudonym; write it to a file.

    It has the id as it was given, counts and public settings; no label.

    Raises `LedgerError` for an id that was never seen.
    """
    report = erasure.preview(labeler_id, "erased", project, never_seen=True)
    if not (report.known or report.before):
        raise LedgerError(
            "nobody with this id was ever seen in this project; give it as your files write it, "
            "or the pseudonym"
        )
    opened = OpenProject.open(project)
    stated = state_organisation(opened.project)
    used = Counter[str]()
    for release in report.releases:
        used[release.event] += release.used
    rows = [
        (one.id, format_time(one.created_at), one.mechanism, one.used, one.state)
        for one in report.releases
    ]
    shown: dict[str, Any] = {
        "report": report,
        "of_contents": any(one.unit == "item" for one in opened.ledger.policies.history()),
        "used": events.describe_uses(used),
        "events": [name for name, number in used.items() if number],
        "factor": odds_factor(report.epsilon),
        "right": guess_accuracy(report.epsilon, report.delta),
        "stated": {name: stated[name] for name in _CONTACTS},
    }
    blocks = ("letter", "letter_used", "letter_meaning", "letter_remains", "letter_contact")
    parts = tuple(
        section(block, rows=rows if block == "letter_used" else (), **shown) for block in blocks
    )
    name = opened.project.about.get("name", "this project")
    summary = (("to labeler", labeler_id), ("known here as", report.labeler))
    document = Report(f"Your answers in {name}", clock.now(), __version__, True, summary, parts)
    text = markdown(document)
    if output:
        write_atomically(output, text.encode(), mode=0o600)
    missing = [name for name in _CONTACTS if stated[name] == NOT_STATED]
    return LabelerLetter(report.labeler, text, str(output) if output else None, missing)
