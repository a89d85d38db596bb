"""Who can write the ledger's database, or set it back, and has no key."""

import hashlib
import json
import sqlite3

import numpy as np
import pytest
from support.commands import run
from support.preferences import TABLE
from support.releases import make_release

from labelguard.errors import LedgerError
from labelguard.ledger import charges
from labelguard.project import erasure
from labelguard.storage import blocks

PRICE = {"mechanism": "rr", "epsilon": 3, "delta": 1e-5}


def verify(project):
    return run("budget", "verify", project=project, code=None)


def rewrite(project):
    """Halve everybody's charges: counters, charges, the journal's body, all digests after it."""
    with sqlite3.connect(project.state / "ledger.sqlite3") as ledger:
        ledger.execute("UPDATE charges SET labels = labels / 2")
        ledger.execute("UPDATE counters SET used = used / 2")
        rows = ledger.execute("SELECT labeler, capacity, labels FROM charges ORDER BY labeler")
        names, capacity, labels = zip(*rows, strict=True)
        ledger.execute("UPDATE releases SET charged = ?", (sum(labels),))
        digest = charges.digest_charges(
            blocks.from_bytes(b"".join(names)), np.array(capacity), np.array(labels)
        )
        previous = "0" * 64
        query = "SELECT number, at, kind, body FROM journal ORDER BY number"
        for number, at, kind, body in ledger.execute(query).fetchall():
            if kind == "charged":
                told = json.loads(body) | {"charges": digest, "labels": sum(labels)}
                body = json.dumps(told, sort_keys=True)
            found = hashlib.sha256(json.dumps([number, at, kind, body, previous]).encode())
            change = "UPDATE journal SET body = ?, previous = ?, digest = ? WHERE number = ?"
            ledger.execute(change, (body, previous, found.hexdigest(), number))
            previous = found.hexdigest()


def test_a_journal_rewritten_to_its_end_opens_no_more(project):
    make_release(TABLE, **PRICE, block=1, project=project)
    rewrite(project)
    result = verify(project)
    assert result.exit_code == 1 and "without the project's key" in result.stderr
    with pytest.raises(LedgerError, match="without the project's key"):
        make_release(TABLE, mechanism="rr", project=project)


# A price that somebody edits in the ledger's database takes no noise from the next release.


@pytest.mark.quick('UPDATE prices SET price = \'{"threshold": "1"}\'')
@pytest.mark.parametrize(
    "edit",
    [
        """UPDATE prices SET price = '{"threshold": "1"}'""",
        "DELETE FROM prices",
        "UPDATE policies SET settings = replace(settings, '3.0', '9.0')",
    ],
)
def test_edited_terms_are_noticed_before_a_charge(edit, project):
    budget = PRICE | {"uses": 2, "accept_delta": True}
    make_release(TABLE.slice(0, 50), project=project, **budget)
    with sqlite3.connect(project.state / "ledger.sqlite3") as connection:
        connection.execute(edit)
    del budget["epsilon"], budget["delta"]
    with pytest.raises(LedgerError, match="does not hold"):
        make_release(TABLE, project=project, **budget)
    assert len(list(project.releases.iterdir())) == 1


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        ("UPDATE releases SET created_at = '2025-01-01T00:00:00Z'", "is dated 2025-01-01"),
        ("UPDATE policies SET created_at = '2025-01-01T00:00:00Z'", "policy 1 is dated 2025-01-01"),
        ("UPDATE tombstones SET at = '2025-01-01T00:00:00Z'", "is dated 2025-01-01"),
        ("UPDATE charges SET labels = labels + 1", "the charges do not add up"),
        ("UPDATE releases SET charged = 1", "is not what the journal says of it"),
    ],
)
def test_dates_and_counts_are_those_of_the_journal(edit, fault, project):
    make_release(TABLE, **PRICE, project=project)
    erasure.remove_labeler("worker 1", "retired", project)
    assert verify(project).exit_code == 0
    with sqlite3.connect(project.state / "ledger.sqlite3") as ledger:
        ledger.execute(edit)
    result = verify(project)
    assert result.exit_code == 1 and fault in result.stderr
