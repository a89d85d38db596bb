"""`push`: a release as a new data set of an annotation tool."""

from __future__ import annotations

from labelguard.errors import LedgerError
from labelguard.ingest import connector as connectors
from labelguard.project.opening import OpenProject, Where
from labelguard.storage.sums import fault
from labelguard.terms import Progress, silent


def push(
    name: str,
    release_id: str,
    title: str | None = None,
    project: Where = None,
    progress: Progress = silent,
) -> tuple[str, str]:
    """Publish a committed release by connector `name`; its id, and where it is.

    The id may be shortened. Raises `LedgerError` if there is no such release, or its files are not
    those that were committed; `ConnectorError` as the connector does.
    """
    opened = OpenProject.open(project)
    settings = connectors.named(opened.project.connectors, name)
    done = [record for record in opened.ledger.releases() if record.state == "committed"]
    found = [record for record in done if record.id.startswith(release_id)]
    if len(found) != 1:
        raise LedgerError(
            f"{release_id} names {len(found)} committed releases; see: labelguard release list"
        )
    directory = opened.project.releases / found[0].id
    broken = fault(directory, found[0].files)
    if broken:
        raise LedgerError(f"release {found[0].id}: {broken}; nothing was published")
    where = connectors.connector(settings).push(directory, title or found[0].id, progress)
    return found[0].id, where
