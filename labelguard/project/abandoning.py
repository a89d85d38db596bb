"""Giving up a release that was begun and cannot be finished."""

from __future__ import annotations

from typing import Any

from labelguard.errors import LedgerError
from labelguard.project import recovery
from labelguard.project.opening import OpenProject, Where


def abandon(release_id: str, project: Where = None) -> dict[str, Any]:
    """Give up an unfinished release: it stays charged, and can never be resumed.

    Raises `LedgerError` if it is not one that was begun and not committed. Its id may be shortened.
    """
    with OpenProject.job(project) as opened:
        ledger = opened.ledger
        begun = [record for record in ledger.releases() if record.unfinished]
        named = [record for record in begun if record.id.startswith(release_id)]
        if len(named) != 1:
            raise LedgerError(
                f"{release_id} names {len(named)} unfinished releases; see: labelguard release list"
            )
        ledger.abandon(named[0].id, ledger.begin_job())
        recovery.tidy(opened, ledger.releases())
        return {"id": named[0].id, "charged": named[0].charged}
