"""A release, or a plan, of what was ingested: whose answers are meant, and how they are read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from labelguard.ingest.sources import Input, file_part
from labelguard.project import ingestion
from labelguard.project.opening import OpenProject, Where, located
from labelguard.project.project import Project


@dataclass(frozen=True)
class Ingested:
    """An input: all answers of a source that count."""

    source: str


def chosen(
    home: Project, named: str | None, options: Mapping[str, Any]
) -> tuple[Ingested, Project, dict[str, Any]]:
    """The input of a release of what was ingested, of the source `named` or the only one.

    With it, the project and the options under which its connectors say that it is read; what the
    caller says counts before that. Raises `InvalidLabels`, `ConnectorError`.
    """
    source = ingestion.source_of(home, named)
    settings = ingestion.reading_of(home, source)
    home = replace(home, namespace=source, columns=settings.columns)
    own = dict(options)
    if own.get("question") is None:
        own["question"] = settings.question
    return Ingested(source), home, own


def parts(source: Input, opened: OpenProject, columns: Mapping[str, str]) -> Input:
    """What is to be read: answers that were ingested as files in the work directory.

    `columns` are those that were named for roles.
    """
    if not isinstance(source, Ingested):
        return source
    opened.project.work.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = ingestion.write_out(opened, source.source, opened.project.work / "ingested")
    return [
        replace(file_part(path, columns, f"answers of {path.stem}"), answers=path) for path in found
    ]


@contextlib.contextmanager
def opened(
    where: Where, named: str | None, options: Mapping[str, Any]
) -> Iterator[tuple[Input, dict[str, Any]]]:
    """What was ingested as an input of who releases nothing, and the options by which it is read.

    `named` and `options` are those of `chosen`, which says what it raises. Answers lie open in the
    project's work directory until it ends, so that the project is held meanwhile.
    """
    source, home, own = chosen(located(where), named, options)
    with OpenProject.job(home) as project:
        found = parts(source, project, home.columns)
        words = () if named is None else ("--source", named)
        yield (
            [replace(part, typed=words) for part in found],
            own | {"columns": {**home.columns, **(own.get("columns") or {})}},
        )
