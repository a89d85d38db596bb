"""What a run of a job would do and cost; nothing is pulled, charged, trained or told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labelguard.errors import BudgetExceeded
from labelguard.jobs import checking, ending, releasing
from labelguard.jobs.promoting import Models
from labelguard.jobs.releasing import Found
from labelguard.jobs.run import check_writable, home_of, wanted
from labelguard.jobs.settings import Job, load
from labelguard.jobs.state import Facts, State, UnderWay
from labelguard.jobs.steps import Step, open_step
from labelguard.project.opening import OpenProject, Where
from labelguard.project.project import Project
from labelguard.release.privatize import plan
from labelguard.text import Progress, no_progress, pluralize

_GATES = {
    "released": "released labels of items that are held out; costs nothing",
    "probes": "public pairs; costs nothing",
    "held-out": "one statistic release of the labelers who are held out; charges each of them one",
    "none": "nothing: every model is promoted",
}


@dataclass(frozen=True)
class Intended:
    """What a run would do."""

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


def dry_run(path: Path, *, project: Where = None, progress: Progress = no_progress) -> Intended:
    """What `retrain` would do. Raises what it would raise, as far as that is known beforehand."""
    job = load(path)
    home = home_of(job, project)
    step = open_step(job.settings.train.step, job.settings.train.options, job.base)
    check_writable(job.models)
    models = Models.of(job, home)
    checking.check(job, home, step, models)
    state = State(home, job.name)
    begun = _taken_up(state, job)
    done = begun.steps if begun else {}
    makes, release, left = _release(job, home, begun, progress)
    trains = "train" not in done and (makes or _fresh(job, home, step, state, models, done))
    if begun and begun.ended:
        trains = False
    to_judge = trains or bool(begun and not begun.ended and "train" in done)
    promotes = to_judge and done.get("judge", {}).get("promote", True) and "promote" not in done
    intent = begun.intent("promote") if begun else None
    name = intent["model"] if intent else models.next()
    gate = job.settings.gate.by
    return Intended(
        job=job.name,
        under_way=begun.number if begun else None,
        pulls=() if "pull" in done else job.settings.pull,
        releases=makes,
        why=f"run {begun.number} would be taken up: {release.why}" if begun else release.why,
        mechanism=job.settings.release.mechanism,
        new_labels=release.new_labels,
        charged=release.charged,
        left=left,
        budget="exhausted" if release.exhausted else "left",
        trains=step.name if trains else None,
        gate=f"{gate}: {_GATES[gate]}" if to_judge and "judge" not in done else "not asked",
        replaces=models.in_use,
        promotes=str(Path(job.settings.promote.directory) / name) if promotes else None,
    )


def _taken_up(state: State, job: Job) -> UnderWay | None:
    """The run that the next start takes up; one that failed, or of another job.yaml, is not."""
    begun = state.under_way()
    if begun is None or begun.facts["digest"] != job.digest:
        return None
    return None if begun.ended and begun.ended["outcome"] == "failed" else begun


def _fresh(
    job: Job, home: Project, step: Step, state: State, models: Models, done: Mapping[str, Facts]
) -> bool:
    """Whether there is a release to learn from, where none is made, and no run did."""
    known = (
        done["release"]["learn_from"]
        if "release" in done
        else releasing.newest(home, job.settings.release.mechanism, state.last_release())
    )
    if known is None:
        return False
    lesson = ending.lesson_of(job, step, known)
    return not state.judged_before(lesson, models.in_use)


def _release(
    job: Job, home: Project, begun: UnderWay | None, progress: Progress
) -> tuple[bool, Found, Mapping[str, float]]:
    """Whether the release step would make one, what came of it, and what is left of allowances."""
    if begun and "release" in begun.steps:
        exhausted = bool(begun.steps["release"]["exhausted"])
        return False, Found(None, "its release is made", exhausted=exhausted), {}
    asked = wanted(job)
    ledger = OpenProject.open(home).ledger
    intent = begun.intent(asked.mechanism) if begun else None
    record = releasing.begun_by(intent, ledger)
    finishes = "finishes the release that was begun, charges nothing more"
    if record and record.state == "committed":
        return True, Found(record.id, finishes, record.drawn or 0), {}
    options = {"mechanism": asked.mechanism, "exhausted": asked.exhausted, **asked.options}
    try:
        found = plan(
            asked.source, namespace=asked.namespace, project=home, progress=progress, **options
        ).preview
    except BudgetExceeded:
        return False, releasing.EXHAUSTED, {}
    if record and intent and found.request == intent["request"]:
        drawn = found.new_labels if record.drawn is None else record.drawn
        return True, Found(record.id, finishes, drawn), {}
    if found.reused:
        before = ledger.releases.get(found.reused)
        assert before is not None
        return False, releasing.nothing_new(before, asked.enough), found.left
    if record is None and (stopped := releasing.not_now(found, asked.enough)):
        return False, stopped, found.left
    why = pluralize(found.new_labels, "new label")
    return True, Found(None, why, found.new_labels, found.charged), found.left
