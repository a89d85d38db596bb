"""Promoted models in a real MLflow, where it is installed: a version each, and the alias."""

import shutil

import pytest
from support.job_projects import desk

from labelguard.jobs import models as model_registry
from labelguard.jobs.run import retrain

mlflow = pytest.importorskip("mlflow")


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return (tmp_path / "mlruns").as_uri()


def registering(here, store):
    return desk(here / "desk", promote={"mlflow": {"model": "preferences", "uri": store}})


def versions(store):
    found = mlflow.MlflowClient(store, store).search_model_versions("name = 'preferences'")
    return sorted(found, key=lambda one: int(one.version))


def test_every_promoted_model_is_a_version_and_the_alias_is_in_use(store, tmp_path):
    small = registering(tmp_path, store)
    for batch in (2, 3):
        retrain(small.job)
        small.label(batch)
    one, two = versions(store)
    assert one.tags["labelguard.model"] == "job/0001" and two.tags["labelguard.epsilon"] == "3.0"
    client = mlflow.MlflowClient(store, store)
    assert client.get_model_version_by_alias("preferences", "current").version == two.version
    files = {entry.path for entry in client.list_artifacts(two.run_id, "model")}
    assert files == {"model/head.npz", "model/TRAINING_CARD.md"}


def test_a_run_that_is_taken_up_registers_its_model_once(store, tmp_path, monkeypatch):
    small = registering(tmp_path, store)

    class Killed(BaseException):
        pass

    def fatal(*arguments):
        register(*arguments)
        raise Killed

    register = model_registry.register_in_mlflow
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(model_registry, "register_in_mlflow", fatal)
        retrain(small.job)
    assert retrain(small.job).outcome == "promoted"
    assert len(versions(store)) == 1


def in_use(store):
    client = mlflow.MlflowClient(store, store)
    return client.get_model_version_by_alias("preferences", "current")


def test_a_number_that_is_given_again_is_another_version(store, tmp_path):
    small = registering(tmp_path, store)
    retrain(small.job)
    shutil.rmtree(small.models)
    assert retrain(small.job).model == "0001" and len(versions(store)) == 1  # it is the same
    shutil.rmtree(small.models)
    small.label(2)
    assert (done := retrain(small.job)).model == "0001"
    assert in_use(store).tags["labelguard.release"] == done.release


def test_two_projects_have_versions_of_their_own(store, tmp_path):
    for name in ("one", "other"):
        small = registering(tmp_path / name, store)
        release = retrain(small.job).release
        assert in_use(store).tags["labelguard.release"] == release
    assert len(versions(store)) == 2


def test_a_registry_that_is_down_stops_no_promotion_and_hears_of_it_later(store, tmp_path):
    (tmp_path / "mlruns").touch()
    small = registering(tmp_path, store)
    done = retrain(small.job)
    assert (done.outcome, done.model) == ("promoted", "0001")
    log = small.state / "errors.log"
    assert "promote.mlflow: MLflow refused it" in done.notes[0] and str(log) in done.notes[0]
    assert "direct cause" in log.read_text() and log.stat().st_mode & 0o777 == 0o600
    (tmp_path / "mlruns").unlink()
    assert (retrain(small.job).outcome, len(versions(store))) == ("unchanged", 1)
