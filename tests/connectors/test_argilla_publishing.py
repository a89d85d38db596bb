"""A release in Argilla: published once, completed where it was interrupted, never over another."""

import pytest
from labelguard_connectors.argilla import publishing
from support.argilla import serving_argilla

import labelguard as lg
from labelguard.errors import ConnectorError


@pytest.fixture
def argilla(used_project, monkeypatch):
    """An Argilla that the project of the only release names."""
    monkeypatch.setenv("LABELGUARD_ARGILLA_API_KEY", "key-of-nobody-else")
    with serving_argilla() as fake:
        fake.make("prefs")
        with (used_project.state / "labelguard.toml").open("a") as file:
            file.write(f'\n[connectors.argilla]\nurl = "{fake.url}"\n')
            file.write('dataset = "prefs"\nworkspace = "labelers"\n')
        yield fake


def publish(project, title="pairs", **options):
    return lg.publish("r0001", f"argilla:{title}", project=project.state.parent, **options)


def test_publishing_again_changes_nothing(argilla, used_project):
    first = publish(used_project)
    pairs, written = argilla.records("pairs"), list(argilla.writes)
    assert len(pairs) == lg.load("r0001", project=used_project)["item_id"].n_unique()
    assert first.where == f"{argilla.url}/dataset/{argilla.find('pairs')['id']}/annotation-mode"
    assert publish(used_project) == first
    assert (argilla.records("pairs"), argilla.writes) == (pairs, written)


def test_what_was_interrupted_is_completed(argilla, used_project, monkeypatch):
    publish(used_project, "whole")
    monkeypatch.setattr(publishing, "_RECORDS", 1)
    told = []

    def stop(step, share):
        told.append(share)
        if len(told) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish(used_project, progress=stop)
    before = argilla.records("pairs")
    assert 0 < len(before) < len(argilla.records("whole"))
    publish(used_project)
    after = argilla.records("pairs")
    assert after.keys() == argilla.records("whole").keys()
    assert before.items() <= after.items()  # what was there was not sent again


def test_a_draft_that_was_left_is_made_anew(argilla, used_project):
    release = publish(used_project).release
    draft = argilla.find("pairs")
    draft["status"] = "draft"
    publish(used_project)
    assert argilla.find("pairs")["id"] != draft["id"]
    assert release in argilla.find("pairs")["guidelines"]
    assert argilla.records("pairs")


@pytest.mark.parametrize("status", ["ready", "draft"])
def test_another_data_set_of_that_name_stays_as_it_is(status, argilla, used_project):
    theirs = dict(argilla.make("pairs", status, "Answer kindly."))
    with pytest.raises(ConnectorError, match=r"do not name release r0001.*choose another name"):
        publish(used_project)
    assert argilla.find("pairs") == theirs and not argilla.writes
