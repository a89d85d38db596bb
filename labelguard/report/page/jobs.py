"""What scheduled jobs did: which models they trained, judged and promoted, and how these learnt."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from labelguard.errors import LabelguardError
from labelguard.project.runs import JobRun
from labelguard.project.runs import runs as runs_of
from labelguard.release.sections import Chart, Mark, Section, Series, Table
from labelguard.report.page.numbers import day
from labelguard.report.page.project import Seen
from labelguard.terms import counted

_SHOWN = 60
_POINTS = 200
_LABELS = ("step", "epoch")
_LIKELIHOOD = "log-likelihood per label"
_COIN = math.log(0.5)
"""The log-likelihood per label of who guesses."""


def of(seen: Seen) -> tuple[list[JobRun], Section | None]:
    """The runs of all jobs, and what to say if they cannot be read."""
    try:
        return runs_of(seen.opened.project), None
    except LabelguardError as error:
        return [], Section("jobs", "Jobs", alert=f"The history of jobs cannot be read: {error}")


def sections(runs: Sequence[JobRun]) -> Iterator[Section]:
    """For each job its runs and how its newest model learnt."""
    by_name = sorted(runs, key=lambda run: (run.job, run.run))
    for name, group in groupby(by_name, key=lambda run: run.job):
        own = list(group)
        yield _job(name, own)
        learnt = [run for run in own if len(run.curve) > 1]
        if learnt and (curve := _curve(name, learnt[-1])):
            yield curve


def _job(name: str, runs: Sequence[JobRun]) -> Section:
    outcomes = Counter(run.outcome for run in runs)
    last = runs[-1]
    said = ", ".join(f"{outcomes[one]:,} {one}" for one in sorted(outcomes))
    return Section(
        f"job-{name}",
        f"The job {name}",
        (
            f"{counted(len(runs), 'run')}: {said}. The newest ended {day(last.ended_at)} UTC, "
            f"{last.outcome}: {last.why}",
            *_worse(runs),
        ),
        Table(
            f"Runs of {name}, newest first",
            ("run", "ended (UTC)", "outcome", "budget", "new labels", "charged", "model", "why"),
            tuple(
                (
                    run.run,
                    run.ended_at[:10],
                    run.outcome,
                    run.budget,
                    run.new_labels,
                    run.charged,
                    run.model,
                    run.why,
                )
                for run in reversed(runs[-_SHOWN:])
            ),
            newest_first=True,
        ),
        _quality(name, runs),
        _windows(last),
        alert=f"The newest run of {name} failed: {last.why}" if last.outcome == "failed" else "",
    )


def _quality(name: str, runs: Sequence[JobRun]) -> Chart | None:
    """What gates measured of candidates, and of the models they were compared with."""
    judged = [
        (run, run.judgement)
        for run in runs
        if run.judgement and _number(run.judgement, "candidate") is not None
    ]
    measure = str(judged[-1][1]["measure"]) if judged else ""
    judged = [one for one in judged if one[1]["measure"] == measure]
    if len(judged) < 2:
        return None
    candidates = tuple(_number(said, "candidate") for _, said in judged)
    return Chart(
        f"Models of {name}, as its gate measured them{_rows(judged[-1][1])}",
        _verdict(*judged[-1]),
        "lines",
        tuple(float(run.run) for run, _ in judged),
        "run",
        measure,
        (
            Series("candidate", candidates),
            Series("model in use", tuple(_number(said, "current") for _, said in judged)),
        ),
        (Mark("y", _COIN, "a coin"),) if measure == _LIKELIHOOD else (),
    )


def _verdict(run: JobRun, said: Mapping[str, Any]) -> str:
    """What the gate measured last, of both models, and what it decided."""
    measure, candidate, current = said["measure"], said["candidate"], _number(said, "current")
    other = "there was no model before" if current is None else f"the model in use {current:.3f}"
    decided = "promoted" if run.outcome == "promoted" else "not promoted"
    return (
        f"Run {run.run}: the candidate has {measure} {candidate:.3f}{_rows(said)}, {other}: "
        f"{decided}."
    )


def _rows(said: Mapping[str, Any]) -> str:
    """How many public probes it was measured on, where it was."""
    return f" on {counted(said['rows'], 'public probe')}" if said.get("by") == "probes" else ""


def _worse(runs: Sequence[JobRun]) -> Iterator[str]:
    """What to say of the models judged last, if a coin is better than they are."""
    said = next((run.judgement for run in reversed(runs) if run.judgement), None)
    if not said or said["measure"] != _LIKELIHOOD:
        return
    named = (("candidate", "candidate"), ("model in use", "current"))
    values = {name: _number(said, key) for name, key in named}
    below = {name: value for name, value in values.items() if value is not None and value < _COIN}
    if below:
        which = " and the ".join(f"{name} ({value:.3f})" for name, value in below.items())
        yield (
            f"By log-likelihood per label, the {which} of the newest judgement "
            f"{'is' if len(below) == 1 else 'are'} below a coin ({_COIN:.3f}): guessing is better."
        )


def _windows(run: JobRun) -> tuple[tuple[str, str], ...]:
    """Of how many windows of the statistic a model is made, where the job says it."""
    windows = (run.settings.get("options") or {}).get("windows")
    return (("windows a model learns from", f"{windows}, the newest"),) if windows else ()


def _number(values: Mapping[str, Any] | None, name: str) -> float | None:
    value = values.get(name) if values else None
    return float(value) if isinstance(value, int | float) else None


def _curve(name: str, run: JobRun) -> Section | None:
    """The training metric of a run that people look at first; nothing of it is from raw labels."""
    points = run.curve[:: -(-len(run.curve) // _POINTS)]
    metrics = [one for one in points[0] if one not in _LABELS]
    metrics.sort(key=lambda one: ("loss" not in one, one))
    if not metrics:
        return None
    metric = metrics[0]
    values = tuple(_number(point, metric) for point in points)
    known = [value for value in values if value is not None]
    return Section(
        f"curve-{name}",
        f"How the newest model of {name} learnt",
        (
            f"Run {run.run}, from release {run.release} alone: every value is computed from "
            "released labels.",
        ),
        chart=Chart(
            f"Training of {name}, run {run.run}",
            f"{metric} goes from {known[0]:.3g} to {known[-1]:.3g} in {len(points):,} points.",
            "lines",
            tuple(float(point.get("step", place)) for place, point in enumerate(points)),
            "step",
            metric,
            (Series(metric, values),),
        ),
    )
