"""The file that a backup is: a compressed tar whose first member lists the others with SHA-256.

`manifest.json` comes first, `manifest.mac`, its HMAC under a key of the project, second, then the
other members in the manifest's order. So the manifest can be
authenticated before anything is unpacked, and from then on it bounds what is. Reading takes nothing
else: no other names, no links, no member that is not listed, none of another length or content.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from labelguard.errors import ProjectError
from labelguard.storage.files import PART, fsync_path

FORMAT = 1
LEDGER, CONFIG = "ledger.sqlite3", "labelguard.toml"
DIRECTORIES = ("releases", "released", "labels")
_NAME = re.compile(rf"labelguard\.toml|ledger\.sqlite3|(?:{'|'.join(DIRECTORIES)})(?:/{PART})+")
_MANIFEST, _MAC = "manifest.json", "manifest.mac"
_LARGEST = {_MANIFEST: 1 << 27, _MAC: 32}
# Bytes of a member beside its content, at most: headers, padding, the end of the archive.
_OVERHEAD = 1 << 13
_CHUNK = 1 << 20


def write(
    path: Path, members: Mapping[str, Path], facts: Mapping[str, Any], mac: Callable[[bytes], bytes]
) -> None:
    """Write an archive of the files `members`, by their names in it; mode 0600, whole or not.

    A name that ends in .gz makes a gzip file, any other a zstd one. Raises `ProjectError` if `path`
    exists, or for a file that has no place in a project.
    """
    refuse_existing(path)
    listed = {name: _description(name, source) for name, source in members.items()}
    manifest = json.dumps({"format": FORMAT} | dict(facts) | {"members": listed}, indent=1).encode()
    if len(manifest) > _LARGEST[_MANIFEST]:
        raise ProjectError("the project has too many files for one backup")
    codec = "gzip" if path.suffix == ".gz" else "zstd"
    descriptor, name = tempfile.mkstemp(".partial", f".{path.name}.", path.absolute().parent)
    temporary = Path(name)
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            pa.CompressedOutputStream(pa.PythonFile(file, "w"), codec) as stream,
            tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            for name, data in ((_MANIFEST, manifest), (_MAC, mac(manifest))):
                tar.addfile(_header(name, len(data)), io.BytesIO(data))
            for name, source in members.items():
                with source.open("rb") as content:
                    tar.addfile(_header(name, listed[name]["bytes"]), content)
        fsync_path(temporary)
        refuse_existing(path)
        temporary.replace(path)
        fsync_path(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def refuse_existing(path: Path) -> None:
    """Raise `ProjectError` if there is something at `path`, or no directory to put it in."""
    if path.exists():
        raise ProjectError(f"{path} exists; a backup never replaces a file: choose another name")
    if not path.absolute().parent.is_dir():
        raise ProjectError(f"{path.parent} is no directory; make it or choose another place")


class Reader:
    """An open archive, of which only the head was read: `manifest` and `mac`."""

    def __init__(self, path: Path, stream: _Bounded, tar: tarfile.TarFile) -> None:
        self._path, self._stream, self._tar = path, stream, tar
        self._member = tar.next()
        self.manifest, self.mac = self._head(_MANIFEST), self._head(_MAC)

    def _head(self, name: str) -> bytes:
        member = self._member
        expected = member is not None and member.name == name and member.size <= _LARGEST[name]
        content = self._tar.extractfile(member) if member and expected else None
        if content is None:
            raise ProjectError(f"{self._path} is not a backup made by labelguard")
        data = content.read()
        self._member = self._tar.next()
        return data

    def extract(self, directory: Path) -> dict[str, Any]:
        """Put the members into the empty `directory`, as the manifest lists them; the manifest.

        To be called once the manifest is known to be one's own: it says how much there may be.
        Raises `ProjectError` for anything else that the archive holds.
        """
        path, manifest = self._path, json.loads(self.manifest)
        if manifest["format"] != FORMAT:
            raise ProjectError(
                f"{path} has format {manifest['format']!r}; this labelguard reads {FORMAT}"
            )
        awaited: dict[str, dict[str, Any]] = dict(manifest["members"])
        self._stream.left = sum(member["bytes"] + _OVERHEAD for member in awaited.values())
        while member := self._member:
            name, expected = member.name, awaited.pop(member.name, None)
            if not (member.isreg() and _NAME.fullmatch(name) and expected):
                raise ProjectError(
                    f"{path} holds {name!r}, which is no part of a backup; do not trust it"
                )
            content = self._tar.extractfile(member)
            assert content is not None
            public = name.startswith("releases/")
            digest = _put(content, directory / name, 0o644 if public else 0o600)
            if (expected["bytes"], expected["sha256"]) != (member.size, digest):
                raise ProjectError(f"{path}: {name} is damaged; use another backup")
            self._member = self._tar.next()
        if awaited:
            raise ProjectError(f"{path}: {min(awaited)} is missing; use another backup")
        return dict(manifest)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[Reader]:
    """Open an archive and read its head; whatever is wrong with it comes as `ProjectError`.

    However much it would unpack to, no more than 130 MB of it are read before `extract`.
    """
    try:
        with path.open("rb") as file:
            codec = "gzip" if file.read(2) == b"\x1f\x8b" else "zstd"
            file.seek(0)
            with pa.CompressedInputStream(pa.PythonFile(file, "r"), codec) as unpacked:
                stream = _Bounded(path, unpacked, sum(_LARGEST.values()) + 4 * _OVERHEAD)
                with tarfile.open(fileobj=stream, mode="r|") as tar:
                    yield Reader(path, stream, tar)
    except FileNotFoundError:
        raise ProjectError(f"there is no file {path}") from None
    except (tarfile.TarError, ValueError, KeyError, TypeError, EOFError) as error:
        raise ProjectError(f"{path} is damaged, or no backup: {error}") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise ProjectError(f"{path} cannot be read or unpacked: {why}") from None


class _Bounded(io.RawIOBase):
    """A stream that gives `left` bytes at most: a header of a tar may ask for any number."""

    def __init__(self, path: Path, stream: Any, left: int) -> None:
        self._path, self._stream, self.left = path, stream, left

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise ProjectError(f"{self._path} holds more than a backup would; do not trust it")
        return data


def _put(content: IO[bytes], target: Path, mode: int) -> str:
    """Write a new file, and make its SHA-256 on the way."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest = hashlib.sha256()
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


def _description(name: str, source: Path) -> dict[str, Any]:
    if not _NAME.fullmatch(name) or source.is_symlink():
        raise ProjectError(f"{source} does not belong into a project; move it away")
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"sha256": digest, "bytes": source.stat().st_size}


def _header(name: str, size: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size, header.mode = size, 0o600
    return header
