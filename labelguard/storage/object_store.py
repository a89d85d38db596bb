"""Objects below one address of S3 or of a store that speaks its protocol, by their names there.

An object is written whole or not at all, under a name of its own: nothing is renamed, and nothing
depends on who writes first. Credentials, region and endpoint are those of AWS's own variables and
files.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pyarrow as pa

from labelguard.errors import ProjectError
from labelguard.storage.files import SCHEME

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

_BLOCK = 8 << 20


class ObjectStore:
    """The objects below `address`, s3://BUCKET/PREFIX.

    What the store refuses is a `ProjectError` that names the object.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._base = address.removeprefix(SCHEME)

    @cached_property
    def _filesystem(self) -> S3FileSystem:
        from pyarrow.fs import FileSystem

        filesystem, _ = FileSystem.from_uri(
            f"{SCHEME}{self._base.partition('/')[0]}?allow_delayed_open=true"
        )
        return filesystem

    def uri(self, name: str) -> str:
        """Return the address of an object."""
        return f"{self.address}/{name}"

    def list(self, folder: str = "") -> dict[str, int]:
        """Return the size of every object whose name begins with `folder/`, by its name."""
        from pyarrow.fs import FileSelector, FileType

        place = f"{self._base}/{folder}".rstrip("/")
        selector = FileSelector(place, allow_not_found=True, recursive=True)
        with self._translate_errors(folder):
            infos = self._filesystem.get_file_info(selector)
        return {
            info.path.removeprefix(f"{self._base}/"): info.size
            for info in infos
            if info.type == FileType.File
        }

    def read(self, name: str) -> bytes:
        """Return the content of an object."""
        with (
            self._translate_errors(name),
            self._filesystem.open_input_stream(f"{self._base}/{name}") as stream,
        ):
            data: bytes = stream.read()
            return data

    def write(self, name: str, data: bytes) -> None:
        """Write an object, in place of one of that name."""
        with (
            self._translate_errors(name),
            self._filesystem.open_output_stream(f"{self._base}/{name}") as stream,
        ):
            stream.write(data)

    def upload(self, name: str, path: Path) -> None:
        """Write a file as an object; one that was cut off has another size, and is sent again."""
        with (
            path.open("rb") as file,
            self._translate_errors(name),
            self._filesystem.open_output_stream(f"{self._base}/{name}") as stream,
        ):
            shutil.copyfileobj(file, stream, _BLOCK)

    def download(self, name: str, path: Path) -> None:
        """Write an object into a new file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            self._translate_errors(name),
            self._filesystem.open_input_stream(f"{self._base}/{name}") as stream,
            path.open("xb") as file,
        ):
            shutil.copyfileobj(stream, file, _BLOCK)

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects and, once they are empty, their folders of three levels and more: Arrow
        writes an object that stands for a folder whose last object goes.

        Folders above are others' too, who may write there at this moment.
        """
        folders = set[str]()
        for name in names:
            with self._translate_errors(name):
                self._filesystem.delete_file(f"{self._base}/{name}")
            folders.update(map(str, PurePosixPath(name).parents[:-3]))
        for folder in sorted(folders, reverse=True):  # the inner ones first
            if not self.list(folder):
                with self._translate_errors(folder):
                    self._filesystem.delete_dir(f"{self._base}/{folder}")

    def probe(self) -> int:
        """Write, read, list and delete an object of this call's own; return how many others are
        there.

        Raises `ProjectError` with what to do: for what the store refuses, and where it does not
        show at once what was written or deleted.
        """
        name, data = f"probe-{secrets.token_hex(8)}", secrets.token_bytes(32)
        with _advise("s3:ListBucket"):
            others = len(self.list())
        with _advise("s3:PutObject"):
            self.write(name, data)
        try:
            with _advise("s3:GetObject"):
                is_seen = self.read(name) == data and self.list().get(name) == len(data)
        except ProjectError:
            with suppress(ProjectError):  # who may not read cannot delete, mostly
                self.delete([name])
            raise
        with _advise("s3:DeleteObject"):
            self.delete([name])
        if not is_seen or name in self.list():
            raise ProjectError(
                f"{self.uri(name)}: the store does not show at once what was written or deleted; "
                "keep the project in one that does"
            )
        return others

    @contextmanager
    def _translate_errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            first = str(error).partition("\n")[0]
            raise ProjectError(f"{self.uri(name)}: {first}") from None


@contextmanager
def _advise(permission: str) -> Iterator[None]:
    """Say with an error of the store what to look at."""
    try:
        yield
    except ProjectError as error:
        raise ProjectError(
            f"{error}; check [storage] url, AWS_ENDPOINT_URL, and that the credentials are valid "
            f"and permit {permission} there"
        ) from None
