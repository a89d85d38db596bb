"""A price that somebody edits in the ledger's database takes no noise from the next release."""

from __future__ import annotations

import sqlite3

import pytest
from support.preferences import TABLE

import labelguard as lg
from labelguard.errors import LedgerError
from labelguard.project.project import Project


@pytest.mark.quick('UPDATE prices SET price = \'{"threshold": "1"}\'')
@pytest.mark.parametrize(
    "edit",
    [
        """UPDATE prices SET price = '{"threshold": "1"}'""",
        "DELETE FROM prices",
        "UPDATE policies SET settings = replace(settings, '3.0', '9.0')",
    ],
)
def test_edited_terms_are_noticed_before_a_charge(edit: str, project: Project) -> None:
    budget = {"epsilon": 3.0, "delta": 1e-5, "max_labels_per_labeler": 20, "accept_delta": True}
    lg.privatize(TABLE.slice(0, 50), project=project, **budget)
    with sqlite3.connect(project.state / "ledger.sqlite3") as connection:
        connection.execute(edit)
    del budget["epsilon"], budget["delta"]
    with pytest.raises(LedgerError, match="does not hold"):
        lg.privatize(TABLE, project=project, **budget)
    assert len(list(project.releases.iterdir())) == 1
