"""The files of a directory and their SHA-256, as `sha256sum --check` reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

SUMS = "SHA256SUMS"


def sums_text(hashes: Mapping[str, str]) -> str:
    """The text that `sha256sum --check` reads."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(hashes.items()))


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fault(directory: Path, expected: Mapping[str, str]) -> str | None:
    """The first file of a release that is missing or altered, or None."""
    sums = hashlib.sha256(sums_text(expected).encode("ascii")).hexdigest()
    for name, digest in {**expected, SUMS: sums}.items():
        path = directory / name
        if not path.is_file():
            return f"{path} is missing"
        if sha256(path) != digest:
            return f"{path} was altered since the release was committed"
    return None
