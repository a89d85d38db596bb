"""A project that is served, as the server knows it beside the inbox.

The inbox may be a database that outlives the project directory. A directory that is gone, or that a
restore has put there since, is not the one whose inbox this is: nothing is accepted for it.
"""

from __future__ import annotations

import contextlib

from labelguard.answers.store import WorkerState, write_hook_refusal_reasons
from labelguard.errors import ConnectorError, LabelguardError
from labelguard.project import attempts
from labelguard.project.attempts import Attempts
from labelguard.project.project import CONFIG, Project, read_identity
from labelguard.text import pluralize

_MOST_IGNORED = 100


class ServedProject:
    """The project directory as it was at the start, and the worker beside the server.

    `worker_ends` is how often in a row that worker ended; None where there is none.
    """

    def __init__(self, home: Project) -> None:
        self._home, self._identity = home, read_identity(home.state)
        self._attempts = Attempts()
        self._worker_state = WorkerState()
        self.worker_ends: int | None = None
        # By connector: why deliveries tell of no answer.
        self.ignored: dict[str, dict[str, None]] = {}
        write_hook_refusal_reasons(home.state, {})

    def check_directory_unchanged(self) -> None:
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
        """The message of the error that `check_directory_unchanged` raises, or None."""
        try:
            self.check_directory_unchanged()
        except ConnectorError as error:
            return str(error)
        return None

    def note_ignored(self, connector: str, why: str) -> bool:
        """Keep why a delivery tells of no answer, for `doctor`; return whether that is new."""
        known = self.ignored.setdefault(connector, {})
        if why in known or len(known) >= _MOST_IGNORED:
            return False
        known[why] = None
        write_hook_refusal_reasons(
            self._home.state, {name: list(each)[-1] for name, each in self.ignored.items()}
        )
        return True

    def attempts(self) -> Attempts:
        """Return the attempts to release; the last known ones, where none can be read any more."""
        known = attempts.read_attempts(self._home)
        self._attempts = known if known != Attempts() else self._attempts
        return self._attempts

    def worker_state(self) -> WorkerState:
        """Return how far the worker is; as last known, where it cannot be read any more."""
        with contextlib.suppress(LabelguardError):
            known = WorkerState.read(self._home.state)
            self._worker_state = known if known != WorkerState() else self._worker_state
        return self._worker_state

    def describe_worker(self) -> str:
        """Say whether the worker beside the server runs."""
        if self.worker_ends is None:
            return "none (--no-worker)"
        if not self.worker_ends:
            return "runs"
        return f"ended {pluralize(self.worker_ends, 'time')} in a row"
