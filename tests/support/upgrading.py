"""Opens a project for a job as a version to come, in a process of its own (`test_migrations`).

    python upgrading.py STATE [die]

With `die` it is killed between two changes of one transaction.
"""

from __future__ import annotations

import os
import signal
import sys

import pytest
import sqlalchemy as sa
from support.earlier import become_later

import labelguard as lg
from labelguard.project.upgrade import migrate


def die(connection: sa.Connection) -> None:
    """A migration that does not come to its end."""
    connection.exec_driver_sql("DROP TABLE notes")
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    become_later(pytest.MonkeyPatch(), *([die] if sys.argv[2:] else []))
    print("ready", flush=True)
    sys.stdin.readline()  # all of them begin at once
    with lg.waiting():
        print(migrate(sys.argv[1]).schema)
