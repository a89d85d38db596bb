"""A project on object storage (`[storage] url`): the disk is a working copy, and may be lost.

Objects lie below the project's address, under names that no two attempts share, so that nothing is
renamed and nobody has to be first:

- `released/RELEASE/TAG/FILE`: PRIVATE maps. Each file is sealed under a key made of the project's
  and of the map's digest, for its whole name. It is there before the ledger takes that digest, and
  the ledger's digest says which attempt counts. What an attempt drew that lost, nobody opens any
  more: its digest went with its process, and so did the map's random bytes, without which TAG, a
  keyed hash of the digest, confirms no guess.
- `releases/RELEASE/SHA256/FILE`: public releases as they are, under the SHA-256 of their sums. They
  are there before the ledger says that they are committed: from then on nothing makes them again.
- `labels/SEGMENT/TAG`: segments of ingested answers, which are sealed files already.
- `witness/NUMBER`: the newest entry of the journal, sealed: a third witness.

Whoever opens the project fetches what the ledger counts and the disk lacks, and takes nothing that
is not as the ledger says. What does not count is deleted by the job that holds the project, in a
transaction of its epoch, so that none that was overtaken can.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from labelguard.answers.segments import Segments, pad, padded_size, unpad
from labelguard.errors import KeyProblem, ProjectError
from labelguard.keys.keyring import KeyRing
from labelguard.ledger import sources
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.records import ReleaseRecord
from labelguard.ledger.sources import Segment
from labelguard.project.private_map import PrivateMap
from labelguard.project.project import Project
from labelguard.storage.files import (
    PART,
    SUMS,
    begin_directory,
    check_file_names,
    find_changed_file,
    finish_directory,
    format_sums,
    hash_file,
)
from labelguard.storage.object_store import ObjectStore

_FOLDERS = ("released", "releases", "labels")
_WITNESS = "witness"
# Salt and tag of what is sealed.
_SEAL_BYTES = 48
_AT_ONCE = 8


def _unseal(objects: ObjectStore, keys: KeyRing, purpose: str, name: str) -> bytes:
    try:
        return keys.unseal(purpose, objects.read(name), name.encode())
    except KeyProblem as error:
        raise ProjectError(
            f"{objects.uri(name)}: {error}; put back what was there, or check LABELGUARD_KEYS"
        ) from None


@dataclass(frozen=True)
class StoredWitness:
    """The newest entry of the journal that the store has seen; see `ledger.journal.Witness`.

    Every entry has an object of its own and the largest number counts, so that a job that was
    overtaken sets nothing back.
    """

    objects: ObjectStore
    keys: KeyRing

    @property
    def place(self) -> str:
        """Say where it is."""
        return self.objects.uri(_WITNESS)

    def read(self) -> tuple[int, str] | None:
        """Return the newest entry that is there. Raises `ProjectError` if it was altered."""
        while names := self._list():
            try:
                digest = _unseal(self.objects, self.keys, _WITNESS, names[-1]).decode()
            except ProjectError:  # a job may have written the next one, and removed this
                if self._list()[-1:] == names[-1:]:
                    raise
            else:
                return int(names[-1].rpartition("/")[2]), digest
        return None

    def write(self, number: int, digest: str) -> None:
        """Remember an entry, and remove those before it."""
        name = f"{_WITNESS}/{number:018}"
        sealed = self.keys.seal(_WITNESS, digest.encode(), name.encode())
        self.objects.write(name, sealed)
        self.objects.delete(older for older in self._list() if older < name)

    def _list(self) -> list[str]:
        return sorted(
            name
            for name in self.objects.list(_WITNESS)
            if re.fullmatch(rf"{_WITNESS}/[0-9]{{18}}", name)
        )


class _CountedObjects(NamedTuple):
    """Objects that count: how their names go on after `folder`, their sizes, what uploads them."""

    folder: str
    sizes: Mapping[str, int]
    upload: Callable[[], None]


class ProjectStore:
    """The objects of one project, beside its directory and its ledger."""

    def __init__(self, objects: ObjectStore, home: Project, keys: KeyRing, ledger: Ledger) -> None:
        self._objects, self._home, self._keys, self._ledger = objects, home, keys, ledger
        self._maps = PrivateMap(home.private_maps, keys)
        self._segments = Segments(home.labels, keys)

    def upload_map(self, release_id: str, digest: str, files: Mapping[str, Path]) -> None:
        """Seal and upload the files of a map."""

        def upload(name: str) -> None:
            place, data = f"{folder}/{name}", pad(files[name].read_bytes())
            sealed = self._keys.seal(f"object/{digest}", data, place.encode())
            self._objects.write(place, sealed)

        folder = self._map_folder(release_id, digest)
        _run_in_parallel(upload, sorted(files))

    def upload_release(self, release_id: str, hashes: Mapping[str, str]) -> None:
        """Upload the public files of a release; none that is not as `hashes` say."""

        def upload(name: str) -> None:
            path = directory / name
            if path.is_file() and hash_file(path) == expected[name]:
                self._objects.upload(f"{folder}/{name}", path)

        directory, folder = (
            self._home.releases / release_id,
            _name_release_folder(release_id, hashes),
        )
        expected = {**hashes, SUMS: _hash_sums(hashes)}
        _run_in_parallel(upload, sorted(expected))

    def upload_segment(self, name: str, digest: str, data: bytes) -> None:
        """Upload the file of a segment."""
        self._objects.write(f"labels/{name}/{self._tag(digest)}", data)

    def lacks_files(self) -> bool:
        """Return whether the disk lacks anything that the ledger counts."""
        return next(self._find_missing(replace=False), None) is not None

    def fetch_missing(self, *, replace: bool) -> None:
        """Fetch what the ledger counts and the disk lacks; only for who holds the project.

        With `replace` also what is not as the ledger says: another machine took somebody out who
        left, or finished a release that was published here and never committed. Raises
        `ProjectError` for an object that is missing or not as the ledger says.
        """
        for fetch in self._find_missing(replace=replace):
            fetch()

    def _find_missing(self, *, replace: bool) -> Iterator[Callable[[], None]]:
        """Yield what fetches each thing that is missing."""
        for record in self._ledger.releases.all():
            check_file_names(record.files, record.id)
            at = self._home.private_maps / record.id
            if record.map and (
                not at.is_dir() or (replace and self._maps.find_fault(record.id, record.map))
            ):
                yield partial(self._fetch_map, record.id, record.map)
            at = self._home.releases / record.id
            if record.state == "committed" and (
                not at.is_dir() or (replace and not _is_release_of(at, record.files))
            ):
                yield partial(self._fetch_release, record)
        for segment in self._ledger.read(sources.read_segments):
            check_file_names((), segment.name)
            if self._segments.is_missing(segment) or (
                replace and self._segments.find_fault([segment])
            ):
                yield partial(self._fetch_segment, segment)

    def _fetch_map(self, release_id: str, digest: str) -> None:
        """Put a map in place; raise `ProjectError` unless it is as it was drawn."""

        def fetch(name: str) -> None:
            file = name.rpartition("/")[2]
            if not re.fullmatch(PART, file):
                raise ProjectError(f"{self._objects.uri(name)!a} is no file of a private map")
            data = _unseal(self._objects, self._keys, f"object/{digest}", name)
            (whole / file).write_bytes(unpad(data))

        folder = self._map_folder(release_id, digest)
        whole = begin_directory(self._home.private_maps / release_id, mode=0o700)
        _run_in_parallel(fetch, sorted(self._objects.list(folder)))
        try:
            self._maps.put(release_id, digest, whole)
        except ProjectError as error:
            raise ProjectError(
                f"{self._objects.uri(folder)}: {error}: an object is missing or was added; "
                "put back what was there, or restore the project from a backup"
            ) from None

    def _fetch_release(self, record: ReleaseRecord) -> None:
        folder = _name_release_folder(record.id, record.files)
        final = self._home.releases / record.id
        whole = begin_directory(final, mode=0o755)

        def fetch(name: str) -> None:
            self._objects.download(f"{folder}/{name}", whole / name)

        _run_in_parallel(fetch, (*record.files, SUMS))
        if broken := find_changed_file(whole, record.files):
            name = broken.replace(f"{whole}/", f"{self._objects.uri(folder)}/")
            raise ProjectError(f"release {record.id}: {name}; put back what was there")
        finish_directory(whole, final)

    def _fetch_segment(self, segment: Segment) -> None:
        name = f"labels/{segment.name}/{self._tag(segment.digest)}"
        try:
            self._segments.restore(segment, self._objects.read(name))
        except ProjectError as error:
            where = self._objects.uri(name)
            text = str(error) if where in str(error) else f"{where}: {error}"
            raise ProjectError(f"{text}; put back what was there") from None

    def synchronize(self, epoch: int) -> None:
        """Upload what counts and is not there, and delete what does not count.

        Only for who holds the project, in the `epoch` of their job.
        """
        present = self._objects.list()
        for counted in self._list_counted():
            names = {f"{counted.folder}{name}": size for name, size in counted.sizes.items()}
            if any(present.get(name) != size for name, size in names.items()):
                counted.upload()
        # Who was overtaken may know an older ledger: nothing that came since is listed here.
        with self._ledger.transaction(epoch):
            present = self._objects.list()
            folders = {counted.folder for counted in self._list_counted()}
            # Should this job be overtaken meanwhile, another may commit what it finds there.
            unfinished = tuple(
                f"releases/{record.id}/"
                for record in self._ledger.releases.all()
                if record.is_unfinished
            )
            self._objects.delete(
                name
                for name in present
                if name.startswith(tuple(f"{folder}/" for folder in _FOLDERS))
                and "/".join(name.split("/")[:3]) not in folders
                and not name.startswith(unfinished)
            )

    def _list_counted(self) -> Iterator[_CountedObjects]:
        for record in self._ledger.releases.all():
            if record.map:
                files = self._maps.files(record.id)
                sizes = {
                    f"/{name}": padded_size(path.stat().st_size) + _SEAL_BYTES
                    for name, path in files.items()
                }
                upload = partial(self._upload_counted_map, record.id, record.map)
                yield _CountedObjects(self._map_folder(record.id, record.map), sizes, upload)
            if record.state == "committed":
                at = self._home.releases / record.id
                paths = {f"/{n}": at / n for n in (*record.files, SUMS) if (at / n).is_file()}
                sizes = {name: path.stat().st_size for name, path in paths.items()}
                upload = partial(self.upload_release, record.id, record.files)
                yield _CountedObjects(_name_release_folder(record.id, record.files), sizes, upload)
        for segment in self._ledger.read(sources.read_segments):
            folder = f"labels/{segment.name}/{self._tag(segment.digest)}"
            upload = partial(self._upload_counted_segment, segment)
            yield _CountedObjects(folder, {"": len(self._segments.read_verified(segment))}, upload)

    def _upload_counted_map(self, release_id: str, digest: str) -> None:
        """Upload a map, unless it is not in place yet as the ledger says (`finish_rewriting`)."""
        if self._maps.digest(release_id) == digest:
            self.upload_map(release_id, digest, self._maps.files(release_id))

    def _upload_counted_segment(self, segment: Segment) -> None:
        self.upload_segment(segment.name, segment.digest, self._segments.read_verified(segment))

    def _map_folder(self, release_id: str, digest: str) -> str:
        return f"released/{release_id}/{self._tag(digest)}"

    def _tag(self, digest: str) -> str:
        return self._keys.mac("object-name", digest.encode()).hex()[:32]


def _name_release_folder(release_id: str, hashes: Mapping[str, str]) -> str:
    return f"releases/{release_id}/{_hash_sums(hashes)}"


def _is_release_of(directory: Path, hashes: Mapping[str, str]) -> bool:
    """Return whether a release on disk says that it is of these files."""
    sums = directory / SUMS
    return sums.is_file() and hash_file(sums) == _hash_sums(hashes)


def _hash_sums(hashes: Mapping[str, str]) -> str:
    return hashlib.sha256(format_sums(hashes).encode("ascii")).hexdigest()


def _run_in_parallel(act: Callable[[str], None], names: Iterable[str]) -> None:
    """Do this for each name, several at a time; raise the first error."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(act, names):
            pass
