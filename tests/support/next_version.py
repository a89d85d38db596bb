"""Commands of an invented next version, in processes of their own: the ledger has one more table,
and one more column of another.
"""

import json
import os

import sqlalchemy as sa
from click.testing import CliRunner
from support import forks

from labelguard.cli.main import main
from labelguard.ledger import schema

URL = "LABELGUARD_LEDGER_URL"


def run_next(*commands, killed=False):
    """Return exit code and output of each command; None if the process was killed in an upgrade."""
    url = os.environ.get(URL, "")  # of this test, the driver has that of the first
    [end] = forks.run(__name__, {"commands": commands, "killed": killed, "url": url})
    return json.loads(end.answer) if end.answer else None


def _work(job):
    _become_next(job["killed"])
    os.environ.pop(URL, None)
    os.environ |= {URL: job["url"]} if job["url"] else {}
    done = [CliRunner().invoke(main, command) for command in job["commands"]]
    return 0, json.dumps([(result.exit_code, result.output) for result in done])


def _become_next(killed):
    columns = sa.Column("release", sa.Integer, primary_key=True), sa.Column("why", sa.String(80))
    purposes = sa.Table("purposes", schema.metadata, *columns)

    def add_purposes(connection):
        connection.execute(sa.text("ALTER TABLE tombstones ADD COLUMN reason VARCHAR(80)"))
        purposes.create(connection)
        connection.execute(sa.text("INSERT INTO purposes SELECT number, 'any' FROM releases"))
        if killed:
            os._exit(9)

    schema.STEPS[schema.VERSION] = add_purposes
    schema.VERSION += 1
    schema.tombstones.append_column(sa.Column("reason", sa.String(80)))


if __name__ == "__main__":
    forks.serve(_work)
