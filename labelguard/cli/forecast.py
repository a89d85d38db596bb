"""The command that looks ahead: `budget forecast`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labelguard.cli.options import project_option
from labelguard.cli.terminal import echo, print_bullets, print_facts, print_table, prints
from labelguard.terms import budget_of, counted

if TYPE_CHECKING:
    from labelguard.report.lasting import Lasting
    from labelguard.report.outlook import EventOutlook, Outlook

_MOST_ROWS = 13


def _outlook(value: Outlook) -> None:
    if value.policy is None:
        echo("No policy is in force: nothing to forecast; see labelguard policy list.")
        return
    observed = f"{value.weeks_observed:.1f} weeks since the first charge under any policy"
    print_facts([("policy", str(value.policy)), ("observed", observed)])
    for one in value.events:
        if one.labelers:
            echo()
            _event(one)
    print_bullets(value.notes)
    if lasting := next((one.lasting for one in value.events if one.lasting), None):
        echo(f"\nA policy that lasts a year at this rate: {lasting.command}")
        total = {"epsilon": lasting.total_epsilon, "delta": lasting.total_delta}
        ceiling = {"epsilon": lasting.ceiling_epsilon, "delta": lasting.ceiling_delta}
        cost = f"{budget_of(total)} of a ceiling of {budget_of(ceiling)}"
        over = "above it: it could not be activated (labelguard project ceiling --raise)"
        echo(
            f"All policies together would then cost {cost}"
            + ("." if lasting.under_ceiling else f", {over}.")
        )


def _event(one: EventOutlook) -> None:
    from labelguard.policy import events

    kind = events.kind(one.event)
    facts = [
        (f"{kind.noun}s", f"{one.per_week:.3g} a week, the median"),
        ("of", f"{counted(one.labelers, 'labeler')} who go on; so is all that follows"),
        ("departed", f"{counted(one.left, 'labeler')}, in no number here"),
        ("first exhausted", _when(one.first_exhausted)),
        ("half exhausted", _when(one.half_exhausted)),
    ]
    if one.lasting:
        facts += _lasting(one.lasting, kind.noun)
    print_facts(facts)
    step = -(-(len(one.weeks) - 1) // (_MOST_ROWS - 1))
    shown = [week for week in one.weeks if week.week % step == 0 or week is one.weeks[-1]]
    echo()
    names = ("week", "used", "exhausted")
    rows = ((week.week, f"{week.used:.0%}", week.exhausted) for week in shown)
    print_table(names, rows, right=names)


def _when(weeks: int | None) -> str:
    if weeks is None:
        return "not in ten years"
    return f"in {counted(weeks, 'week')}" if weeks else "now"


def _lasting(value: Lasting, noun: str) -> Iterator[tuple[str, str]]:
    """What a year needs of each labeler, and the noise that goes with it."""
    enough = f"{counted(value.allowed, noun)} do for 90 of 100 labelers"
    enough += f", {value.allowed_for_all:,} for all"
    yield "a year needs", enough
    noises = (value.price.in_words(), value.price_for_all.in_words())
    yield "  at " + budget_of(vars(value)), ", or ".join(dict.fromkeys(noises))


@click.command("forecast", short_help="What the budget will look like at this rate.")
@click.option(
    "--weeks",
    type=click.IntRange(1, 520),
    default=12,
    show_default=True,
    help="How many weeks ahead.",
)
@project_option
@prints(_outlook)
def budget_forecast(weeks: int, project: Path | None) -> Outlook:
    """What will be used and who will be exhausted, if labelers go on at their present rate.

    From public counts: who was charged how much, and when. It also says which policy would last a
    year, and the command that makes it.

    \b
    Example:
      labelguard budget forecast
    """
    from labelguard.report.outlook import outlook

    return outlook(project, weeks)
