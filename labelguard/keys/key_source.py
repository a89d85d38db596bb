"""A project key that does not lie beside the project, but is handed over where the program runs.

`LABELGUARD_KEY_FILE` names a file (a mounted secret), `LABELGUARD_KEY_COMMAND` a command whose
standard output is that file's content (the client of a secret store).
"""

from __future__ import annotations

import os
import shlex
import subprocess
from functools import lru_cache
from pathlib import Path

from labelguard.errors import KeyProblem
from labelguard.storage import private_files

FILE, COMMAND = "LABELGUARD_KEY_FILE", "LABELGUARD_KEY_COMMAND"
# Seconds that the command may take.
_PATIENCE = 60


def named() -> str | None:
    """The environment variable that says where the project key comes from, if one does."""
    given = [name for name in (FILE, COMMAND) if os.environ.get(name)]
    if len(given) > 1:
        raise KeyProblem(f"{FILE} and {COMMAND} are both set; unset one")
    return given[0] if given else None


def read() -> bytes | None:
    """What the environment says the file of the project key holds; None if it says nothing.

    Raises `KeyProblem` for a file that somebody else could have replaced, and for a command that
    fails, takes longer than a minute, or cannot be run; what it printed is in no message.
    """
    name = named()
    if name == FILE:
        return private_files.read_mounted(Path(os.environ[FILE]), KeyProblem)
    return _printed(os.environ[COMMAND]) if name else None


@lru_cache(maxsize=1)
def _printed(command: str) -> bytes:
    try:
        done = subprocess.run(
            shlex.split(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise KeyProblem(f"{COMMAND} took more than {_PATIENCE} seconds") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "quotes that are never closed"
        raise KeyProblem(f"{COMMAND} cannot be run: {why}") from None
    if done.returncode:
        raise KeyProblem(f"{COMMAND} failed with exit code {done.returncode}")
    return done.stdout
