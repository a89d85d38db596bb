"""Secrets of annotation tools: from the environment, a file or the keyring, never from a project.

They are read when they are needed, and are in no setting, log or error.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

from labelguard.errors import ConnectorError
from labelguard.storage import private_files

_SERVICE = "labelguard"


def credential(connector: str, kind: str) -> str:
    """A secret of a connector: `api_key`, or `hook_secret` (several, separated by blanks).

    Looked for in LABELGUARD_<CONNECTOR>_<KIND>, in the file that LABELGUARD_<CONNECTOR>_<KIND>_FILE
    names, and in the keyring under service `labelguard` and user `<connector>/<kind>`. Raises
    `ConnectorError` if it is nowhere.
    """
    own = variable(connector, kind)
    if value := os.environ.get(own, "").strip():
        return value
    if name := os.environ.get(f"{own}_FILE"):
        data = private_files.read_mounted(Path(name), ConnectorError)
        if value := data.decode(errors="replace").strip():
            return value
    if find_spec("keyring"):
        import keyring

        if value := (keyring.get_password(_SERVICE, f"{connector}/{kind}") or "").strip():
            return value
    raise ConnectorError(
        f"connector {connector}: no {kind}; put it into {own}, into a file named by "
        f"{own}_FILE, or into the keyring (keyring set {_SERVICE} {connector}/{kind})"
    )


def variable(connector: str, kind: str) -> str:
    """The environment variable of such a secret."""
    return f"LABELGUARD_{_word(connector)}_{_word(kind)}"


def _word(name: str) -> str:
    return re.sub(r"\W", "_", name).upper()
