"""The ledger against a model of dictionaries, through random lives with crashes at every commit."""

import contextlib
import functools
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import sqlalchemy as sa
import sqlalchemy.engine.default
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support import databases
from support.charges import charge_of

from labelguard.budget import pricing
from labelguard.budget.policy import Allowance, Policy
from labelguard.errors import LedgerError, PolicyError
from labelguard.keys.keyring import KeyRing
from labelguard.ledger import schema
from labelguard.ledger.ledger import Grant, Ledger
from labelguard.ledger.policies import Ceiling
from labelguard.storage import blocks

LABELERS = 4
# A change is done, or its process dies just before or just after the commit.
FATES = st.sampled_from(["done", "done", "done", "before", "after"])
ASKED = st.dictionaries(
    st.integers(0, LABELERS - 1), st.sampled_from([1, 1, 1, 2, 4]), min_size=1, max_size=2
)
KINDS: tuple[str, ...] = ("rr", "statistic")
quote = functools.cache(pricing.compute_quote)  # a price is a function of the policy
HIGH = Ceiling(1e6, 0.9)
POLICIES = (
    Policy(3.0, 1e-5, (Allowance("rr", 5), Allowance("statistic", 2))),
    Policy(1.0, 1e-6, (Allowance("rr", 3),)),
    Policy(2.0, 1e-5, (Allowance("statistic", 3),), ties="zero"),
)
# Of a first release, which stores it and its price with the charge.
IMPLICIT = Policy(3.0, 1e-5, (Allowance("rr", 4),))


# What a release takes, in order.
STEPS = ("charge", "start", "draw", "commit")


class Died(BaseException):
    """The process ended here."""


@contextlib.contextmanager
def dying(fate):
    """The first commit within is the process's last act, or almost."""
    whole = sqlalchemy.engine.default.DefaultDialect.do_commit
    if fate == "done":
        yield
        return

    def commit(dialect, connection):
        if fate == "after":
            whole(dialect, connection)
        raise Died

    with patch.object(sqlalchemy.engine.default.DefaultDialect, "do_commit", commit):
        yield


@dataclass
class Book:
    """A policy in the model."""

    policy: Policy
    state: str = "draft"
    used: Counter[tuple[str, int]] = field(default_factory=Counter)

    def places(self, kind):
        return self.policy.allowance(kind).allowed


@dataclass
class Made:
    """A release in the model."""

    book: str
    kind: str
    key: str
    asked: dict[int, int]
    state: str = "reserved"
    map: str | None = None


class LedgerMachine(RuleBasedStateMachine):
    """What commands do to a ledger, in any order; the model is told only what must be true."""

    def __init__(self):
        super().__init__()
        self.books: dict[str, Book] = {}
        self.made: list[Made] = []
        self.grants: dict[int, Grant] = {}
        self.gone: dict[int, str] = {}
        self.close = contextlib.ExitStack()
        self.url = self.new_url()
        self.epoch = 0
        self.close.enter_context(patch.object(pricing, "compute_quote", quote))

    def new_url(self):
        shm = Path("/dev/shm")
        directory = Path(tempfile.mkdtemp(prefix="lg-", dir=shm if shm.is_dir() else None))
        self.close.callback(shutil.rmtree, directory)
        self.keys = KeyRing.create(directory / "keys")
        return f"sqlite:///{directory / 'ledger.sqlite3'}"

    @initialize(policy=st.sampled_from([None, POLICIES[0], *POLICIES]))
    def create(self, policy):
        Ledger.create(self.url, self.keys, HIGH)
        self.reopen()
        if policy:
            self.new_policy(policy, "a", "done")
            self.new_policy(POLICIES[0], "b", "done")
            self.activate("a", "done")

    def teardown(self):
        if hasattr(self, "ledger"):
            self.the_lifetime_total_is_the_sum_of_what_was_in_force()
            self.ledger._engine.dispose()
        self.close.close()

    def reopen(self):
        """A new process: nothing is known but what is stored."""
        if hasattr(self, "ledger"):
            self.ledger._engine.dispose()
        self.ledger = Ledger(self.url, self.keys)
        self.grants.clear()
        self.epoch = self.ledger.begin_job()

    def act(self, fate, change):
        """Whether the change is stored, and what it answered, if its process lives."""
        try:
            with dying(fate):
                answer = change()
        except Died:
            self.reopen()
            return fate == "after", None
        return True, answer

    @property
    def active(self):
        return next((name for name, book in self.books.items() if book.state == "active"), None)

    def record(self, number):
        [found] = [record for record in self.ledger.releases.all() if record.number == number]
        return found

    def numbers(self, *states):
        return [n for n, made in enumerate(self.made, 1) if made.state in states]

    # Policies

    @rule(policy=st.sampled_from(POLICIES), fate=FATES)
    def replace_policy(self, policy, fate):
        name = f"p{len(self.books)}"
        self.new_policy(policy, name, "done")
        self.activate(name, fate)

    @rule(policy=st.sampled_from(POLICIES), name=st.sampled_from("abc"), fate=FATES)
    def new_policy(self, policy, name, fate):
        if name in self.books:
            with pytest.raises(PolicyError, match="there is a policy"):
                self.ledger.policies.add(None, name, policy)
        elif self.act(fate, lambda: self.ledger.policies.add(None, name, policy))[0]:
            self.books[name] = Book(policy)

    @rule(name=st.sampled_from("abc"), fate=FATES)
    def activate(self, name, fate):
        if self.numbers("computing", "drawn"):  # `policies.activate` refuses then
            return
        self.refund(None, "done")
        book = self.books.get(name)
        if book is None or book.state != "draft":
            with pytest.raises(PolicyError, match="is no draft of this project"):
                self.ledger.policies.activate(self.epoch, name)
            return
        if self.act(fate, lambda: self.ledger.policies.activate(self.epoch, name))[0]:
            if self.active:
                self.books[self.active].state = "closed"
            book.state = "active"

    # Releases

    @rule(asked=ASKED, number=st.integers(0, 30), last=st.sampled_from(STEPS), fate=FATES)
    def randomize(self, asked, number, last, fate):
        self.release("rr", asked, number, last, fate)

    @rule(asked=ASKED, number=st.integers(0, 30), last=st.sampled_from(STEPS), fate=FATES)
    def sum_up(self, asked, number, last, fate):
        self.release("statistic", asked, number, last, fate)

    @rule(data=st.data(), asked=ASKED)
    def same_request(self, data, asked):
        """One that was made before: charged anew only if it was given back or given up."""
        number = data.draw(st.integers(0, len(self.made)))
        key = int(self.made[number - 1].key, 16) if number else 0
        for kind in KINDS:
            self.release(kind, asked, key, "charge", "done")

    def release(self, kind, asked, number, last, fate):
        """A command that goes on until its `last` step."""
        before = len(self.made)
        self.charge(kind, asked, number, fate if last == "charge" else "done")
        if len(self.made) > before:
            self.go_on(len(self.made), last, fate)

    def go_on(self, number, last, fate):
        """From a charge to the `last` step of a release."""
        for step in STEPS[1 : STEPS.index(last) + 1]:
            if number in self.grants:
                getattr(self, step)(number, fate if step == last else "done")

    def charge(self, kind, asked, number, fate):
        key = f"{number:064x}"
        name = self.active or ("first" if not self.books else None)
        if name is None:
            return  # `policies.for_request` refuses then
        book = self.books.get(name, Book(IMPLICIT, "active"))
        if kind not in book.policy.events:
            return
        event = self.event(book, kind, key, asked)
        live = [m for m in self.made if m.key == key and m.state not in ("refunded", "abandoned")]
        found = self.ledger.releases.find(key)
        assert (found is not None) == bool(live)
        fits = all(
            book.used[kind, who] + count <= book.places(kind) for who, count in asked.items()
        )
        if live or not fits:
            reason = "another job has made" if live else "exceed a labeler's allowance"
            with pytest.raises(LedgerError, match=reason):
                self.ledger.charge(event, book.policy, self.epoch)
            return
        stored, grant = self.act(fate, lambda: self.ledger.charge(event, book.policy, self.epoch))
        if stored:
            self.books[name] = book
            self.made.append(Made(name, kind, key, asked))
            book.used.update({(kind, who): count for who, count in asked.items()})
            if grant:
                self.grants[len(self.made)] = grant

    def event(self, book, kind, key, labels):
        places = dict.fromkeys(labels, book.places(kind))
        return charge_of(key, kind, labels, places, coins=book.policy == IMPLICIT)

    @precondition(lambda self: self.numbers("reserved", "computing", "drawn"))
    @rule(
        data=st.data(),
        less=st.booleans(),
        more=st.booleans(),
        last=st.sampled_from(STEPS),
        fate=FATES,
    )
    def resume(self, data, less, more, last, fate):
        """The same request again takes up what was charged, and never more than that."""
        number = data.draw(st.sampled_from(self.numbers("reserved", "computing", "drawn")))
        made = self.made[number - 1]
        if made.book != self.active:
            return
        asked = dict(made.asked)
        if less:
            asked[min(asked)] -= 1
        if more:
            asked[max(asked)] = made.asked[max(asked)] + 1
        event = self.event(self.books[made.book], made.kind, made.key, asked)
        found = self.ledger.releases.find(made.key)
        assert found == self.record(number)
        if more:
            with pytest.raises(LedgerError, match="would need more than it was charged"):
                self.ledger.charge(event, POLICIES[0], self.epoch, resumed=found)
            return
        self.grants[number] = self.ledger.charge(event, POLICIES[0], self.epoch, resumed=found)
        self.go_on(number, last, fate)

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), step=st.sampled_from(STEPS[1:]), fate=FATES)
    def any_step(self, data, step, fate):
        """Whoever has a grant may come at any moment."""
        getattr(self, step)(data.draw(st.sampled_from(sorted(self.grants))), fate)

    def start(self, number, fate):
        grant, made = self.grants[number], self.made[number - 1]
        if grant.release.state == "reserved" and made.state != "reserved":
            with pytest.raises(LedgerError, match="is not reserved"):
                self.ledger.mark_reading(grant, self.epoch)
        elif self.act(fate, lambda: self.ledger.mark_reading(grant, self.epoch))[0]:
            made.state = "computing" if made.state == "reserved" else made.state

    def draw(self, number, fate):
        """A map is complete once, and the same one ever after."""
        grant, made = self.grants[number], self.made[number - 1]
        digest = f"{len(self.made) + self.epoch:064x}"
        if made.state != "computing":
            with pytest.raises(LedgerError, match="is not computing"):
                self.ledger.mark_drawn(grant, self.epoch, digest, 1)
            return
        stored, drawn = self.act(fate, lambda: self.ledger.mark_drawn(grant, self.epoch, digest, 1))
        if stored:
            made.state, made.map = "drawn", digest
        if drawn:
            self.grants[number] = drawn

    def commit(self, number, fate):
        grant, made = self.grants[number], self.made[number - 1]
        if made.state != "drawn":
            with pytest.raises(LedgerError, match="is not drawn"):
                self.ledger.commit(grant, self.epoch, 1, {})
        elif self.act(fate, lambda: self.ledger.commit(grant, self.epoch, 1, {}))[0]:
            made.state = "committed"

    @precondition(lambda self: any(made.map for made in self.made))
    @rule(data=st.data(), fate=FATES)
    def rewrite(self, data, fate):
        """Rows of somebody who left are taken out of maps."""
        drawn = [number for number, made in enumerate(self.made, 1) if made.map]
        chosen = data.draw(st.sets(st.sampled_from(drawn), min_size=1))
        digests = {self.record(number).id: f"{self.epoch:060x}{number:04x}" for number in chosen}
        if self.act(fate, lambda: self.ledger.releases.replace_map_digests(self.epoch, digests))[0]:
            for number in chosen:
                self.made[number - 1].map = digests[self.record(number).id]

    @precondition(lambda self: self.made)
    @rule(data=st.data(), fate=FATES)
    def abandon(self, data, fate):
        number = data.draw(st.integers(1, len(self.made)))
        made, release_id = self.made[number - 1], self.record(number).id
        if made.state not in ("computing", "drawn"):
            with pytest.raises(LedgerError, match="is not computing or drawn"):
                self.ledger.abandon(release_id, self.epoch)
        elif self.act(fate, lambda: self.ledger.abandon(release_id, self.epoch))[0]:
            made.state = "abandoned"

    @rule(keep=st.booleans(), fate=FATES)
    def give_back(self, keep, fate):
        reserved = self.numbers("reserved")
        self.refund(reserved[-1] if keep and reserved else None, fate)

    def refund(self, keep, fate):
        due = [number for number in self.numbers("reserved") if number != keep]
        kept = self.record(keep).id if keep else None
        names = [self.record(number).id for number in due]
        stored, answer = self.act(fate, lambda: self.ledger.refund_reserved(self.epoch, kept))
        assert answer in (None, names)
        for number in due if answer is not None else due[:1] if stored else []:
            made = self.made[number - 1]
            made.state = "refunded"
            self.books[made.book].used.subtract({(made.kind, w): n for w, n in made.asked.items()})

    # People and processes

    @rule(
        labeler=st.integers(0, LABELERS - 1),
        kind=st.sampled_from(["retired", "erased"]),
        fate=FATES,
    )
    def bury(self, labeler, kind, fate):
        key = np.array([[0, labeler]], np.uint64)
        if self.act(fate, lambda: self.ledger.people.add_tombstone(self.epoch, key, kind))[0]:
            self.gone[labeler] = "erased" if self.gone.get(labeler) == "erased" else kind

    @rule(crash=st.booleans())
    def another_job(self, crash):
        """A job that began earlier can do nothing more."""
        if crash:
            self.reopen()
            return
        old, self.epoch = self.epoch, self.ledger.begin_job()
        for change in (
            lambda: self.ledger.refund_reserved(old, None) if self.numbers("reserved") else boom(),
            lambda: self.ledger.policies.activate(old, "a"),
            lambda: self.ledger.abandon("r", old),
            lambda: self.ledger.releases.replace_map_digests(old, {}),
            lambda: self.ledger.people.add_tombstone(old, np.array([[0, 0]], np.uint64), "retired"),
        ):
            with pytest.raises(LedgerError, match="another job has begun"):
                change()

    # What must be true after every step

    @invariant()
    def the_ledger_is_as_the_model(self):
        if not hasattr(self, "ledger"):
            return
        assert self.ledger.find_fault() is None
        records = self.ledger.policies.all()
        assert {r.name: (r.policy, r.state) for r in records} == {
            name: (book.policy, book.state) for name, book in self.books.items()
        }
        assert getattr(self.ledger.policies.active(), "name", None) == self.active
        assert [
            (r.number, r.idempotency_key, r.state, r.map) for r in self.ledger.releases.all()
        ] == [(number, made.key, made.state, made.map) for number, made in enumerate(self.made, 1)]
        owner = {i: (r.name, kind) for r in records for kind, i in r.allowance_ids.items()}
        stored = {}
        with self.ledger.snapshot() as connection:
            for row in connection.execute(sa.select(schema.counters)):
                name, kind = owner[row.allowance_id]
                labeler = int.from_bytes(bytes(row.labeler), "big")
                assert row.capacity == self.books[name].places(kind) >= row.used
                stored[name, kind, labeler] = row.used
        assert stored == {
            (name, *place): count
            for name, book in self.books.items()
            for place, count in book.used.items()
            if count
        }
        gone = blocks.to_bytes(self.ledger.people.tombstones())
        assert gone == b"".join(n.to_bytes(16, "big") for n in sorted(self.gone))

    def the_lifetime_total_is_the_sum_of_what_was_in_force(self):
        epsilon = delta = 0.0
        for book in self.books.values():
            if book.state != "draft":
                epsilon += book.policy.epsilon
                delta += book.policy.delta
        total = pricing.sum_budgets(self.ledger.policies.history())
        assert (total.epsilon, total.delta) == pytest.approx((epsilon, delta))


def boom():
    raise LedgerError("another job has begun: there is nothing here that it could give back")


class PostgresMachine(LedgerMachine):
    """The same on PostgreSQL."""

    def new_url(self):
        directory = Path(self.close.enter_context(tempfile.TemporaryDirectory()))
        self.keys = KeyRing.create(directory / "keys")
        return self.close.enter_context(databases.fresh("postgresql", Path()))


def run(machine, sequences, steps):
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=sequences,
            stateful_step_count=steps,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("sequences", [12, pytest.param(500, marks=pytest.mark.slow)])
def test_every_life_of_a_ledger_is_as_the_model_tells(sequences):
    run(LedgerMachine, sequences, 30)


@pytest.mark.slow
@pytest.mark.parametrize("sequences", [60])
def test_every_life_of_a_ledger_on_postgresql_is_as_the_model_tells(sequences):
    with databases.fresh("postgresql", Path()):  # or skip
        pass
    run(PostgresMachine, sequences, 12)
