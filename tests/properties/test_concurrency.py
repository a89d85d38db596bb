"""Jobs side by side: one works and the others are told; workers change nothing but the time."""

import dataclasses
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from support import databases, world
from support.charges import charge_of
from support.commands import PRIVATIZE
from support.copies import copy_project
from support.preferences import LAYOUTS, dump, files, opinions, pairs, public, write

import labelguard as lg
from labelguard.budget.policy import Policy
from labelguard.cli.main import main
from labelguard.errors import LabelguardError, LedgerError, ProjectBusy
from labelguard.ledger import charges
from labelguard.ledger.ledger import Grant
from labelguard.ledger.records import ReleaseRecord
from labelguard.project.opening import OpenProject
from labelguard.release.writer import ReleaseWriter
from labelguard.report import overview

POLICY = Policy(3.0, 1e-5)
# Seconds after which a process that does not get on fails its test.
PATIENCE = 60


@pytest.fixture
def project(project_on_each):
    """A fresh project, on each database."""
    return project_on_each


@pytest.fixture
def labels(tmp_path):
    asked = public()
    return write(pairs(asked, opinions(len(asked), 1)), tmp_path / "labels.parquet")


@pytest.fixture
def stopped(project, labels):
    """A real `privatize` that was stopped in the middle of its work."""
    command = [sys.executable, "-m", "labelguard", *PRIVATIZE, str(labels)]
    command += ["--epsilon", "3", "--delta", "1e-5", "--project", str(project.state)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + PATIENCE
    while not project.work.exists():  # made once the project is held
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGSTOP)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)  # nothing happens if it has ended
        process.kill()
        process.communicate()


@pytest.mark.parametrize("ledger_url", databases.EACH, indirect=True)
def test_a_second_job_is_told_that_the_project_is_busy_and_changes_nothing(
    stopped, project, labels
):
    before = files(project.state), databases.dump(project.ledger_url)
    arguments = [*PRIVATIZE, str(labels), "--epsilon", "3", "--delta", "1e-5"]
    result = CliRunner().invoke(main, [*arguments, "--project", str(project.state)])
    assert result.exit_code == 4
    assert "another labelguard job works in" in result.stderr
    assert (files(project.state), databases.dump(project.ledger_url)) == before
    looked = CliRunner().invoke(main, ["budget", "show", "--project", str(project.state)])
    assert looked.exit_code == 0  # looking needs no waiting
    stopped.send_signal(signal.SIGCONT)
    _, errors = stopped.communicate(timeout=PATIENCE)
    assert stopped.returncode == 0, errors
    assert lg.privatize(labels, mechanism="rr", epsilon=3, delta=1e-5, project=project).reused


def test_one_of_two_commands_at_once_works_and_the_other_is_told(project, labels):
    def run(_):
        try:
            release = lg.privatize(labels, mechanism="rr", epsilon=3, delta=1e-5, project=project)
        except ProjectBusy:
            return "busy"
        return "reused" if release.reused else "made"

    with ThreadPoolExecutor(4) as pool:
        ends = list(pool.map(run, range(8)))
    assert ends.count("made") == 1 and set(ends) <= {"made", "reused", "busy"}
    assert count_uses(project) == 7
    assert overview.verify(project.state).ok


def ledger(project):
    return OpenProject.open(project.state).ledger


def count_uses(project):
    """Places taken, of all labelers."""
    return sum(int(a.used) for a in overview.read_budget(project.state).allowances)


def event(labels=3, key="aa" * 32):
    return charge_of(key, "rr", {2: labels}, {2: 8}, coins=True)


def test_a_job_that_was_overtaken_can_do_none_of_the_steps_of_a_release(project):
    slow, fast = ledger(project), ledger(project)
    old = slow.begin_job()
    grant = slow.charge(event(), POLICY, old)
    other = slow.charge(event(key="bb" * 32), POLICY, old)
    slow.mark_reading(other, old)
    fast.begin_job()
    before = databases.dump(project.ledger_url)
    for act in (
        lambda: slow.charge(event(key="cc" * 32), POLICY, old),
        lambda: slow.mark_reading(grant, old),
        lambda: slow.mark_drawn(other, old, "0" * 64, 3),
        lambda: slow.commit(other, old, 3, {}),
        lambda: slow.write(old, charges.replace_map_digests, {other.release.id: "0" * 64}),
        lambda: slow.refund_reserved(old, resumed=None),
    ):
        with pytest.raises(LedgerError, match="another job has begun"):
            act()
    assert databases.dump(project.ledger_url) == before


def test_every_job_has_an_epoch_of_its_own(project):
    def begin(_):
        return ledger(project).begin_job()

    with ThreadPoolExecutor(8) as pool:
        epochs = list(pool.map(begin, range(40)))
    assert sorted(epochs) == list(range(1, 41))


def test_the_check_of_the_epoch_and_the_charge_are_one_step(project):
    """Whoever writes has locked the ledger before it looks at it."""
    engine = sa.create_engine(project.ledger_url, isolation_level="AUTOCOMMIT")
    sqlite = engine.dialect.name == "sqlite"
    lock = (
        ["PRAGMA busy_timeout = 0", "BEGIN IMMEDIATE", "ROLLBACK"]
        if sqlite
        else ["BEGIN", "SELECT * FROM meta WHERE name = 'epoch' FOR UPDATE NOWAIT", "ROLLBACK"]
    )

    def try_to_lock():
        with engine.connect() as other:
            for statement in lock:
                other.exec_driver_sql(statement)

    with ledger(project).transaction(), pytest.raises(sa.exc.OperationalError, match="lock"):
        try_to_lock()
    engine.dispose()
    try_to_lock()
    engine.dispose()


def test_a_grant_comes_from_the_ledger_only(project):
    record = ReleaseRecord("r1", 1, "k", 1, "rr", "reserved", "", {}, 0, None, {})
    for seal in (None, object(), True):
        with pytest.raises(LedgerError, match="charge before release"):
            Grant(record, {}, seal)


def test_only_an_unfinished_release_of_the_same_request_is_resumed(project):
    book = ledger(project)
    epoch = book.begin_job()
    granted = book.charge(event(), POLICY, epoch).release
    invented = ReleaseRecord("r9", 9, "k", 1, "rr", "computing", "", {}, 0, None, {})
    for record in (invented, dataclasses.replace(granted, id="r9")):
        with pytest.raises(LedgerError, match="can resume"):
            book.charge(event(), POLICY, epoch, resumed=record)
    with pytest.raises(LedgerError, match="another job"):
        book.charge(event(), POLICY, epoch - 1, resumed=granted)
    assert book.charge(event(), POLICY, epoch, resumed=granted).release == granted
    book.mark_reading(book.charge(event(), POLICY, epoch, resumed=granted), epoch)
    last = book.charge(event(), POLICY, epoch, resumed=granted)
    book.commit(book.mark_drawn(last, epoch, "0" * 64, 3), epoch, 1, {})
    with pytest.raises(LedgerError, match="can resume"):
        book.charge(event(), POLICY, epoch, resumed=granted)


def test_a_release_writer_is_opened_by_a_grant_only(project):
    record = ReleaseRecord("r1", 1, "k", 1, "rr", "computing", "", {}, 0, None, {})
    for pretender in (None, record, "r1"):
        with pytest.raises(LabelguardError, match="charge before release"):
            ReleaseWriter(pretender, project.releases)  # type: ignore[arg-type]
    assert list(project.releases.iterdir()) == []
    keys = ledger(project)
    grant = keys.charge(event(), POLICY, keys.begin_job())
    assert ReleaseWriter(grant, project.releases).final == project.releases / grant.release.id


@pytest.mark.quick("7-pairs")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("workers", [pytest.param(2, marks=pytest.mark.slow), 7])
def test_workers_change_no_byte(workers, layout, tmp_path, monkeypatch):
    world.fix_clock(monkeypatch)
    asked = public(labelers=40, per_labeler=8)
    table = LAYOUTS[layout](asked, opinions(len(asked), 1))
    base = lg.init(tmp_path / "base").state.parent
    worlds = []
    for count in (1, workers):
        here = copy_project(base, tmp_path / f"{count}")
        world.fix_randomness(monkeypatch, world.repeatable_bytes())
        for part in (table.slice(0, 150), table):
            options = {"uses": 2, "exhausted": "drop"}
            lg.privatize(part, epsilon=3, delta=1e-5, project=here, workers=count, **options)
        worlds.append(files(here) | dump(here / ".labelguard"))  # type: ignore[arg-type]
    assert worlds[0] == worlds[1]
