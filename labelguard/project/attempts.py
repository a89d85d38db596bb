"""The outcome of the last attempts to release: for metrics, `doctor`, `/status` and the report.

A machine that releases every night fails where nobody looks. A reason is the kind of the error; no
label decides it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace

from labelguard import clock
from labelguard.errors import (
    BudgetExceeded,
    ConnectorError,
    InvalidLabels,
    KeyProblem,
    LabelguardError,
    LedgerError,
    NotAgreed,
    OutsideDomain,
    PolicyError,
    ProjectBusy,
    ProjectError,
)
from labelguard.project.project import Project
from labelguard.storage.files import read_own, write_atomically
from labelguard.text import pluralize

# Its name in the project directory.
FILE = "attempts.json"
# Why a release failed, in the words of metrics, and what they mean.
REASONS: Mapping[str, str] = {
    "budget": "labelers lack allowance",
    "policy": "the policy in force does not allow it",
    "input": "the input cannot be read as configured",
    "tool": "the annotation tool or its settings",
    "ledger": "the ledger cannot be read or written, or does not hold",
    "key": "a key is missing, or not private",
    "project": "the project directory cannot be written, or is not as it should be",
    "other": "an error that is not labelguard's own",
}
_KINDS: tuple[tuple[type[LabelguardError], str], ...] = (
    (BudgetExceeded, "budget"),
    (PolicyError, "policy"),
    (InvalidLabels, "input"),
    (ConnectorError, "tool"),
    (LedgerError, "ledger"),
    (KeyProblem, "key"),
    (ProjectError, "project"),
)


@dataclass(frozen=True)
class Attempts:
    """The attempts to release.

    `failed` counts failures by reason, over the project's life. `since` the last success `failures`
    attempts failed, the last one for `reason`; `message` is for whoever runs the project.
    `released_at` is when the last one succeeded. Times are UTC; empty where there was none.
    """

    failed: Mapping[str, int] = field(default_factory=dict)
    failures: int = 0
    since: str = ""
    reason: str = ""
    message: str = field(default="", repr=False)
    released_at: str = ""

    @property
    def failing(self) -> str | None:
        """Say what fails, in a sentence without the message; None where the last attempt
        succeeded.
        """
        if not self.failures:
            return None
        attempts = pluralize(self.failures, "attempt")
        why = REASONS.get(self.reason, self.reason)
        return f"no release succeeded since {self.since}: {attempts} failed, the last: {why}"


def read(home: Project) -> Attempts:
    """Return what a project's file says; nothing, where there is none or it cannot be read."""
    with contextlib.suppress(
        *(OSError, ValueError, TypeError, AttributeError, RecursionError, LabelguardError)
    ):
        attempts = Attempts(**json.loads(read_own(home.state / FILE, ProjectError)))
        counts = sum(attempts.failed.values()) + attempts.failures
        if not isinstance(counts, int):
            return Attempts()
        for time in filter(None, (attempts.since, attempts.released_at)):
            clock.parse_time(time)
        return attempts
    return Attempts()


@contextlib.contextmanager
def record_attempt(home: Project) -> Iterator[None]:
    """Record how the attempt inside ends.

    Nothing is noted where somebody says no or another job runs; nor of a label outside the domain,
    which only a file has: reports would tell of it.
    """
    try:
        yield
    except (NotAgreed, ProjectBusy, OutsideDomain):
        raise
    except Exception as error:
        if type(error).__name__ != "Abort":  # click's: somebody was asked, and went away
            fail(home, error)
        raise
    succeed(home)


def fail(home: Project, error: Exception) -> None:
    """Note that an attempt failed."""
    before = read(home)
    reason = next((name for kind, name in _KINDS if isinstance(error, kind)), "other")
    ours = isinstance(error, LabelguardError)
    attempts = replace(
        before,
        failed={**before.failed, reason: before.failed.get(reason, 0) + 1},
        failures=before.failures + 1,
        since=before.since or clock.now(),
        reason=reason,
        # What another package says may hold a label.
        message=str(error) if ours else type(error).__name__,
    )
    _write(home, attempts)


def succeed(home: Project) -> None:
    """Note that an attempt succeeded."""
    _write(home, Attempts(read(home).failed, released_at=clock.now()))


def clear(home: Project) -> None:
    """Note that what failed does not fail any more, though nothing was released."""
    before = read(home)
    _write(home, Attempts(before.failed, released_at=before.released_at))


def _write(home: Project, attempts: Attempts) -> None:
    """Keep it; on a full disk, what was known before stays."""
    data = json.dumps(asdict(attempts)).encode()
    with contextlib.suppress(OSError):
        write_atomically(home.state / FILE, data, mode=0o600)
