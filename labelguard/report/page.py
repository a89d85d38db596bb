"""`report`: a project, or one release in it, as sections; the same facts for every format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from labelguard._version import __version__
from labelguard.budget import events
from labelguard.ledger.journal import Anchor
from labelguard.project.opening import Where
from labelguard.project.verdict import Verdict
from labelguard.release import sections as of_mechanisms
from labelguard.release.sections import Section
from labelguard.report import jobs, sections, use
from labelguard.report.overview import Usage
from labelguard.report.render import FORMS, Report, section
from labelguard.report.sections import Seen
from labelguard.storage.files import check_file, write_atomically
from labelguard.text import format_budget, pluralize

Format: TypeAlias = Literal["html", "md", "json"]


@dataclass(frozen=True)
class Reported:
    """A report that was written."""

    path: str
    """the file"""
    format: str
    """html, md or json"""
    ok: bool
    """whether everything that was verified holds"""
    fault: str | None
    """the first thing that does not"""


def report(release_id: str | None = None, project: Where = None) -> Report:
    """What is to be told of a project, or first of one of its releases.

    No label is read, and nothing is charged: it is made from releases, the ledger and other public
    counts. Raises `LedgerError` for a release that was not committed.
    """
    return _told(Seen.of(release_id, project), None)[0]


def write(
    output: Path,
    release_id: str | None = None,
    project: Where = None,
    format: Format | None = None,  # noqa: A002
    anchor: str | None = None,
) -> Reported:
    """Write the report to a file, which is replaced; by its name it is Markdown, JSON or HTML.

    The journal must still hold the entry of `anchor`, a line that was kept, or there is a fault.
    """
    named = output.suffix.removeprefix(".")
    kind = format or (named if named in FORMS else "html")
    check_file(output, "report.html")
    kept = Anchor.parse(anchor) if anchor else None
    made, found = _told(Seen.of(release_id, project), kept)
    write_atomically(output, FORMS[kind](made).encode())
    return Reported(str(output), kind, found.ok, found.fault)


def _told(seen: Seen, kept: Anchor | None) -> tuple[Report, Verdict]:
    found = sections.verified(seen, kept)
    about = seen.opened.project.about
    name = f"{about['name']}: labels" if "name" in about else "Labels"
    title = f"Release {seen.chosen.id}" if seen.chosen else f"{name} under differential privacy"
    parts = (part for part in _sections(seen, found, kept) if part is not None)
    made = Report(title, seen.at, __version__, found.ok, _summary(seen, found), _named(parts))
    return made, found


def _summary(seen: Seen, found: Verdict) -> tuple[tuple[str, str], ...]:
    budget = seen.budget
    used = (
        (f"{events.kind(one.event).noun}s used", _share(one, seen.unit))
        for one in budget.allowances
        if one.allowed
    )
    return (
        *seen.opened.project.about.items(),
        ("project id", seen.opened.keys.check_value()[:16]),
        *_period(seen),
        ("protected as a whole", f"each {seen.unit}"),
        ("promised so far", format_budget(vars(budget.lifetime)) if seen.committed else "nothing"),
        ("ceiling", format_budget(vars(budget.ceiling))),
        *used,
        ("releases", f"{len(seen.committed):,}"),
        ("verification", "holds" if found.ok else "FAULT"),
    )


def _share(one: Usage, unit: str) -> str:
    return f"{one.used / one.allowed:.0%} of the allowance of {pluralize(one.labelers, unit)}"


def _period(seen: Seen) -> Iterator[tuple[str, str]]:
    """From the first release to the last one."""
    # A clock may have run backwards: the order of releases is not that of their days.
    if days := sorted(one.created_at[:10] for one in seen.committed):
        yield "period", days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"


def _sections(seen: Seen, found: Verdict, kept: Anchor | None) -> Iterator[Section | None]:
    if not found.ok:
        yield section("fault", found=found)
    yield sections.this_release(seen)
    if seen.chosen:
        yield from _of_mechanisms(seen)
    yield sections.to_do(seen, found)
    yield sections.guarantee(seen)
    yield sections.not_protected(seen)
    yield sections.policies(seen)
    yield from use.sections(seen)
    yield sections.left_out(seen)
    yield sections.who_is_who(seen)
    yield from use.noise(seen)
    if not seen.chosen:
        yield from _of_mechanisms(seen)
    yield sections.planned(seen)
    runs, unread = jobs.of(seen)
    yield sections.releases(seen)
    yield unread
    yield from jobs.sections(runs)
    yield sections.hook(seen)
    yield sections.verification(seen, found, kept)


def _of_mechanisms(seen: Seen) -> Iterator[Section]:
    """What mechanisms say of the releases that are looked at."""
    for card in seen.newest_cards():
        for part in of_mechanisms.of_card(card):
            yield replace(part, title=f"{part.title} ({card['release']})")


def _named(parts: Iterator[Section]) -> tuple[Section, ...]:
    """The sections with ids of their own, whatever mechanisms call theirs."""
    seen: Counter[str] = Counter()
    named = []
    for part in parts:
        plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in part.id) or "section"
        seen[plain] += 1
        named.append(replace(part, id=plain + (f"-{seen[plain]}" if seen[plain] > 1 else "")))
    return tuple(named)
