"""Projects of earlier versions, which nobody published, are refused by one sentence."""

import sqlite3
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.commands import run
from support.preferences import opinions, pairs, public

from labelguard.project.project import find

FIXTURE = Path(__file__).parents[1] / "golden" / "project-0.3.0.tar.xz"
REFUSED = (
    "reads only its own: no version before 0.4.0 was published, so nothing is converted; use "
    "labelguard {made_by}, or begin a new project (labelguard init)"
)


def as_0_3_0_made_it(ledger):
    return "0.3.0"


def as_0_2_0_made_it(ledger):
    """Its ledger did not say which version made it."""
    with sqlite3.connect(ledger) as connection:
        connection.execute("DELETE FROM meta WHERE name = 'labelguard'")
        connection.execute("UPDATE meta SET value = '1' WHERE name = 'schema'")
    return "0.2.0 or before"


@pytest.mark.parametrize("make", [as_0_3_0_made_it, as_0_2_0_made_it])
def test_every_command_refuses_a_project_of_an_earlier_version(make, tmp_path):
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="tar")
    home = find(tmp_path)
    ledger = home.state / "ledger.sqlite3"
    sentence = REFUSED.format(made_by=make(ledger))
    before = ledger.read_bytes()
    labels = tmp_path / "labels.parquet"
    pq.write_table(pairs(asked := public(), opinions(len(asked), 1)), labels)
    for command in (
        "budget show",
        "budget verify",
        "release list",
        "report",
        f"privatize {labels}",
    ):
        found = run(*command.split(), project=home, code=1)
        assert found.output.count("\n") == 1, found.output
        assert sentence in found.output
    assert sentence in run("doctor", project=home, code=1).output
    assert ledger.read_bytes() == before
