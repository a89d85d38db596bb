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
from labelguard.release.sections import Chart, Mark, Section, Series
from labelguard.report.render import section
from labelguard.report.sections import Seen
from labelguard.text import pluralize

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
        return [], section("jobs", error=str(error))


def sections(runs: Sequence[JobRun]) -> Iterator[Section]:
    """For each job its runs and how its newest model learnt."""
    for name, group in groupby(sorted(runs, key=lambda run: (run.job, run.run)), lambda r: r.job):
        own = list(group)
        yield _job(name, own)
        learnt = [run for run in own if len(run.curve) > 1]
        if learnt and (curve := _curve(learnt[-1])):
            yield curve


def _job(name: str, runs: Sequence[JobRun]) -> Section:
    last = runs[-1]
    rows = tuple(
        (
            *(run.run, run.ended_at[:10], run.outcome, run.budget),
            *(run.new_labels, run.charged, run.model, run.why),
        )
        for run in reversed(runs[-_SHOWN:])
    )
    return section(
        "job",
        f"job-{name}",
        rows=rows,
        newest_first=True,
        chart=_quality(name, runs),
        runs=runs,
        last=last,
        outcomes=sorted(Counter(run.outcome for run in runs).items()),
        below=_below(runs),
        windows=(last.settings.get("options") or {}).get("windows"),
        COIN=_COIN,
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
    run, said = judged[-1]
    current, probes = _number(said, "current"), said.get("by") == "probes"
    public = f" on {pluralize(said['rows'], 'public probe')}" if probes else ""
    other = "there was no model before" if current is None else f"the model in use {current:.3f}"
    decided = "promoted" if run.outcome == "promoted" else "not promoted"
    return Chart(
        f"Models of {name}, as its gate measured them{public}",
        f"Run {run.run}: the candidate has {measure} {said['candidate']:.3f}{public}, {other}: "
        f"{decided}.",
        "lines",
        tuple(float(run.run) for run, _ in judged),
        "run",
        measure,
        (
            Series("candidate", tuple(_number(said, "candidate") for _, said in judged)),
            Series("model in use", tuple(_number(said, "current") for _, said in judged)),
        ),
        (Mark("y", _COIN, "a coin"),) if measure == _LIKELIHOOD else (),
    )


def _below(runs: Sequence[JobRun]) -> list[tuple[str, float]]:
    """Of the models judged last those that a coin is better than."""
    said = next((run.judgement for run in reversed(runs) if run.judgement), None)
    if not said or said["measure"] != _LIKELIHOOD:
        return []
    models = (("candidate", "candidate"), ("model in use", "current"))
    values = ((name, _number(said, key)) for name, key in models)
    return [(name, value) for name, value in values if value is not None and value < _COIN]


def _number(values: Mapping[str, Any], name: str) -> float | None:
    value = values.get(name)
    return float(value) if isinstance(value, int | float) else None


def _curve(run: JobRun) -> Section | None:
    """The training metric of a run that people look at first; nothing of it is from raw labels."""
    points = run.curve[:: -(-len(run.curve) // _POINTS)]
    metrics = [one for one in points[0] if one not in _LABELS]
    if not metrics:
        return None
    metric = min(metrics, key=lambda one: ("loss" not in one, one))
    values = tuple(_number(point, metric) for point in points)
    known = [value for value in values if value is not None]
    chart = Chart(
        f"Training of {run.job}, run {run.run}",
        f"{metric} goes from {known[0]:.3g} to {known[-1]:.3g} in {len(points):,} points.",
        "lines",
        tuple(float(point.get("step", place)) for place, point in enumerate(points)),
        "step",
        metric,
        (Series(metric, values),),
    )
    return section("curve", f"curve-{run.job}", chart=chart, run=run)
