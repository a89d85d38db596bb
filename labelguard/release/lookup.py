"""Find a committed release: in a project by its id, or in a copy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from labelguard.errors import LedgerError, ProjectError
from labelguard.project.opening import OpenProject, Where
from labelguard.project.project import CONFIG
from labelguard.release.writer import Release, directory_of, refuse_evaluation
from labelguard.storage.files import PART, SUMS, find_changed_file

_LINE = re.compile(rf"(?P<digest>[0-9a-f]{{64}})  (?P<name>{PART}(?:/{PART})*)")


def committed_directory(release: Release | str | Path, project: Where = None) -> Path:
    """Return the directory of a committed release, whose files are what was committed.

    `release` is as `directory_of` takes it. A release in a project is compared with the hashes in
    the ledger, a copy with its `SHA256SUMS`. Raises `LedgerError` for a release that is not
    committed, `ProjectError` if there is none, it has no rows, or a file of it was altered.
    """
    directory = directory_of(release, project)
    refuse_evaluation(directory)
    check_committed(directory, "data.parquet")
    return directory


def check_committed(directory: Path, file: str) -> None:
    """Raise, as `committed_directory` does, unless a release that holds `file` is as committed."""
    state = directory.absolute().parents[1]
    if directory.absolute().parent.name == "releases" and (state / CONFIG).is_file():
        record = OpenProject.open(state).ledger.releases.get(directory.name)
        if record is None or record.state != "committed":
            raise LedgerError(
                f"{directory.name} is not committed; see: labelguard release list, and run its "
                "command again"
            )
        expected = record.files
    else:
        expected = read_sums(directory, ("card.json", file), "copy the release again")
    if broken := find_changed_file(directory, expected):
        raise ProjectError(f"{broken}; copy the release again")


def read_sums(directory: Path, required: Sequence[str], remedy: str) -> Mapping[str, str]:
    """Return what `SHA256SUMS` says of each file: the copy that goes with a release or a model."""
    try:
        lines = (directory / SUMS).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        raise ProjectError(f"{directory / SUMS} cannot be read; {remedy}") from None
    digests = {line["name"]: line["digest"] for line in map(_LINE.fullmatch, lines) if line}
    missing = [name for name in required if name not in digests]
    if missing:
        raise ProjectError(f"{directory / SUMS} does not name {missing[0]}; {remedy}")
    return digests
