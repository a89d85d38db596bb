"""The state of a job on disk: its run in progress, step by step, and the history of ended runs.

All of it follows from releases and public columns. Only the process that holds the job writes.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from labelguard import clock
from labelguard.errors import LabelguardError, ProjectError
from labelguard.jobs.settings import Job
from labelguard.project import runs
from labelguard.project.project import Project, file_lock, when_free
from labelguard.project.runs import JobRun
from labelguard.storage.files import check_own_directory, fsync_path, read_own, write_atomically

_RUN, _LOCK, _LOG = "run.json", "lock", "errors.log"
_MAX_LOG_BYTES = 1 << 20  # then the log begins anew
_TYPES = {"run": int, "digest": str, "started_at": str, "settings": dict, "base": str}
_TYPES |= {"steps": dict, "intents": dict}

Facts = dict[str, Any]


class JobState:
    """The directory of one job."""

    def __init__(self, home: Project, name: str) -> None:
        self.directory = home.jobs / name
        self.history = self.directory / runs.HISTORY

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the job for one run. Raises `ProjectBusy` if another process holds it."""
        for path in (self.directory.parent, self.directory):
            path.mkdir(mode=0o700, exist_ok=True)
            check_own_directory(path, ProjectError)
        busy = f"job {self.directory.name} is under way; run this again when it is done"
        with hold_lock(self.directory / _LOCK, busy):
            yield

    def ended_runs(self) -> list[JobRun]:
        """Return the runs that ended, oldest first."""
        return runs.read(self.history)

    def was_judged(self, training_key: str, in_use: str | None) -> bool:
        """Return True if a run learned this and judged it, and no model was lost since.

        `in_use` is the model in use.
        """
        outcomes = ("promoted", "kept") if in_use else ("kept",)
        return any(
            run.lesson == training_key for run in self.ended_runs() if run.outcome in outcomes
        )

    def last_release(self) -> str | None:
        """Return the release that the job learned from last."""
        return next((run.release for run in reversed(self.ended_runs()) if run.release), None)

    def run_in_progress(self) -> RunInProgress | None:
        """Return the run that was begun and has not ended, if there is one."""
        facts = self.read(_RUN)
        if facts is None:
            return None
        if {name: type(facts.get(name)) for name in _TYPES} != _TYPES:
            raise _unreadable(self.directory / _RUN)
        return RunInProgress(self, facts)

    def begin(self, job: Job) -> RunInProgress:
        """Begin a new run."""
        number = max((run.run for run in self.ended_runs()), default=0) + 1
        facts = {"format": 1, "run": number, "started_at": clock.now(), "digest": job.digest}
        facts |= {"settings": job.settings.model_dump(mode="json"), "base": str(job.base)}
        run = RunInProgress(self, {**facts, "steps": {}, "intents": {}})
        run.write()
        return run

    def read(self, name: str) -> Facts | None:
        """Return a file of JSON, None if there is none; raise `ProjectError` for anything else."""
        path = self.directory / name
        try:
            facts = json.loads(read_own(path, ProjectError))
        except FileNotFoundError:
            return None
        except ValueError:
            raise _unreadable(path) from None
        if not isinstance(facts, dict):
            raise _unreadable(path)
        return facts

    def write(self, name: str, facts: Mapping[str, Any]) -> None:
        """Write a file of JSON, whole or not at all."""
        data = json.dumps(facts, sort_keys=True, allow_nan=False).encode()
        write_atomically(self.directory / name, data, mode=0o600)

    def log(self, text: str) -> str:
        """Append to the log of errors, which its owner alone can read; return its path."""
        path = self.directory / _LOG
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o600), "a", encoding="utf-8") as file:
            if file.tell() > _MAX_LOG_BYTES:
                file.truncate(0)
            file.write(f"{clock.now()} {text.rstrip()}\n\n")
        return str(path)

    def forget(self) -> None:
        """Remove the run in progress, once it ended and is in the history."""
        (self.directory / _RUN).unlink(missing_ok=True)
        fsync_path(self.directory)


class RunInProgress:
    """A run, and the results of the steps that it finished."""

    def __init__(self, state: JobState, facts: Facts) -> None:
        self.state, self.facts = state, facts
        self.number: int = facts["run"]
        self.steps: dict[str, Facts] = facts["steps"]

    @property
    def end_entry(self) -> Facts | None:
        """Its entry in the history, once it is known."""
        return self.facts.get("ended")

    def is_of(self, job: Job) -> bool:
        """Return True if the next start resumes it: the job is the same and it has not failed."""
        has_failed = self.end_entry and self.end_entry["outcome"] == "failed"
        return not has_failed and self.facts["digest"] == job.digest

    def step(self, name: str, work: Callable[[], Facts]) -> Facts:
        """Return the result of a step, which is done now if it was not done before.

        Raises `LabelguardError` for a result that is no JSON; then none is written.
        """
        if name not in self.steps:
            facts = work()
            try:
                json.dumps(facts, allow_nan=False)
            except (TypeError, ValueError):
                raise LabelguardError(
                    f"{name}: its result has a number that is not finite, or is no JSON; see how "
                    "the step diverged, or mend it"
                ) from None
            self.steps[name] = facts
            self.write()
        return self.steps[name]

    def intent(self, name: str) -> Facts | None:
        """Return the facts recorded before an action that may have begun."""
        intent: Facts | None = self.facts["intents"].get(name)
        return intent

    def record_intent(self, name: str, **facts: Any) -> None:
        """Record what is about to happen, for the process that resumes the run."""
        self.facts["intents"][name] = facts
        self.write()

    def end(self, run: JobRun) -> None:
        """Record how the run ended; its entry in the history follows, whatever crashes."""
        self.facts["ended"] = vars(run)
        self.write()

    def write(self) -> None:
        """Write all of it to disk."""
        self.state.write(_RUN, self.facts)


@contextlib.contextmanager
def hold_lock(path: Path, busy: str) -> Iterator[None]:
    """Hold a lock file; raise `ProjectBusy` with this message, unless the command is to wait."""
    with contextlib.ExitStack() as stack:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        when_free(lambda: stack.enter_context(file_lock(path, flags, busy)))
        yield


def _unreadable(path: Path) -> ProjectError:
    return ProjectError(f"{path} cannot be read; remove it to begin anew")
