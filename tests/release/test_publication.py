"""A release at the Hub, at S3 and in a directory: the committed files, and nothing else."""

from __future__ import annotations

import pytest
from support import hub as hubs

import labelguard as lg
from labelguard.project.opening import OpenProject
from labelguard.storage.files import hashes_of

NAME = "org/preferences"
FILES = {"CARD.md", "README.md", "SHA256SUMS", "card.json", "data.parquet"}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with hubs.running() as running:
        hubs.point_to(running, monkeypatch, tmp_path)
        yield running


@pytest.fixture
def released(lived):
    """The only release of a project: its id and its directory."""
    [record] = OpenProject.open(lived).ledger.releases.all()
    return record.id, OpenProject.open(lived).project.releases / record.id


def contents(directory):
    return {name: (directory / name).read_bytes() for name in hashes_of(directory)}


def test_the_hub_gets_the_committed_files_and_the_card_as_readme(lived, released, hub):
    name, directory = released
    published = lg.publish("r0001", f"hf:{NAME}", project=lived)
    assert published.release == name and published.where == f"{hub.url}/datasets/{NAME}"
    repository = hub.dataset(NAME)
    assert repository.private and repository.titles == [f"Release {name}"]
    card = (directory / "CARD.md").read_bytes()
    del repository.files[".gitattributes"]
    assert repository.files == {**contents(directory), "README.md": card}
