"""What a release will be, in plain words, and the question before a project's first one."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labelguard.budget import events
from labelguard.cli.reporter import Reporter
from labelguard.cli.terminal import echo, escape_controls, near, print_facts
from labelguard.errors import NoProject, NotAgreed
from labelguard.text import format_budget, pluralize

if TYPE_CHECKING:
    from labelguard.project.project import Project
    from labelguard.release.plan import Preview


def print_preview(found: Preview, *, err: bool = False, notes: bool = True) -> None:
    """What a release will fix, cost and be like."""
    if found.reused:
        echo(f"Release {found.reused} is this very request's: nothing would be charged.", err=err)
        return
    if found.first:
        echo("The first release fixes this, for the life of the project:", err=err)
    print_facts(list(_facts(found)), err=err)
    for note in found.notes if notes else ():
        echo(f"labelguard: note: {escape_controls(note)}", err=True)


def _facts(found: Preview) -> Iterator[tuple[str, str]]:
    whole = f"all labels of each {found.unit} together" if found.unit != "item" else "each content"
    yield "protects", f"{whole}: {format_budget(found)}"
    if usual := " and ".join(_SIGNS[name] for name in found.usual):
        yield "", f"  {usual} as usual, since nobody said: --epsilon, --delta"
    learns = f", a head on {found.features}" if found.features else ""
    yield "read as", ", ".join(found.formats)
    yield "mechanism", f"{found.mechanism}{learns}"
    if found.public_columns:
        listed = ", ".join(map(escape_controls, found.public_columns))
        yield "declared public", f"{listed}: made of prompts and responses, of nobody's answers"
    kind = events.kind(found.event)
    own = f"each {found.unit}'s own number of labels, rounded up"
    fixed = f"{pluralize(found.allowed or 0, kind.noun)} per {found.unit}"
    yield "pays for", own if found.allowed is None else fixed
    if found.first and found.allowed == 1 and not kind.per_label:
        yield "", "  this one: labels that come later need another policy, paid on top"
    if run := found.sampling:
        who, most = f"each {found.unit}", ""
        if run.records:
            who = "each label"
            most = f"; of one {found.unit} {pluralize(run.records, 'label')} at most"
        steps = pluralize(run.steps, "step")
        yield "", f"  {steps}, {who} in a step with probability {run.probability:g}{most}"
    if found.ball:
        yield "", f"  with ball noise, which is for {pluralize(found.ball, 'component')} or more"
    if found.choices > 2:
        yield "", f"  each a choice among {found.choices} responses or more"
    yield (
        "this release",
        (
            f"{pluralize(found.labels, 'label')} of {pluralize(found.units, found.unit)}; charges "
            f"{pluralize(found.charged, kind.noun)}"
        ),
    )
    if found.left:
        few, most = (f"{found.left[name]:,.0f}" for name in ("min", "max"))
        left = few if few == most else f"{few} to {most}"
        yield "left for later files", f"{left} per {found.unit}"
    yield from _expectations(found)


def _expectations(found: Preview) -> Iterator[tuple[str, str]]:
    if found.label_error is not None:
        wrong, differ = _of_100(found.label_error), _of_100(found.disagreement)
        option = " (--agreement)" if found.features else ""
        yield (
            "to expect",
            f"about {wrong} of 100 released labels will differ from what the labeler said; two "
            f"people are assumed to differ on {differ}{option}",
        )
    if found.accuracy is not None:
        right = _of_100(found.accuracy.mean)
        yield "", f"a model that learns from it agrees with about {right} of 100 new labels"


# Seconds that are worth a question.
_LONG = 60.0
_SIGNS = {"epsilon": "ε", "delta": "δ"}


def _of_100(share: float) -> int:
    return math.floor(100 * share + 0.5)


def reviewer(report: Reporter, *, yes: bool, accepted: bool) -> Callable[[Preview], None]:
    """Shows a first release and asks; others need no question, having a policy already.

    `yes` does for one that is recommended, or `accepted` though it is of little use. Raises
    `NotAgreed` where nobody can be asked or says no.
    """

    def review(found: Preview) -> None:
        if not found.first:
            return
        with report.paused():
            poor = None if accepted else found.discouraged
            print_preview(found, err=True, notes=bool(poor) or not yes)
            if poor:
                _ask("Release it all the same?", f"{poor}; release it with --accept-little-use")
            elif not yes:
                _ask("Release it?", "go on with --yes, or look only with --dry-run")

    return review


def patient(report: Reporter, *, yes: bool) -> Callable[[float], None]:
    """Says how long a first look at the texts will take, and asks if it is long."""

    def wait(seconds: float) -> None:
        if seconds < _LONG:
            return
        with report.paused():
            minutes = math.ceil(seconds / 60)
            echo(
                f"Reading the texts by an encoder will take about {minutes:,} min, this once; "
                "--features length+style+text takes seconds, and tells less.",
                err=True,
            )
            if not yes and sys.stdin.isatty() and not click.confirm("Go on?", err=True):
                raise NotAgreed("nothing was charged or released")

    return wait


def _ask(question: str, otherwise: str) -> None:
    if not sys.stdin.isatty():
        raise NotAgreed(f"nothing was charged or released, and nobody is here to ask; {otherwise}")
    if not click.confirm(question, err=True):
        raise NotAgreed("nothing was charged or released")


def found_or_made(where: Path | None, *, ask: bool) -> Project:
    """The project, or one made here if there is none and somebody at the terminal wants it.

    Never unless it may `ask`: what runs every night would make a new budget every night.
    """
    from labelguard.project.opening import init, located

    try:
        return located(where)
    except NoProject:
        if where is not None or not ask or not sys.stdin.isatty():
            raise
    said = "There is no project here or above. It keeps keys, and what each labeler has spent."
    echo(said, err=True)
    _ask(f"Make one in {Path.cwd()}?", "labelguard init makes one")
    project = init(Path())
    echo(f"Project made in {near(project.state)}; back up {near(project.keys)}.", err=True)
    return project
