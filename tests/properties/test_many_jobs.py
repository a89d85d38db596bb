"""Many processes charge one ledger at its cap: nobody above it, nothing lost, nothing twice.

Also: who lost the ledger's lock can no longer write, and one request has one release.
"""

import multiprocessing
import random
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import pytest
import sqlalchemy as sa
from support import databases
from support.charges import charge_of

from labelguard.budget.policy import Allowance, Policy
from labelguard.errors import LedgerError, ProjectBusy
from labelguard.keys.keyring import KeyRing
from labelguard.ledger import policies as ledger_policies
from labelguard.ledger.ledger import Ledger

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
    ledger = Ledger(url, KeyRing(home / "keys"), [home / f"head {seed}"])
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
    heads = [tmp_path / f"head {seed}" for seed in range(crowd.processes)]
    keys = KeyRing.create(tmp_path / "keys")
    ledger = Ledger.create(ledger_url, keys, heads)
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
    assert Ledger(ledger_url, keys, heads).read_head() == ledger.read_head()  # all hold


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
