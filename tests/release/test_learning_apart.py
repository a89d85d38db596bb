"""While a learner trains others have the project: what they may do, what a release survives."""

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from support import commands, doors, world
from support.commands import FIRST
from support.doors import install
from support.gated import BUDGET, PATIENCE, labels
from support.preferences import TABLE, spent, write
from support.releases import make_release

import labelguard as lg
from labelguard.errors import LabelguardError, LedgerError, PolicyError, ProjectBusy
from labelguard.keys.keyring import Coins, KeyRing, Purpose
from labelguard.project import backup, policies
from labelguard.project.opening import abandon
from labelguard.release.mechanisms.props import describe_differences
from labelguard.report import doctor, overview
from labelguard.storage.executor import Threads, open_executor

CEILING = 60


def states(project):
    return [line.state for line in overview.list_releases(project.state)]


def test_another_release_is_made_while_one_learns(project_on_each, gates, tmp_path):
    project, raw = project_on_each, labels()
    budget = {"epsilon": 3.0}
    with gates.learning(raw, project, **budget) as learning:
        assert states(project) == ["drawn"]
        used = spent(project)
        other = make_release(raw, project=project, mechanism="rr", **BUDGET | budget)
        assert spent(project) == used and other.card["counts"]["charged"] == 0
        assert [note for note in other.notes if "is being computed by another process" in note]
        assert overview.verify(project.state).ok
        assert all(finding.ok for finding in doctor.check_installation(project))
        assert backup.backup(tmp_path / "backup.tar.zst", project=project).unfinished
        assert not learning.done()
    learned = learning.result(PATIENCE)
    assert states(project) == ["committed", "committed"] and overview.verify(project.state).ok
    assert learned.card["counts"]["charged"] == used == spent(project)
    assert lg.load(learned).height == lg.load(other).height
    assert not list(project.stages.iterdir())
    assert make_release(raw, project=project, **gates.options | budget).reused


def test_it_is_computed_once_and_given_up_by_nobody(project, gates):
    raw = labels()
    with gates.learning(raw, project) as learning:
        [line] = overview.list_releases(project.state)
        for act in (
            lambda: make_release(raw, project=project, **gates.options),
            lambda: abandon(line.id, project),
        ):
            with pytest.raises(ProjectBusy, match=f"{line.id} is being computed by another"):
                act()
        assert states(project) == ["drawn"]
    assert learning.result(PATIENCE).id == line.id


@pytest.mark.slow
def test_its_terms_do_not_change_meanwhile(project, gates):
    with gates.learning(labels(), project) as learning:
        policies.new("later", project=project, allow=["rr:uses=4,block=1"], epsilon=2.0, delta=1e-6)
        with pytest.raises(ProjectBusy, match="is being computed by another process"):
            policies.activate("later", project)
    assert learning.result(PATIENCE).card["privacy"]["policy"] == "first"
    assert policies.activate("later", project).activates == "later"


@pytest.mark.slow
def test_the_card_counts_what_was_charged_when_its_labels_were_drawn(project, gates):
    more = labels().with_columns(prompt=pl.col("prompt") + "?").group_by("labeler_id").head(2)
    with gates.learning(labels(), project, uses=24, block=1) as learning:
        other = make_release(more, project=project, mechanism="rr")
        assert other.card["budget"]["used"]["max"] == 22
    assert learning.result(PATIENCE).card["budget"]["used"]["max"] == 20


def test_a_learner_that_refuses_costs_nothing(project, gates):
    with pytest.raises(PolicyError, match="gated takes a --model"):
        make_release(labels(), project=project, **gates.options | {"model": None})
    assert states(project) == []


@pytest.mark.slow
def test_a_release_goes_on_with_the_learner_that_it_was_begun_with(
    project, gates, tmp_path, monkeypatch
):
    source = write(labels().to_arrow(), tmp_path / "labels.parquet")
    gates.close(0)
    process = gates.process(source, project)
    try:
        gates.wait_at(0, lambda: process.poll() is None)
    finally:
        process.kill()
        process.communicate()
    gates.open(0)
    module = gates.site / "gated_part.py"
    own = module.read_text()
    # Of another length: Python tells by time in seconds and size whether it has to compile anew.
    module.write_text(own.replace('"base": "bytes"', '"base": "whole words"'))
    only = 'begun with the gated base "bytes"; found base "whole words"; restore'
    with pytest.raises(LedgerError, match=only):
        make_release(source, project=project, **gates.options)
    monkeypatch.delitem(sys.modules, "gated_part")
    module.write_text(own)
    assert make_release(source, project=project, **gates.options).card["kind"] == "model"


def test_of_settings_with_which_a_release_was_begun_those_that_differ_are_named():
    training = {"beta": 0.1, "epochs": 3}
    told = describe_differences(
        {"lora": None, "training": training}, {"lora": None, "training": {"beta": 1}}
    )
    assert told == (
        "training.beta 0.1, training.epochs 3",
        "training.beta 1, training.epochs not set",
    )
    assert describe_differences({"training": {}}, {}) == ("training {}", "training not set")
    assert describe_differences({"sizes": [1, 2]}, {"sizes": (1, 2)}) == ("", "")


# Mechanisms and executors of other packages come in by the doors that ours come in by.

MECHANISM = Path(doors.__file__).with_name("stamped_mechanism.py").read_text(encoding="utf-8")


def test_a_mechanism_of_another_package_releases_with_its_options(tmp_path, monkeypatch):
    install(tmp_path / "site", "labelguard.mechanisms", "stamped", MECHANISM, monkeypatch)
    write(TABLE, tmp_path / "labels.parquet")
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        return commands.run("privatize", *arguments, code=None).output

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
    again = make_release(TABLE, project=project, mechanism="stamped", stamp=3)
    assert again.reused and again.card["mechanism"] == "stamped"
    assert again.card["mechanism_version"] == 7 and "forward" in again.card["train_with"]
    assert not make_release(TABLE, project=project, mechanism="stamped", stamp=4).reused


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
