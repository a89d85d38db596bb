"""Where a release goes beside its project: the copy of `-o DIR`, and `push` to a tool."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from labelguard.errors import LedgerError, ProjectError
from labelguard.inputs import connector as connectors
from labelguard.project.opening import OpenProject, Where
from labelguard.release.writer import read_card
from labelguard.storage.files import check_directory, fsync_path
from labelguard.storage.sums import SUMS, fault
from labelguard.text import Progress, no_progress


def check(output: Path | None) -> None:
    """Refuse, before any work, a directory that could not take a release."""
    if output is None:
        return
    check_directory(output, "release")
    if output.exists() and not _is_empty(output) and not (output / "card.json").is_file():
        raise ProjectError(f"{output} exists and is not an empty directory; choose another -o")
    there = output if output.exists() else next(p for p in output.absolute().parents if p.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise ProjectError(f"{there} is not a directory one can write to; choose another -o")


def check_new(output: Path | None) -> None:
    """Refuse a directory that holds something, before a new release is charged."""
    if output is not None and output.exists() and not _is_empty(output):
        raise ProjectError(f"{output} holds another release; choose another -o")


def deliver(release: Path, output: Path, files: Mapping[str, str]) -> None:
    """Copy a release to `output`, whole or not at all, unless it is there already.

    Only its own `files` are copied, whatever lies beside them.
    """
    if output.exists() and not _is_empty(output):
        if _release_in(output) != read_card(release)["release"]:
            raise ProjectError(
                f"the release is safe in {release}, but {output} holds another release, or "
                "something else; copy it from there"
            )
        broken = fault(output, files)
        if broken:
            raise ProjectError(f"{broken}; remove {output} and run this again")
        return
    try:
        with _beside(output) as temporary:
            for name in (*files, SUMS):
                (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(release / name, temporary / name)
            shutil.copymode(release, temporary)
            for path in (*temporary.rglob("*"), temporary):
                fsync_path(path)
            temporary.rename(output)  # replaces nothing but an empty directory
            fsync_path(output.absolute().parent)
    except OSError as error:
        raise ProjectError(
            f"the release is safe in {release}, but cannot be copied to {output}: {error.strerror}"
        ) from None


def _release_in(output: Path) -> str | None:
    """The release that a path holds, if it holds one."""
    try:
        return str(read_card(output)["release"])
    except ProjectError:
        return None


@contextlib.contextmanager
def _beside(output: Path) -> Iterator[Path]:
    """A new directory on the same file system, of a name that nobody else has."""
    parent = output.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(".partial", f".{output.name}.", parent))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _is_empty(directory: Path) -> bool:
    return directory.is_dir() and not any(directory.iterdir())


def push(
    name: str,
    release_id: str,
    title: str | None = None,
    project: Where = None,
    progress: Progress = no_progress,
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
