"""The file that a backup is: a compressed tar whose first member lists the others with SHA-256.

`manifest.json` comes first, `manifest.mac`, its HMAC under a key of the project, second; then the
members in the manifest's order. Reading takes nothing else: no other names, no links, no member
that is not listed, none of another length or content.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from labelguard._files import fsync_path
from labelguard.errors import ProjectError

FORMAT = 1
LEDGER, KEYS, CONFIG = "ledger.sqlite3", "keys.sealed", "labelguard.toml"
DIRECTORIES = ("releases", "released", "props")
_NAME = re.compile(
    rf"labelguard\.toml|ledger\.sqlite3|keys\.sealed|(?:{'|'.join(DIRECTORIES)})"
    r"(?:/(?!\.)[A-Za-z0-9_.=+-]+)+"
)
_MANIFEST, _MAC = "manifest.json", "manifest.mac"
_LARGEST_MANIFEST = 1 << 28
_CHUNK = 1 << 20


def write(
    path: Path,
    members: Mapping[str, Path],
    facts: Mapping[str, Any],
    mac: Callable[[bytes], bytes],
) -> None:
    """Write an archive of the files `members`, by their names in it; mode 0600, whole or not.

    A name that ends in .gz makes a gzip file, any other a zstd one. Raises `ProjectError` if `path`
    exists, or for a file that has no place in a project.
    """
    refuse_existing(path)
    listed = {name: _description(name, source) for name, source in members.items()}
    manifest = json.dumps({"format": FORMAT} | dict(facts) | {"members": listed}, indent=1).encode()
    temporary = path.with_name(path.name + ".partial")
    temporary.unlink(missing_ok=True)
    codec = "gzip" if path.suffix == ".gz" else "zstd"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
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


def manifest_of(path: Path) -> tuple[bytes, bytes]:
    """The manifest of an archive as it stands there, and its HMAC; neither is checked."""
    with _opened(path) as tar:
        return _head(path, tar)


def extract(path: Path, directory: Path) -> dict[str, Any]:
    """Put an archive's members into the empty `directory` and compare them with its manifest.

    Returns the manifest, of which only the format was judged (see `manifest_of` for its HMAC).
    Raises `ProjectError` for anything that an archive of ours does not hold.
    """
    with _opened(path) as tar:
        manifest: dict[str, Any] = json.loads(_head(path, tar)[0])
        if manifest.get("format") != FORMAT:
            raise ProjectError(
                f"{path} has format {manifest.get('format')!r}; this labelguard reads {FORMAT}"
            )
        awaited = dict(manifest["members"])
        while member := tar.next():  # iterating would begin with the manifest again
            if not (member.isreg() and _NAME.fullmatch(member.name) and member.name in awaited):
                raise ProjectError(
                    f"{path} holds {member.name!r}, which is no part of a backup; do not trust it"
                )
            content = tar.extractfile(member)
            assert content is not None
            public = member.name.startswith("releases/")
            found = _put(content, directory / member.name, 0o644 if public else 0o600)
            if found != awaited.pop(member.name)["sha256"]:
                raise ProjectError(f"{path}: {member.name} is damaged; use another backup")
    if awaited:
        raise ProjectError(f"{path}: {min(awaited)} is missing; use another backup")
    return manifest


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


def _head(path: Path, tar: tarfile.TarFile) -> tuple[bytes, bytes]:
    found = []
    for name in (_MANIFEST, _MAC):
        member = tar.next()
        if member is None or member.name != name or member.size > _LARGEST_MANIFEST:
            raise ProjectError(f"{path} is not a backup made by labelguard")
        content = tar.extractfile(member)
        if content is None:
            raise ProjectError(f"{path} is not a backup made by labelguard")
        found.append(content.read())
    return found[0], found[1]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    """A compressed tar, read from start to end; whatever is wrong with it as `ProjectError`."""
    try:
        with path.open("rb") as file:
            codec = "gzip" if file.read(2) == b"\x1f\x8b" else "zstd"
            file.seek(0)
            stream: Any = pa.CompressedInputStream(pa.PythonFile(file, "r"), codec)
            with stream, tarfile.open(fileobj=stream, mode="r|") as tar:
                yield tar
    except FileNotFoundError:
        raise ProjectError(f"there is no file {path}") from None
    except (tarfile.TarError, ValueError, KeyError, TypeError, EOFError) as error:
        raise ProjectError(f"{path} is damaged, or no backup: {error}") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise ProjectError(f"{path} cannot be read or unpacked: {why}") from None
