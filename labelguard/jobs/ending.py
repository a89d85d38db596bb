"""The end of a run: its line in the history, what the register says of its model, who is told."""

from __future__ import annotations

import contextlib
import hashlib
import json
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from labelguard import clock
from labelguard.errors import LabelguardError
from labelguard.jobs import evaluating, notifying
from labelguard.jobs.settings import Job
from labelguard.jobs.state import Facts, UnderWay
from labelguard.jobs.steps import Step
from labelguard.project import runs
from labelguard.project.project import Project
from labelguard.project.runs import JobRun
from labelguard.release.mechanisms import open_mechanism
from labelguard.release.writer import read_card

STEPS = ("check", "pull", "release", "train", "evaluate", "judge", "promote")
# Steps that read raw labels.
_READING = ("pull", "release", "evaluate")


def line(
    job: Job,
    run: UnderWay,
    outcome: str,
    why: str,
    *,
    lesson: str | None = None,
    trained_by: Mapping[str, Any] | None = None,
) -> JobRun:
    """How a run ended, for the history: what its steps came to."""
    done: dict[str, Facts] = {name: run.steps.get(name, {}) for name in STEPS}
    release = done["release"].get("learn_from")
    exhausted = any(done[name].get("exhausted") for name in ("release", "evaluate"))
    return JobRun(
        job=job.name,
        run=run.number,
        started_at=run.facts["started_at"],
        ended_at=clock.now(),
        outcome=outcome,
        budget="exhausted" if exhausted else "left",
        why=why,
        release=release,
        mechanism=job.settings.release.mechanism if release else None,
        new_labels=done["release"].get("new_labels", 0),
        charged=done["release"].get("charged", 0) + done["evaluate"].get("charged", 0),
        charged_by=_charged_by(job, done),
        model=done["promote"].get("model"),
        judgement=done["judge"] or None,
        curve=done["train"].get("curve", []),
        lesson=lesson,
        evaluation=done["evaluate"].get("release"),
        settings=trained_by or {},
    )


def _charged_by(job: Job, done: Mapping[str, Facts]) -> dict[str, int]:
    """What the release and the gate charged, by kind of event."""
    uses: dict[str, int] = {}
    by = (("release", job.settings.release.mechanism), ("evaluate", evaluating.MECHANISM))
    for step, mechanism in by:
        if charged := done[step].get("charged", 0):
            event = str(open_mechanism(mechanism).priced)
            uses[event] = uses.get(event, 0) + charged
    return uses


def trained_by(job: Job, step: Step) -> dict[str, Any]:
    """By what a job trains and judges, as JSON."""
    gate = job.settings.gate.model_dump(mode="json")
    return {"step": step.name, "options": dict(step.identity()), "gate": gate}


def lesson_of(job: Job, step: Step, release: str) -> str:
    """Digest of all that decides what is learned from a release, and whether it is good enough.

    Equal lessons make no new model, and are not judged twice.
    """
    content = {"release": release, **trained_by(job, step)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def entry(home: Project, run: UnderWay, trained_by: Mapping[str, Any]) -> Facts:
    """What the register says of a model: whose guarantee it carries, and why it was promoted."""
    release = run.steps["release"]["learn_from"]
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


def finish(job: Job, home: Project, run: UnderWay) -> list[str]:
    """The line of a run that has ended into the history, and to whom it may concern; what the
    caller should know.

    Only then is it not under way any more.
    """
    assert run.ended
    ended = JobRun(**run.ended)
    runs.add(run.state.history, ended)
    notes = notifying.notify(job.settings.notify, home, run.state, ended)
    run.state.forget()
    return notes


def fail(job: Job, home: Project, run: UnderWay, why: str) -> None:
    """End a run that failed; what it released stays, and the next one learns from it."""
    run.end(line(job, run, "failed", why))
    with contextlib.suppress(LabelguardError):  # what failed first has to be said
        finish(job, home, run)


def failure(run: UnderWay, error: Exception) -> str:
    """Which step failed; its message is for the terminal and the log of errors alone, and so is the
    kind of an error that raw labels can raise.
    """
    step = _step(run)
    return f"{step} failed" if step in _READING else f"{step} failed: {type(error).__name__}"


def log(run: UnderWay, error: Exception) -> None:
    """Write down why a step failed, and note on the error where."""
    step = _step(run)
    trace = _without_values(error) if step in _READING else traceback.format_exception(error)
    with contextlib.suppress(OSError):  # what failed first has to be said
        path = run.state.log(f"run {run.number}, {step} failed\n{''.join(trace)}")
        error.add_note(f"its trace is in {path}")


def _step(run: UnderWay) -> str:
    return next((name for name in STEPS if name not in run.steps), STEPS[-1])


def _without_values(error: BaseException) -> Iterator[str]:
    """The trace of an error that raw labels may have raised: where it was, and messages of errors
    of ours, which show no label. Others may show one.
    """
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause:
        yield from _without_values(cause)
    yield from traceback.format_tb(error.__traceback__)
    yield f"{type(error).__name__}: {error if isinstance(error, LabelguardError) else '…'}\n"
