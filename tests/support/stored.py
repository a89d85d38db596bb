"""Projects on object storage: on one machine, on another, and without a disk."""

import contextlib
import shutil

import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from support.s3 import serve_bucket

import labelguard as lg
from labelguard.project.project import CONFIG, find
from labelguard.storage.object_store import ObjectStore

BUCKET = "maps-here"
ADDRESS = f"s3://{BUCKET}/one"
# Files in place of objects, by the same interface; a server of S3 is not in every environment.
KINDS = ("files", pytest.param("s3", marks=pytest.mark.integration))


class FilesAsObjects:
    """A directory as a store of objects: what is written is whole, and folders need not be made."""

    def __init__(self, directory):
        self._directory = directory
        self._files = SubTreeFileSystem(str(directory), LocalFileSystem())

    def __getattr__(self, name):
        return getattr(self._files, name)

    def open_output_stream(self, name):
        (self._directory / name).parent.mkdir(parents=True, exist_ok=True)
        return self._files.open_output_stream(name)


@contextlib.contextmanager
def serve(kind, tmp_path, patch):
    """A store; answers its objects below the address of projects."""
    if kind == "s3":
        with serve_bucket(patch, BUCKET):
            yield ObjectStore(ADDRESS)
        return
    (tmp_path / "objects").mkdir()
    with patch.context() as inner:
        inner.setattr(ObjectStore, "_filesystem", FilesAsObjects(tmp_path / "objects"))
        yield ObjectStore(ADDRESS)


def contents(store):
    """The bytes of every object, by name."""
    return {name: store.read(name) for name in sorted(store.list())}


def put_back(store, objects):
    """The store has these objects, and no others."""
    store.delete(store.list().keys() - objects.keys())
    for name, data in objects.items():
        store.write(name, data)


def keep_at(home, address=ADDRESS):
    """The project, which is kept at an address from now on."""
    path = home.state / CONFIG
    text = path.read_text().partition("\n[storage]")[0]
    path.write_text(f'{text}\n[storage]\nurl = "{address}"\n')
    return find(home.state)


def begin(directory, patch, ledger="", address=ADDRESS):
    """A new project that is kept in the store, with a ledger that no disk of it takes along."""
    directory.mkdir(parents=True)
    patch.setenv("LABELGUARD_LEDGER_URL", ledger or f"sqlite:///{directory / 'ledger.sqlite3'}")
    home = keep_at(lg.init(directory / "first"), address)
    secret = directory / "project.key"
    shutil.copy(home.keys / "project.key", secret)
    secret.chmod(0o600)
    return home


def move_to_new_machine(home, name, patch):
    """The project on a machine that has its settings and its key, and nothing else of it."""
    directory = home.state.parents[1] / name
    (directory / ".labelguard").mkdir(parents=True, mode=0o700)
    shutil.copy(home.state / CONFIG, directory / ".labelguard" / CONFIG)
    patch.setenv("LABELGUARD_KEY_FILE", str(home.state.parents[1] / "project.key"))
    return find(directory)


def lose_disk(home, name, patch):
    """The same, and the disk of before is gone."""
    other = move_to_new_machine(home, name, patch)
    shutil.rmtree(home.state)
    return other
