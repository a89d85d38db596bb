"""Ray on this machine: the bytes of threads, whoever is killed.

In an environment of its own (`make test-clusters`): it brings versions that others do not take.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support import world
from support.cluster_work import die_once, miss, refuse
from support.codings import OPTION
from support.preferences import OF_MANY, STATISTIC, TABLE, files, write_many_pairs
from support.releases import make_release

import labelguard as lg
from labelguard.errors import LabelguardError
from labelguard.project.opening import OpenProject
from labelguard.report import overview
from labelguard.storage.executor import open_executor, run_over_buckets
from labelguard.storage.portions import PORTION

# Workers find the work of these tests.
os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
pytest.importorskip("ray")
pytestmark = pytest.mark.clusters
BUDGET: dict[str, Any] = {"epsilon": 3, "delta": 1e-5, "once": True}


@pytest.fixture(scope="module")
def ray() -> Any:
    """The engine, started once, and not ended by a release."""
    executor = open_executor("ray", 2)
    vars(executor)["_started"] = False
    return executor


@pytest.fixture
def shards(tmp_path) -> str:
    """Three files of labels, as a glob."""
    (tmp_path / "labels").mkdir()
    frame = pl.DataFrame(TABLE.to_pylist())
    for number in range(3):
        frame[number::3].write_parquet(tmp_path / "labels" / f"{number}.parquet")
    return str(tmp_path / "labels" / "*.parquet")


def release(where: Path, source: Any, patch: pytest.MonkeyPatch, **options: Any) -> Any:
    """Release under fixed randomness; the files of the release and of its private map."""
    world.fix(patch, world.repeatable_bytes())
    project = lg.init(where)
    made = make_release(source, project=project, **BUDGET | options)
    return files(made.path), files(project.private_maps)


@pytest.mark.parametrize(
    "options",
    [{"mechanism": "rr"}, {"mechanism": "rr", "buckets": 128}, STATISTIC],
    ids=["rr", "rr in parts", "statistic"],
)
def test_a_cluster_releases_the_bytes_of_threads(options, ray, shards, tmp_path, monkeypatch):
    here = release(tmp_path / "here", shards, monkeypatch, **options)
    monkeypatch.setattr("labelguard.release.privatize.open_executor", lambda *place: ray)
    assert release(tmp_path / "there", shards, monkeypatch, **options) == here


def test_a_cluster_computes_features_coordinates_and_sums_of_many_pairs(ray, tmp_path, monkeypatch):
    source = write_many_pairs(tmp_path / "labels.parquet", PORTION + 2000)
    here = release(tmp_path / "here", source, monkeypatch, **OF_MANY)
    monkeypatch.setattr("labelguard.release.privatize.open_executor", lambda *place: ray)
    assert release(tmp_path / "there", source, monkeypatch, **OF_MANY) == here


def release_and_score(where: Path, source: str, patch: pytest.MonkeyPatch) -> Any:
    """The files of a release, of the vectors of its texts, and its scored input."""
    patch.setenv("LABELGUARD_CACHE", str(where / "vectors"))
    made = release(where / "project", source, patch, **STATISTIC | {"features": "length+minilm"})
    vectors = files(where / "vectors")
    patch.setenv("LABELGUARD_CACHE", str(where / "vectors of scores"))
    [head] = where.rglob("head.npz")
    return made, vectors, lg.score(head.parent, source).to_dicts()


def test_a_cluster_encodes_and_scores_as_one_process(ray, shards, tmp_path, monkeypatch):
    monkeypatch.setattr("labelguard_trainer.features.encoder._PORTION", 16)
    here = release_and_score(tmp_path / "here", shards, monkeypatch)
    for module in ("release.privatize", "analysis.agreement"):
        monkeypatch.setattr(f"labelguard.{module}.open_executor", lambda *place: ray)
    assert release_and_score(tmp_path / "there", shards, monkeypatch) == here
    assert len(here[1]) > 3


def test_a_worker_that_dies_is_replaced(ray, tmp_path):
    results = run_over_buckets(ray, die_once, tmp_path / "died", count=16)
    assert list(results) == list(range(16))


def test_what_a_worker_finds_wrong_is_said_in_its_words(ray, tmp_path):
    with pytest.raises(LabelguardError, match=r"^refused: why$"):
        list(run_over_buckets(ray, refuse, "why", count=4))
    with pytest.raises(LabelguardError, match=r"does not find .*nowhere"):
        list(run_over_buckets(ray, miss, tmp_path, count=4))


COMMAND = [sys.executable, "-m", "labelguard", "privatize", "--mechanism", "rr", "--once", "--yes"]
COMMAND += ["--epsilon", "3", "--delta", "1e-5", "--accept-little-use", *OPTION]


@pytest.mark.parametrize("delay", [4, 6, 7, 8, 9])
def test_a_coordinator_that_is_killed_is_taken_up_and_charges_once(delay, shards, tmp_path):
    project = lg.init(tmp_path / "project")
    command = [*COMMAND, "--project", str(project.state), shards]
    with subprocess.Popen(
        [*command, "--engine", "ray"], stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        time.sleep(delay)
        with contextlib.suppress(ProcessLookupError):  # it may have come to its end
            os.killpg(process.pid, signal.SIGKILL)
    made = make_release(shards, project=project, mechanism="rr", **BUDGET)
    assert made.card["counts"]["rows"] == len(TABLE)
    assert overview.verify(project.state).ok
    [one] = [line for line in overview.list_releases(project.state) if line.state == "committed"]
    assert one.id == made.id
    table = OpenProject.open(project).ledger.releases.labelers("rr")
    assert set(table.used.tolist()) == {1}
