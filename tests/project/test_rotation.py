"""New pseudonyms: nobody is charged otherwise, no label changes, and no crash loses a name."""

from __future__ import annotations

import shutil
import signal
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from support import databases, world
from support.crashes import crash
from support.databases import KINDS
from support.lives import PRICE, TABLE
from support.preferences import dump, files

import labelguard as lg
from labelguard.cli.project import project as project_commands
from labelguard.errors import KeyProblem, LedgerError
from labelguard.keys.keyring import KeyRing
from labelguard.project import policies
from labelguard.project.opening import OpenProject
from labelguard.project.project import Project, find
from labelguard.project.rotation import rotate
from labelguard.report import overview
from labelguard.storage import blocks


@pytest.fixture
def project(lived: Project) -> Project:
    """A project with one release of 50 labels."""
    return lived


def pseudonyms(rows: databases.Tables) -> set[object]:
    """All names in a ledger's tables."""
    return {
        name
        for table in ("counters", "charges", "members", "tombstones")
        for row in rows[table]
        for name in row
        if isinstance(name, bytes)
    }


def without_names(rows: databases.Tables) -> dict[str, list[list[object]]]:
    """The tables with every name as the order of its first appearance tells nothing: left out."""
    return {
        table: sorted([value for value in row if not isinstance(value, bytes)] for row in found)
        for table, found in rows.items()
        if table not in ("journal", "meta")
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_changes_and_nothing_else(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        databases.fresh(kind, tmp_path) as url,
        databases.project_on(url, tmp_path / "project", monkeypatch) as home,
    ):
        groups = pa.table({"labeler_id": ["worker 1", "worker 2"], "group_id": ["a", "a"]})
        lg.privatize(TABLE.slice(0, 50), **PRICE, project=home)
        _in_groups(home, tmp_path, groups)
        keys = KeyRing(home.keys)
        ledger = OpenProject.open(home).ledger
        ledger.bury(keys.labeler_keys(home.namespace, ["worker 3"]), "retired", ledger.begin_job())
        before = databases.dump(url)
        known = [ledger.labelers("rr"), ledger.members(), ledger.tombstones()]
        assert rotate(home).renamed == 7
        after = databases.dump(url)
        assert pseudonyms(before).isdisjoint(pseudonyms(after))
        assert without_names(before) == without_names(after)
        assert len(after["journal"]) == len(before["journal"]) + 1
        assert overview.verify(home.state).ok
        ledger = OpenProject.open(home).ledger
        found = [ledger.labelers("rr"), ledger.members(), ledger.tombstones()]
        np.testing.assert_equal(
            [vars(known[0]), known[1], known[2]], [vars(found[0]), found[1], found[2]]
        )
        lg.privatize(TABLE, **PRICE, exhausted="drop", project=home)
        assert overview.verify(home.state).ok


def _in_groups(home: Project, directory: Path, groups: pa.Table) -> None:
    """Groups of labelers who were not charged (anything else is refused)."""
    import pyarrow.csv as csv

    csv.write_csv(
        pa.table({"labeler_id": ["new 1", "new 2"], "group_id": groups["group_id"]}),
        directory / "groups.csv",
    )
    policies.add_groups(directory / "groups.csv", home)


@pytest.mark.parametrize("table", ["charges", "members", "tombstones"])
def test_the_new_digests_are_checked(table: str, project: Project, tmp_path: Path) -> None:
    keys = KeyRing(project.keys)
    ledger = OpenProject.open(project).ledger
    _in_groups(project, tmp_path, pa.table({"group_id": ["a", "b"]}))
    ledger.bury(keys.labeler_keys(project.namespace, ["worker 3"]), "erased", ledger.begin_job())
    rotate(project)
    assert overview.verify(project.state).ok
    with sqlite3.connect(project.state / "ledger.sqlite3") as connection:
        connection.execute(
            f"UPDATE {table} SET labeler = zeroblob(16) WHERE labeler = "
            f"(SELECT min(labeler) FROM {table})"
        )
        if table == "charges":
            connection.execute(
                "UPDATE counters SET labeler = zeroblob(16) WHERE labeler = "
                "(SELECT min(labeler) FROM counters)"
            )
    verdict = overview.verify(project.state)
    assert not verdict.ok and table in verdict.fault


def test_a_release_after_it_has_the_bytes_of_one_without(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(project.state, tmp_path / "other" / ".labelguard")
    other = find(tmp_path / "other")
    rotate(project)
    world.fix_randomness(monkeypatch)
    first, second = (lg.privatize(TABLE, **PRICE, project=home) for home in (project, other))
    assert first.id == second.id
    assert (first.path / "data.parquet").read_bytes() == (second.path / "data.parquet").read_bytes()
    assert files(project.released) == files(other.released)


def test_a_crashed_release_is_resumed_after_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("labelguard.release.run.Run._draw", fails)
        with pytest.raises(Exception, match="cannot write"):
            lg.privatize(TABLE, **PRICE, project=project)
    rotate(project)
    lg.privatize(TABLE, **PRICE, project=project)
    assert [r.state for r in overview.releases(project.state)] == ["committed"] * 2
    assert overview.verify(project.state).ok


def test_an_old_name_finds_nobody(project: Project) -> None:
    old = overview.labeler("worker 1", project.state)
    rotate(project)
    new = overview.labeler("worker 1", project.state)
    assert new.pseudonym != old.pseudonym and new.allowances == old.allowances
    assert overview.labeler(new.pseudonym, project.state) == new
    with pytest.raises(LedgerError, match="has been charged"):
        overview.labeler(old.pseudonym, project.state)


def test_names_can_change_again_and_again(project: Project) -> None:
    seen = set()
    for _ in range(3):
        seen.add(overview.labeler("worker 1", project.state).pseudonym)
        rotate(project)
    assert len(seen) == 3
    assert overview.verify(project.state).ok
    lg.privatize(TABLE, **PRICE, project=project)
    assert overview.verify(project.state).ok
    assert not (project.keys / "pseudonyms.new").exists()
    assert (project.keys / "pseudonyms").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("unit", ["item", "labeler"])
def test_units_and_refunds_survive_it(unit: Any, tmp_path: Path) -> None:
    home = lg.init(tmp_path / "project")
    lg.privatize(TABLE, mechanism="rr", epsilon=1, delta=1e-6, unit=unit, project=home)
    with sqlite3.connect(home.state / "ledger.sqlite3") as connection:
        assert connection.execute("SELECT count(*) FROM charges").fetchone()[0] > 0
    rotate(home)
    assert overview.verify(home.state).ok


def test_who_opened_the_ledger_before_cannot_write_the_old_names(project: Project) -> None:
    stale = OpenProject.open(project).ledger
    rotate(project)
    before = dump(project.state)
    with pytest.raises(KeyProblem, match="pseudonyms"):
        stale.begin_job()
    assert dump(project.state) == before


def test_the_secret_of_other_names_is_refused(project: Project) -> None:
    rotate(project)
    old = (project.keys / "pseudonyms").read_bytes()
    rotate(project)
    for content in (old, None):
        (project.keys / "pseudonyms").unlink()
        if content:
            (project.keys / "pseudonyms").write_bytes(content)
            (project.keys / "pseudonyms").chmod(0o600)
        with pytest.raises(KeyProblem, match=r"keys/pseudonyms; .*restore that file"):
            overview.verify(project.state)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rotated", [False, True])
def test_a_crash_at_any_step_leaves_the_old_names_or_the_new(
    rotated: bool, every: int, project: Project, tmp_path: Path
) -> None:
    if rotated:
        rotate(project)
    allowances = overview.labeler("worker 1", project.state).allowances
    old = overview.labeler("worker 1", project.state).pseudonym
    outcomes, step, died = set(), 1, True
    while died:
        shutil.copytree(project.state, tmp_path / f"{step}" / ".labelguard")
        home = find(tmp_path / f"{step}")
        [end] = crash({"do": "rotate", "project": str(home.state.parent), "kill_at": step})
        died = end["signal"] == signal.SIGKILL
        assert died or not end["error"], end
        assert overview.verify(home.state).ok
        found = overview.labeler("worker 1", home.state)
        assert found.allowances == allowances
        outcomes.add(found.pseudonym == old)
        rotate(home)
        assert lg.privatize(TABLE.slice(0, 50), **PRICE, project=home).reused
        assert overview.verify(home.state).ok
        assert not (home.keys / "pseudonyms.new").exists()
        step += every
    assert outcomes == {True, False} and step > 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_million_names_change_in_a_ledger(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from labelguard.ledger.records import Charge
    from labelguard.policy.policy import Allowance, Policy

    count = 1_000_000
    with (
        databases.fresh(kind, tmp_path) as url,
        databases.project_on(url, tmp_path / "project", monkeypatch) as home,
    ):
        ledger = OpenProject.open(home).ledger
        labelers = np.random.default_rng(1).integers(0, 1 << 63, (count, 2), dtype=np.uint64)
        labelers = labelers[blocks.order(labelers)]
        eight = np.full(count, 8)
        price = {8: {"threshold": 1}}
        event = Charge("rr", "rr", "a" * 64, {"mechanism": "rr"}, labelers, eight, eight, price)
        policy = Policy(1.0, 1e-6, (Allowance("rr", 8),))
        ledger.charge(event, policy, ledger.begin_job())
        assert rotate(home).renamed == count
        assert overview.verify(home.state).ok


def test_the_command_says_what_it_did(project: Project) -> None:
    arguments = ["rotate-pseudonyms", "--project", str(project.state)]
    result = CliRunner().invoke(project_commands, arguments)
    assert result.exit_code == 0 and "7 pseudonyms in the ledger" in result.output
    result = CliRunner().invoke(project_commands, [*arguments, "--json"])
    assert result.exit_code == 0 and '"renamed": 7' in result.output
