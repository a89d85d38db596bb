"""What was forecast, by whom it may be checked: of releases, and of the budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from labelguard.errors import LabelguardError
from labelguard.ledger.records import ReleaseRecord
from labelguard.policy import events
from labelguard.project.runs import JobRun
from labelguard.release.sections import Chart, Mark, Section, Series, Table
from labelguard.report.outlook import EventOutlook, Outlook, kept, outlook
from labelguard.report.page.numbers import day, small
from labelguard.report.page.project import Seen
from labelguard.terms import DEFAULT_AGREEMENT, counted

_SHOWN = 24
_WEEKS = 12


def planned(seen: Seen) -> Iterator[Section]:
    """What the planner expected of releases, where it was asked and its answer was kept."""
    found = [one for one in seen.committed if "forecast" in one.settings]
    if not found:
        return
    yield Section(
        "planned",
        "What releases were expected to give",
        (
            "Forecast on labels that were simulated over the real pairs and labelers, before any "
            "label was read. Accuracy is the share of strict labels of fresh labelers that a "
            "linear model gets right; label error the share of strict labels whose released value "
            f"differs. Two people differ on {1 - DEFAULT_AGREEMENT:.0%}, usually.",
        ),
        Table(
            "Forecasts kept with releases, newest first",
            ("release", "mechanism", "accuracy", "90% range", "label error"),
            tuple(map(_forecast, reversed(found[-_SHOWN:]))),
        ),
    )


def _forecast(record: ReleaseRecord) -> tuple[str, ...]:
    said = record.settings["forecast"]
    accuracy, error = said["accuracy"], said["label_error"]
    return (
        record.id,
        record.settings["mechanism"],
        f"{accuracy['mean']:.3f}",
        f"{accuracy['low']:.3f} to {accuracy['high']:.3f}",
        f"{error['mean']:.3f}",
    )


def budget(seen: Seen, runs: Sequence[JobRun]) -> Iterator[Section]:
    """What the budget will look like at this rate, and how earlier forecasts of it came out."""
    try:
        told = outlook(seen.opened.project, _WEEKS)
    except LabelguardError as error:
        yield Section("outlook", "The budget in the weeks ahead", (f"No forecast: {error}",))
        return
    active = [one for one in told.events if one.labelers]
    yield _rule(told, active)
    for one in active:
        yield _ahead(seen, one)
    facts = kept([run.outlook for run in runs if run.outlook], told)
    if facts:
        yield Section(
            "kept",
            "Forecast against fact",
            (
                "What was forecast for today, as jobs told it then, and what is; both of those "
                "who had not left.",
            ),
            Table(
                "Forecasts for today, oldest first",
                (
                    *("told (UTC)", "event", "used, forecast", "used", "exhausted, forecast"),
                    "exhausted",
                ),
                tuple(
                    (
                        day(one.at),
                        one.event,
                        f"{one.used_forecast:.1%}",
                        f"{one.used:.1%}",
                        f"{one.exhausted_forecast:,.0f}",
                        one.exhausted,
                    )
                    for one in facts[-_SHOWN:]
                ),
            ),
        )


def _rule(told: Outlook, active: Sequence[EventOutlook]) -> Section:
    """How the forecast is made, and what would last longer."""
    lasting = next((one.lasting for one in active if one.lasting), None)
    words = []
    if lasting:
        over = (
            f" The project would then cost ε = {lasting.total_epsilon:g}, "
            f"δ = {small(lasting.total_delta)}, above its ceiling: it "
            "could not be put into force."
        )
        words.append(
            "The command below makes a policy that would last a year at this rate."
            + ("" if lasting.under_ceiling else over)
        )
    words.append(
        "What follows is told from who was charged how much, and when, by this rule:"
        if active
        else f"No forecast: {'; '.join(told.notes)}."
    )
    return Section(
        "outlook",
        "The budget in the weeks ahead",
        tuple(words),
        points=told.notes if active else (),
        lines=(lasting.command,) if lasting else (),
    )


def _ahead(seen: Seen, one: EventOutlook) -> Section:
    noun, now, last = events.kind(one.event).noun, one.weeks[0], one.weeks[-1]
    year = one.lasting
    enough = (
        (("a year needs of each", f"{counted(year.allowed, noun)} (90 of 100 {seen.unit}s)"),)
        if year
        else ()
    )
    return Section(
        f"outlook-{one.event}",
        f"Weeks ahead: {noun}s",
        (
            f"Of {counted(one.labelers + one.left, seen.unit)} charged so far, {one.labelers:,} "
            f"have not left; what follows is of these. Today {now.used:.0%} of their allowance is "
            f"used, and {_who(now.exhausted, 'have')}. If they go on as they did, in "
            f"{counted(last.week, 'week')} {last.used:.0%} is used, and "
            f"{_who(last.exhausted, 'will have')}."
            f"{_with_those_who_left(seen, one)}",
        ),
        chart=Chart(
            f"Allowance used in the weeks ahead: {noun}s",
            f"From {now.used:.0%} today to {last.used:.0%} in {last.week} weeks at this rate, of "
            f"the allowance of the {counted(one.labelers, seen.unit)} who have not left.",
            "lines",
            tuple(float(ahead.week) for ahead in one.weeks),
            "weeks from now",
            "share",
            (
                Series(f"{noun}s used", tuple(ahead.used for ahead in one.weeks)),
                Series(
                    f"{seen.unit}s with nothing left",
                    tuple(ahead.exhausted / one.labelers for ahead in one.weeks),
                ),
            ),
            (Mark("y", 1.0, "all that is allowed"),),
            percent=True,
        ),
        facts=(
            (f"{noun}s a week, the median {seen.unit}", f"{one.per_week:.3g}"),
            ("the first has nothing left", _when(one.first_exhausted)),
            ("half have nothing left", _when(one.half_exhausted)),
            *enough,
        ),
    )


def _who(number: int, have: str) -> str:
    return f"{number:,} of them {have} nothing left" if number else f"all of them {have} some left"


def _with_those_who_left(seen: Seen, one: EventOutlook) -> str:
    """What is used of the allowance of everybody, where that is not the same."""
    usage = next(each for each in seen.budget.allowances if each.event == one.event)
    if not one.left or not usage.allowed:
        return ""
    return (
        f" Of the allowance of all {counted(usage.labelers, seen.unit)} who were charged under "
        f"this policy, {usage.used / usage.allowed:.0%} is used."
    )


def _when(weeks: int | None) -> str:
    if weeks is None:
        return "not in ten years"
    return f"in {counted(weeks, 'week')}" if weeks else "today"
