"""A ledger of an older version is brought forward whole, once, or stays as it was.

tests/golden/ledger_schema2_*.sql are ledgers as labelguard 0.1 wrote them: of coins (releases
committed, refunded, computing and reserved) and of statistics (committed, and computing with a
seal), by a project whose key was no secret.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import databases
import numpy as np
import pytest
import sqlalchemy as sa

from labelguard import block128, database, migrations, statements, tables
from labelguard.errors import KeyProblem, LedgerError
from labelguard.ledger import Ledger
from labelguard.policy import Policy, Priced
from labelguard.records import Event

GOLDEN = Path(__file__).parent / "golden"
CHECK = "5b583ae806edcc46d07e1265841e631b"
KINDS: tuple[Priced, ...] = ("rr", "statistic")
STATES = {
    "rr": ["committed", "refunded", "computing", "reserved"],
    "statistic": ["committed", "computing"],
}
Tables = dict[str, list[tuple[object, ...]]]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Priced:
    """What the old ledger was charged for."""
    found: Priced = request.param
    return found


@pytest.fixture
def old(kind: Priced, ledger_url: str) -> str:
    """The URL of a ledger of schema 2, on each database."""
    script = (GOLDEN / f"ledger_schema2_{kind}.sql").read_text(encoding="utf-8")
    engine = sa.create_engine(ledger_url)
    if engine.dialect.name == "postgresql":
        script = re.sub(r"X'([0-9A-F]*)'", r"'\\x\1'", script.replace("BLOB", "BYTEA"))
    with engine.begin() as connection:
        for statement in script.split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement)
    engine.dispose()
    return ledger_url


def labeler(row: tuple[Any, ...], place: int) -> tuple[bytes, ...]:
    return (bytes(row[place]), *row[place + 1 :])


def test_every_number_is_kept_and_the_ledger_holds(kind: Priced, old: str) -> None:
    before = databases.dump(old)
    ledger = Ledger(old, CHECK)
    assert ledger.fault() is None
    after = databases.dump(old)

    *told, migrated = sorted(after["journal"], key=lambda row: int(str(row[0])))
    assert told == sorted(before["journal"], key=lambda row: int(str(row[0])))
    assert migrated[2] == "migrated" and json.loads(str(migrated[3])) == {"from": 2, "to": 3}
    assert dict(after["meta"]) == dict(before["meta"]) | {"schema": "3", "pseudonyms": ""}
    places = {labeler(row, 0) for row in before["labelers"]}
    assert {labeler(row, 1) for row in after["counters"]} == places
    number = {row[0]: row[1] for row in before["releases"]}
    capacity = {row[0]: row[1] for row in places}
    assert {(row[0], *labeler(row, 1)) for row in after["charges"]} == {
        (number[row[0]], bytes(row[1]), capacity[bytes(row[1])], row[2])
        for row in before["charges"]
    }
    assert [row[1:] for row in after["prices"]] == [row[1:] for row in before["prices"]]
    same = "id number idempotency_key state created_at settings charged rows files seal"
    assert columns(old, tables.releases, same.split()) == sorted(
        row[:3] + row[4:] for row in before["releases"]
    )
    assert [record.state for record in ledger.releases()] == STATES[kind]
    assert not [name for name in after if name.startswith("old")] and "labelers" not in after


def columns(url: str, table: sa.Table, names: list[str]) -> list[tuple[Any, ...]]:
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        rows = connection.execute(sa.select(*(table.c[name] for name in names))).all()
    engine.dispose()
    return sorted(tuple(row) for row in rows)


def test_the_policy_is_the_same_one_in_the_new_form(kind: Priced, old: str) -> None:
    [record] = Ledger(old, CHECK).policies()
    assert (record.id, record.state, record.point) == (1, "active", None)
    policy: Policy = record.policy
    assert (policy.epsilon, policy.delta, policy.events) == (3.0, 1e-5, (kind,))
    assert policy.allowance(kind).places == {"rr": 8, "statistic": 3}[kind]
    assert record.quote["points"][-1]["epsilon"] <= 3.0
    assert set(record.prices[kind]) == {policy.allowance(kind).places}


def test_a_migrated_ledger_is_charged_refunded_and_finished_further(kind: Priced, old: str) -> None:
    ledger = Ledger(old, CHECK)
    [record] = ledger.policies()
    epoch = ledger.begin_job()
    assert len(ledger.refund_reserved(epoch, keep=None)) == STATES[kind].count("reserved")
    before = ledger.labelers(kind)
    places = record.policy.allowance(kind).places
    assert places is not None
    people = np.concatenate([before.labelers, block128.from_bytes(b"n" * 16)])
    left = np.append(before.capacity - before.used, places)
    event = Event(
        mechanism=kind,
        kind=kind,
        idempotency_key="ff" * 32,
        settings={"mechanism": kind},
        labelers=people,
        capacity=np.full(len(people), places),
        charged=left,
        prices=ledger.prices(kind),
    )
    grant = ledger.charge(event, record.policy, epoch)
    assert grant.prices == record.prices[kind]
    ledger.start(grant, epoch)
    ledger.commit(grant, epoch, 1, {"data.parquet": "0" * 64})
    after = ledger.labelers(kind)
    assert (after.used == after.capacity).all() and len(after.used) == len(people)
    with pytest.raises(LedgerError, match="exceed a labeler's allowance"):
        ledger.charge(
            Event(**vars(event) | {"idempotency_key": "ee" * 32, "charged": left * 0 + 1}),
            record.policy,
            epoch,
        )
    [begun] = [r for r in ledger.releases() if r.state == "computing"]
    ledger.abandon(begun.id, epoch)
    assert ledger.fault() is None


def test_an_altered_old_ledger_is_found_after_migration(kind: Priced, old: str) -> None:
    engine = sa.create_engine(old)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE labelers SET used = used - 1")
    engine.dispose()
    fault = Ledger(old, CHECK).fault()
    assert fault is not None and "do not add up" in fault


STEPS = (
    (migrations, "_to_3"),
    (statements, "set_meta"),
    (statements, "append"),
    (tables.metadata, "create_all"),
)


@pytest.mark.parametrize("step", range(len(STEPS)), ids=[name for _, name in STEPS])
def test_a_crash_in_the_middle_leaves_the_old_ledger_and_opening_it_again_migrates_it(
    step: int, old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = databases.dump(old)
    owner, name = STEPS[step]
    whole = getattr(owner, name)

    def fatal(*arguments: Any, **options: Any) -> None:
        whole(*arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fatal)
        with pytest.raises(KeyboardInterrupt):
            Ledger(old, CHECK)
    assert databases.dump(old) == before
    assert Ledger(old, CHECK).fault() is None


def test_several_processes_at_once_migrate_it_once(old: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        faults = list(pool.map(lambda _: Ledger(old, CHECK).fault(), range(8)))
    assert faults == [None] * 8
    kinds = [entry.kind for entry in Ledger(old, CHECK).journal()]
    assert kinds.count("migrated") == 1


def test_another_projects_key_migrates_nothing(old: str) -> None:
    before = databases.dump(old)
    with pytest.raises(KeyProblem):
        Ledger(old, "0" * 32)
    assert databases.dump(old) == before


@pytest.mark.parametrize("version", [0, 1, tables.SCHEMA_VERSION + 1, 10**6])
def test_a_newer_or_too_old_schema_is_refused_and_left_alone(version: int, ledger_url: str) -> None:
    Ledger.create(ledger_url, CHECK)
    with database.writing(database.connect(ledger_url)) as connection:
        statements.set_meta(connection, "schema", str(version))
    before = databases.dump(ledger_url)
    with pytest.raises(LedgerError, match=f"has schema {version}; this labelguard knows 2 to 3"):
        Ledger(ledger_url, CHECK)
    with pytest.raises(LedgerError, match=f"has schema {version}"):
        Ledger.create(ledger_url, CHECK)
    assert databases.dump(ledger_url) == before
