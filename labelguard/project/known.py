"""Which projects a user made, or restored, on this machine.

An archive can hold a `.labelguard` with keys, policy and ceiling of whoever packed it; unpacked, it
is the user's own. So a project found upwards counts only if its id, which nobody else can guess, is
in a list in the user's state directory; any other must be named.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from platformdirs.unix import Unix

from labelguard.errors import ProjectError
from labelguard.keys import keyring
from labelguard.storage import private_files
from labelguard.storage.files import write_atomically

ID = "id"


def mark(state: Path) -> None:
    """Give a project an id, and remember it; without a home, it will have to be named."""
    identity = keyring.random_bytes(16).hex()
    write_atomically(state / ID, f"{identity}\n".encode(), mode=0o600)
    with contextlib.suppress(OSError, RuntimeError):
        path = _list()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.write(f"{identity}\n".encode())


def knows(state: Path) -> bool:
    """Whether the project at `state` was made or restored here by this user."""
    try:
        identity = private_files.read(state / ID, ProjectError, secret=False).strip()
        known = private_files.read(_list(), ProjectError, secret=False).split()
    except (FileNotFoundError, RuntimeError):
        return False
    return len(identity) == 32 and identity in known


def _list() -> Path:
    """In XDG_STATE_HOME or ~/.local/state; `RuntimeError` if the user has no home."""
    return Unix("labelguard").user_state_path / "projects"
