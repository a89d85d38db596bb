"""The ledger: places are never exceeded, nothing is altered unnoticed, no password is shown."""

from pathlib import Path

import pytest
import sqlalchemy as sa
from support.charges import charge_of
from support.commands import PRIVATIZE, run
from support.databases import EACH, copy_of, dump, on
from support.preferences import TABLE, opinions, pairs, public, write
from support.releases import make_release

import labelguard as lg
from labelguard.budget.policy import Policy
from labelguard.errors import BudgetExceeded, LedgerError, PolicyError
from labelguard.ledger import journal, schema
from labelguard.project.opening import OpenProject
from labelguard.report import overview

PRICE = {"mechanism": "rr", "epsilon": 3, "delta": 1e-5}


def make_releases(home):
    """The project with two committed releases."""
    make_release(TABLE.slice(0, 50), **PRICE, uses=2, project=home)
    make_release(TABLE, **PRICE, project=home)
    return home


@pytest.fixture(scope="module", params=EACH)
def original(request, tmp_path_factory):
    """A project with two committed releases, on each database; every test has a copy."""
    directory = tmp_path_factory.mktemp("original")
    with pytest.MonkeyPatch.context() as patch, on(request.param, directory, patch) as url:
        yield make_releases(lg.init(directory / "project")), url


@pytest.fixture
def project(original, tmp_path, monkeypatch):
    """A copy of it."""
    with copy_of(*original, tmp_path / "project", monkeypatch) as home:
        yield home


@pytest.fixture
def on_sqlite(tmp_path):
    """The same, its ledger a file."""
    return make_releases(lg.init(tmp_path / "project"))


def change(project, *changes):
    """Edit the ledger behind labelguard's back."""
    engine = sa.create_engine(project.ledger_url)
    with engine.begin() as connection:
        for statement in changes:
            connection.exec_driver_sql(statement)
    engine.dispose()


def fault(project):
    verdict = overview.verify(project.state)
    assert not verdict.ok
    return str(verdict.fault)


def test_an_untouched_ledger_holds(project):
    verdict = overview.verify(project.state)
    assert verdict.ok and not verdict.backwards
    assert (verdict.journal_entries, verdict.releases) == (10, 2)
    kinds = ["created", "policy", *["charged", "computing", "drawn", "committed"] * 2]
    assert [entry.kind for entry in overview.read_journal(project.state)] == kinds


@pytest.mark.quick(
    "sqlite-changes0-3 was altered",
    "sqlite-changes5-policy 1 is not",
    "sqlite-changes6-do not add up",
    "sqlite-changes12-policy 1 is not",
    "sqlite-changes17-is not what the journal says",
    "sqlite-changes20-is not what the journal says",
    "sqlite-changes25-release number 9",
)
@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (["UPDATE journal SET body = replace(body, 'rr', 'qq') WHERE number = 3"], "3 was altered"),
        (["UPDATE journal SET at = '2020-01-01T00:00:00Z' WHERE number = 4"], "4 was altered"),
        (["DELETE FROM journal WHERE number = 4"], "4 is missing"),
        (["DELETE FROM journal WHERE number = 10"], "is not what the journal says"),
        (["DELETE FROM journal WHERE number > 6"], "is not in the journal"),
        (["DELETE FROM journal WHERE number > 1"], "policy 1 is not"),
        (["UPDATE counters SET used = used - 1"], "do not add up"),
        (["UPDATE charges SET labels = labels + 1"], "do not add up"),
        (["UPDATE counters SET capacity = 1000"], "do not add up"),
        (
            ["UPDATE charges SET labels = labels - 1", "UPDATE counters SET used = used - 2"],
            "charges are not those in the journal",
        ),
        (
            ["UPDATE charges SET capacity = 1000", "UPDATE counters SET capacity = 1000"],
            "charges are not those in the journal",
        ),
        (["UPDATE policies SET quote = '{}'"], "policy 1 is not"),
        (["UPDATE policies SET settings = replace(settings, '3.0', '2.0')"], "policy 1 is not"),
        (["UPDATE policies SET state = 'closed'"], "policy 1 is not"),
        (["UPDATE policies SET name = 'second'"], "policy 1 is not"),
        (["INSERT INTO links SELECT labeler, labeler FROM counters"], "the links are not"),
        (["INSERT INTO tombstones SELECT labeler, 'erased', '' FROM counters"], "the tombstones"),
        (["UPDATE releases SET charged = 1 WHERE number = 1"], "is not what the journal says"),
        (["UPDATE releases SET state = 'refunded' WHERE number = 2"], "is not what the journal"),
        (["UPDATE releases SET map = NULL WHERE number = 1"], "is not what the journal says"),
        (["UPDATE releases SET files = '{}' WHERE number = 2"], "is not what the journal says"),
        (["UPDATE releases SET drawn = 51 WHERE number = 1"], "is not what the journal says"),
        (["UPDATE releases SET idempotency_key = 'x' WHERE number = 1"], "is not what the journal"),
        (["DELETE FROM releases WHERE number = 2"], "do not add up"),
        (["UPDATE releases SET settings = '{}' WHERE number = 1"], "is not what the journal says"),
        (["INSERT INTO charges SELECT 9, labeler, 20, 1 FROM charges LIMIT 1"], "release number 9"),
        (["UPDATE prices SET price = '1'"], "prices are not those in the journal"),
    ],
)
def test_an_altered_ledger_is_found(changes, found, project):
    change(project, *changes)
    result = run("budget", "verify", project=project, code=1)
    assert found in result.stderr and not result.stdout


@pytest.mark.quick(
    "sqlite-altered-data.parquet", "sqlite-altered-CARD.md", "sqlite-missing-card.json"
)
@pytest.mark.parametrize("name", ["data.parquet", "card.json", "CARD.md", "SHA256SUMS"])
@pytest.mark.parametrize(
    ("act", "found"),
    [
        (lambda path: path.write_bytes(path.read_bytes() + b" "), "was altered"),
        (lambda path: path.unlink(), "is missing"),
    ],
    ids=["altered", "missing"],
)
def test_an_altered_release_file_is_found(act, found, name, project):
    release = overview.list_releases(project.state)[0]
    path = Path(release.path) / name
    act(path)
    told = fault(project)
    assert told and told.startswith(f"release {release.id}: {path} {found}")
    assert "restored on trial" in told
    assert not overview.verify_releases(None, project.state).ok


@pytest.mark.parametrize("used", [9, -1])
def test_the_database_itself_refuses_more_than_the_places(used, project):
    change(project, "UPDATE counters SET capacity = 20")
    with pytest.raises(sa.exc.IntegrityError, match="allowance"):
        change(project, f"UPDATE counters SET used = {used} + {20 if used > 0 else 0}")


def event(labels, key="aa" * 32):
    charged = dict(enumerate(labels))
    return charge_of(key, "rr", charged, dict.fromkeys(charged, 8), coins=True)


def open_ledger(project):
    return OpenProject.open(project.state).ledger


def test_a_charge_beyond_the_places_of_one_labeler_charges_nobody(project_on_each):
    project = project_on_each
    ledger, policy = open_ledger(project), Policy(3.0, 1e-5)
    epoch = ledger.begin_job()
    ledger.charge(event([5, 8]), policy, epoch)
    before = dump(project.ledger_url)
    for labels in ([3, 1], [0, 1], [4, 0]):
        with pytest.raises(LedgerError, match="exceed a labeler's allowance"):
            ledger.charge(event(labels, key="bb" * 32), policy, epoch)
    assert dump(project.ledger_url) == before
    assert ledger.find_fault() is None
    ledger.charge(event([3, 0], key="cc" * 32), policy, epoch)
    assert ledger.releases.labelers("rr").used.tolist() == [8, 8]


@pytest.mark.parametrize(
    "edit",
    ["UPDATE counters SET used = 0", "UPDATE counters SET used = used - 1", "DELETE FROM counters"],
)
def test_uses_that_were_edited_are_not_charged_a_second_time(edit, project_on_each):
    project = project_on_each
    ledger, policy = open_ledger(project), Policy(3.0, 1e-5)
    epoch = ledger.begin_job()
    kept = ledger.charge(event([5, 8]), policy, epoch)
    ledger.charge(event([2], key="bb" * 32), policy, epoch)
    ledger.refund_reserved(epoch, resumed=kept.release.id)
    ledger.charge(event([1, 0], key="cc" * 32), policy, epoch)
    change(project, edit)
    before = dump(project.ledger_url)
    with pytest.raises(LedgerError, match=r"uses of rr do not add up .* labelguard budget verify"):
        ledger.charge(event([0, 1], key="dd" * 32), policy, epoch)
    assert dump(project.ledger_url) == before


def test_a_refund_exists_for_reserved_releases_only(project_on_each):
    project = project_on_each
    ledger, policy = open_ledger(project), Policy(3.0, 1e-5)
    epoch = ledger.begin_job()
    computing = ledger.charge(event([2]), policy, epoch)
    ledger.mark_reading(computing, epoch)
    reserved = ledger.charge(event([3], key="bb" * 32), policy, epoch)
    kept = ledger.charge(event([1], key="cc" * 32), policy, epoch)
    assert ledger.refund_reserved(epoch, resumed=kept.release.id) == [reserved.release.id]
    assert ledger.releases.labelers("rr").used.tolist() == [3]
    assert ledger.find_fault() is None
    with pytest.raises(LedgerError, match="is not reserved"):
        ledger.mark_reading(reserved, epoch)
    with pytest.raises(LedgerError, match="is not computing"):
        ledger.mark_drawn(kept, epoch, "0" * 64, 1)
    with pytest.raises(LedgerError, match="is not drawn"):
        ledger.commit(computing, epoch, 1, {})


def test_a_job_that_another_one_followed_charges_nothing(project_on_each):
    ledger, policy = open_ledger(project_on_each), Policy(3.0, 1e-5)
    epoch = ledger.begin_job()
    kept = ledger.charge(event([2]), policy, epoch)
    ledger.begin_job()
    for act in (
        lambda: ledger.charge(event([1], key="bb" * 32), policy, epoch),
        lambda: ledger.mark_reading(kept, epoch),
        lambda: ledger.refund_reserved(epoch, resumed=None),
    ):
        with pytest.raises(LedgerError, match="another job has begun"):
            act()
    assert ledger.releases.labelers("rr").used.tolist() == [2]


def test_a_release_that_is_taken_up_needs_no_more_than_it_was_charged(project_on_each):
    ledger, policy = open_ledger(project_on_each), Policy(3.0, 1e-5)
    epoch = ledger.begin_job()
    crashed = ledger.charge(event([2, 3]), policy, epoch).release
    for labels in ([2, 3], [1, 3], [0, 1]):
        assert ledger.charge(event(labels), policy, epoch, resumed=crashed).release == crashed
    for labels in ([3, 3], [2, 4], [2, 3, 1]):
        with pytest.raises(LedgerError, match="more than it was charged"):
            ledger.charge(event(labels), policy, epoch, resumed=crashed)
    assert ledger.releases.labelers("rr").used.tolist() == [2, 3]


def test_the_first_release_fixes_the_policy(project):
    asked = public(seed=3)
    new = pairs(asked, opinions(len(asked), 3))
    before = dump(project.ledger_url)
    for options in (
        {"epsilon": 1.0, "delta": 1e-5},
        {"epsilon": 3.0, "delta": 1e-6},
        PRICE | {"block": 21},
        PRICE | {"ties": "drop", "tie_status_public": True},
        PRICE | {"unit": "item"},
    ):
        with pytest.raises(PolicyError):
            make_release(new, project=project, exhausted="drop", **options)
    after = dump(project.ledger_url)
    assert {**after, "meta": []} == {**before, "meta": []}  # but for the epoch


def test_a_shortage_counts_labelers_and_charges_nothing(project):
    asked = public(per_labeler=25, seed=4)
    before = dump(project.ledger_url)
    with pytest.raises(BudgetExceeded, match="have no blocks left") as caught:
        make_release(pairs(asked, opinions(len(asked), 4)), project=project, **PRICE)
    assert caught.value.requested > caught.value.left and caught.value.exit_code == 3
    assert "worker" not in str(caught.value)
    after = dump(project.ledger_url)
    assert {**after, "meta": []} == {**before, "meta": []}


def test_the_ledger_holds_no_label_and_no_text(on_sqlite):
    content = (on_sqlite.state / "ledger.sqlite3").read_bytes()
    for text in (b"question", b"answer", b"worker"):
        assert text not in content


def test_a_journal_continues_from_the_entry_before():
    mac = str.swapcase
    first = journal.build_entry(1, "t", "a", {"x": 1}, journal.GENESIS, mac)
    second = journal.build_entry(2, "t", "b", {}, first.digest, mac)
    assert journal.find_first_fault([]) is None
    assert journal.find_first_fault([first, second]) is None
    assert journal.find_first_fault([second]) == "journal entry 1 is missing"
    foreign = journal.build_entry(2, "t", "b", {}, "1" * 64, mac)
    assert "2 does not follow the entry before" in str(journal.find_first_fault([first, foreign]))


@pytest.mark.parametrize("number", [schema.VERSION - 1, schema.VERSION + 1, "0d7f35ab19ce"])
def test_a_ledger_with_the_tables_of_another_version_is_refused(number, project):
    change(project, f"UPDATE meta SET value = '{number}' WHERE name = 'schema'")
    before = dump(project.ledger_url)
    for act in (open_ledger, lambda home: make_release(TABLE, **PRICE, project=home)):
        with pytest.raises(LedgerError, match="was made by labelguard"):
            act(project)
    assert dump(project.ledger_url) == before


def test_a_lost_ledger_is_not_replaced_by_an_empty_one(on_sqlite):
    (on_sqlite.state / "ledger.sqlite3").unlink()
    for _ in range(2):
        with pytest.raises(LedgerError, match="has lost it"):
            make_release(TABLE, **PRICE, project=on_sqlite)


def test_something_that_is_no_database_is_refused(on_sqlite):
    (on_sqlite.state / "ledger.sqlite3").write_bytes(b"no database at all" * 100)
    with pytest.raises(LedgerError, match="not a database"):
        open_ledger(on_sqlite)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://root:Hunter2@127.0.0.1:1/nothing",
        "postgresql+psycopg://root:Hunter2@127.0.0.1:port/nothing",
        "postgresql+psycopg://127.0.0.1:1/nothing?user=root&password=Hunter2",
        "postgresql+psycopg://root:a@Hunter2@no-such-host.invalid/nothing",
        "nosuchdatabase://root:Hunter2@127.0.0.1/nothing",
        "Hunter2",
        "sqlite:////no/such/directory/ledger",
    ],
)
def test_no_message_shows_the_password_of_the_ledger(url, project, tmp_path, monkeypatch):
    monkeypatch.setenv("LABELGUARD_LEDGER_URL", url)
    labels = write(TABLE, tmp_path / "labels.parquet")
    for arguments in (
        [*PRIVATIZE, str(labels), "--epsilon", "3", "--delta", "1e-5"],
        ["budget", "show"],
        ["doctor"],
    ):
        result = run(*arguments, project=project, code=1)
        assert result.exception is None or isinstance(result.exception, SystemExit)
        assert "Hunter2" not in result.stdout + result.stderr
        assert arguments == ["doctor"] or len(result.stderr.splitlines()) == 1
    other = run("init", tmp_path / "other", code=1)
    assert "Hunter2" not in other.stdout + other.stderr


@pytest.mark.slow  # on PostgreSQL
def test_a_ledger_of_another_project_is_refused(postgres, tmp_path, monkeypatch):
    monkeypatch.setenv("LABELGUARD_LEDGER_URL", postgres)
    lg.init(tmp_path / "one")
    with pytest.raises(LedgerError, match="of another project"):
        lg.init(tmp_path / "two")
