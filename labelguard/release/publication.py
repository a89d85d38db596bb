"""A committed release leaves the project: to the Hugging Face Hub, or an annotation tool.

What leaves are the files that were committed, byte for byte, and the card once more as README.md.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from labelguard.answers import connector as connectors
from labelguard.errors import LabelguardError, LedgerError
from labelguard.project.opening import OpenProject, Where
from labelguard.project.verification import find_release_fault
from labelguard.release.writer import Release
from labelguard.storage.files import SUMS, format_sums
from labelguard.storage.hub import PublicFile, send_files
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
    to: str,
    *,
    public: bool = False,
    project: Where = None,
    progress: Progress = no_progress,
) -> Published:
    """Publish a committed release of a project: its files, and its card as README.md.

    `release` is an id, which may be shortened, or what `privatize` returned; `to` is
    `hf:ORG/NAME` (a data set of the Hugging Face Hub, private unless `public`), or
    `CONNECTOR:TITLE` for a new data set of an annotation tool. Again, it changes nothing on the
    Hub, where another release takes the place of the one before.

    Charges nothing. Raises `LedgerError` for a release that is not committed, or whose files are
    not those that were, `LabelguardError` if something else is at `to`, or it cannot be reached,
    and `ConnectorError` as the connector does.

    Example:
        >>> lg.publish(release, "hf:ORG/NAME", project="study").release == release.id
        True
    """
    opened = OpenProject.open(project)
    identity = release.id if isinstance(release, Release) else release
    record = opened.ledger.releases.find_committed(identity)
    if broken := find_release_fault(opened, [record]):
        raise LedgerError(f"{broken}; nothing was published")
    directory = opened.project.releases / record.id
    name, _, title = to.partition(":")
    if name in opened.project.connectors:
        if public:
            raise LabelguardError(f"--public is for the Hub (hf:ORG/NAME), found {to}")
        push = connectors.open_push(connectors.read_settings(opened.project.connectors, name))
        return Published(record.id, push(directory, title or record.id, progress))
    files = {name: PublicFile(directory / name, digest) for name, digest in record.files.items()}
    sums = hashlib.sha256(format_sums(record.files).encode("ascii")).hexdigest()
    files |= {SUMS: PublicFile(directory / SUMS, sums), "README.md": files["CARD.md"]}
    title = f"Release {record.id}"
    others = " or CONNECTOR:TITLE, of [connectors] in labelguard.toml"
    where = send_files(
        files, to, "dataset", title=title, public=public, progress=progress, others=others
    )
    return Published(record.id, where)
