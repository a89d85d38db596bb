"""`project witness --renew`: a ledger whose witnesses are lost is trusted anew.

Without them nothing in the project tells an older copy of the ledger from the newest, so whoever
renews them must know: by an anchor that was kept elsewhere, of whose entry the ledger must still
hold, or by taking responsibility. The journal tells which.
"""

from __future__ import annotations

from dataclasses import dataclass

from labelguard.errors import LedgerError
from labelguard.ledger import journal
from labelguard.ledger.journal import Anchor
from labelguard.ledger.witness import Witness
from labelguard.project.opening import OpenProject, Where, located
from labelguard.project.verdict import verdict


@dataclass(frozen=True)
class Renewed:
    """Witnesses that were written anew."""

    project: str
    """the project's directory"""
    journal_entries: int
    """the entry that they know"""
    proven_to: int
    """the entry of the anchor that vouched for the ledger; 0 without one"""
    anchor: str
    """the line to keep elsewhere"""


def renew(anchor: str | None, project: Where = None) -> Renewed:
    """Write both witnesses of a project anew; what they know, and how far the anchor reaches.

    `anchor` is a line of `budget anchor`, None if there is none. Raises `LedgerError` if a witness
    is there, if anything in the project does not hold, or for an anchor that the ledger lacks.
    """
    home, known = located(project), Anchor.parse(anchor) if anchor else None
    for path in home.witnesses:
        if path.exists():
            raise LedgerError(
                f"{path} is there and guards the ledger; the other is written with the next "
                "change, and none needs to be renewed"
            )
    with OpenProject.job(home, witnessed=False) as opened:
        ledger = opened.ledger
        fault = verdict(opened, known).fault
        if fault:
            raise LedgerError(f"the ledger is not to be trusted anew: {fault}")
        proven = known.number if known else 0
        with ledger.transaction(ledger.begin_job()) as connection:
            journal.append(connection, "witnesses", {"proven_to": proven})
        number, digest = ledger.head()
        Witness(home.witnesses).replace(number, digest)
    return Renewed(str(home.state), number, proven, str(Anchor(number, digest)))
