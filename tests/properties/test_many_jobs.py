"""Many processes charge one ledger at its cap: nobody above it, nothing lost, nothing twice.

Also: who lost the ledger's lock can no longer write, and one request has one release.
"""

import dataclasses
import multiprocessing
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import sqlalchemy as sa
from support import databases, world
from support.charges import charge_of
from support.codings import OPTION
from support.commands import PRIVATIZE, run
from support.copies import copy_project
from support.preferences import LAYOUTS, dump, files, opinions, pairs, public, write
from support.releases import make_release

import labelguard as lg
from labelguard.budget.policy import Allowance, Policy
from labelguard.errors import LabelguardError, LedgerError, ProjectBusy
from labelguard.keys.keyring import KeyRing
from labelguard.ledger import charges
from labelguard.ledger import policies as ledger_policies
from labelguard.ledger.ledger import Grant, Ledger
from labelguard.ledger.records import ReleaseRecord
from labelguard.project.opening import OpenProject
from labelguard.release.writer import ReleaseWriter
from labelguard.report import overview

KINDS: tuple[str, ...] = ("rr", "statistic")
PATIENCE = 60
# Places of one event: (kind, labeler) → number.
Asked = dict[tuple[str, int], int]


@dataclass(frozen=True)
class Crowd:
    """So many processes ask for so many random charges of labelers with `places` each."""

    processes: int
    charges: int
    labelers: int
    places: int

    @property
    def policy(self):
        """As many statistic releases as coins: the prices play no role here."""
        allowances = (Allowance("rr", self.places), Allowance("statistic", self.places))
        return Policy(3.0, 1e-5, allowances)


SMALL, FULL = Crowd(3, 12, 4, 6), Crowd(8, 200, 12, 120)


def event(key, kind, labels, places):
    return charge_of(key, kind, labels, dict.fromkeys(labels, places))


def job(url, home, crowd, seed):
    """One process: what it was granted, what it was refused, how often it was overtaken."""
    rng = random.Random(seed)
    ledger = Ledger(url, KeyRing(home / "keys"))
    [policy] = [record.policy for record in ledger.policies.all()]
    granted, refused, overtaken = [], [], 0
    for number in range(crowd.charges):
        kind = rng.choice(KINDS)
        who = rng.sample(range(crowd.labelers), rng.randint(1, 3))
        asked = {labeler: rng.randint(1, 3) for labeler in who}
        wanted = event(f"{seed:032x}{number:032x}", kind, asked, crowd.places)
        places: Asked = {(kind, labeler): count for labeler, count in asked.items()}
        while True:
            try:
                ledger.charge(wanted, policy, ledger.begin_job())
                granted.append(places)
            except LedgerError as error:
                if "another job has begun" in str(error):
                    overtaken += 1
                    time.sleep(rng.expovariate(20))
                    continue
                assert "exceed a labeler's allowance" in str(error)
                refused.append(places)
            break
    return granted, refused, overtaken


def total(parts):
    found: Counter[tuple[str, int]] = Counter()
    for places in parts:
        found.update(places)
    return found


def read_rows(url, query):
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        rows = connection.exec_driver_sql(query).all()
    engine.dispose()
    return Counter(
        {(KINDS[row[0] - 1], int.from_bytes(bytes(row[1]), "big")): int(row[2]) for row in rows}
    )


@pytest.mark.parametrize(
    "crowd", [SMALL, pytest.param(FULL, marks=pytest.mark.slow)], ids=["small", "full"]
)
@pytest.mark.parametrize("ledger_url", databases.EACH, indirect=True)
def test_charges_of_many_processes_never_exceed_an_allowance_and_none_is_lost(
    crowd, ledger_url, tmp_path
):
    keys = KeyRing.create(tmp_path / "keys")
    ledger = Ledger.create(ledger_url, keys)
    ledger.policies.add(None, "both", crowd.policy)
    ledger.policies.activate(ledger.begin_job(), "both")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(crowd.processes, mp_context=context) as pool:
        ends = [
            pool.submit(job, ledger_url, tmp_path, crowd, seed) for seed in range(crowd.processes)
        ]
        outcomes = [end.result() for end in ends]

    granted = [places for outcome in outcomes for places in outcome[0]]
    refused = [places for outcome in outcomes for places in outcome[1]]
    assert len(granted) + len(refused) == crowd.processes * crowd.charges
    taken = total(granted)
    assert max(taken.values()) <= crowd.places and refused
    assert taken == read_rows(ledger_url, "SELECT allowance_id, labeler, used FROM counters")
    assert taken == read_rows(
        ledger_url,
        "SELECT r.allowance_id, c.labeler, sum(c.labels) FROM charges c "
        "JOIN releases r ON r.number = c.release GROUP BY r.allowance_id, c.labeler",
    )
    # Without refunds, what does not fit at the end is all that may have been refused.
    for places in refused:
        assert any(taken[who] + count > crowd.places for who, count in places.items())
    records = ledger.releases.all()
    assert [record.number for record in records] == list(range(1, len(granted) + 1))
    assert len({record.idempotency_key for record in records}) == len(granted)
    assert len(ledger.read_journal()) == 4 - 1 + len(granted)  # created, policy, activated
    assert ledger.find_fault() is None
    assert Ledger(ledger_url, keys).read_head() == ledger.read_head()


@pytest.fixture
def charged(ledger_url, tmp_path):
    """Two connections to one ledger with a policy."""
    keys = KeyRing.create(tmp_path / "keys")
    first = Ledger.create(ledger_url, keys)
    first.write(None, ledger_policies.add_policy, "both", SMALL.policy)
    first.write(first.begin_job(), ledger_policies.activate_draft, "both")
    return first, Ledger(ledger_url, keys)


def test_a_request_that_another_job_has_made_meanwhile_is_not_charged_again(charged):
    """A job may lose its lock between looking for its release and beginning its epoch."""
    slow, fast = charged
    wanted = event("aa" * 32, "rr", {1: 2}, SMALL.places)
    assert slow.releases.find(wanted.idempotency_key) is None
    epoch = fast.begin_job()
    grant = fast.charge(wanted, SMALL.policy, epoch)
    late = slow.begin_job()
    with pytest.raises(LedgerError, match=f"another job has made release {grant.release.id}"):
        slow.charge(wanted, SMALL.policy, late)
    assert slow.releases.labelers("rr").used.tolist() == [2]
    slow.refund_reserved(late, resumed=None)
    slow.charge(wanted, SMALL.policy, late)  # given back: the request may be made anew
    assert slow.releases.labelers("rr").used.tolist() == [2] and slow.find_fault() is None


@pytest.fixture
def rivals(tmp_path):
    with databases.fresh("postgresql", tmp_path) as url:
        keys = KeyRing.create(tmp_path / "keys")
        first = Ledger.create(url, keys)
        first.write(None, ledger_policies.add_policy, "both", SMALL.policy)
        first.write(first.begin_job(), ledger_policies.activate_draft, "both")
        yield url, first, Ledger(url, keys)


def test_a_second_machine_is_told_that_the_ledger_is_busy(rivals):
    _, first, second = rivals
    with first.hold_exclusively():
        with (
            pytest.raises(ProjectBusy, match="another labelguard job works with"),
            second.hold_exclusively(),
        ):
            pass
        second.releases.all()  # looking needs no lock
    with second.hold_exclusively(), pytest.raises(ProjectBusy), first.hold_exclusively():
        pass


def test_who_lost_the_lock_of_the_ledger_cannot_commit_once_another_has_begun(rivals):
    url, first, second = rivals
    with first.hold_exclusively():
        epoch = first.begin_job()
        grant = first.charge(event("aa" * 32, "rr", {1: 2}, SMALL.places), SMALL.policy, epoch)
        first.mark_reading(grant, epoch)
        end_holders(url)
        with second.hold_exclusively():
            later = second.begin_job()
            with pytest.raises(LedgerError, match="another job has begun"):
                first.commit(grant, epoch, 2, {})
            [record] = second.releases.all()
            assert record.state == "computing"
            again = second.charge(
                event("aa" * 32, "rr", {1: 2}, SMALL.places), SMALL.policy, later, resumed=record
            )
            drawn = second.mark_drawn(again, later, "0" * 64, 2)
            second.commit(drawn, later, 2, {})
    assert [record.state for record in second.releases.all()] == ["committed"]
    assert second.releases.labelers("rr").used.tolist() == [2] and second.find_fault() is None
    with first.hold_exclusively():  # the lock was left in order by both
        pass


def end_holders(url):
    """End the sessions that hold the ledger's lock, and wait until they are gone."""
    holders = (
        "FROM pg_locks WHERE locktype = 'advisory' AND database = "
        "(SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        ended = connection.exec_driver_sql(f"SELECT pg_terminate_backend(pid) {holders}").all()
        assert len(ended) == 1
        deadline = time.monotonic() + PATIENCE
        while connection.exec_driver_sql(f"SELECT count(*) {holders}").scalar():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    engine.dispose()


# Jobs side by side: one works and the others are told; workers change nothing but the time.

POLICY = Policy(3.0, 1e-5)
# Seconds after which a process that does not get on fails its test.


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
    command += [*OPTION, "--epsilon", "3", "--delta", "1e-5", "--project", str(project.state)]
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
    price = ("--epsilon", "3", "--delta", "1e-5")
    result = run(*PRIVATIZE, labels, *price, project=project, code=4)
    assert "another labelguard job works in" in result.stderr
    assert (files(project.state), databases.dump(project.ledger_url)) == before
    run("budget", "show", project=project)  # looking needs no waiting
    stopped.send_signal(signal.SIGCONT)
    _, errors = stopped.communicate(timeout=PATIENCE)
    assert stopped.returncode == 0, errors
    assert make_release(labels, mechanism="rr", epsilon=3, delta=1e-5, project=project).reused


def test_one_of_two_commands_at_once_works_and_the_other_is_told(project, labels):
    def run(_):
        try:
            release = make_release(labels, mechanism="rr", epsilon=3, delta=1e-5, project=project)
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


def coins(labels=3, key="aa" * 32):
    return charge_of(key, "rr", {2: labels}, {2: 8}, coins=True)


def test_a_job_that_was_overtaken_can_do_none_of_the_steps_of_a_release(project):
    slow, fast = ledger(project), ledger(project)
    old = slow.begin_job()
    grant = slow.charge(coins(), POLICY, old)
    other = slow.charge(coins(key="bb" * 32), POLICY, old)
    slow.mark_reading(other, old)
    fast.begin_job()
    before = databases.dump(project.ledger_url)
    for act in (
        lambda: slow.charge(coins(key="cc" * 32), POLICY, old),
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
    granted = book.charge(coins(), POLICY, epoch).release
    invented = ReleaseRecord("r9", 9, "k", 1, "rr", "computing", "", {}, 0, None, {})
    for record in (invented, dataclasses.replace(granted, id="r9")):
        with pytest.raises(LedgerError, match="can resume"):
            book.charge(coins(), POLICY, epoch, resumed=record)
    with pytest.raises(LedgerError, match="another job"):
        book.charge(coins(), POLICY, epoch - 1, resumed=granted)
    assert book.charge(coins(), POLICY, epoch, resumed=granted).release == granted
    book.mark_reading(book.charge(coins(), POLICY, epoch, resumed=granted), epoch)
    last = book.charge(coins(), POLICY, epoch, resumed=granted)
    book.commit(book.mark_drawn(last, epoch, "0" * 64, 3), epoch, 1, {})
    with pytest.raises(LedgerError, match="can resume"):
        book.charge(coins(), POLICY, epoch, resumed=granted)


def test_a_release_writer_is_opened_by_a_grant_only(project):
    record = ReleaseRecord("r1", 1, "k", 1, "rr", "computing", "", {}, 0, None, {})
    for pretender in (None, record, "r1"):
        with pytest.raises(LabelguardError, match="charge before release"):
            ReleaseWriter(pretender, project.releases)  # type: ignore[arg-type]
    assert list(project.releases.iterdir()) == []
    keys = ledger(project)
    grant = keys.charge(coins(), POLICY, keys.begin_job())
    assert ReleaseWriter(grant, project.releases).final == project.releases / grant.release.id


@pytest.mark.slow
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
            make_release(part, epsilon=3, delta=1e-5, project=here, workers=count, **options)
        worlds.append(files(here) | dump(here / ".labelguard"))  # type: ignore[arg-type]
    assert worlds[0] == worlds[1]
