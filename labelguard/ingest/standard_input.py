"""Standard input as a file.

Some commands read their input twice, and Parquet cannot be read as a stream. So it is written into
a directory that only its owner can enter: a project's scratch space, which goes when its job ends
and which later jobs sweep, or one in TMPDIR, which is removed when the process ends.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TextIO

import pyarrow as pa

from labelguard.errors import InvalidLabels

NAME = "standard input"
"""What messages call it."""

_KINDS = ((b"PAR1", ".parquet"), (b"ARROW1", ".arrow"), (b"\xff\xff\xff\xff", ".arrow"))
_COMPRESSED = ((b"\x1f\x8b", ".gz", "gzip"), (b"\x28\xb5\x2f\xfd", ".zst", "zstd"))
_PEEK = 1 << 16
_kept: list[tempfile.TemporaryDirectory[str]] = []


_spooled: list[tuple[TextIO, Path]] = []


def spooled(directory: Path | None = None) -> Path:
    """The file that holds all of standard input, named by its kind, which its first bytes tell.

    It is written into `directory`, or into one in TMPDIR, and read once in a process.

    Raises `InvalidLabels` if there is none, or if the file went with the job that read it.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise InvalidLabels(f"{NAME}: nothing is piped into it; give a file, or pipe one in")
    known = next((path for stream, path in _spooled if stream is sys.stdin), None)
    if known is None:
        known = _spool(directory or _kept_till_the_end())
        _spooled.append((sys.stdin, known))
    if not known.exists():
        raise InvalidLabels(f"{NAME}: an earlier job read and removed it; give a file instead")
    return known


def _kept_till_the_end() -> Path:
    directory = tempfile.TemporaryDirectory(prefix="labelguard-")  # mode 0700
    _kept.append(directory)
    return Path(directory.name)


def _spool(directory: Path) -> Path:
    path = directory / "standard-input"
    with path.open("xb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    return path.rename(path.with_name(f"{path.name}{_suffix(path)}"))


def _suffix(path: Path) -> str:
    """What a file with these first bytes is called."""
    with path.open("rb") as file:
        begin = file.read(_PEEK)
    suffix, codec = next(
        ((suffix, codec) for magic, suffix, codec in _COMPRESSED if begin.startswith(magic)),
        ("", None),
    )
    with pa.input_stream(str(path), compression=codec) as stream:
        return _kind(stream) + suffix


def _kind(stream: pa.NativeFile) -> str:
    begin = stream.read(_PEEK)
    for magic, suffix in _KINDS:
        if begin.startswith(magic):
            return suffix
    text = begin.removeprefix(b"\xef\xbb\xbf").lstrip()
    while begin and not text:  # blanks may go on for longer than one looks
        begin = stream.read(_PEEK)
        text = begin.lstrip()
    return ".json" if text[:1] in (b"[", b"{") else ".csv"
