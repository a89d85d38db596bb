"""What a job remembers on disk: the run under way, step by step, and the runs that ended.

Everything in here follows from releases and public columns. Only who holds the job writes.
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
from labelguard.project.project import Project, held
from labelguard.project.runs import JobRun
from labelguard.project.waiting import when_free
from labelguard.storage import private_files
from labelguard.storage.files import fsync_path, write_atomically

_RUN, _LOCK, _LOG = "run.json", "lock", "errors.log"
# Bytes of the log of errors, which then begins anew.
_MOST = 1 << 20

_SHAPE = {"run": int, "digest": str, "started_at": str, "settings": dict, "base": str}
_SHAPE |= {"steps": dict, "intents": dict}

Facts = dict[str, Any]


class State:
    """The directory of one job."""

    def __init__(self, home: Project, name: str) -> None:
        self.directory = home.jobs / name
        self.history = self.directory / runs.HISTORY

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """The job, for one run. Raises `ProjectBusy` if it is under way elsewhere."""
        for path in (self.directory.parent, self.directory):
            path.mkdir(mode=0o700, exist_ok=True)
            private_files.check_directory(path, ProjectError)
        busy = f"job {self.directory.name} is under way; run this again when it is done"
        with locked(self.directory / _LOCK, busy):
            yield

    def ended(self) -> list[JobRun]:
        """Its runs, oldest first."""
        return runs.read(self.history)

    def judged_before(self, lesson: str, in_use: str | None) -> bool:
        """Whether a run learned this and came to its end, and no model was lost since.

        `in_use` is the model in use.
        """
        counts = ("promoted", "kept") if in_use else ("kept",)
        return any(one.lesson == lesson for one in self.ended() if one.outcome in counts)

    def last_release(self) -> str | None:
        """The release that the job learned from last."""
        return next((one.release for one in reversed(self.ended()) if one.release), None)

    def under_way(self) -> UnderWay | None:
        """The run that was begun and has not ended, if there is one."""
        found = self.read(_RUN)
        if found is None:
            return None
        if {name: type(found.get(name)) for name in _SHAPE} != _SHAPE:
            raise _damaged(self.directory / _RUN)
        return UnderWay(self, found)

    def begin(self, job: Job) -> UnderWay:
        """A new run."""
        facts = {"format": 1, "started_at": clock.now(), "digest": job.digest}
        facts["run"] = max((one.run for one in self.ended()), default=0) + 1
        facts |= {"settings": job.settings.model_dump(mode="json"), "base": str(job.base)}
        begun = UnderWay(self, {**facts, "steps": {}, "intents": {}})
        begun.write()
        return begun

    def read(self, name: str) -> Facts | None:
        """A file of JSON; None if there is none. Raises `ProjectError` for anything else."""
        path = self.directory / name
        try:
            found = json.loads(private_files.read(path, ProjectError))
        except FileNotFoundError:
            return None
        except ValueError:
            raise _damaged(path) from None
        if not isinstance(found, dict):
            raise _damaged(path)
        return found

    def write(self, name: str, facts: Mapping[str, Any]) -> None:
        """A file of JSON, whole or as it was."""
        data = json.dumps(facts, sort_keys=True, allow_nan=False).encode()
        write_atomically(self.directory / name, data, mode=0o600)

    def log(self, text: str) -> str:
        """Append to the log of errors, which its owner alone can read; return where it is."""
        path = self.directory / _LOG
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o600), "a", encoding="utf-8") as file:
            if file.tell() > _MOST:
                file.truncate(0)
            file.write(f"{clock.now()} {text.rstrip()}\n\n")
        return str(path)

    def forget(self) -> None:
        """The run under way has ended, and its line stands in the history."""
        (self.directory / _RUN).unlink(missing_ok=True)
        fsync_path(self.directory)


class UnderWay:
    """A run and the steps that it has finished, each with what came of it."""

    def __init__(self, state: State, facts: Facts) -> None:
        self.state, self.facts = state, facts

    @property
    def number(self) -> int:
        """Of the run."""
        return int(self.facts["run"])

    @property
    def steps(self) -> dict[str, Facts]:
        """What came of the steps that are done."""
        steps: dict[str, Facts] = self.facts["steps"]
        return steps

    @property
    def ended(self) -> Facts | None:
        """Its line in the history, once that is settled."""
        return self.facts.get("ended")

    def step(self, name: str, work: Callable[[], Facts]) -> Facts:
        """What a step came to: as it was done before, or done now.

        Raises `LabelguardError` if that is no JSON; then nothing of it is kept.
        """
        if name not in self.steps:
            self.steps[name] = _plain(name, work())
            self.write()
        return self.steps[name]

    def intent(self, name: str) -> Facts | None:
        """What was about to happen when this was last written."""
        found: Facts | None = self.facts["intents"].get(name)
        return found

    def intend(self, name: str, **facts: Any) -> None:
        """Say what is about to happen, so that whoever takes the run up will know it."""
        self.facts["intents"][name] = facts
        self.write()

    def end(self, run: JobRun) -> None:
        """Settle how the run ended; its line follows, whatever crashes."""
        self.facts["ended"] = vars(run)
        self.write()

    def write(self) -> None:
        """Put all of it on disk."""
        self.state.write(_RUN, self.facts)


@contextlib.contextmanager
def locked(path: Path, busy: str) -> Iterator[None]:
    """Hold a lock file. Raises `ProjectBusy`, saying `busy`, unless this is to wait for it."""
    with contextlib.ExitStack() as stack:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        when_free(lambda: stack.enter_context(held(path, flags, busy)))
        yield


def _plain(step: str, facts: Facts) -> Facts:
    try:
        json.dumps(facts, allow_nan=False)
    except (TypeError, ValueError):
        raise LabelguardError(
            f"{step}: what came of it has a number that is not finite, or is no JSON; see how the "
            "step diverged, or mend it"
        ) from None
    return facts


def _damaged(path: Path) -> ProjectError:
    return ProjectError(f"{path} cannot be read; remove it to begin anew")
