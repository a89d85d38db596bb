"""Files that survive a crash: written under another name, flushed to disk, then renamed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def fsync_path(path: Path) -> None:
    """Flush a file, or a directory's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace `path` by `data` so that a crash leaves the old file or the new one, whole."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    fsync_path(path.parent)


def publish_directory(temporary: Path, final: Path) -> None:
    """Flush every file in `temporary`, then give the directory its name in one step.

    What a crashed attempt left under that name, before it was committed, is removed.
    """
    for path in sorted(temporary.rglob("*")):
        fsync_path(path)
    fsync_path(temporary)
    if final.is_dir():
        shutil.rmtree(final)
    temporary.replace(final)
    fsync_path(final.parent)


def fresh_directory(path: Path, *, mode: int = 0o755) -> Path:
    """An empty directory at `path`; what was there is removed."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True, mode=mode)
    return path
