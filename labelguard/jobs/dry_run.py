"""Preview of a run: what it would do and cost. Nothing is pulled, charged, trained or sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labelguard.jobs import finish
from labelguard.jobs.releases import ReleaseOutcome, preview_release
from labelguard.jobs.run import JobExecution, find_project
from labelguard.jobs.settings import load_job
from labelguard.jobs.state import RunInProgress
from labelguard.project.opening import Where
from labelguard.text import Progress, no_progress

_GATES = {
    "released": "released labels of items that are kept apart; costs nothing",
    "probes": "public pairs; costs nothing",
    "held-out": "one statistic release of labelers who are kept apart; charges each of them one",
    "none": "nothing: every model is put into use",
}


@dataclass(frozen=True)
class RunPreview:
    """The actions of a run, before it is begun."""

    # the job's name
    job: str
    # the run that would be taken up; null if a new one would begin
    under_way: int | None
    # connectors that would be pulled first; what they hold that is new is not counted here
    pulls: Sequence[str]
    # whether there would be a release
    releases: bool
    # why, or why not
    why: str
    # how labels would be released
    mechanism: str
    # labels that would be released for the first time
    new_labels: int
    # uses that this would charge; 0 where a release that was begun is finished
    charged: int
    # uses left to a labeler afterwards: min, median, max
    left: Mapping[str, float]
    # left, or exhausted: what waits cannot be released
    budget: str
    # what would be trained; null if there would be nothing new to learn from
    trains: str | None
    # what the gate would read and cost; not asked if there would be no model to judge
    gate: str
    # the model in use
    replaces: str | None
    # where a model that the gate lets pass would be; null if there would be none
    promotes: str | None


def dry_run(path: Path, *, project: Where = None, progress: Progress = no_progress) -> RunPreview:
    """Return what `retrain` would do; raise what it would raise, as far as that is known before."""
    job = load_job(path)
    run = JobExecution(job, find_project(job, project), progress)
    run.check_writable()
    run.check()
    begun = run.state.run_in_progress()
    begun = begun if begun and begun.is_of(job) else None
    done = begun.steps if begun else {}
    releases, outcome, left = _preview_release(run, begun)
    has_ended = begun is not None and begun.end_entry is not None
    trains = "train" not in done and not has_ended and (releases or _is_new(run, begun))
    judges = trains or ("train" in done and not has_ended)
    promotes = judges and done.get("judge", {}).get("promote", True) and "promote" not in done
    intent = begun.intent("promote") if begun else None
    name = intent["model"] if intent else run.models.next_name
    gate = job.settings.gate.by
    return RunPreview(
        job=job.name,
        under_way=begun.number if begun else None,
        pulls=() if "pull" in done else job.settings.pull,
        releases=releases,
        why=f"run {begun.number} would be taken up: {outcome.why}" if begun else outcome.why,
        mechanism=job.settings.release.mechanism,
        new_labels=outcome.new_labels,
        charged=outcome.charged,
        left=left,
        budget="exhausted" if outcome.exhausted else "left",
        trains=run.step.name if trains else None,
        gate=f"{gate}: {_GATES[gate]}" if judges and "judge" not in done else "not asked",
        replaces=run.models.in_use,
        promotes=str(Path(job.settings.promote.directory) / name) if promotes else None,
    )


def _preview_release(
    run: JobExecution, begun: RunInProgress | None
) -> tuple[bool, ReleaseOutcome, Mapping[str, float]]:
    """Return whether the step would make a release, its outcome, and what is left of allowances."""
    if begun and "release" in begun.steps:
        exhausted = bool(begun.steps["release"]["exhausted"])
        return False, ReleaseOutcome(None, "its release is made", exhausted=exhausted), {}
    return preview_release(run.release_request, run.home, begun, run.progress)


def _is_new(run: JobExecution, begun: RunInProgress | None) -> bool:
    """Return True if there is a release to learn from that no run learned from."""
    if begun and "release" in begun.steps:
        release = begun.steps["release"]["learn_from"]
    else:
        release = run.newest_release()
    if release is None:
        return False
    key = finish.training_key(run.job, run.step, release)
    return not run.state.was_judged(key, run.models.in_use)
