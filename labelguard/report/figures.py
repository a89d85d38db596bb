"""Sections with charts: use of the allowances, their noise, and models that jobs trained."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelguard.accounting.blocks import find_block
from labelguard.budget import events
from labelguard.budget.event_kind import EventKind
from labelguard.errors import LabelguardError
from labelguard.project.attempts import JobRun, list_job_runs
from labelguard.project.project import Project
from labelguard.release.sections import Chart, Mark, Section, Series
from labelguard.report.facts import ReportFacts
from labelguard.report.render import fill_words
from labelguard.text import DEFAULT_AGREEMENT, pluralize

Counts: TypeAlias = NDArray[np.int64]
# Percent of an allowance from which on a labeler is near its end.
_NEAR = 80
_NAMED = 25
_BINS = (*(f"{low} to {low + 10}%" for low in range(0, 90, 10)), "90% and more", "all")
# Labels of one unit that are randomized together, in the chart of flips.
_SIZES = (1, 3, 10, 50)
_DIFFER = 1 - DEFAULT_AGREEMENT
_RUNS = 60
_POINTS = 200
_LABELS = ("step", "epoch")
_LIKELIHOOD = "log-likelihood per label"
# The log-likelihood per label of who guesses.
_COIN = math.log(0.5)


def read_usage(facts: ReportFacts) -> Mapping[str, Counts]:
    """Return the use of each allowance of the policy in force."""
    rows, policy = facts.opened.ledger.releases.usage(), facts.policy_in_force
    allowed = policy.policy.events if policy else ()
    return {event: np.array(rows.get(event, []), np.int64).reshape(-1, 3) for event in allowed}


def describe_usage(facts: ReportFacts) -> Iterator[Section]:
    """Yield for each allowance of the policy in force its use, and who is near its end."""
    for event, rows in read_usage(facts).items():
        kind = events.find_event_kind(event)
        capacity, used, count = rows.T
        close = facts.opened.ledger.releases.heavy_users(event, _NEAR, _NAMED)
        near = int(count[used * 100 >= _NEAR * capacity].sum())
        yield fill_words(
            "used",
            f"used-{event}",
            rows=((name, used, most, most - used) for name, most, used in close),
            chart=_chart_usage(facts, kind, rows, near) if len(rows) else None,
            facts=facts,
            kind=kind,
            who=int(count.sum()),
            allowed=int(capacity @ count),
            spent=int(used @ count),
            near=near,
            over=int(count[used >= capacity].sum()),
            usage=next((one for one in facts.budget.allowances if one.event == event), None),
            NEAR=_NEAR,
            NAMED=_NAMED,
        )


def _chart_usage(facts: ReportFacts, kind: EventKind, rows: Counts, near: int) -> Chart:
    """Return the units by the share that they used, in steps of 10%; all of it is apart."""
    capacity, used, count = rows.T
    step = np.minimum(used * 10 // capacity, 10)
    bars = np.bincount(step, count, len(_BINS)).astype(int).tolist()
    most, first = max(bars), _NEAR // 10
    where = _BINS[bars.index(most)]
    at = "have used all of it" if where == _BINS[-1] else f"are at {where}"
    who = "most" if 2 * most > sum(bars) else "the largest group"
    share = f"{near / count.sum():.0%} of {facts.unit}s"
    return Chart(
        f"{kind.noun.capitalize()}s used, of the allowance of each {facts.unit}",
        f"{share} used {_NEAR}% of their allowance or more; {who} {at}.",
        "bars",
        _BINS,
        "share of the allowance that is used",
        f"{facts.unit}s",
        (
            Series(f"below {_NEAR}%", (*bars[:first], *(None,) * (len(_BINS) - first))),
            Series(f"{_NEAR}% and more", (*(None,) * first, *bars[first:])),
        ),
        (Mark("x", _NEAR / 10 - 0.5, f"{_NEAR}%"),),
    )


def describe_noise(facts: ReportFacts) -> Iterator[Section]:
    """Yield the noise of every use under the policy in force, and the label error it means."""
    for event, rows in read_usage(facts).items():
        kind = events.find_event_kind(event)
        prices = facts.policy_in_force.prices.get(event, {}) if facts.policy_in_force else {}
        if noises := {k: kind.describe_noise(prices[k]) for k in sorted(prices)}:
            yield _describe_event_noise(facts, kind, noises, rows)


def _describe_event_noise(
    facts: ReportFacts, kind: EventKind, noises: Mapping[int, Mapping[str, Any]], rows: Counts
) -> Section:
    units = {k: int(rows[rows[:, 0] == k, 2].sum()) for k in noises}
    names = tuple(next(iter(noises.values())))
    words: dict[str, Any] = {"facts": facts, "kind": kind, "names": names}
    words["rows"] = [
        (k, units[k], *map(_format_noise, noise.values())) for k, noise in noises.items()
    ]
    if not kind.keeps_values:
        return fill_words("noise", f"noise-{kind.name}", **words)
    assert facts.policy_in_force is not None
    [price] = facts.policy_in_force.prices[kind.name].values()
    most = facts.policy_in_force.policy.allowance(kind.name).block
    laws = [find_block(price["threshold"], size) for size in _SIZES if size <= most]
    chart = _chart_label_error({law.labels: law.flip_probability for law in laws})
    return fill_words("flips", f"noise-{kind.name}", chart=chart, differ=_DIFFER, **words)


def _format_noise(value: float | str) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _chart_label_error(flips: Mapping[int, float]) -> Chart:
    shares = dict.fromkeys(f"{flip:.0%}" for flip in sorted(flips.values()))
    spread = " to ".join([*shares][:: max(len(shares) - 1, 1)])
    return Chart(
        "Labels expected to differ",
        f"A released label differs from what was said in {spread} of cases; two people differ "
        f"in {_DIFFER:.0%}.",
        "bars",
        ("two people", *(f"{pluralize(size, 'label')} together" for size in flips)),
        "difference between",
        "labels that differ",
        (Series("labels that differ", (_DIFFER, *flips.values())),),
        (Mark("y", 0.5, "a coin"),),
        percent=True,
    )


def describe_jobs(project: Project) -> Iterator[Section]:
    """Yield for each job its runs and how its newest model learnt; one section if unreadable."""
    try:
        runs = list_job_runs(project)
    except LabelguardError as error:
        yield fill_words("jobs", error=str(error))
        return
    for name, group in groupby(sorted(runs, key=lambda run: (run.job, run.run)), lambda r: r.job):
        of_job = list(group)
        yield describe_job(name, of_job)
        learnt = [run for run in of_job if len(run.curve) > 1]
        if learnt and (curve := _describe_training_curve(learnt[-1])):
            yield curve


def describe_job(name: str, runs: Sequence[JobRun]) -> Section:
    last = runs[-1]
    rows = [
        (r.run, r.ended_at[:10], r.outcome, r.budget, r.new_labels, r.charged, r.model, r.why)
        for r in reversed(runs[-_RUNS:])
    ]
    return fill_words(
        "job",
        f"job-{name}",
        rows=rows,
        newest_first=True,
        chart=_chart_gate_measurements(name, runs),
        runs=runs,
        last=last,
        outcomes=sorted(Counter(run.outcome for run in runs).items()),
        below=_find_models_below_coin(runs),
        windows=(last.settings.get("options") or {}).get("windows"),
        COIN=_COIN,
    )


def _chart_gate_measurements(name: str, runs: Sequence[JobRun]) -> Chart | None:
    """Return what gates measured of candidates, and of the models they were compared with."""
    judged = [
        (run, run.judgement)
        for run in runs
        if run.judgement and _read_metric(run.judgement, "candidate") is not None
    ]
    measure = str(judged[-1][1]["measure"]) if judged else ""
    judged = [one for one in judged if one[1]["measure"] == measure]
    if len(judged) < 2:
        return None
    run, judgement = judged[-1]
    current, public = _read_metric(judgement, "current"), ""
    if judgement.get("by") == "probes":
        public = f" on {pluralize(judgement['rows'], 'public probe')}"
    other = "there was no model before" if current is None else f"the model in use {current:.3f}"
    decided = "promoted" if run.outcome == "promoted" else "not promoted"
    return Chart(
        f"Models of {name}, as its gate measured them{public}",
        f"Run {run.run}: the candidate has {measure} {judgement['candidate']:.3f}{public}, "
        f"{other}: {decided}.",
        "lines",
        tuple(float(run.run) for run, _ in judged),
        "run",
        measure,
        (
            Series("candidate", tuple(_read_metric(values, "candidate") for _, values in judged)),
            Series("model in use", tuple(_read_metric(values, "current") for _, values in judged)),
        ),
        (Mark("y", _COIN, "a coin"),) if measure == _LIKELIHOOD else (),
    )


def _find_models_below_coin(runs: Sequence[JobRun]) -> list[tuple[str, float]]:
    """Of the models judged last those that a coin is better than."""
    newest = next((run.judgement for run in reversed(runs) if run.judgement), None)
    if not newest or newest["measure"] != _LIKELIHOOD:
        return []
    models = (("candidate", "candidate"), ("model in use", "current"))
    values = ((name, _read_metric(newest, key)) for name, key in models)
    return [(name, value) for name, value in values if value is not None and value < _COIN]


def _read_metric(values: Mapping[str, Any], name: str) -> float | None:
    value = values.get(name)
    return float(value) if isinstance(value, int | float) else None


def _describe_training_curve(run: JobRun) -> Section | None:
    """Return a section with the curve of the metric that people look at first, or None.

    Nothing of it is from raw labels.
    """
    points = run.curve[:: -(-len(run.curve) // _POINTS)]
    metrics = [one for one in points[0] if one not in _LABELS]
    if not metrics:
        return None
    metric = min(metrics, key=lambda one: ("loss" not in one, one))
    values = tuple(_read_metric(point, metric) for point in points)
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
    return fill_words("curve", f"curve-{run.job}", chart=chart, run=run)
