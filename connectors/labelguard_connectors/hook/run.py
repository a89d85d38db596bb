"""`labelguard hook run`: an export released as the hook's worker would, and published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelguard.errors import ConnectorError
from labelguard.ingest import connector as connectors
from labelguard.ingest.connector import Settings
from labelguard.ingest.inbox import EXPORTS, Progressed
from labelguard.project import ingestion
from labelguard.project.opening import Where, located
from labelguard.release import publication
from labelguard.release.pipeline import privatize
from labelguard.terms import Progress, silent
from labelguard_connectors.hook.schedule import Schedule, agreed


@dataclass(frozen=True)
class Ran:
    """A release of an export."""

    release: str
    """its id"""
    path: str
    """its directory"""
    reused: bool
    """whether it was made before: no label was looked at, nothing was charged"""
    where: str | None
    """where it was published now; null: nowhere, or before"""
    notes: Sequence[str]
    """what else to know"""


def run(
    export: Path,
    connector: str | None = None,
    where: Where = None,
    progress: Progress = silent,
) -> Ran:
    """Release the labels in `export` under the policy in force, as `connector` reads them.

    They are published by it where `[hook.release]` says `push = true`. Raises what `privatize` and
    `push` raise, and `PolicyError` where there is no policy in force.
    """
    home = located(where)
    schedule = Schedule.of(home.hook)
    settings = _settings(ingestion.settings(home), connector)
    agreed(home)
    how: dict[str, Any] = {"mechanism": schedule.mechanism, "exhausted": schedule.exhausted}
    release = privatize(
        export,
        namespace=settings.source,
        project=home,
        progress=progress,
        columns=settings.columns,
        question=settings.question,
        format=connectors.connector(settings).format,
        bad_rows=schedule.bad_rows,
        **how,
    )
    place = None
    progressed = Progressed.read(home.state, EXPORTS)
    if schedule.push and progressed.pushed.get(settings.name) != release.id:
        _, place = publication.push(settings.name, release.id, project=home, progress=progress)
        progressed.pushed[settings.name] = release.id
        progressed.write(home.state, EXPORTS)
    return Ran(release.id, str(release.path), release.reused, place, release.notes)


def _settings(found: dict[str, Settings], name: str | None) -> Settings:
    """Those that were named, or the only ones there are."""
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if name not in found:
        there = ", ".join(sorted(found)) or "none"
        raise ConnectorError(
            f"name one of the connectors in labelguard.toml (--connector); there are: {there}"
        )
    return found[name]
