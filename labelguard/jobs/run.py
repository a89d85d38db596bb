"""`retrain`: from new labels to the model in use, in one run that may be killed anywhere.

    check → pull → release → train → evaluate → judge → promote → history → notify

Every step that is done stands in run.json before the next begins, with what came of it; a second
start reads it and goes on. What a step does twice changes nothing: a pull and a release know what
they did, training goes on or begins anew, a promotion repeats itself. No step decides by a label:
what is released follows from public columns, and everything after that from releases.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from labelguard.errors import LabelguardError, ProjectBusy
from labelguard.jobs import checking, ending, evaluating, gates, mlflow_registry, releasing
from labelguard.jobs.promoting import Models
from labelguard.jobs.releasing import Wanted
from labelguard.jobs.settings import Job, load, parsed
from labelguard.jobs.state import Facts, State, UnderWay
from labelguard.jobs.steps import Lesson, Step, open_step
from labelguard.project import ingestion
from labelguard.project.opening import OpenProject, Where, located
from labelguard.project.project import Project
from labelguard.project.runs import JobRun
from labelguard.text import Progress, no_progress


@dataclass(frozen=True)
class Retrained:
    """What a run came to."""

    # the job's name
    job: str
    # the run's number
    run: int
    # whether it was begun before, and taken up
    resumed: bool
    # promoted, kept (the model in use), unchanged (nothing new to learn from) or failed
    outcome: str
    # left, or exhausted: what waits cannot be released
    budget: str
    # in one sentence
    why: str
    # the release that it learned from; null if there is none yet
    release: str | None
    # how that was made
    mechanism: str | None
    # labels that this run released
    new_labels: int
    # uses of all kinds that this run charged, the gate's among them
    charged: int
    # the same by kind of event, rr or statistic: what one of each costs differs
    charged_by: Mapping[str, int]
    # the model in use; null if there is none yet
    model: str | None
    # what the gate said; null if nothing was judged
    judgement: Mapping[str, Any] | None
    # what else to know
    notes: tuple[str, ...]


def retrain(path: Path, *, project: Where = None, progress: Progress = no_progress) -> Retrained:
    """Do one run of the job that a file describes, or finish the one that was begun.

    If the file has changed since, a run whose model was judged is finished as it began, any other
    is given up, and a new one follows; what was released is learned from, and not charged again.

    Guarantee: that of the policy in force; everything that is written, told or decided follows
    from releases and from who labelled what and when. Raises `PolicyError` without a policy in
    force that pays for the job, `ProjectBusy` where another run or job is under way (the run goes
    on at the next start), and what connectors, releases, steps and gates raise: the run has failed
    then, its line says so, and the next start begins another. Where a check fails, none was begun.
    """
    job = load(path)
    home = home_of(job, project)
    state = State(home, job.name)
    with state.lock():
        notes: list[str] = []
        begun = state.under_way()
        if begun:
            _sweep(home)
        if begun and begun.ended and begun.ended["outcome"] == "failed":
            notes += ending.finish(job, home, begun)
            begun = None
        if begun and begun.facts["digest"] != job.digest:
            notes.append(_settle(begun, job, home, state, progress))
            begun = None
        run = Run(job, home, state, progress)
        return run.run(begun or state.begin(job), resumed=begun is not None, notes=notes)


def home_of(job: Job, project: Where) -> Project:
    """The project of a job: the one that was named, that of job.yaml, or as commands find it."""
    named = job.settings.project
    return located(project or (job.base / named if named else None))


def check_writable(models: Path) -> None:
    """Raise `LabelguardError` if a directory of models cannot be written, or not be made."""
    there = next(one for one in (models, *models.absolute().parents) if one.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        raise LabelguardError(
            f"promote.directory: {there} cannot be written; open it to whoever runs the job, or "
            "name another directory"
        )


def _sweep(home: Project) -> None:
    """Remove what a killed run left of raw labels: where its release is taken up, no other job
    would do it soon.
    """
    with OpenProject.job(home):
        pass


def _settle(begun: UnderWay, job: Job, home: Project, state: State, progress: Progress) -> str:
    """End a run that job.yaml has changed under; what the caller should know of it."""
    if begun.ended is None and "judge" not in begun.steps:
        ending.fail(job, home, begun, "job.yaml changed while it was under way")
        return f"job.yaml changed: run {begun.number} was given up, this one is new"
    before = parsed(begun.facts["settings"], job.name, Path(begun.facts["base"]), job.name)
    Run(before, home, state, progress).run(begun, resumed=True, notes=[])
    return f"job.yaml changed: run {begun.number} was finished as it began, this one is new"


class Run:
    """One run of a job, for who holds it."""

    def __init__(self, job: Job, home: Project, state: State, progress: Progress) -> None:
        self.job, self.home, self.state, self.progress = job, home, state, progress
        self.settings = job.settings

    @cached_property
    def step(self) -> Step:
        """How models are learned."""
        return open_step(self.settings.train.step, self.settings.train.options, self.job.base)

    @cached_property
    def models(self) -> Models:
        """Where they are promoted."""
        return Models.of(self.job, self.home)

    def run(self, run: UnderWay, *, resumed: bool, notes: list[str]) -> Retrained:
        """All steps that are not done yet."""
        if run.ended is None:
            try:
                check_writable(self.job.models)
                with self.models.lock():
                    run.end(self._steps(run))
            except ProjectBusy:
                raise  # it is under way still
            except Exception as error:
                ending.log(run, error)
                if "check" not in run.steps:
                    run.state.forget()  # nothing was begun
                    raise
                ending.fail(self.job, self.home, run, ending.failure(run, error))
                raise
        ended = JobRun(**run.ended or {})
        notes = notes + list(run.steps.get("release", {}).get("notes", ()))
        notes += self._register() + ending.finish(self.job, self.home, run)
        own = {name: getattr(ended, name) for name in _SAME}
        return Retrained(**own, resumed=resumed, model=self.models.in_use, notes=tuple(notes))

    def _steps(self, run: UnderWay) -> JobRun:
        run.step("check", self._check)
        run.step("pull", self._pull)
        found = run.step("release", lambda: self._release(run))
        release = found["learn_from"]
        if release is None:
            return ending.line(self.job, run, "unchanged", found["why"])
        lesson = ending.lesson_of(self.job, self.step, release)
        before = self.state.judged_before(lesson, self.models.in_use)
        if before and "train" not in run.steps:
            why = f"release {release} was learned from before; {found['why']}"
            return ending.line(self.job, run, "unchanged", why)
        candidate = self.models.candidate(lesson)
        run.step("train", lambda: self._train(release, candidate))
        run.step("evaluate", lambda: self._evaluate(run, candidate))
        judged = run.step("judge", lambda: self._judge(run, release, candidate))
        if judged["promote"]:
            run.step("promote", lambda: self._promote(run, candidate))
        else:
            self.models.discard()
        outcome = "promoted" if judged["promote"] else "kept"
        own = ending.trained_by(self.job, self.step)
        return ending.line(self.job, run, outcome, judged["why"], lesson=lesson, trained_by=own)

    def _check(self) -> Facts:
        """Whatever would fail later, before anything is pulled or charged."""
        checking.check(self.job, self.home, self.step, self.models)
        return {}

    def _pull(self) -> Facts:
        if self.job.source is not None:
            return {"answers": 0}
        names, answers = self.settings.pull, 0
        for name in names:
            answers += ingestion.pull(name, self.home, self.progress).answers
        if not names and self.home.connectors:  # what a hook heard waits in the inbox
            answers += ingestion.ingest(self.home, self.progress).answers
        return {"answers": answers}

    def _release(self, run: UnderWay) -> Facts:
        found = releasing.release(wanted(self.job), self.home, run, self.progress)
        last = self.state.last_release()
        mechanism = self.settings.release.mechanism
        learn = found.release or releasing.newest(self.home, mechanism, last)
        return asdict(found) | {"learn_from": learn}

    def _train(self, release: str, candidate: Path) -> Facts:
        directory, current = self.home.releases / release, self.models.current
        judged_in = None
        if self.settings.gate.by == "held-out":
            judged_in = evaluating.coordinates(self.home, current)
        lesson = Lesson(directory, self.home, candidate, current, self.progress, judged_in)
        learned = self.step.train(lesson)
        return {"facts": dict(learned.facts), "curve": [dict(one) for one in learned.curve]}

    def _evaluate(self, run: UnderWay, candidate: Path) -> Facts:
        if self.settings.gate.by != "held-out":
            return {"release": None, "charged": 0}
        current = self.models.current
        return evaluating.evaluate(self.job, self.home, run, candidate, current, self.progress)

    def _judge(self, run: UnderWay, release: str, candidate: Path) -> Facts:
        self.progress("judging", None)
        evaluated = run.steps["evaluate"]
        evaluation = evaluated["release"]
        judgement = gates.judge(
            self.settings.gate,
            self.step,
            release=self.home.releases / release,
            candidate=candidate,
            current=self.models.current,
            unseen=gates.unseen(self.step, self.models),
            evaluation=self.home.releases / evaluation if evaluation else None,
            charged=evaluated["charged"],
            base=self.job.base,
        )
        return asdict(judgement)

    def _promote(self, run: UnderWay, candidate: Path) -> Facts:
        promote = self.settings.promote
        name = (run.intent("promote") or {"model": self.models.next()})["model"]
        run.intend("promote", model=name)
        facts = ending.entry(self.home, run, ending.trained_by(self.job, self.step))
        self.models.promote(candidate, name, facts, promote.keep)
        return {"model": name}

    def _register(self) -> list[str]:
        """The model in use in MLflow too, if that is asked for; what the caller should know.

        Done by every run, so that one which MLflow missed comes in later.
        """
        current, settings = self.models.current, self.settings.promote.mlflow
        if current is None or settings is None:
            return []
        [facts] = [one for one in self.models.registry if one["model"] == current.name]
        try:
            mlflow_registry.register(settings, current, self.models.project, self.job.name, facts)
        except LabelguardError as error:
            path = self.state.log("".join(traceback.format_exception(error)))
            return [f"{error}; the next run tries again; its trace is in {path}"]
        return []


_SAME = (
    *("job", "run", "outcome", "budget", "why", "release", "mechanism"),
    *("new_labels", "charged", "charged_by", "judgement"),
)


def wanted(job: Job) -> Wanted:
    """The release that a job asks for."""
    own, settings = job.settings.release, job.settings
    return Wanted(
        own.mechanism, own.min_new_labels, job.source, settings.source, own.exhausted, job.options
    )
