"""The files of a directory and their SHA-256, as `sha256sum --check` reads them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from labelguard.errors import ProjectError

SUMS = "SHA256SUMS"
# What a file or a directory of a project may be called: nothing hidden, nothing that a line of
# sums, an archive or a shell would read in another way.
PART = r"(?!\.)[A-Za-z0-9_.=+-]+"
_NAME = re.compile(rf"{PART}(?:/{PART})*")


def sums_text(hashes: Mapping[str, str]) -> str:
    """The text that `sha256sum --check` reads."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(hashes.items()))


def sha256(path: Path) -> str:
    """The digest of a file, of which a piece at a time is in memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hashes_of(directory: Path) -> dict[str, str]:
    """The digest of every file below a directory, by its path in it, with / between the parts.

    Raises `ProjectError` for a link, anything else that is no plain file, or a name that no release
    may have.
    """
    found = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if not _NAME.fullmatch(name) or path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise ProjectError(f"{name!a} cannot be part of a release: no plain file or name")
        if path.is_file():
            found[name] = sha256(path)
    return found


def fault(directory: Path, expected: Mapping[str, str]) -> str | None:
    """The first file of a release that is missing, altered or none of its own, or None."""
    sums = hashlib.sha256(sums_text(expected).encode("ascii")).hexdigest()
    own = {**expected, SUMS: sums}
    for name, digest in own.items():
        path = directory / name
        if not path.is_file() or _leads_away(path, directory):
            return f"{path} is missing"
        if sha256(path) != digest:
            return f"{path} was altered since the release was committed"
    for path in sorted(directory.rglob("*")):
        # A link to a directory is none: what it leads to was never hashed.
        is_file = path.is_symlink() or not path.is_dir()
        if is_file and path.relative_to(directory).as_posix() not in own:
            return f"{path} was added since the release was committed"
    return None


def _leads_away(path: Path, directory: Path) -> bool:
    """Whether a link stands for the file, or for a directory on the way to it."""
    inside = path.relative_to(directory).parents
    return path.is_symlink() or any((directory / parent).is_symlink() for parent in inside[:-1])
