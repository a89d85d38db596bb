"""A directory with people's records, and one in which a recipe was followed, made once."""

import shutil
from pathlib import Path

import pytest
from support.whole_records import follow, write_all

import labelguard as lg


@pytest.fixture
def records(base):
    """A directory with a base model, records in three parts, and a project."""
    Path("base").symlink_to(base)
    write_all()
    lg.init("project")


@pytest.fixture(scope="session")
def _build_alignment(base, tmp_path_factory):
    home = tmp_path_factory.mktemp("records")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(home)
        Path("base").symlink_to(base)
        write_all()
        lg.init("project")
        follow("aligned")
    return home


@pytest.fixture
def aligned(_build_alignment):
    """A copy of a directory in which the recipe was followed, to work in."""
    for path in _build_alignment.iterdir():
        if path.is_symlink():
            Path(path.name).symlink_to(path.resolve())
        elif path.is_dir():
            shutil.copytree(path, path.name)
        else:
            shutil.copy2(path, path.name)
