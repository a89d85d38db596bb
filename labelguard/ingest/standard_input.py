"""Standard input as a file: what comes in is kept for as long as the process runs.

Some commands read their input twice, and Parquet cannot be read as a stream. So it is written into
a directory that only its owner can enter, in TMPDIR, and removed when the process ends.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

import pyarrow as pa

from labelguard.errors import InvalidLabels

NAME = "standard input"
"""What messages call it."""

_KINDS = ((b"PAR1", ".parquet"), (b"ARROW1", ".arrow"), (b"\xff\xff\xff\xff", ".arrow"))
_COMPRESSED = ((b"\x1f\x8b", ".gz", "gzip"), (b"\x28\xb5\x2f\xfd", ".zst", "zstd"))
_PEEK = 1 << 16
_kept: list[tempfile.TemporaryDirectory[str]] = []


@cache
def spooled() -> Path:
    """The file that holds all of standard input, named by its kind, which its first bytes tell.

    Raises `InvalidLabels` if there is none.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise InvalidLabels(f"{NAME}: nothing is piped into it; give a file, or pipe one in")
    directory = tempfile.TemporaryDirectory(prefix="labelguard-")  # mode 0700
    _kept.append(directory)  # until the process ends
    path = Path(directory.name) / "input"
    with path.open("xb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    return path.rename(path.with_name(f"input{_suffix(path)}"))


def _suffix(path: Path) -> str:
    """What a file with these first bytes is called."""
    with path.open("rb") as file:
        begin = file.read(_PEEK)
    for magic, suffix, codec in _COMPRESSED:
        if begin.startswith(magic):
            with pa.input_stream(str(path), compression=codec) as stream:
                return _kind(stream.read(_PEEK)) + suffix
    return _kind(begin)


def _kind(begin: bytes) -> str:
    for magic, suffix in _KINDS:
        if begin.startswith(magic):
            return suffix
    text = begin.removeprefix(b"\xef\xbb\xbf").lstrip()
    return ".json" if text[:1] in (b"[", b"{") else ".csv"
