"""Files that survive a crash: written under another name, flushed to disk, then renamed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from labelguard.errors import LabelguardError

_OF_FILES = (".csv", ".html", ".json", ".jsonl", ".md", ".parquet", ".png", ".svg", ".tsv")


def check_directory(output: Path, example: str) -> None:
    """Raise `LabelguardError` for a file, or a file's name, where a directory is to be written."""
    if output.is_file() or (output.suffix.lower() in _OF_FILES and not output.is_dir()):
        raise LabelguardError(f"{output} names a file; expected a directory, as in -o {example}")


def check_file(output: Path, example: str) -> None:
    """Raise `LabelguardError` where no file can be written: at a directory, or below none."""
    if output.is_dir():
        raise LabelguardError(f"{output} is a directory; expected a file, as in -o {example}")
    if not output.absolute().parent.is_dir():
        raise LabelguardError(f"{output.parent} is no directory; make it or choose another -o")


def check_new_file(output: Path, example: str) -> None:
    """Raise `LabelguardError` where no new file can be written."""
    check_file(output, example)
    if output.exists():
        raise LabelguardError(f"{output} exists; choose another -o")


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
