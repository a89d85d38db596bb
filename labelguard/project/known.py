"""Which projects a user made, or restored, on this machine.

An archive can hold a `.labelguard` with keys, policy and ceiling of whoever packed it; unpacked, it
is the user's own. So a project found upwards counts only if its id, which nobody else can guess, is
in a list in the user's state directory; any other must be named. The list also tells where each
was made: a restore must not take the keys of one that lives.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from urllib.parse import quote, unquote

from platformdirs.unix import Unix

from labelguard.errors import ProjectError
from labelguard.keys import keyring
from labelguard.storage import private_files
from labelguard.storage.files import write_atomically

ID = "id"


def mark(state: Path, place: Path) -> None:
    """Give a project an id, and remember it and the `place` where it will be.

    Without a home, it will have to be named.
    """
    identity = keyring.random_bytes(16).hex()
    write_atomically(state / ID, f"{identity}\n".encode(), mode=0o600)
    with contextlib.suppress(OSError, RuntimeError):
        path = _list()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.write(f"{identity} {quote(os.fsencode(place.absolute()))}\n".encode())


def knows(state: Path) -> bool:
    """Whether the project at `state` was made or restored here by this user."""
    try:
        identity = private_files.read(state / ID, ProjectError, secret=False).strip()
        known = private_files.read(_list(), ProjectError, secret=False).split()
    except (FileNotFoundError, RuntimeError):
        return False
    return len(identity) == 32 and identity in known


def places() -> list[Path]:
    """Where this user made or restored projects; some may be gone by now."""
    try:
        known = private_files.read(_list(), ProjectError, secret=False).decode().split()
    except (FileNotFoundError, RuntimeError):
        return []
    return [Path(unquote(place)) for place in known if place.startswith("/")]


def _list() -> Path:
    """In XDG_STATE_HOME or ~/.local/state; `RuntimeError` if the user has no home."""
    return Unix("labelguard").user_state_path / "projects"
