"""Finished runs of jobs: public facts only, one line a run, kept for good."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from labelguard.errors import ProjectError
from labelguard.project.project import Project

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
    # promoted, kept, unchanged or failed
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


def runs(project: Project) -> list[JobRun]:
    """Finished runs of all jobs of a project, oldest first."""
    finished = [run for path in sorted(project.jobs.glob(f"*/{HISTORY}")) for run in read(path)]
    return sorted(finished, key=lambda run: (run.ended_at, run.job, run.run))


def read(path: Path) -> list[JobRun]:
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


def add(path: Path, run: JobRun) -> None:
    """Append a run, unless it is there; only for who holds the job."""
    if any(one.run == run.run for one in read(path)):
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        file.truncate(file.read().rfind(b"\n") + 1)  # a line that a crash left torn
        file.seek(0, os.SEEK_END)
        file.write(json.dumps(asdict(run), sort_keys=True, allow_nan=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
