"""Who left, who shares a unit, and who looks like somebody else: by pseudonym, never by id."""

from __future__ import annotations

from labelguard.ledger import people
from labelguard.release.sections import Section, Table
from labelguard.report.page.numbers import day
from labelguard.report.page.project import Seen

_SHOWN = 25


def who_is_who(seen: Seen) -> Section | None:
    """What was said of single labelers; None where nothing was."""
    ledger = seen.opened.ledger
    with ledger.snapshot() as connection:
        gone = people.departures(connection)
    members, distinct = len(ledger.members()[0]), len(ledger.distinct()[0])
    if not (gone or members or distinct):
        return None
    newest = gone[: -_SHOWN - 1 : -1]
    return Section(
        "people",
        "Who left, and who is who",
        (
            "Labels of who was retired or erased are refused, and nothing here tells any more "
            "which released rows were theirs; erased is whose raw rows were removed as well. What "
            "was released before stays released.",
        ),
        Table(
            "Who left, the newest first",
            ("pseudonym", "is", "since (UTC)"),
            tuple((one.pseudonym, one.kind, day(one.at)) for one in newest),
        )
        if gone
        else None,
        facts=(
            ("retired", f"{sum(one.kind == 'retired' for one in gone):,}"),
            ("erased", f"{sum(one.kind == 'erased' for one in gone):,}"),
            ("ids that share a unit with others", f"{members:,}"),
            ("pairs of ids that are two people", f"{distinct:,}"),
        ),
    )
