"""Objects of S3 as inputs: listed by a prefix or a pattern, and downloaded where they are read.

An object that was downloaded is read by what reads files, so that it says the same. Credentials,
region and endpoint are those of AWS's own variables and files.
"""

from __future__ import annotations

import fnmatch
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.parquet as pq

from labelguard.errors import InvalidLabels
from labelguard.storage.files import PART, SCHEME

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, S3FileSystem

# Keys become paths of downloads: nothing hidden in them, and nothing that leads elsewhere.
_KEY = re.compile(rf"[a-z0-9][a-z0-9.-]{{2,62}}(?:/{PART})+")
_BLOCK = 8 << 20


@dataclass(frozen=True)
class RemoteObject:
    """An object of S3, `key` of bucket and name, its size in bytes, and when it was written.

    `written` is in seconds: that is what every store tells.
    """

    key: str
    size: int
    written: int

    @property
    def uri(self) -> str:
        """Return its address."""
        return SCHEME + self.key

    def read_schema(self) -> pa.Schema:
        """Return the columns of a Parquet object, of which only the end is fetched."""
        with (
            translate_store_errors(self.uri),
            _connect(self.key).open_input_file(self.key) as source,
        ):
            return pq.read_schema(source)

    def fetch(self, directory: Path) -> Path:
        """Download it below `directory`, under its own name and those of its folders.

        Raises `InvalidLabels` if it is not the object that was listed: what was found in one (bad
        rows, by number) is not said of another.
        """
        # Without its parents: those of a job that ended meanwhile are gone for good.
        directory.mkdir(mode=0o700, exist_ok=True)
        path = directory / self.key
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with translate_store_errors(self.uri):
            filesystem = _connect(self.key)
            with filesystem.open_input_stream(self.key) as source, path.open("wb") as file:
                shutil.copyfileobj(source, file, _BLOCK)
            now = RemoteObject.from_file_info(filesystem.get_file_info(self.key))
        if now != self or path.stat().st_size != self.size:
            path.unlink()
            raise InvalidLabels(f"{self.uri}: it was written anew meanwhile; run this again")
        return path

    @classmethod
    def from_file_info(cls, info: FileInfo) -> Self:
        """Return the object that a store tells of."""
        return cls(info.path, info.size or 0, (info.mtime_ns or 0) // 10**9)


def list_objects(address: str) -> list[RemoteObject]:
    """Return the objects of an address, sorted: of one, of all below a prefix, or of a pattern.

    Raises `InvalidLabels` if there are none, or if one has a name that no file of ours has.
    """
    from pyarrow.fs import FileSelector, FileType

    pattern = address.removeprefix(SCHEME).rstrip("/")
    fixed = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    base = pattern if fixed == pattern else fixed.rpartition("/")[0]
    with translate_store_errors(address):
        filesystem = _connect(pattern)
        infos = [filesystem.get_file_info(base)]
        if infos[0].type != FileType.File:
            selector = FileSelector(base, allow_not_found=True, recursive=True)
            infos = filesystem.get_file_info(selector)
    objects = [
        RemoteObject.from_file_info(info)
        for info in sorted(infos, key=lambda info: info.path)
        if info.type == FileType.File
        and (base == pattern or _matches_pattern(info.path, pattern))
        and not info.path.rpartition("/")[2].startswith((".", "_"))
    ]
    if not objects:
        raise InvalidLabels(f"{address}: no such object, and none below it")
    for one in objects:
        if not _KEY.fullmatch(one.key):
            raise InvalidLabels(
                f"{one.uri!a}: names of objects may have letters, digits and . _ = + -"
            )
    return objects


def _matches_pattern(key: str, pattern: str) -> bool:
    """Return whether a key is of a pattern, whose wildcards do not go beyond a folder."""
    parts, wanted = key.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


@contextmanager
def translate_store_errors(address: str) -> Iterator[None]:
    """Raise errors of the store as ours."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        first = str(error).partition("\n")[0]
        raise InvalidLabels(f"{address}: {first}") from None


def _connect(key: str) -> S3FileSystem:
    from pyarrow.fs import FileSystem

    filesystem, _ = FileSystem.from_uri(f"{SCHEME}{key.partition('/')[0]}")
    return filesystem
