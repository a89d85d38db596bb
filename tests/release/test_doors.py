"""Mechanisms and executors of other packages come in by the doors that ours come in by."""

import pickle
import sys
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support import world
from support.commands import FIRST
from support.doors import install
from support.preferences import STATISTIC, TABLE, files, write

import labelguard as lg
from labelguard.cli.main import main
from labelguard.errors import LabelguardError
from labelguard.keys.coins import Coins, Purpose
from labelguard.keys.keyring import KeyRing
from labelguard.storage.executor import Threads, open_executor

BUDGET: dict[str, Any] = {"epsilon": 3, "delta": 1e-5}

MECHANISM = """
from dataclasses import dataclass, field, replace
from typing import ClassVar

from labelguard.options import option


@dataclass(frozen=True)
class door:
    mechanism: ClassVar[str] = "stamped_part:open_mechanism"
    stamp: int = option("What is stamped.", default=1, metavar="N")


def open_mechanism(options):
    from labelguard.release.mechanisms.rr import RandomizedResponse

    class Stamped(RandomizedResponse):
        name, version = "stamped", 7

        def settings(self):
            return {"stamp": options.stamp}

        def finish(self, job, prepared, grant):
            path = job.opened.project.work / "stamp.txt"
            path.write_text(str(options.stamp))
            return replace(super().finish(job, prepared, grant), files=(path,))

    return Stamped()
"""

EXECUTOR = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from functools import partial

MAPS = []
POOL = ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))


class door:
    def __init__(self, workers):
        self.workers = workers

    def map(self, work, task, buckets):
        MAPS.append(work.__name__)
        assert "secret" not in repr(task).lower()
        return POOL.map(partial(work, task), buckets, chunksize=8)
"""


def test_a_mechanism_of_another_package_releases_with_its_options(tmp_path, monkeypatch):
    install(tmp_path / "site", "labelguard.mechanisms", "stamped", MECHANISM, monkeypatch)
    write(TABLE, tmp_path / "labels.parquet")
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        made = CliRunner().invoke(main, ["privatize", *arguments], catch_exceptions=False)
        return made.output

    shown = run("--help")
    assert (
        "rr|aup|els|els-group|evaluation|props|stamped|statistic|uls|auto" in shown
        and "stamped: What is stamped." in shown
    )
    project = lg.init(tmp_path)
    asked = ["labels.parquet", "--epsilon", "3", "--delta", "1e-5", "--stamp", "3", *FIRST]
    assert "--stamp does not go with --mechanism rr" in run(*asked, "--mechanism", "rr")
    run(*asked, "--mechanism", "stamped", "-o", "out")
    assert (tmp_path / "out" / "stamp.txt").read_text() == "3"
    again = lg.privatize(TABLE, project=project, mechanism="stamped", stamp=3)
    assert again.reused and again.card["mechanism"] == "stamped"
    assert again.card["mechanism_version"] == 7 and "forward" in again.card["train_with"]
    assert not lg.privatize(TABLE, project=project, mechanism="stamped", stamp=4).reused


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"mechanism": "rr"}, STATISTIC], ids=["rr", "statistic"])
def test_processes_release_the_same_bytes_as_threads(options, tmp_path, monkeypatch):
    install(tmp_path / "site", "labelguard.executors", "processes", EXECUTOR, monkeypatch)
    seen, release = [], None
    for name in ("", "processes"):
        monkeypatch.setenv("LABELGUARD_EXECUTOR", name)
        world.fix(monkeypatch, world.repeatable_bytes())
        project = lg.init(tmp_path / f"by-{name}")
        release = lg.privatize(TABLE, project=project, **BUDGET | options)
        seen.append((files(release.path), files(project.private_maps)))
    assert seen[0] == seen[1] and "data.parquet" in seen[0][0] and len(seen[0][1]) > 3
    maps = sys.modules["processes_part"].MAPS
    assert maps[:2] == ["_sort", "select"] and maps[-1] == "rows_of_bucket"
    assert {"randomize_bucket", "note_labels"} & set(maps)
    sys.modules.pop("processes_part").POOL.shutdown()


def test_the_executor_is_named_by_the_environment(monkeypatch):
    monkeypatch.delenv("LABELGUARD_EXECUTOR", raising=False)
    assert open_executor(3) == Threads(3)
    monkeypatch.setenv("LABELGUARD_EXECUTOR", "threads")
    assert open_executor(2) == Threads(2)
    monkeypatch.setenv("LABELGUARD_EXECUTOR", "cluster")
    with pytest.raises(LabelguardError, match=r"no executor .cluster.; available:.*threads"):
        open_executor()


def test_keys_and_coins_travel_to_workers_without_showing_themselves(tmp_path):
    rows = np.arange(8, dtype=np.uint64).reshape(4, 2)
    nonce = world.fixed_bytes(32)
    coins, keys = Coins(nonce), KeyRing.create(tmp_path / "keys").row_keys()
    sent: tuple[Any, ...] = (coins, keys)
    there = pickle.loads(pickle.dumps(sent))
    assert (there[0].draw(Purpose.ORDER, rows) == coins.draw(Purpose.ORDER, rows)).all()
    assert (there[1].identify(rows, rows) == keys.identify(rows, rows)).all()
    assert repr(sent) == "(Coins(…), RowKeys(…))"
    assert repr(nonce)[2:10] not in repr(vars(coins))
