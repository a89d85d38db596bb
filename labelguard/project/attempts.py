"""The outcome of the last attempts to release, and of every run of a job.

The first is for metrics, `doctor`, `/status` and the report. Of finished runs public facts are kept
for good, one line a run.

A machine that releases every night fails where nobody looks. A reason is the kind of the error; no
label decides it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

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
from labelguard.storage.files import read_own_file, write_atomically
from labelguard.text import pluralize

# Its name in the project directory.
FILE = "attempts.json"
# Why a release failed, in the words of metrics, and what they mean.
REASONS: Mapping[str, str] = {
    "budget": "labelers lack allowance",
    "policy": "no policy in force allows it",
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
    attempts failed, the last one for `reason`; `message` is for whoever runs the project, in the
    file alone.
    `released_at` is when the last one succeeded. Times are UTC; empty where there was none.
    """

    failed: Mapping[str, int] = field(default_factory=dict)
    failures: int = 0
    since: str = ""
    reason: str = ""
    message: str = field(default="", repr=False)
    released_at: str = ""

    @property
    def failure_text(self) -> str | None:
        """Say what fails, in a sentence without the message; None where the last attempt
        succeeded.
        """
        if not self.failures:
            return None
        attempts = pluralize(self.failures, "attempt")
        why = REASONS.get(self.reason, self.reason)
        return f"no release succeeded since {self.since}: {attempts} failed, the last: {why}"


def read_attempts(home: Project) -> Attempts:
    """Return what a project's file says; nothing, where there is none or it cannot be read."""
    with contextlib.suppress(
        *(OSError, ValueError, TypeError, AttributeError, RecursionError, LabelguardError)
    ):
        attempts = Attempts(**json.loads(read_own_file(home.state / FILE, ProjectError)))
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
            record_failure(home, error)
        raise
    record_success(home)


def find_reason(error: Exception) -> str:
    """Return the public reason of a failure: one of `REASONS`, whatever the error says."""
    return next((name for kind, name in _KINDS if isinstance(error, kind)), "other")


def describe_publicly(error: Exception) -> str:
    """Return an error of ours as logs of machines may have it.

    What is said of an input is for whoever holds the input: it names rows and columns, which may
    follow from labels.
    """
    return REASONS["input"] if isinstance(error, InvalidLabels) else str(error)


def record_failure(home: Project, error: Exception) -> None:
    """Note that an attempt failed."""
    before = read_attempts(home)
    reason = find_reason(error)
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
    _write_attempts(home, attempts)


def record_success(home: Project) -> None:
    """Note that an attempt succeeded."""
    _write_attempts(home, Attempts(read_attempts(home).failed, released_at=clock.now()))


def record_restored(home: Project, released_at: str) -> None:
    """Note when the newest release of a restored project was made."""
    _write_attempts(home, Attempts(released_at=released_at))


def clear_failures(home: Project) -> None:
    """Note that what failed does not fail any more, though nothing was released."""
    before = read_attempts(home)
    _write_attempts(home, Attempts(before.failed, released_at=before.released_at))


def _write_attempts(home: Project, attempts: Attempts) -> None:
    """Keep it; on a full disk, what was known before stays."""
    data = json.dumps(asdict(attempts)).encode()
    with contextlib.suppress(OSError):
        write_atomically(home.state / FILE, data, mode=0o600)


HISTORY = "history.jsonl"


@dataclass(frozen=True)
class JobRun:
    """One run of a job that has ended."""

    # the job's name
    job: str
    # its number, from 1 on
    run: int
    # when it began, UTC; one that was killed and taken up began once
    started_at: str
    # when it ended, UTC
    ended_at: str
    # promoted, rejected (the candidate, by its gate), unchanged or failed
    outcome: str
    # left, or exhausted: what waits cannot be released
    budget: str
    # in one sentence
    why: str
    # the release that it learned from; null if there was none
    release: str | None
    # how it was made
    mechanism: str | None
    # labels that the run released
    new_labels: int
    # uses of all kinds that it charged, the gate's among them
    charged: int
    # the promoted model's directory under `promote.directory`; null if none was promoted
    model: str | None
    # what the gate said; null if nothing was judged
    judgement: Mapping[str, Any] | None
    # training metrics, of released labels only
    curve: Sequence[Mapping[str, float]]
    # digest of what it learned from and how; equal ones make no new model
    lesson: str | None = None
    # the release that the gate read; null if it read none
    evaluation: str | None = None
    # the same by kind of event, rr or statistic: what one of each costs differs
    charged_by: Mapping[str, int] = field(default_factory=dict)
    # what the model was trained by and judged by
    settings: Mapping[str, Any] = field(default_factory=dict)


_NAMES = {one.name for one in fields(JobRun)}


def list_job_runs(project: Project) -> list[JobRun]:
    """Return finished runs of all jobs of a project, oldest first."""
    finished = [
        run for path in sorted(project.jobs.glob(f"*/{HISTORY}")) for run in read_job_runs(path)
    ]
    return sorted(finished, key=lambda run: (run.ended_at, run.job, run.run))


def read_job_runs(path: Path) -> list[JobRun]:
    """Return the runs of one job; a last line that was not written whole does not count.

    Raises `ProjectError` for lines that are none.
    """
    data, finished = path.read_bytes() if path.exists() else b"", []
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), 1):
        try:
            values = json.loads(line)
            finished.append(JobRun(**{name: values[name] for name in _NAMES & set(values)}))
        except (ValueError, TypeError, KeyError):
            raise ProjectError(f"{path}, line {number}, is no run of a job") from None
    return finished


def append_job_run(path: Path, run: JobRun) -> None:
    """Append a run, unless it is there; only for who holds the job."""
    if any(one.run == run.run for one in read_job_runs(path)):
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        file.truncate(file.read().rfind(b"\n") + 1)  # a line that a crash left torn
        file.seek(0, os.SEEK_END)
        file.write(json.dumps(asdict(run), sort_keys=True, allow_nan=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
