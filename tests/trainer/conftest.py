"""Models and releases that are made once, and a directory of its own for each test."""

from pathlib import Path

import pytest
from support import tiny_models, train_runs


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """The path of a language model that knows nothing yet."""
    return str(tiny_models.saved(tmp_path_factory.mktemp("base") / "base"))


@pytest.fixture(scope="session")
def shop(tmp_path_factory):
    """A directory with a base model, labels, probes, configurations and releases."""
    return train_runs.workshop(tmp_path_factory.mktemp("workshop"))


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def beside(shop):
    """Work in a directory with the shop's files."""
    for path in shop.iterdir():
        Path(path.name).symlink_to(path)
