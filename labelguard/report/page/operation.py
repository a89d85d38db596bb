"""Whether everything holds: the hook's inbox and worker, hashes and anchors."""

from __future__ import annotations

from dataclasses import replace

from labelguard.errors import LabelguardError
from labelguard.ingest.inbox import Inbox, Progressed
from labelguard.ledger.journal import Anchor
from labelguard.project.verdict import Verdict, verdict
from labelguard.release.sections import Section, Table
from labelguard.report.page.numbers import day
from labelguard.report.page.project import Seen
from labelguard.terms import counted


def verified(seen: Seen, kept: Anchor | None) -> Verdict:
    """Whether journal, charges and the files of all releases hold, and the journal that anchor."""
    found = verdict(seen.opened, kept)
    home = f"{seen.opened.project.state.parent}/"  # where it lies is nobody's business elsewhere
    return replace(found, fault=found.fault and found.fault.replace(home, ""))


def verification(seen: Seen, found: Verdict, kept: Anchor | None) -> Section:
    """What was verified, and the line to keep elsewhere."""
    number, digest = seen.opened.ledger.head()
    whole = (
        f"Verified for this report, {day(seen.at)} UTC: the journal "
        f"({counted(found.journal_entries, 'entry')}) is one chain that this project wrote, the "
        f"charges add up to what it says, and the files of "
        f"{counted(found.releases, 'committed release')} are as they were committed."
    )
    since = kept and (
        f"The journal still holds entry {kept.number} as the anchor that was kept elsewhere has "
        "it: nothing up to there was cut or rewritten."
    )
    return Section(
        "verification",
        "Verification",
        (
            *(one for one in (whole, since) if one and found.ok),
            *([f"{found.backwards[:1].upper()}{found.backwards[1:]}."] if found.backwards else []),
            "Keep this line somewhere else, with its date: it shows later that the journal was "
            "not cut or rewritten. This line verifies it:",
        ),
        lines=(
            str(Anchor(number, digest)),
            f"labelguard budget verify --anchor {Anchor(number, digest)}",
        ),
        alert=""
        if found.ok
        else f"FAULT: {found.fault}. Do not rely on what is affected before a true copy is back.",
    )


def hook(seen: Seen) -> Section | None:
    """How the hook stands, in counts; None for a project without one."""
    home = seen.opened.project
    try:
        inbox = Inbox.find(home.state, home.ledger_url, seen.opened.keys)
        progressed = Progressed.read(home.state)
        if inbox is None:
            return None
        try:
            waiting, letters = inbox.waiting(), len(inbox.letters())
        finally:
            inbox.close()
    except LabelguardError as error:
        return Section("hook", "The hook", alert=f"The hook's inbox cannot be read: {error}")
    rows = [(name, "reconciled", day) for name, day in sorted(progressed.reconciled.items())]
    rows += [(name, "published", one) for name, one in sorted(progressed.pushed.items())]
    rows += [
        (name, "released", f"{one}, {progressed.days.get(name, '')}".rstrip(", "))
        for name, one in sorted(progressed.releases.items())
    ]
    return Section(
        "hook",
        "The hook",
        (
            "Answers that annotation tools report wait in an inbox, sealed, until they are "
            "ingested.",
        ),
        Table(
            "What the worker did last",
            ("connector or source", "what", "when or which"),
            tuple(rows),
        )
        if rows
        else None,
        facts=(
            ("waiting in the inbox", f"{waiting:,}"),
            ("dead letters", f"{letters:,}"),
        ),
    )
