"""What a run of a job would do and cost; nothing is pulled, charged, trained or told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labelguard.errors import BudgetExceeded
from labelguard.jobs import checking, lessons, releasing
from labelguard.jobs.promoting import Models
from labelguard.jobs.run import home_of, wanted
from labelguard.jobs.settings import Job, load
from labelguard.jobs.state import State
from labelguard.jobs.steps import open_step
from labelguard.project.opening import Where
from labelguard.project.project import Project
from labelguard.release import pipeline
from labelguard.release.preview import Preview
from labelguard.terms import Progress, counted, silent

_GATES = {
    "released": "released labels of items that are held out; costs nothing",
    "probes": "public pairs; costs nothing",
    "held-out": "one statistic release of the labelers who are held out; charges each of them one",
    "none": "nothing: every model is promoted",
}


@dataclass(frozen=True)
class Intended:
    """What a run would do."""

    job: str
    """the job's name"""
    under_way: int | None
    """the run that would be taken up; null if a new one would begin"""
    pulls: Sequence[str]
    """connectors that would be pulled first; what they hold that is new is not counted here"""
    releases: bool
    """whether there would be a release"""
    why: str
    """why, or why not"""
    mechanism: str
    """how labels would be released"""
    new_labels: int
    """labels that would be released for the first time"""
    charged: int
    """uses that this would charge"""
    left: Mapping[str, float]
    """uses left to a labeler afterwards: min, median, max"""
    budget: str
    """left, or exhausted: what waits cannot be released"""
    trains: str | None
    """what would be trained; null if there would be nothing new to learn from"""
    gate: str
    """what the gate would read and cost"""
    replaces: str | None
    """the model in use"""
    promotes: str
    """where a model that the gate lets pass would be"""


def dry_run(path: Path, *, project: Where = None, progress: Progress = silent) -> Intended:
    """What `retrain` would do. Raises what it would raise, as far as that is known beforehand."""
    job = load(path)
    home = home_of(job, project)
    step = open_step(job.settings.train.step, job.settings.train.options, job.base)
    checking.check(job, home, step)
    models = Models.of(job, home)
    state = State(home, job.name)
    begun = state.under_way()
    found, why, exhausted = _preview(job, home, progress)
    made = found is not None and why is None
    last = lessons.last_release(state)
    known = releasing.newest(home, job.settings.release.mechanism, last)
    lesson = lessons.lesson(job, step, known) if known else ""
    fresh = known and not lessons.judged_before(state, lesson, models.in_use)
    gate = job.settings.gate.by
    return Intended(
        job=job.name,
        under_way=begun.number if begun else None,
        pulls=job.settings.pull,
        releases=made,
        why=why or f"{counted(found.new_labels if found else 0, 'new label')}",
        mechanism=job.settings.release.mechanism,
        new_labels=found.new_labels if made and found else 0,
        charged=found.charged if made and found else 0,
        left=found.left if found else {},
        budget="exhausted" if exhausted else "left",
        trains=step.name if made or fresh else None,
        gate=f"{gate}: {_GATES[gate]}",
        replaces=models.in_use,
        promotes=str(Path(job.settings.promote.directory) / models.next()),
    )


def _preview(
    job: Job, home: Project, progress: Progress
) -> tuple[Preview | None, str | None, bool]:
    """What the release would be; why there would be none, if so; and whether it is exhausted."""
    asked = wanted(job)
    try:
        found = pipeline.preview(
            asked.source,
            mechanism=asked.mechanism,
            namespace=asked.namespace,
            project=home,
            progress=progress,
            exhausted=asked.exhausted,
            **asked.options,
        )
    except BudgetExceeded:
        return None, "labelers lack allowance for what is new", True
    if found.reused:
        return found, "nothing is new since the newest release", False
    stopped = releasing.not_now(found, asked.enough)
    return (found, stopped.why, stopped.exhausted) if stopped else (found, None, False)
