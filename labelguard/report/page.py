"""`report`: sections in order, written as a page, Markdown or JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from labelguard._version import __version__
from labelguard.budget import events
from labelguard.errors import LabelguardError
from labelguard.ledger.journal import Anchor
from labelguard.project.opening import Where
from labelguard.project.verification import Verification
from labelguard.release.sections import Section, load_card_sections
from labelguard.report import figures, sections
from labelguard.report.facts import ReportFacts, verify_project
from labelguard.report.render import FORMS, Report, fill_words
from labelguard.storage.files import check_output_file, write_atomically
from labelguard.text import format_budget, pluralize

Format: TypeAlias = Literal["html", "md", "json"]


@dataclass(frozen=True)
class Reported:
    """A report that was written."""

    # the file
    path: str
    # html, md or json
    format: str
    # whether everything that was verified holds
    ok: bool
    # the first thing that does not
    fault: str | None


def report(release_id: str | None = None, project: Where = None) -> Report:
    """Return the report of a project, or first of one of its releases.

    No label is read, and nothing is charged: it is made from releases, the ledger and other public
    counts. Raises `LedgerError` for a release that was not committed.
    """
    return _verify_and_build_report(ReportFacts.collect(release_id, project), None)[0]


def write_report(
    output: Path,
    release_id: str | None = None,
    project: Where = None,
    format: Format | None = None,  # noqa: A002
    anchor: str | None = None,
) -> Reported:
    """Write the report to a file, which is replaced; by its name it is Markdown, JSON or HTML.

    Its owner alone may read it, for it has pseudonyms. Raises `LabelguardError` for another ending.

    The journal must still hold the entry of `anchor`, a line that was kept, or there is a fault.
    """
    ending = output.suffix.removeprefix(".")
    if not format and ending not in ("", *FORMS):
        names = ", .".join(FORMS)
        raise LabelguardError(
            f"a report is written as .{names}; found {output.name}; for a PDF, print the page from "
            "a browser"
        )
    form = format or ending or "html"
    check_output_file(output, "report.html")
    expected = Anchor.parse(anchor) if anchor else None
    document, verification = _verify_and_build_report(
        ReportFacts.collect(release_id, project), expected
    )
    write_atomically(output, FORMS[form](document).encode(), mode=0o600)
    return Reported(str(output), form, verification.ok, verification.fault)


def _verify_and_build_report(
    facts: ReportFacts, anchor: Anchor | None
) -> tuple[Report, Verification]:
    verification = verify_project(facts, anchor)
    about = facts.opened.project.about
    name = f"{about['name']}: labels" if "name" in about else "Labels"
    title = f"Release {facts.chosen.id}" if facts.chosen else f"{name} under differential privacy"
    parts = [part for part in _build_sections(facts, verification, anchor) if part is not None]
    summary = tuple(_summarize(facts, verification))
    document = Report(
        title, facts.at, __version__, verification.ok, summary, _make_ids_unique(parts)
    )
    return document, verification


def _summarize(facts: ReportFacts, verification: Verification) -> Iterator[tuple[str, str]]:
    """Yield the few facts that come first."""
    yield from facts.opened.project.about.items()
    yield "project id", facts.opened.keys.key_fingerprint()[:16]
    # A clock may have run backwards: the order of releases is not that of their days.
    if days := sorted(record.created_at[:10] for record in facts.committed_releases):
        yield "period", days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    yield "protected as a whole", f"each {facts.unit}"
    budget = facts.budget
    cost = format_budget(vars(budget.lifetime)) if facts.committed_releases else "nothing"
    cost = cost if verification.ok else "cannot be stated"
    yield "promised so far", cost
    yield "ceiling", format_budget(vars(budget.ceiling))
    for usage in budget.allowances:
        if usage.allowed:
            units = pluralize(usage.labelers, facts.unit)
            share = f"{usage.used / usage.allowed:.0%} of the allowance of {units}"
            yield f"{events.find_event_kind(usage.event).noun}s used", share
    yield "releases", f"{len(facts.committed_releases):,}"
    yield "verification", "holds" if verification.ok else "FAULT"


def _build_sections(
    facts: ReportFacts, verification: Verification, anchor: Anchor | None
) -> Iterator[Section | None]:
    """Yield every section in its order, None for one that has nothing to say."""
    if not verification.ok:
        yield fill_words("fault", verification=verification)
    yield sections.describe_release_card(facts, verification)
    if facts.chosen:
        yield from _list_mechanism_sections(facts)
    yield sections.describe_to_do(facts, verification)
    yield sections.describe_guarantee(facts, verification)
    yield sections.describe_not_protected(facts)
    yield sections.describe_data_processing(facts, verification)
    yield sections.describe_policies(facts, verification)
    yield from figures.describe_usage(facts)
    yield sections.describe_dropped_labels(facts)
    yield sections.describe_sources(facts)
    yield sections.describe_departures_and_links(facts)
    yield from figures.describe_noise(facts)
    if not facts.chosen:
        yield from _list_mechanism_sections(facts)
    yield sections.describe_forecasts(facts)
    yield sections.describe_releases(facts)
    yield from figures.describe_jobs(facts.opened.project)
    yield sections.describe_hook(facts)
    yield sections.describe_verification(facts, verification, anchor)


def _list_mechanism_sections(facts: ReportFacts) -> Iterator[Section]:
    """Yield what mechanisms say of the releases that the report is about."""
    for card in facts.read_cards_per_mechanism():
        for part in load_card_sections(card):
            yield replace(part, title=f"{part.title} ({card['release']})")


def _make_ids_unique(parts: Iterable[Section]) -> tuple[Section, ...]:
    """Return the sections with ids of letters and digits, each once, whatever a mechanism wrote."""
    counts: Counter[str] = Counter()
    unique = []
    for part in parts:
        plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in part.id) or "section"
        counts[plain] += 1
        suffix = f"-{counts[plain]}" if counts[plain] > 1 else ""
        unique.append(replace(part, id=plain + suffix))
    return tuple(unique)
