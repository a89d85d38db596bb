"""A committed release leaves the project: to the Hub, S3, a directory, or an annotation tool.

What leaves are the files that were committed, byte for byte, and the card once more as README.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from labelguard.answers import connector as connectors
from labelguard.errors import LabelguardError, LedgerError
from labelguard.ledger.records import ReleaseRecord
from labelguard.project.opening import OpenProject, Where
from labelguard.project.verification import find_release_fault
from labelguard.release.writer import Release
from labelguard.storage.destinations import PublicFile, send_files, split_destination
from labelguard.storage.files import SUMS, format_sums
from labelguard.text import Progress, no_progress


@dataclass(frozen=True)
class Published:
    """A release that was published."""

    # the release
    release: str
    # where it is
    where: str


def publish(
    release: Release | str,
    to: str | Path,
    *,
    public: bool = False,
    project: Where = None,
    progress: Progress = no_progress,
) -> Published:
    """Publish a committed release of a project: its files, and its card as README.md.

    `release` is an id, which may be shortened, or what `privatize` returned; `to` is
    `hf:ORG/NAME` (a data set of the Hugging Face Hub, private unless `public`),
    `s3://BUCKET/PREFIX`, a new directory, or `CONNECTOR:TITLE` for an annotation tool (`push`).
    Again, it changes nothing; on the Hub another release takes the place of the one before.

    Charges nothing. Raises `LedgerError` for a release that is not committed, or whose files are
    not those that were, and `LabelguardError` if something else is at `to`, or it cannot be
    reached.

    Example:
        >>> published = lg.publish(release, "published", project="study")
        >>> published.where
        'published'
    """
    opened = OpenProject.open(project)
    scheme, title = split_destination(str(to))
    identity = release.id if isinstance(release, Release) else release
    if scheme in opened.project.connectors:
        if public:
            raise LabelguardError(f"--public is for the Hub (hf:ORG/NAME), found {to}")
        name = title or None
        return Published(*publish_with_connector(scheme, identity, name, project, progress))
    record, directory = _find_verified_release(opened, identity)
    where = send_files(
        _list_published_files(directory, record.files),
        str(to),
        "dataset",
        title=f"Release {record.id}",
        public=public,
        progress=progress,
    )
    return Published(record.id, where)


def publish_with_connector(
    name: str,
    release_id: str,
    title: str | None = None,
    project: Where = None,
    progress: Progress = no_progress,
) -> tuple[str, str]:
    """Publish a committed release by connector `name`; return its id, and where it is.

    The id may be shortened. Raises `LedgerError` if there is no such release, or its files are not
    those that were committed; `ConnectorError` as the connector does.
    """
    opened = OpenProject.open(project)
    settings = connectors.read_settings(opened.project.connectors, name)
    record, directory = _find_verified_release(opened, release_id)
    where = connectors.open_connector(settings).push(directory, title or record.id, progress)
    return record.id, where


def _find_verified_release(opened: OpenProject, release_id: str) -> tuple[ReleaseRecord, Path]:
    """Return a committed release that verifies, and its directory."""
    record = opened.ledger.releases.find_committed(release_id)
    if broken := find_release_fault(opened, [record]):
        raise LedgerError(f"{broken}; nothing was published")
    return record, opened.project.releases / record.id


def _list_published_files(directory: Path, committed: Mapping[str, str]) -> dict[str, PublicFile]:
    """Return the files of a release that are published, by their names there."""
    files = {name: PublicFile(directory / name, digest) for name, digest in committed.items()}
    sums = hashlib.sha256(format_sums(committed).encode("ascii")).hexdigest()
    return files | {SUMS: PublicFile(directory / SUMS, sums), "README.md": files["CARD.md"]}
