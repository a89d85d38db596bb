"""What earlier jobs left behind: given back, tidied away, or named."""

from __future__ import annotations

import shutil
from collections.abc import Iterable

from labelguard.errors import LedgerError
from labelguard.keys import KeyRing
from labelguard.ledger import Ledger
from labelguard.policy import Priced
from labelguard.project import Project
from labelguard.records import ReleaseRecord


def settle(
    project: Project, keys: KeyRing, ledger: Ledger, keep: str | None, epoch: int
) -> list[str]:
    """Give back what crashed jobs reserved and never used; notes on this and on what they began.

    `keep` is the release that is about to be resumed, if any. Raises `LedgerError` if releases on
    disk are unknown to the ledger: it is an older copy.
    """
    notes = [
        f"release {release_id} never drew a coin; its charge was given back"
        for release_id in ledger.refund_reserved(epoch, keep=keep)
    ]
    releases = ledger.releases()
    strays = project.strays(record.id for record in releases)
    if strays:
        raise LedgerError(
            f"release {strays[0]} is in {project.state}, but not in the ledger: it is an older "
            "copy and would forget what was spent; put the newest copy back"
        )
    tidy(project, keys, releases)
    return notes + [
        f"release {record.id} is unfinished and stays charged; run its command again to finish it, "
        f"or give it up: labelguard release abandon {record.id}"
        for record in releases
        if record.state == "computing" and record.id != keep
    ]


def tidy(project: Project, keys: KeyRing, releases: Iterable[ReleaseRecord]) -> None:
    """Remove what ended releases need no more: their nonces and, of abandoned ones, their files.

    A crash may have come before whoever should have done it.
    """
    for record in releases:
        if record.state != "computing":
            keys.forget(record.id)
        if record.state == "abandoned":
            shutil.rmtree(project.releases / record.id, ignore_errors=True)


def others(
    releases: Iterable[ReleaseRecord], event: Priced, resumed: ReleaseRecord | None
) -> frozenset[str]:
    """Releases whose labels are new to a release of this kind of event.

    Coins and statistics do not know each other's labels. A statistic's labels are those it was
    sealed with: a resumed one must not know what was made since, nor what was given up. Coins are
    permanent and need no such care.
    """
    statistic = event == "statistic"
    return frozenset(
        other.id
        for other in releases
        if other.event != event
        or (statistic and other.state == "abandoned")
        or (statistic and resumed and other.number > resumed.number)
    )
