"""`retrain`: from new labels to the model in use, in one run that may be killed anywhere.

    check → pull → release → train → evaluate → judge → promote → history → notify

The result of every finished step is in run.json before the next begins; a second start reads it and
goes on. Doing a step twice changes nothing: a pull and a release remember what they did, training
goes on or begins anew, a promotion repeats itself. No step decides by a label: what is released
follows from public columns, and everything after that from releases.

A preview says what a run would do and cost. Nothing is pulled, charged, trained or sent for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from labelguard.answers import connector as connectors
from labelguard.errors import LabelguardError, NothingIngested, PolicyError, ProjectBusy
from labelguard.jobs import finish, gates, releases
from labelguard.jobs.metrics import write_metrics
from labelguard.jobs.releases import JobRelease, ReleaseOutcome, preview_release
from labelguard.jobs.settings import Job, load_job, parse_job
from labelguard.jobs.state import Facts, JobState, Models, RunInProgress
from labelguard.jobs.steps import Step, TrainingTask, open_step
from labelguard.project import ingestion, policies
from labelguard.project.attempts import JobRun
from labelguard.project.opening import OpenProject, Where, locate_project
from labelguard.project.project import Project
from labelguard.release.mechanisms import open_mechanism
from labelguard.report.overview import Usage
from labelguard.text import Progress, no_progress


@dataclass(frozen=True)
class Retrained:
    """The result of a run."""

    # the job's name
    job: str
    # the run's number
    run: int
    # whether it was begun before, and resumed
    resumed: bool
    # promoted, rejected (the candidate, by its gate), unchanged (nothing is new) or failed
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
    # how far labelers have used what the mechanism charges; null before the first charge
    allowance: Usage | None = None


def retrain(path: Path, *, project: Where = None, progress: Progress = no_progress) -> Retrained:
    """Do one run of the job that a file describes, or finish the one that was begun.

    If the file has changed since, a run whose model was judged is finished as it began, any other
    is given up, and a new one follows; its release is learned from, and not charged again.

    Guarantee: that of the policy in force; everything that is written, sent or decided follows
    from releases and from who labelled what and when. Raises `PolicyError` without a policy in
    force that pays for the job, `ProjectBusy` where another run or job is in progress (the run goes
    on at the next start), and what connectors, releases, steps and gates raise: the run has failed
    then, its entry says so, and the next start begins another. Where a check fails, none was begun.
    """
    job = load_job(path)
    home = find_job_project(job, project)
    state = JobState(home, job.name)
    with state.lock(), write_metrics(state):
        notes: list[str] = []
        begun = state.read_run_in_progress()
        if begun:
            with OpenProject.hold_for_job(home):
                pass  # removes what a killed run left of raw labels
        if begun and not begun.can_resume_for(job):
            notes = _end_earlier_run(begun, job, home, progress)
            begun = None
        run = begun or state.begin_run(job)
        return JobExecution(job, home, progress).run(run, resumed=begun is not None, notes=notes)


def find_job_project(job: Job, project: Where) -> Project:
    """Return the project of a job: the one given, that of job.yaml, or the nearest upwards."""
    in_settings = job.settings.project
    return locate_project(project or (job.base / in_settings if in_settings else None))


def _end_earlier_run(
    begun: RunInProgress, job: Job, home: Project, progress: Progress
) -> list[str]:
    """End a run that failed, or that job.yaml has changed under; return notes for the caller."""
    if begun.end_entry and begun.end_entry["outcome"] == "failed":
        return finish.record_and_notify(job, home, begun)
    if begun.end_entry is None and "judge" not in begun.steps:
        finish.end_failed_run(job, home, begun, "job.yaml changed while it was under way")
        return [f"job.yaml changed: run {begun.number} was abandoned, this one is new"]
    before = parse_job(begun.facts["settings"], job.name, Path(begun.facts["base"]), job.name)
    JobExecution(before, home, progress).run(begun, resumed=True, notes=[])
    return [f"job.yaml changed: run {begun.number} was finished as it began, this one is new"]


class JobExecution:
    """The steps of a job, for the process that holds it."""

    def __init__(self, job: Job, home: Project, progress: Progress) -> None:
        self.job, self.home, self.progress = job, home, progress
        self.settings, self.state = job.settings, JobState(home, job.name)

    @cached_property
    def step(self) -> Step:
        """The step that learns models."""
        return open_step(self.settings.train.step, self.settings.train.options, self.job.base)

    @cached_property
    def models(self) -> Models:
        """The directory of promoted models."""
        return Models.open_for_job(self.job, self.home)

    @property
    def release_request(self) -> JobRelease:
        """The release that the job asks for."""
        release, gate = self.settings.release, self.settings.gate
        check = partial(gates.check_basis, gate, self.step, self.models, self.home)
        options = {"namespace": self.settings.source, "exhausted": release.exhausted}
        options |= self.job.options
        given = release.mechanism, release.min_new_labels, self.job.source, options
        return JobRelease(*given, check)

    def run(self, run: RunInProgress, *, resumed: bool, notes: list[str]) -> Retrained:
        """Do all steps that are not done yet."""
        if run.end_entry is None:
            try:
                self.check_writable()
                with self.models.lock():
                    run.record_end(self._run_steps(run))
            except ProjectBusy:
                raise  # it is in progress still
            except Exception as error:
                shown = finish.log_failure(run, error)
                if "check" not in run.steps:
                    run.state.remove_run_in_progress()  # nothing was begun
                else:
                    why = finish.describe_failure(run, error)
                    finish.end_failed_run(self.job, self.home, run, why)
                if shown is error:
                    raise
                raise shown from None
        entry = JobRun(**run.end_entry or {})
        for step in ("pull", "release"):
            notes = notes + list(run.steps.get(step, {}).get("notes", ()))
        notes += finish.record_and_notify(self.job, self.home, run)
        same = {name: getattr(entry, name) for name in _ENTRY_FIELDS}
        return Retrained(
            **same,
            resumed=resumed,
            model=self.models.in_use,
            notes=tuple(notes),
            allowance=releases.find_usage(self.settings.release.mechanism, self.home),
        )

    def _run_steps(self, run: RunInProgress) -> JobRun:
        run.do_step_once("check", self.check)
        run.do_step_once("pull", self._pull)
        released = run.do_step_once("release", lambda: self._release(run))
        release, why = released["learn_from"], released["why"]
        if release is None:
            return finish.make_history_entry(self.job, run, "unchanged", why)
        key = finish.compute_training_key(self.job, self.step, release)
        if "train" not in run.steps and self.state.was_judged(key, self.models.in_use):
            why = f"release {release} was already learned from; {why}"
            return finish.make_history_entry(self.job, run, "unchanged", why)
        candidate = self.models.prepare_candidate(key)
        run.do_step_once("train", lambda: self._train(release, candidate))
        run.do_step_once("evaluate", lambda: self._evaluate(run, candidate))
        judged = run.do_step_once("judge", lambda: self._judge(run, release, candidate))
        config = finish.describe_training(self.job, self.step)
        if judged["promote"]:
            run.do_step_once("promote", lambda: self._promote(run, candidate, config))
        else:
            self.models.discard_candidates()
        outcome, why = "promoted" if judged["promote"] else "rejected", judged["why"]
        return finish.make_history_entry(
            self.job, run, outcome, why, training_key=key, config=config
        )

    def check_writable(self) -> None:
        """Raise `LabelguardError` if the directory of models cannot be written, or not be made."""
        directory = self.job.models
        parents = (directory, *directory.absolute().parents)
        existing = next(path for path in parents if path.exists())
        if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
            raise LabelguardError(
                f"promote.directory: {existing} is not writable; make it writable for whoever runs "
                "the job, or name another directory"
            )

    def check(self) -> Facts:
        """Raise for whatever would fail later, before anything is pulled or charged.

        Raises `PolicyError` if the policy in force does not pay for the job.
        """
        mechanism, gate = self.settings.release.mechanism, self.settings.gate
        finish.check_notification_settings(self.settings.notify)
        policy = policies.require_policy_in_force(self.home)
        paid = {f"release.mechanism: {mechanism}": mechanism}
        if gate.by == "held-out":
            paid["gate.by: held-out"] = gates.EVALUATION
        for setting, name in paid.items():
            if (event := str(open_mechanism(name).priced)) not in policy.events:
                raise PolicyError(
                    f"{setting} is paid for as {event}, and policy {policy.name} pays for "
                    f"{' and '.join(policy.events)} only; put one into force that does (labelguard "
                    "policy new, policy activate), or change job.yaml"
                )
        if gate.by == "held-out" and not policy.held_out:
            raise PolicyError(
                f"gate.by: held-out needs labelers who are held out, and policy {policy.name} "
                "holds out none; put one into force that does (labelguard policy new --held-out), "
                "or take another gate"
            )
        gates.check_gate(gate, self.step, mechanism, self.models, self.job.base)
        if gate.by == "held-out":
            gates.check_same_coordinates(mechanism, self.home, self.models.current)
        self.step.check(mechanism, self._gate_coordinates())
        for name in self.settings.pull:
            connectors.check_access(connectors.read_settings(self.home.connectors, name))
        return {}

    def _gate_coordinates(self) -> Path | None:
        if self.settings.gate.by != "held-out":
            return None
        return gates.find_gate_coordinates_directory(self.home, self.models.current)

    def _pull(self) -> Facts:
        if self.job.source is not None:
            return {"answers": 0}
        names = self.settings.pull
        results = [ingestion.pull(name, self.home, self.progress) for name in names]
        if not names and self.home.connectors:  # deliveries to the hook wait in the inbox
            results.append(ingestion.ingest(self.home, self.progress))
        waits = {result.waits for result in results if result.waits}
        return {"answers": sum(result.answers for result in results), "notes": sorted(waits)}

    def count_waiting_answers(self) -> int:
        """Return how many answers wait in the inbox for the step that pulls."""
        if self.job.source is not None or not self.home.connectors:
            return 0
        return OpenProject.open(self.home).answers.count_stored().waiting

    def _release(self, run: RunInProgress) -> Facts:
        outcome = releases.make_release(self.release_request, self.home, run, self.progress)
        return asdict(outcome) | {"learn_from": outcome.release or self.find_newest_release()}

    def find_newest_release(self) -> str | None:
        """Return the release to learn from where none is made."""
        mechanism, last = self.settings.release.mechanism, self.state.find_last_release()
        return releases.find_newest_release(self.home, mechanism, last)

    def _train(self, release: str, candidate: Path) -> Facts:
        directory, coordinates = self.home.releases / release, self._gate_coordinates()
        task = TrainingTask(directory, self.home, candidate, self.progress, coordinates)
        trained = self.step.train(task)
        return {"facts": dict(trained.facts), "curve": [dict(point) for point in trained.curve]}

    def _evaluate(self, run: RunInProgress, candidate: Path) -> Facts:
        if self.settings.gate.by != "held-out":
            return {"release": None, "charged": 0}
        current = self.models.current
        return gates.find_or_make_evaluation(
            self.job, self.home, run, candidate, current, self.progress
        )

    def _judge(self, run: RunInProgress, release: str, candidate: Path) -> Facts:
        self.progress("judging", None)
        evaluated = run.steps["evaluate"]
        evaluation = evaluated["release"]
        judgement = gates.judge(
            self.settings.gate,
            self.step,
            release=self.home.releases / release,
            candidate=candidate,
            current=self.models.current,
            unlearned=gates.find_unlearned_item_share(self.step, self.models),
            evaluation=self.home.releases / evaluation if evaluation else None,
            charged=evaluated["charged"],
            base=self.job.base,
        )
        return asdict(judgement)

    def _promote(self, run: RunInProgress, candidate: Path, config: Mapping[str, Any]) -> Facts:
        name = (run.read_intent("promote") or {"model": self.models.next_name})["model"]
        run.record_intent("promote", model=name)
        facts = finish.make_registry_entry(self.home, run, config)
        self.models.promote(candidate, name, facts, self.settings.promote.keep)
        return {"model": name}


_ENTRY_FIELDS = (
    *("job", "run", "outcome", "budget", "why", "release", "mechanism"),
    *("new_labels", "charged", "charged_by", "judgement"),
)


_GATES = {
    "released": "released labels of items that no model learns from; costs nothing",
    "probes": "public pairs; costs nothing",
    "held-out": "one statistic release of held-out labelers; charges each of them one use",
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
    # answers that wait in the hook's inbox and would be ingested first; not counted here either
    ingests: int
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
    # how far labelers have used what the mechanism charges by now; null before the first charge
    allowance: Usage | None


def dry_run(path: Path, *, project: Where = None, progress: Progress = no_progress) -> RunPreview:
    """Return what `retrain` would do; raise what it would raise, as far as that is known before."""
    job = load_job(path)
    run = JobExecution(job, find_job_project(job, project), progress)
    run.check_writable()
    run.check()
    begun = run.state.read_run_in_progress()
    begun = begun if begun and begun.can_resume_for(job) else None
    done = begun.steps if begun else {}
    pulls = () if "pull" in done else job.settings.pull
    ingests = 0 if "pull" in done else run.count_waiting_answers()
    makes, outcome, left = _preview_release_step(run, begun, more=bool(pulls or ingests))
    has_ended = begun is not None and begun.end_entry is not None
    trains = "train" not in done and not has_ended and (makes or _has_unlearned_release(run, begun))
    judges = trains or ("train" in done and not has_ended)
    promotes = judges and done.get("judge", {}).get("promote", True) and "promote" not in done
    intent = begun.read_intent("promote") if begun else None
    name = intent["model"] if intent else run.models.next_name
    gate = job.settings.gate.by
    return RunPreview(
        job=job.name,
        under_way=begun.number if begun else None,
        pulls=pulls,
        ingests=ingests,
        releases=makes,
        why=f"run {begun.number} would be resumed: {outcome.why}" if begun else outcome.why,
        mechanism=job.settings.release.mechanism,
        new_labels=outcome.new_labels,
        charged=outcome.charged,
        left=left,
        budget="exhausted" if outcome.exhausted else "left",
        trains=run.step.name if trains else None,
        gate=f"{gate}: {_GATES[gate]}" if judges and "judge" not in done else "not asked",
        replaces=run.models.in_use,
        promotes=str(Path(job.settings.promote.directory) / name) if promotes else None,
        allowance=releases.find_usage(job.settings.release.mechanism, run.home),
    )


def _preview_release_step(
    run: JobExecution, begun: RunInProgress | None, *, more: bool
) -> tuple[bool, ReleaseOutcome, Mapping[str, float]]:
    """Return whether the step would make a release, its outcome, and what is left of allowances.

    `more` may be pulled or ingested before it.
    """
    if begun and "release" in begun.steps:
        exhausted = bool(begun.steps["release"]["exhausted"])
        return False, ReleaseOutcome(None, "its release is already made", exhausted=exhausted), {}
    try:
        made, outcome, left = preview_release(run.release_request, run.home, begun, run.progress)
    except NothingIngested:
        if not more:
            raise
        return False, ReleaseOutcome(None, "nothing has been ingested yet"), {}
    if more and outcome.why == releases.NOTHING_NEW:
        outcome = replace(outcome, why="everything ingested so far is released")
    return made, outcome, left


def _has_unlearned_release(run: JobExecution, begun: RunInProgress | None) -> bool:
    """Return True if there is a release to learn from that no run learned from."""
    if begun and "release" in begun.steps:
        release = begun.steps["release"]["learn_from"]
    else:
        release = run.find_newest_release()
    if release is None:
        return False
    key = finish.compute_training_key(run.job, run.step, release)
    return not run.state.was_judged(key, run.models.in_use)
