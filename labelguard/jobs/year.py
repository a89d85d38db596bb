"""A year in the life of a project, simulated: the real commands, week by week, on made-up labels.

Labelers come and go and change their minds. Each week their labels arrive as a file and one
`retrain` runs: a statistic release, a head of the newest windows, a gate, a promotion. At half-time
the policy is changed, and closed at its closing point.

How well models do is told from the simulated preferences, which only simulated people have: on
people's labels every such number would be one more release. Nothing that is decided looks at it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from labelguard import clock
from labelguard.errors import ProjectError
from labelguard.jobs.curve import Week, picture
from labelguard.jobs.drift import Drift
from labelguard.jobs.run import Retrained, retrain
from labelguard.jobs.steps import open_step
from labelguard.project import erasure, policies
from labelguard.project.opening import OpenProject, init
from labelguard.project.project import Project
from labelguard.report import overview
from labelguard.report.page.report import write
from labelguard.terms import Progress, silent

__all__ = ["Week", "Year", "YearConfig", "live"]

_EXAM = 1000
_RETIRES = 13  # every so many weeks, one of those who left asks to be taken out

_JOB = """\
# Every week: what came in, a head of the newest windows, and the gate.
name: weekly
input: incoming.parquet
release:
  mechanism: statistic
  min_new_labels: 100
  options:
    features: text+length
    components: 16
    whitening: 0.25
    floor: 0.001
    clip_quantile: 0.5
    ridge: 1.0
train:
  step: head
  options: {{windows: {windows}}}   # older ones are of preferences that have changed
gate:
  by: probes                # public pairs of the week: cost nothing
  probes: probes.parquet
  margin: 0.02
  confidence: {confidence}
"""


@dataclass(frozen=True)
class YearConfig:
    """What is lived through.

    weeks: how many. labelers: how many are there at a time; per_week: labels of each. items: pairs
    that are new each week. windows: how many of the newest weeks a head learns from. probes: public
    pairs that the gate asks about each week, and its confidence: near 1, on few of them, it
    promotes nothing after the first model.
    """

    weeks: int = 52
    labelers: int = 300
    per_week: int = 10
    items: int = 600
    windows: int = 8
    probes: int = 100
    confidence: float = 0.5


@dataclass(frozen=True)
class Year:
    """A project after a simulated year."""

    directory: str
    """the project"""
    weeks: tuple[Week, ...]
    """week by week"""
    labelers: int
    """labelers who were there, of whom some came late or left"""
    labels: int
    """labels that were released"""
    epsilon: float
    """ε of a labeler, both policies together"""
    delta: float
    """their δ"""
    holds: bool
    """whether journal, charges, allowances and the files of all releases verify"""
    report: str
    """a page for people"""
    picture: str
    """the curve"""
    next: tuple[str, ...]
    """commands to go on with"""


def live(
    directory: Path, config: YearConfig = YearConfig(), *, progress: Progress = silent
) -> Year:
    """Live through a year in a new project in `directory`.

    Labels and preferences are the same each time; the noise is not. Raises `ProjectError` if the
    directory holds anything.
    """
    if directory.exists() and any(directory.iterdir()):
        raise ProjectError(f"{directory} is not empty; remove it or name another directory")
    directory.mkdir(parents=True, exist_ok=True)
    begin = first_monday(config.weeks)
    with clock.simulated(begin - timedelta(days=3)):
        home = init(directory)
    text = _JOB.format(windows=config.windows, confidence=config.confidence)
    (directory / "job.yaml").write_text(text, encoding="utf-8")
    world = Drift(config.weeks, config.labelers, config.per_week, config.items)
    weeks = tuple(_lived(home, world, config, begin, progress))
    return _told(home, world, weeks, progress)


def first_monday(weeks: int) -> datetime:
    """Six o'clock on the Monday from which so many weeks lead to this one."""
    today = clock.read(clock.now())
    monday = today - timedelta(days=today.weekday(), weeks=weeks)
    return monday.replace(hour=6, minute=0, second=0)


def _lived(
    home: Project, world: Drift, config: YearConfig, begin: datetime, progress: Progress
) -> Iterator[Week]:
    """All weeks from `begin` on, each as it is lived through."""
    directory, half = home.state.parent, config.weeks // 2
    frozen = directory / "models-at-half-time"
    _policy(home, "first-half", 3.0, config.weeks, closing_points=4, at=begin)
    for week in range(config.weeks):
        progress(f"week {week + 1} of {config.weeks}", week / config.weeks)
        monday = begin + timedelta(weeks=week)
        if week == half:
            _policy(home, "second-half", 2.0, config.weeks - half, at=monday)
        with clock.simulated(monday):
            gone = world.turnover()
            if gone and week % _RETIRES == _RETIRES // 2:
                erasure.leave(gone[0], "retired", home)
            world.labels(week).write_parquet(directory / "incoming.parquet")
            world.probes(week, config.probes).write_parquet(directory / "probes.parquet")
            done = retrain(directory / "job.yaml", project=home)
        if week == half - 1:
            shutil.copytree(directory / "models" / "current", frozen)
        yield _judged(directory, world, week, done, frozen if week >= half else None)


def _policy(
    home: Project,
    name: str,
    epsilon: float,
    releases: int,
    *,
    at: datetime,
    closing_points: int = 1,
) -> None:
    """Put a policy into force that pays for so many statistic releases; the one before closes."""
    with clock.simulated(at - timedelta(hours=12)):
        policies.new(
            name,
            epsilon=epsilon,
            delta=1e-5,
            allow=[f"statistic:releases={releases}"],
            closing_points=closing_points,
            project=home,
        )
        policies.activate(name, home)


def _judged(directory: Path, world: Drift, week: int, done: Retrained, frozen: Path | None) -> Week:
    """What the models get right of a week's labels, as only a simulation can tell."""
    exam, step = world.exam(week, _EXAM), open_step("head", {}, directory)
    in_use = exam.expected(step.margins(directory / "models" / "current", exam.pairs))
    still = in_use if frozen is None else exam.expected(step.margins(frozen, exam.pairs))
    return Week(week + 1, done.outcome, str(done.model), in_use, still, exam.best)


def _told(home: Project, world: Drift, weeks: tuple[Week, ...], progress: Progress) -> Year:
    """What the year came to, and its report."""
    directory = home.state.parent
    progress("writing the report", None)
    reported = write(directory / "report.html", project=home)
    image = directory / "year.png"
    image.write_bytes(picture(weeks))
    total, ledger = overview.budget(home).lifetime, OpenProject.open(home).ledger
    return Year(
        str(directory),
        weeks,
        world.joined,
        sum(record.drawn or 0 for record in ledger.releases()),
        total.epsilon,
        total.delta,
        reported.ok,
        reported.path,
        str(image),
        tuple(f"labelguard {command} --project {directory}" for command in _NEXT),
    )


_NEXT = ("report", "budget show", "budget forecast", "budget journal")
