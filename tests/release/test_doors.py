"""Mechanisms and executors of other packages come in by the doors that ours come in by."""

import pickle
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support import world
from support.commands import FIRST
from support.doors import install
from support.preferences import TABLE, write

import labelguard as lg
from labelguard.cli.main import main
from labelguard.errors import LabelguardError
from labelguard.keys.keyring import Coins, KeyRing, Purpose
from labelguard.storage.executor import Threads, open_executor

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


def test_an_engine_is_found_by_its_name():
    assert open_executor("local", 3) == open_executor(workers=3) == Threads(3)
    with pytest.raises(LabelguardError, match=r"no engine .cluster.; available: local, processes,"):
        open_executor("cluster")
    for engine in ("local", "processes"):
        with pytest.raises(
            LabelguardError, match="--address goes with an engine of several machines"
        ):
            open_executor(engine, address="auto")


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
