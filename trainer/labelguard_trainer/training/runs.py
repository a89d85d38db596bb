"""The directory in which a training works, `DIR.partial`, until `DIR` appears whole.

run.json       what was asked: only the same command goes on in it
checkpoints/   the trainer's own; one without the mark `complete` was interrupted
metrics.jsonl  as it grows
cache/         tokenized rows
finished/      what becomes DIR
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelguard.errors import LabelguardError
from labelguard.project.project import file_lock
from labelguard.storage.files import (
    check_output_directory,
    fresh_directory,
    fsync_path,
    publish_directory,
    write_atomically,
)

_COMPLETE = "complete"


def check_new_directory(output: Path) -> None:
    """Raise `LabelguardError` for a directory that is there, or cannot be made."""
    check_output_directory(output, "model")
    if os.path.lexists(output):
        raise LabelguardError(f"{output} exists; choose another -o")
    parent = output.absolute().parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise LabelguardError(f"{parent} is no directory one can write to; choose another -o")


@dataclass(frozen=True)
class RunDirectory:
    """`DIR.partial` of one training."""

    output: Path

    @property
    def path(self) -> Path:
        """The directory it works in."""
        return self.output.with_name(f"{self.output.name}.partial")

    @property
    def checkpoints(self) -> Path:
        """The trainer's checkpoints."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """One line for each time the trainer logs."""
        return self.path / "metrics.jsonl"

    @property
    def finished_path(self) -> Path:
        """The directory that becomes DIR."""
        return self.path / "finished"

    def cache(self, process: int) -> Path:
        """Tokenized rows of one process, empty at the start of each run."""
        return self.path / "cache" / str(process)

    @contextlib.contextmanager
    def begin(self, parameters: Mapping[str, Any]) -> Iterator[None]:
        """Begin, or go on with what the same command began; held against another process.

        Raises `LabelguardError` if another command left a checkpoint in it, `ProjectBusy` if one
        works in it.
        """
        self.path.mkdir(exist_ok=True)
        busy = f"another training works in {self.path}; run this again when it is done"
        with file_lock(self.path, os.O_RDONLY | os.O_DIRECTORY, busy):
            self._claim(json.loads(json.dumps(parameters)))
            self._remove_interrupted()
            shutil.rmtree(self.path / "cache", ignore_errors=True)
            fresh_directory(self.finished_path)
            yield

    def last_checkpoint(self) -> Path | None:
        """Return the newest checkpoint that is complete."""
        return last_checkpoint(self.checkpoints)

    def publish(self) -> None:
        """Give what is finished its name, in one step, and remove the rest."""
        check_new_directory(self.output)
        publish_directory(self.finished_path, self.output)
        for mark in self.checkpoints.glob(f"*/{_COMPLETE}"):
            mark.unlink()  # half a checkpoint is none
        for directory in (self.checkpoints, self.path / "cache"):
            shutil.rmtree(directory, ignore_errors=True)
        self.metrics.unlink(missing_ok=True)
        shutil.rmtree(self.path)  # run.json last: it says whose directory this is

    def _claim(self, parameters: Mapping[str, Any]) -> None:
        file = self.path / "run.json"
        is_new = not file.exists()
        if is_new and any(path.name != "run.json.new" for path in self.path.iterdir()):
            raise LabelguardError(f"{self.path} is no training's directory; choose another -o")
        # Where there is nothing to go on with, the command may be mended.
        if is_new or self.last_checkpoint() is None:
            write_atomically(file, json.dumps(parameters, indent=2).encode())
            return
        began = _read_json(file)
        other = sorted(
            name for name in {*parameters, *began} if parameters.get(name) != began.get(name)
        )
        if other:
            raise LabelguardError(
                f"{self.path} was begun by another command (other: {', '.join(other)}); run that "
                "again to finish it, remove the directory, or choose another -o"
            )

    def _remove_interrupted(self) -> None:
        for path in self.checkpoints.glob("checkpoint-*"):
            if not (path / _COMPLETE).exists():
                shutil.rmtree(path)


def last_checkpoint(directory: Path) -> Path | None:
    """Return the newest checkpoint in a directory that was marked as complete."""
    complete = [path.parent for path in directory.glob(f"checkpoint-*/{_COMPLETE}")]
    return max(complete, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def mark_complete(checkpoint: Path) -> None:
    """Mark a checkpoint as complete once all of it is on disk: the trainer's last file is not
    enough.

    A crash of the machine may keep a directory's entries and lose what its files hold.
    """
    for path in checkpoint.rglob("*"):
        fsync_path(path)
    write_atomically(checkpoint / _COMPLETE, b"")


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise LabelguardError(f"{file} cannot be read; remove {file.parent} and begin again")
    return content
