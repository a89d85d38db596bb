"""`retrain`: from new labels to the model in use, in one run that may be killed anywhere.

    pull → release → train → evaluate → judge → promote → history → notify

Every step that is done stands in run.json before the next begins, with what came of it; a second
start reads it and goes on. What a step does twice changes nothing: a pull and a release know what
they did, training goes on or begins anew, a promotion repeats itself. No step decides by a label:
what is released follows from public columns, and everything after that from releases.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from labelguard import clock
from labelguard.errors import LabelguardError, ProjectBusy
from labelguard.jobs import checking, evaluating, gates, mlflow_registry, notifying, releasing
from labelguard.jobs.promoting import Models
from labelguard.jobs.releasing import Wanted
from labelguard.jobs.settings import Job, load, parsed
from labelguard.jobs.state import Facts, State, UnderWay
from labelguard.jobs.steps import Lesson, Step, open_step
from labelguard.project import ingestion, runs
from labelguard.project.opening import Where, located
from labelguard.project.project import Project
from labelguard.project.runs import JobRun
from labelguard.terms import Progress, silent

STEPS = ("check", "pull", "release", "train", "evaluate", "judge", "promote")


@dataclass(frozen=True)
class Retrained:
    """What a run came to."""

    job: str
    """the job's name"""
    run: int
    """the run's number"""
    resumed: bool
    """whether it was begun before, and taken up"""
    outcome: str
    """promoted, kept (the model in use) or unchanged (nothing new to learn from)"""
    budget: str
    """left, or exhausted: what waits cannot be released"""
    why: str
    """in one sentence"""
    release: str | None
    """the release that it learned from; null if there is none yet"""
    mechanism: str | None
    """how that was made"""
    new_labels: int
    """labels that this run released"""
    charged: int
    """uses that this run charged, the gate's among them"""
    model: str | None
    """the model in use; null if there is none yet"""
    judgement: Mapping[str, Any] | None
    """what the gate said; null if nothing was judged"""
    notes: tuple[str, ...]
    """what else to know"""


def retrain(path: Path, *, project: Where = None, progress: Progress = silent) -> Retrained:
    """Do one run of the job that a file describes, or finish the one that was begun.

    Guarantee: that of the policy in force; everything that is written, told or decided follows
    from releases and from who labelled what and when. Raises `PolicyError` without a policy in
    force that pays for the job, `ProjectBusy` where another run or job is under way, and what
    connectors, releases, steps and gates raise; the run has failed then, and its line says so.
    """
    job = load(path)
    home = home_of(job, project)
    state = State(home, job.name)
    home.jobs.mkdir(mode=0o700, exist_ok=True)
    with state.lock():
        notes: list[str] = []
        begun = state.under_way()
        if begun and begun.facts["digest"] != job.digest and not _settled(begun):
            _close(begun, job, home, "job.yaml changed while it was under way")
            notes.append(f"run {begun.number} was given up: job.yaml changed; a new one begins")
            begun = None
        own = (
            parsed(begun.facts["settings"], path.name, Path(begun.facts["base"]), job.name)
            if (begun)
            else job
        )
        run = Run(own, home, state, progress)
        return run.run(begun or state.begin(job), resumed=begun is not None, notes=notes)


def home_of(job: Job, project: Where) -> Project:
    """The project of a job: the one that was named, that of job.yaml, or as commands find it."""
    named = job.settings.project
    return located(project or (job.base / named if named else None))


def _settled(run: UnderWay) -> bool:
    """Whether it only has to be carried out what was decided."""
    return run.ended is not None or "judge" in run.steps


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
        return Models(self.job.models, self.job.name)

    def run(self, run: UnderWay, *, resumed: bool, notes: list[str]) -> Retrained:
        """All steps that are not done yet."""
        if run.ended is None:
            try:
                with self.models.lock():
                    ended = self._steps(run)
            except ProjectBusy:
                raise  # the run is under way; the next start goes on
            except Exception as error:
                _close(run, self.job, self.home, _failure(run, error))
                raise
            run.end(ended)
        line = JobRun(**run.ended or {})
        notes += finish(self.job, self.home, run, line)
        if line.outcome == "failed":
            raise LabelguardError(f"{line.why}; run {line.run} had failed before, start it again")
        return self._result(line, resumed=resumed, notes=tuple(notes))

    def _steps(self, run: UnderWay) -> JobRun:
        run.step("check", self._check)
        run.step("pull", self._pull)
        found = run.step("release", lambda: self._release(run))
        release = found["learn_from"]
        if release is None:
            return self._line(run, "unchanged", found["why"])
        lesson = self._lesson(release)
        if "train" not in run.steps and self._learned_before(lesson):
            why = f"the model of release {release} was judged before; {found['why']}"
            return self._line(run, "unchanged", why)
        candidate = self.models.candidate(lesson)
        run.step("train", lambda: self._train(release, candidate))
        run.step("evaluate", lambda: self._evaluate(run, candidate))
        judged = run.step("judge", lambda: self._judge(run, release, candidate))
        if not judged["promote"]:
            self.models.discard()
            return self._line(run, "kept", judged["why"], lesson)
        run.step("promote", lambda: self._promote(run, release, candidate))
        return self._line(run, "promoted", judged["why"], lesson)

    def _check(self) -> Facts:
        """Whatever would fail later, before anything is pulled or charged."""
        checking.check(self.job, self.home, self.step)
        return {}

    def _pull(self) -> Facts:
        if self.job.source is not None:
            return {"answers": 0}
        names, done = self.settings.pull, 0
        for name in names:
            done += ingestion.pull(name, self.home, self.progress).answers
        if not names and self.home.connectors:
            done += ingestion.ingest(self.home, self.progress).answers
        return {"answers": done}

    def _release(self, run: UnderWay) -> Facts:
        found = releasing.release(wanted(self.job), self.home, run, self.progress)
        ended = [one.release for one in self.state.ended() if one.release]
        last = ended[-1] if ended else None
        mechanism = self.settings.release.mechanism
        learn = found.release or releasing.newest(self.home, mechanism, last)
        return asdict(found) | {"learn_from": learn}

    def _lesson(self, release: str) -> str:
        """Digest of all that decides what is learned, and whether it is good enough."""
        content = {"release": release, **self._trained_by()}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def _trained_by(self) -> Facts:
        identity = dict(self.step.identity())
        return {
            "step": self.step.name,
            "options": identity,
            "gate": self.settings.gate.model_dump(mode="json"),
        }

    def _learned_before(self, lesson: str) -> bool:
        return any(one.lesson == lesson for one in self.state.ended() if one.outcome != "failed")

    def _train(self, release: str, candidate: Path) -> Facts:
        learned = self.step.train(
            Lesson(
                self.home.releases / release,
                self.home,
                candidate,
                self.models.current,
                self.progress,
            )
        )
        return {"facts": dict(learned.facts), "curve": [dict(one) for one in learned.curve]}

    def _evaluate(self, run: UnderWay, candidate: Path) -> Facts:
        if self.settings.gate.by != "held-out":
            return {"release": None, "charged": 0}
        return evaluating.evaluate(self.job, self.home, run, candidate, self.progress)

    def _judge(self, run: UnderWay, release: str, candidate: Path) -> Facts:
        evaluation = run.steps["evaluate"]["release"]
        self.progress("judging", None)
        judgement = gates.judge(
            self.settings.gate,
            self.step,
            release=self.home.releases / release,
            candidate=candidate,
            current=self.models.current,
            evaluation=self.home.releases / evaluation if evaluation else None,
            base=self.job.base,
        )
        return asdict(judgement)

    def _promote(self, run: UnderWay, release: str, candidate: Path) -> Facts:
        name = (run.intent("promote") or {"model": self.models.next()})["model"]
        run.intend("promote", model=name)
        facts = entry(self.home, release, run, self._trained_by())
        promote = self.settings.promote
        self.models.promote(candidate, name, facts, promote.keep)
        path = self.models.directory / name
        version = mlflow_registry.register(promote.mlflow, path, self.job.name, facts)
        return {"model": name, "mlflow": version}

    def _line(self, run: UnderWay, outcome: str, why: str, lesson: str | None = None) -> JobRun:
        return line(self.job, self.home, run, outcome, why, lesson, self._trained_by())

    def _result(self, line: JobRun, *, resumed: bool, notes: tuple[str, ...]) -> Retrained:
        own = {name: getattr(line, name) for name in _SAME}
        return Retrained(**own, resumed=resumed, model=self.models.in_use, notes=notes)


_SAME = ("job", "run", "outcome", "budget", "why", "release", "mechanism")
_SAME += ("new_labels", "charged", "judgement")


def wanted(job: Job) -> Wanted:
    """The release that a job asks for."""
    own = job.settings.release
    return Wanted(
        own.mechanism,
        own.min_new_labels,
        job.source,
        job.settings.source,
        own.exhausted,
        job.options,
    )


def entry(home: Project, release: str, run: UnderWay, trained_by: Facts) -> Facts:
    """What the register says of a model: whose guarantee it carries, and why it was promoted."""
    from labelguard.release.writer import read_card

    card = read_card(home.releases / release)
    return {
        "run": run.number,
        "release": release,
        "mechanism": card["mechanism"],
        **{name: card["privacy"][name] for name in ("epsilon", "delta", "unit", "adjacency")},
        **trained_by,
        "facts": run.steps["train"]["facts"],
        "judgement": run.steps["judge"],
    }


def line(
    job: Job,
    home: Project,
    run: UnderWay,
    outcome: str,
    why: str,
    lesson: str | None = None,
    trained_by: Facts | None = None,
) -> JobRun:
    """How a run ended, for the history."""
    released = run.steps.get("release", {})
    evaluated = run.steps.get("evaluate", {})
    return JobRun(
        job=job.name,
        run=run.number,
        started_at=run.facts["started_at"],
        ended_at=clock.now(),
        outcome=outcome,
        budget="exhausted" if released.get("exhausted") else "left",
        why=why,
        release=released.get("learn_from"),
        mechanism=job.settings.release.mechanism if released.get("learn_from") else None,
        new_labels=released.get("new_labels", 0),
        charged=released.get("charged", 0) + evaluated.get("charged", 0),
        model=run.steps.get("promote", {}).get("model"),
        judgement=run.steps.get("judge"),
        curve=run.steps.get("train", {}).get("curve", []),
        outlook=None,
        lesson=lesson,
        evaluation=evaluated.get("release"),
        settings=trained_by or {},
    )


def _close(run: UnderWay, job: Job, home: Project, why: str) -> None:
    """End a run that failed; what it released stays, and the next one learns from it."""
    ended = line(job, home, run, "failed", why)
    run.end(ended)
    with contextlib.suppress(LabelguardError):  # the failure is what has to be said
        finish(job, home, run, ended)


def finish(job: Job, home: Project, run: UnderWay, line: JobRun) -> list[str]:
    """The line of a run that has ended into the history, and to whom it may concern; what the
    caller should know.

    Only then is it not under way any more.
    """
    runs.add(run.state.history, line)
    notes = notifying.notify(job.settings.notify, home, run.state, line)
    run.state.forget()
    return notes


def _failure(run: UnderWay, error: Exception) -> str:
    """Which step failed, by which kind of error; its message is for the terminal alone."""
    step = next((name for name in STEPS if name not in run.steps), "promote")
    return f"{step} failed: {type(error).__name__}"
