"""A project that is served, as the server knows it beside the inbox.

The inbox may be a database that outlives the project directory. A directory that is gone, or that a
restore has put there since, is not the one whose inbox this is: nothing is accepted for it.
"""

from __future__ import annotations

import contextlib

from labelguard.errors import ConnectorError, LabelguardError
from labelguard.project import attempts
from labelguard.project.attempts import Attempts
from labelguard.project.project import CONFIG, Project, read_identity


class ServedProject:
    """The project directory as it was at the start."""

    def __init__(self, home: Project) -> None:
        self._home, self._identity = home, read_identity(home.state)
        self._attempts = Attempts()

    def check(self) -> None:
        """Raise `ConnectorError` unless the directory is still that of the start."""
        state, identity = self._home.state, None
        with contextlib.suppress(OSError, LabelguardError):
            identity = read_identity(state) if (state / CONFIG).is_file() else None
        if identity is None or identity != self._identity:
            raise ConnectorError(
                "the project directory is gone, or another project is in its place: "
                "put it back, or start labelguard serve again"
            )

    @property
    def fault(self) -> str | None:
        """What `check` raises, or None."""
        try:
            self.check()
        except ConnectorError as error:
            return str(error)
        return None

    def attempts(self) -> Attempts:
        """Return the attempts to release; the last known ones, where none can be read any more."""
        known = attempts.read(self._home)
        self._attempts = known if known != Attempts() else self._attempts
        return self._attempts
