"""Models in use: numbered directories, a register of them, and the link `current`.

The register says what is coming, the model appears whole, then `current` leads to it, each in one
step; so a crash between any two is mended by doing the same again. A person who wants an older
model back lets `current` lead to it: the next candidate is then judged against that one.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from labelguard import clock
from labelguard.errors import LabelguardError
from labelguard.jobs.settings import Job
from labelguard.jobs.state import locked
from labelguard.keys.keyring import KeyRing
from labelguard.project.project import Project
from labelguard.storage.files import fsync_path, publish_directory, write_atomically
from labelguard.storage.sums import hashes_of

CURRENT, REGISTRY = "current", "registry.json"
_NUMBER = re.compile(r"[0-9]{4,9}")
_CANDIDATE = ".candidate-"


class Models:
    """The directory of a job's models; `project` is the public name of its project.

    Raises `LabelguardError` for one that belongs to another job, or is not what a job made.
    """

    def __init__(self, directory: Path, job: str, project: str) -> None:
        self.directory, self.job, self.project = directory, job, project
        self._check()

    @classmethod
    def of(cls, job: Job, home: Project) -> Self:
        """Those of a job; they lie apart from its project's state and keys, whatever links there
        are.
        """
        # The fingerprint of the project key: it stays when a project moves or is restored.
        made = cls(job.models, job.name, KeyRing(home.keys).check_value())
        directory = made.directory.resolve()
        for own in (home.state.resolve(), home.keys.resolve()):
            if directory.is_relative_to(own) or own.is_relative_to(directory):
                raise LabelguardError(
                    f"promote.directory: {directory} is in, or above, {own}, which is the "
                    "project's own; name another directory"
                )
        return made

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """The directory, for one run; it is made if there is none."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._check()
        with locked(self.directory / ".lock", f"another job promotes models in {self.directory}"):
            yield

    def _check(self) -> None:
        if self.directory.is_symlink() or (self.directory.exists() and not self.directory.is_dir()):
            raise LabelguardError(
                f"promote.directory: {self.directory} is a link or no directory; name a directory"
            )
        entries = self._entries()
        for owner in ("project", "job"):
            if entries is not None and entries[owner] != getattr(self, owner):
                raise LabelguardError(
                    f"promote.directory: the models in {self.directory} are those of another "
                    f"{owner}; let every job have a directory of its own"
                )
        known = {one["model"] for one in self.registry}
        for path in self.directory.glob("[0-9]*"):
            if _NUMBER.fullmatch(path.name) and path.name not in known:
                raise LabelguardError(
                    f"promote.directory: {REGISTRY} in {self.directory} does not know {path.name}; "
                    "put the register back, or name another directory"
                )
        _ = self.in_use

    def _entries(self) -> dict[str, Any] | None:
        path = self.directory / REGISTRY
        if path.is_symlink():
            raise LabelguardError(f"promote.directory: {path} is a link")
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            assert found["format"] == 1 and isinstance(found["models"], list)
            assert isinstance(found["project"], str) and isinstance(found["job"], str)
            assert all(_NUMBER.fullmatch(one["model"]) for one in found["models"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AssertionError):
            raise LabelguardError(f"{path} is not a register of models") from None
        return dict(found)

    @property
    def registry(self) -> list[dict[str, Any]]:
        """All models that were ever promoted, oldest first."""
        return list((self._entries() or {"models": []})["models"])

    @property
    def in_use(self) -> str | None:
        """The model that `current` leads to.

        Raises `LabelguardError` if `current` is anything but a link to a model of this directory.
        """
        link = self.directory / CURRENT
        if not link.is_symlink():
            if link.exists():
                raise LabelguardError(f"{link} is no link; a job would replace it: move it away")
            return None
        target = str(link.readlink())
        known = {one["model"] for one in self.registry}
        path = self.directory / target
        if target not in known or path.is_symlink() or not path.is_dir():
            raise LabelguardError(
                f"{link} leads to no model of {REGISTRY}; let it lead to one, or remove it"
            )
        return target

    @property
    def current(self) -> Path | None:
        """The directory of the model in use."""
        return self.directory / self.in_use if self.in_use else None

    def candidate(self, lesson: str) -> Path:
        """Where what is learned by a lesson grows; those of others are removed."""
        path = self.directory / f"{_CANDIDATE}{lesson[:16]}"
        self.discard(path.name)
        return path

    def discard(self, but: str | None = None) -> None:
        """Remove what was learned and not promoted, `but` for one candidate."""
        for path in self.directory.glob(f"{_CANDIDATE}*"):
            if but is None or not path.name.startswith(but):
                _remove(path)

    def next(self) -> str:
        """The name of the next model."""
        last = max((int(one["model"]) for one in self.registry), default=0)
        return f"{last + 1:04d}"

    def promote(self, candidate: Path, name: str, facts: Mapping[str, Any], keep: int) -> None:
        """Let `candidate` be the model `name` and in use; done as far as it is not done yet."""
        final = self.directory / name
        if name not in {one["model"] for one in self.registry}:
            files = hashes_of(candidate)
            entry = {"model": name, **facts, "promoted_at": clock.now(), "files": files}
            self._write([*self.registry, entry])
        if not final.is_dir():
            if not candidate.is_dir():
                raise LabelguardError(f"{candidate} is gone; run the job again to learn it anew")
            publish_directory(candidate, final)
        self._use(name)
        self._prune(keep)

    def _write(self, entries: list[dict[str, Any]]) -> None:
        content = {"format": 1, "project": self.project, "job": self.job, "models": entries}
        data = json.dumps(content, indent=2, sort_keys=True, allow_nan=False).encode() + b"\n"
        write_atomically(self.directory / REGISTRY, data)

    def _use(self, name: str) -> None:
        if self.in_use == name:
            return
        link = self.directory / f".{CURRENT}.new"
        link.unlink(missing_ok=True)
        link.symlink_to(name)
        link.replace(self.directory / CURRENT)
        fsync_path(self.directory)

    def _prune(self, keep: int) -> None:
        """Remove models but for the newest few and the one in use; the register keeps them all."""
        names = sorted(one["model"] for one in self.registry)
        for name in [name for name in names if (self.directory / name).exists()][:-keep]:
            if name != self.in_use:
                _remove(self.directory / name)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
