"""Paths of inputs: what they match, and how messages show them. Loads no engine."""

from __future__ import annotations

import glob
import os
from pathlib import Path

from labelguard.errors import InvalidLabels
from labelguard.spelling import suggest


def shown(path: Path) -> str:
    """A path as messages show it (a file name may hold any bytes, even line breaks)."""
    text = os.fsencode(path).decode("utf-8", "replace")
    return text if text.isprintable() else repr(text)[1:-1]


def matching(pattern: str) -> list[Path]:
    """The files and directories that a path or a glob names, sorted.

    Raises `InvalidLabels` if there are none, with the one that was probably meant.
    """
    path = Path(pattern)
    if path.exists():
        return [path]
    # Path.glob takes no absolute patterns.
    found = sorted(Path(name) for name in glob.glob(pattern, recursive=True))  # noqa: PTH207
    if not found:
        beside = path.parent.iterdir() if path.parent.is_dir() else ()
        near = suggest(shown(Path(path.name)), [shown(Path(one.name)) for one in beside])
        raise InvalidLabels(f"{shown(path)}: no such file or directory{near}")
    return found
