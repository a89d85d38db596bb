"""The copy of a release that `-o DIR` asks for."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from labelguard.errors import ProjectError
from labelguard.release.writer import read_card
from labelguard.storage.files import check_directory, fsync_path
from labelguard.storage.sums import SUMS, fault


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
