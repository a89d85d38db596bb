"""A job on disk: its run in progress, step by step, the history of ended runs, and its models.

All of it follows from releases and public columns. Only the process that holds the job writes.
Models are numbered directories, with a registry and the link `current`. A promotion adds the model
to the registry, moves it into place whole, then lets `current` lead to it, each in one step; after
a crash between any two the same calls finish it. To bring back an older model let `current` lead to
it: the next candidate is then compared with that one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from labelguard import clock
from labelguard.errors import LabelguardError, ProjectError
from labelguard.jobs.settings import Job
from labelguard.keys.keyring import KeyRing
from labelguard.project import attempts
from labelguard.project.attempts import JobRun
from labelguard.project.project import Project, file_lock, retry_until_free
from labelguard.storage.files import (
    check_own_directory,
    fsync_path,
    hash_files,
    publish_directory,
    read_own_file,
    write_atomically,
)

_RUN, _LOCK, _LOG = "run.json", "lock", "errors.log"
_MAX_LOG_BYTES = 1 << 20  # then the log begins anew
_TYPES = {"run": int, "digest": str, "started_at": str, "settings": dict, "base": str}
_TYPES |= {"steps": dict, "intents": dict}

Facts = dict[str, Any]


class JobState:
    """The directory of one job."""

    def __init__(self, home: Project, name: str) -> None:
        self.directory = home.jobs / name
        self.history = self.directory / attempts.HISTORY

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the job for one run. Raises `ProjectBusy` if another process holds it."""
        for path in (self.directory.parent, self.directory):
            path.mkdir(mode=0o700, exist_ok=True)
            check_own_directory(path, ProjectError)
        busy = f"job {self.directory.name} is under way; run this again when it is done"
        with hold_lock(self.directory / _LOCK, busy):
            yield

    def read_ended_runs(self) -> list[JobRun]:
        """Return the runs that ended, oldest first."""
        return attempts.read_job_runs(self.history)

    def was_judged(self, training_key: str, in_use: str | None) -> bool:
        """Return True if a run learned this and judged it, and no model was lost since.

        `in_use` is the model in use.
        """
        outcomes = ("promoted", "rejected") if in_use else ("rejected",)
        return any(
            run.lesson == training_key for run in self.read_ended_runs() if run.outcome in outcomes
        )

    def find_last_release(self) -> str | None:
        """Return the release that the job learned from last."""
        return next((run.release for run in reversed(self.read_ended_runs()) if run.release), None)

    def read_run_in_progress(self) -> RunInProgress | None:
        """Return the run that was begun and has not ended, if there is one."""
        facts = self.read_json(_RUN)
        if facts is None:
            return None
        if {name: type(facts.get(name)) for name in _TYPES} != _TYPES:
            raise _make_unreadable_error(self.directory / _RUN)
        return RunInProgress(self, facts)

    def begin_run(self, job: Job) -> RunInProgress:
        """Begin a new run."""
        number = max((run.run for run in self.read_ended_runs()), default=0) + 1
        facts = {"format": 1, "run": number, "started_at": clock.now(), "digest": job.digest}
        facts |= {"settings": job.settings.model_dump(mode="json"), "base": str(job.base)}
        run = RunInProgress(self, {**facts, "steps": {}, "intents": {}})
        run.write()
        return run

    def read_json(self, name: str) -> Facts | None:
        """Return a file of JSON, None if there is none; raise `ProjectError` for anything else."""
        path = self.directory / name
        try:
            facts = json.loads(read_own_file(path, ProjectError))
        except FileNotFoundError:
            return None
        except ValueError:
            raise _make_unreadable_error(path) from None
        if not isinstance(facts, dict):
            raise _make_unreadable_error(path)
        return facts

    def write_json(self, name: str, facts: Mapping[str, Any]) -> None:
        """Write a file of JSON, whole or not at all."""
        data = json.dumps(facts, sort_keys=True, allow_nan=False).encode()
        write_atomically(self.directory / name, data, mode=0o600)

    def append_to_log(self, text: str) -> str:
        """Append to the log of errors, which its owner alone can read; return its path."""
        path = self.directory / _LOG
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o600), "a", encoding="utf-8") as file:
            if file.tell() > _MAX_LOG_BYTES:
                file.truncate(0)
            file.write(f"{clock.now()} {text.rstrip()}\n\n")
        return str(path)

    def remove_run_in_progress(self) -> None:
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

    def can_resume_for(self, job: Job) -> bool:
        """Return True if the next start resumes it: the job is the same and it has not failed."""
        has_failed = self.end_entry and self.end_entry["outcome"] == "failed"
        return not has_failed and self.facts["digest"] == job.digest

    def do_step_once(self, name: str, work: Callable[[], Facts]) -> Facts:
        """Return the result of a step, which is done now if it was not done before.

        Raises `LabelguardError` for a result that is no JSON; then none is written.
        """
        if name not in self.steps:
            facts = work()
            try:
                json.dumps(facts, allow_nan=False)
            except (TypeError, ValueError):
                raise LabelguardError(
                    f"{name}: its result has a number that is not finite, or is not JSON; check "
                    "whether training diverged"
                ) from None
            self.steps[name] = facts
            self.write()
        return self.steps[name]

    def read_intent(self, name: str) -> Facts | None:
        """Return the facts recorded before an action that may have begun."""
        intent: Facts | None = self.facts["intents"].get(name)
        return intent

    def record_intent(self, name: str, **facts: Any) -> None:
        """Record what is about to happen, for the process that resumes the run."""
        self.facts["intents"][name] = facts
        self.write()

    def record_end(self, run: JobRun) -> None:
        """Record how the run ended; its entry in the history follows, whatever crashes."""
        self.facts["ended"] = vars(run)
        self.write()

    def write(self) -> None:
        """Write all of it to disk."""
        self.state.write_json(_RUN, self.facts)


@contextlib.contextmanager
def hold_lock(path: Path, busy: str) -> Iterator[None]:
    """Hold a lock file; raise `ProjectBusy` with this message, unless the command is to wait."""
    with contextlib.ExitStack() as stack:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        retry_until_free(lambda: stack.enter_context(file_lock(path, flags, busy)))
        yield


def _make_unreadable_error(path: Path) -> ProjectError:
    return ProjectError(f"{path} cannot be read; remove it to start over")


CURRENT, REGISTRY = "current", "registry.json"
_NUMBER = re.compile(r"[0-9]{4,9}")
_CANDIDATE = ".candidate-"


class Models:
    """The directory of a job's models; `project` is the public name of its project.

    Raises `LabelguardError` for a directory of another job, or one that no job made.
    """

    def __init__(self, directory: Path, job: str, project: str) -> None:
        self.directory, self.job, self.project = directory, job, project
        self._check_directory_and_registry()

    @classmethod
    def open_for_job(cls, job: Job, home: Project) -> Self:
        """Return the models of a job, apart from its project's state and keys despite any links."""
        # The fingerprint of the project key: it stays when a project moves or is restored.
        models = cls(job.models, job.name, KeyRing(home.keys).key_fingerprint())
        directory = models.directory.resolve()
        for private in (home.state.resolve(), home.keys.resolve()):
            if directory.is_relative_to(private) or private.is_relative_to(directory):
                raise LabelguardError(
                    f"promote.directory: {directory} is in, or above, {private}, which is the "
                    "project's own; name another directory"
                )
        return models

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Make the directory if it is missing, and hold it for one run."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._check_directory_and_registry()
        busy = f"another job promotes models in {self.directory}"
        with hold_lock(self.directory / ".lock", busy):
            yield

    def _check_directory_and_registry(self) -> None:
        if self.directory.is_symlink() or (self.directory.exists() and not self.directory.is_dir()):
            raise LabelguardError(
                f"promote.directory: {self.directory} is a link or no directory; name another"
            )
        registry = self._read_registry()
        for owner in ("project", "job"):
            if registry and registry[owner] != getattr(self, owner):
                raise LabelguardError(
                    f"promote.directory: the models in {self.directory} are those of another "
                    f"{owner}; give every job its own directory"
                )
        names = self._names
        for path in self.directory.glob("[0-9]*"):
            if _NUMBER.fullmatch(path.name) and path.name not in names:
                raise LabelguardError(
                    f"promote.directory: {REGISTRY} in {self.directory} does not list {path.name}; "
                    "restore the registry, or name another directory"
                )
        _ = self.in_use

    def _read_registry(self) -> dict[str, Any] | None:
        path = self.directory / REGISTRY
        if path.is_symlink():
            raise LabelguardError(f"promote.directory: {path} is a link")
        try:
            registry = json.loads(path.read_text(encoding="utf-8"))
            assert registry["format"] == 1 and isinstance(registry["models"], list)
            assert isinstance(registry["project"], str) and isinstance(registry["job"], str)
            assert all(_NUMBER.fullmatch(entry["model"]) for entry in registry["models"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AssertionError):
            raise LabelguardError(f"{path} is not a registry of models") from None
        return dict(registry)

    @property
    def registry(self) -> list[dict[str, Any]]:
        """All models that were ever promoted, oldest first."""
        return list((self._read_registry() or {"models": []})["models"])

    @property
    def _names(self) -> set[str]:
        return {entry["model"] for entry in self.registry}

    @property
    def in_use(self) -> str | None:
        """The name of the model that `current` leads to.

        Raises `LabelguardError` if `current` is anything but a link to a model of this directory.
        """
        link = self.directory / CURRENT
        if not link.is_symlink():
            if link.exists():
                raise LabelguardError(f"{link} is not a link; a job would replace it: move it away")
            return None
        target = str(link.readlink())
        path = self.directory / target
        if target not in self._names or path.is_symlink() or not path.is_dir():
            raise LabelguardError(
                f"{link} does not point to a model of {REGISTRY}; point it to one, or remove it"
            )
        return target

    @property
    def current(self) -> Path | None:
        """The directory of the model in use."""
        return self.directory / self.in_use if self.in_use else None

    @property
    def next_name(self) -> str:
        """The name of the next model."""
        return f"{max(map(int, self._names), default=0) + 1:04d}"

    def prepare_candidate(self, training_key: str) -> Path:
        """Return the directory for a model in training, and remove other candidates."""
        path = self.directory / f"{_CANDIDATE}{training_key[:16]}"
        self.discard_candidates(keep=path.name)
        return path

    def discard_candidates(self, keep: str | None = None) -> None:
        """Remove models that were trained and not promoted, but for the one to `keep`."""
        for path in self.directory.glob(f"{_CANDIDATE}*"):
            if keep is None or not path.name.startswith(keep):
                _remove_file_or_directory(path)

    def promote(self, candidate: Path, name: str, facts: Mapping[str, Any], keep: int) -> None:
        """Make `candidate` the model `name` and the one in use; finish what is not done yet.

        Of older models the newest `keep` stay, and the one in use; the registry lists them all.
        """
        final = self.directory / name
        if name not in self._names:
            self._add_to_registry({"model": name, **facts}, hash_files(candidate))
        if not final.is_dir():
            if not candidate.is_dir():
                raise LabelguardError(f"{candidate} is missing; run the job again to train it anew")
            publish_directory(candidate, final)
        if self.in_use != name:
            self._point_current_to(name)
        self._remove_old_models(keep)

    def _add_to_registry(self, entry: Mapping[str, Any], files: Mapping[str, str]) -> None:
        entry = {**entry, "promoted_at": clock.now(), "files": files}
        content = {"format": 1, "project": self.project, "job": self.job}
        content |= {"models": [*self.registry, entry]}
        data = json.dumps(content, indent=2, sort_keys=True, allow_nan=False).encode() + b"\n"
        write_atomically(self.directory / REGISTRY, data)

    def _point_current_to(self, name: str) -> None:
        link = self.directory / f".{CURRENT}.new"
        link.unlink(missing_ok=True)
        link.symlink_to(name)
        link.replace(self.directory / CURRENT)
        fsync_path(self.directory)

    def _remove_old_models(self, keep: int) -> None:
        present = [name for name in sorted(self._names) if (self.directory / name).exists()]
        for name in present[:-keep]:
            if name != self.in_use:
                _remove_file_or_directory(self.directory / name)


def _remove_file_or_directory(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
