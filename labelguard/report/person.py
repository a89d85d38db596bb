"""One person: a letter on what was recorded and used of them; what they spent in all projects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labelguard import clock
from labelguard._version import __version__
from labelguard.budget import events, pricing
from labelguard.budget.policy import AnyUnit
from labelguard.budget.pricing import Total
from labelguard.errors import LabelguardError, LedgerError, ProjectError
from labelguard.ledger.records import UnitGroups
from labelguard.project import erasure, linking
from labelguard.project.opening import OpenProject, Where
from labelguard.report.facts import format_best_guess_accuracy, format_odds_factor
from labelguard.report.render import Report, fill_words, format_time, render_html, render_markdown
from labelguard.report.sections import NOT_STATED, read_organisation_statements
from labelguard.storage import blocks
from labelguard.storage.files import write_atomically

_PARTS = ("used", "meaning", "remains", "contact", "rights")
_BLOCKS = ("letter", *(f"letter_{of}" for of in _PARTS))
_CONTACTS = (
    *("controller", "contact", "purpose", "legal basis"),
    *("recipients", "transfers", "retention"),
)
# Of the names of files that a letter is written to.
_ENDINGS = ("", ".md", ".txt", ".html")


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

    It has the id as it was given, counts and public settings; no label. A file is Markdown, or a
    page where its name ends in .html.

    Raises `LedgerError` for an id that was never seen, `LabelguardError` for a name of a file that
    ends otherwise.
    """
    if output and output.suffix not in _ENDINGS:
        raise LabelguardError(
            f"a letter is Markdown or a page: a name that ends in .md, .txt or .html; found "
            f"{output.name}"
        )
    report = erasure.preview_removal(labeler_id, "erased", project, never_seen=True)
    if not (report.known or report.before):
        raise LedgerError(
            "this id was never seen in this project; give it as in your files, or the pseudonym"
        )
    opened = OpenProject.open(project)
    if fault := opened.ledger.find_fault():
        raise LedgerError(
            f"the ledger does not verify, so a letter could be wrong: {fault}; restore a backup"
        )
    stated = read_organisation_statements(opened.project)
    used = Counter[str]()
    for release in report.releases:
        used[release.event] += release.used
    charged = {one.id: one.used for one in report.releases}
    again = _find_uncharged_repeat_releases(opened, report)
    rows = [
        (r.id, format_time(r.created_at), r.settings["mechanism"], charged.get(r.id, 0), r.state)
        for r in opened.ledger.releases.all()
        if r.id in charged or r.id in again
    ]
    shown: dict[str, Any] = {
        "report": report,
        "tools": bool(opened.project.connectors)
        or any(one.kind == "ingested" for one in opened.ledger.read_journal()),
        "replaced": _count_randomized_answers(opened, report.labeler),
        "again": again,
        "of_contents": any(one.unit == "item" for one in opened.ledger.policies.history()),
        "used": events.describe_uses(used),
        "events": [name for name, number in used.items() if number],
        "factor": format_odds_factor(report.epsilon),
        "right": format_best_guess_accuracy(report.epsilon, report.delta),
        "stated": {name: stated[name] for name in _CONTACTS},
    }
    parts = tuple(
        fill_words(block, rows=rows if block == "letter_used" else (), **shown) for block in _BLOCKS
    )
    name = opened.project.about.get("name", "this project")
    summary = (("to labeler", labeler_id), ("known here as", report.labeler))
    document = Report(f"Your answers in {name}", clock.now(), __version__, True, summary, parts)
    text = render_markdown(document)
    if output:
        page = render_html(document) if output.suffix == ".html" else text
        write_atomically(output, page.encode(), mode=0o600)
    missing = [name for name in _CONTACTS if stated[name] == NOT_STATED]
    return LabelerLetter(report.labeler, text, str(output) if output else None, missing)


def _count_randomized_answers(opened: OpenProject, pseudonym: str) -> int:
    """Return of how many answers of theirs a private file says what was published in their place.

    An answer that a sum used as well counts once: nothing was published in its place there.
    """
    key, maps = blocks.from_bytes(bytes.fromhex(pseudonym)), opened.map_digests
    records = opened.ledger.releases.all()
    drawn = [r.id for r in records if r.id in maps and events.find_event_kind(r.event).keeps_values]
    return len({row for release in drawn for row in opened.private_map.find_row_keys(release, key)})


def _find_uncharged_repeat_releases(opened: OpenProject, report: erasure.RemovalReport) -> set[str]:
    """Return releases that charged them nothing, and may have what was released of them before.

    The ledger does not record whose released labels a release repeats. One of labels may, if it
    repeats any and was begun before they left; a sum may be added to one that they are in.
    """
    charged = {one.id for one in report.releases}
    departures = opened.ledger.people.departures()
    left = next((r.retired_at or r.at for r in departures if r.pseudonym == report.labeler), None)
    in_parts, repeating = set[tuple[str, str]](), set[str]()
    for one in opened.ledger.releases.all():
        if one.id in charged:
            in_parts.add((one.event, one.part))
        elif one.state == "committed" and (one.event, one.part) in in_parts:
            repeats = one.settings.get("rows_planned", 0) > (one.drawn or 0)
            if events.find_event_kind(one.event).keeps_values:
                may = repeats and (left is None or one.created_at <= left)
            else:
                may = one.event == "statistic"
            repeating |= {one.id} if may else set()
    return repeating


@dataclass(frozen=True)
class ProjectSpending:
    """One project's part of what a person has spent."""

    # the project's directory, as it was named
    project: str
    # what it protects as a whole; null before its first policy
    unit: AnyUnit | None
    # whether it knows the person
    known: bool
    # how many budgets of theirs were charged: 1, or more where their ids are not linked
    budgets: int
    # ε of all its policies, for each of these budgets; 0 where none was charged. Of whom has left,
    # not of policies that were put into force later and never charged them
    epsilon: float
    # δ of them
    delta: float


@dataclass(frozen=True)
class PersonSpending:
    """The spending of one person in several projects."""

    # project by project
    projects: list[ProjectSpending]
    # what all of them may have told of the person together; null where no sum exists
    total: Total | None


def add_up_spending(labeler_ids: Sequence[str], projects: Sequence[Path]) -> PersonSpending:
    """Return what the person with these ids, each `ID` or `SOURCE:ID`, has spent in the projects.

    Every id is looked up in every project. Whoever was charged in a project lost what all its
    policies cost, used or not, but for those that came after they left; ε and δ of projects add up.
    Of several units there is no sum, and none where contents are the unit, whose charges are
    nobody's.

    Raises `LedgerError` for somebody whom no project knows, or whose id a project knows in another
    spelling only; `ProjectError` for a project that is named twice.
    """
    opened = [OpenProject.open(path) for path in projects]
    states = [one.project.state for one in opened]
    if len(set(states)) < len(states):
        raise ProjectError("two of these are one project; name each once")
    each = [
        _find_project_spending(labeler_ids, str(path), one)
        for path, one in zip(projects, opened, strict=True)
    ]
    if not any(one.known for one in each):
        raise LedgerError("this id was never seen in any of these projects")
    units = {one.unit for one in each if one.unit}
    adds_up = len(units) < 2 and "item" not in units
    return PersonSpending(each, pricing.sum_budgets(each) if adds_up else None)


def _find_project_spending(
    labeler_ids: Sequence[str], name: str, opened: OpenProject
) -> ProjectSpending:
    ledger = opened.ledger
    keys = linking.parse_labeler_ids(labeler_ids, opened)[0]
    known = linking.are_known(ledger, keys)
    units = blocks.unique(UnitGroups(*ledger.people.members()).unit_of(keys))[0]
    charged = [unit for unit in units if ledger.releases.count_uses_by_release(unit[np.newaxis])]
    is_known = bool(known.any() or charged)
    if not is_known:
        for text in labeler_ids:
            for similar in linking.find_similar_labelers(text, opened):
                raise LedgerError(
                    f"{name} knows this id in another spelling only, as labeler {similar}: name it "
                    "as the files of that project write it, with one --labeler more"
                )
    policies = ledger.policies.history()
    spent = [one for unit in charged for one in ledger.people.policies_affecting(unit[np.newaxis])]
    cost = pricing.sum_budgets(spent)
    unit = policies[-1].unit if policies else None
    return ProjectSpending(name, unit, is_known, len(charged), cost.epsilon, cost.delta)
