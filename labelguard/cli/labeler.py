"""The commands for labelers who leave: `labeler`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labelguard.cli.options import HELP
from labelguard.cli.terminal import (
    echo,
    json_asked,
    nested,
    print_facts,
    print_table,
    prints,
)
from labelguard.terms import budget_of, counted

if TYPE_CHECKING:
    from labelguard.ledger.people import Departure, Leaving
    from labelguard.project.erasure import Left

_never_seen_option = click.option(
    "--never-seen", is_flag=True, help="For an id that was never seen: they leave beforehand."
)
_yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


@click.group(context_settings=HELP)
def labeler() -> None:
    """Labelers who leave: retired or erased."""


def _left(value: Left, *, done: bool = True) -> None:
    """What is done, or would be, when a labeler leaves, and what remains."""
    print_facts(_facts(value, done))
    from labelguard.policy import events

    if value.releases:
        echo()
        rows = (
            (
                one.id,
                one.created_at,
                one.state,
                one.mechanism,
                counted(one.used, events.kind(one.event).taken),
            )
            for one in value.releases
        )
        print_table(("release", "at", "state", "mechanism", "took"), rows, right=["took"])
    echo()
    print_facts(nested("remains", value.remains))


def _facts(value: Left, done: bool) -> Iterator[tuple[str, str]]:
    yield "labeler", value.labeler
    yield "is" if done else "will be", _state(value)
    if not value.known:
        yield "", "nothing of theirs was found; labels that come later are refused"
    for pseudonym in value.linked:
        yield "one person with", f"{pseudonym}, who is still active: name that id too"
    if value.rows_remembered:
        rows = counted(value.rows_remembered, "row")
        yield "private maps", f"{rows} of theirs {'forgotten' if done else 'to be forgotten'}"
    erased = value.kind == "erased"
    if value.rows_set_aside:
        rows = counted(value.rows_set_aside, "row")
        removed = "removed" if done else "to be removed"
        yield "quarantine", f"{rows} of theirs {removed if erased else 'kept'}"
    for name in value.unreadable_files if erased else ():
        yield "", f"{name} cannot be read and goes whole"
    for release_id in value.given_up:
        yield (
            "given up",
            (
                f"{release_id}, unfinished: it cannot be finished without their labels, and stays "
                "charged" + ("" if done else "; to keep it, run its command again first")
            ),
        )
    if value.releases:
        whose = "of their group" if value.group else "of theirs"
        labels = counted(value.randomized_labels, "randomized label")
        statistics = counted(value.statistic_releases, "statistic release")
        yield (
            "earlier",
            (
                f"{labels} {whose}, part of {statistics}, under {budget_of(value)} over the "
                "project's life"
            ),
        )


def _state(value: Left) -> str:
    if value.before == value.kind:
        return f"{value.kind}, as before"
    upgraded = ", retired before" if value.before else ""
    return f"{value.kind}{upgraded}"


@labeler.command("retire", short_help="No more labels of a labeler, none remembered.")
@click.argument("labeler_id")
@_never_seen_option
@_yes_option
@prints(_left, wait=True)
def labeler_retire(labeler_id: str, never_seen: bool, yes: bool, project: Path | None) -> Left:
    """Refuse a labeler's later labels, and forget which earlier ones were theirs, for good.

    LABELER_ID is the id in your files, or a pseudonym. Their rows are taken out of the private maps
    of earlier releases, which stay as they are. What was spent stays in the ledger.

    \b
    Example:
      labelguard labeler retire physician-0000
    """
    return _leave(labeler_id, "retired", never_seen, yes, project)


@labeler.command("erase", short_help="Retire a labeler and remove their raw rows.")
@click.argument("labeler_id")
@_never_seen_option
@_yes_option
@prints(_left, wait=True)
def labeler_erase(labeler_id: str, never_seen: bool, yes: bool, project: Path | None) -> Left:
    """Retire a labeler, and remove what the project holds of their rows as they were given.

    LABELER_ID is the id in your files, or a pseudonym. Earlier releases stay as they are: this
    shows which ones took labels of theirs, and what else it cannot undo.

    \b
    Example:
      labelguard labeler erase physician-0000
    """
    return _leave(labeler_id, "erased", never_seen, yes, project)


def _departures(values: Sequence[Departure]) -> None:
    if not values:
        echo("No labeler was retired or erased.")
        return
    rows = ((value.pseudonym, value.kind, value.at) for value in values)
    print_table(("labeler", "is", "since"), rows)


@labeler.command("list")
@prints(_departures, project=True)
def labeler_list(project: Path | None) -> list[Departure]:
    """Who left, how and when, by pseudonym.

    \b
    Example:
      labelguard labeler list
    """
    from labelguard.project import erasure

    return erasure.listing(project)


def _leave(
    labeler_id: str, kind: Leaving, never_seen: bool, yes: bool, project: Path | None
) -> Left:
    from labelguard.project import erasure

    if not yes:
        shown = erasure.preview(labeler_id, kind, project, never_seen=never_seen)
        if not json_asked():
            _left(shown, done=False)
        verb = "Retire" if kind == "retired" else "Erase"
        who = f"{labeler_id!r}, labeler {shown.labeler},"
        click.confirm(f"{verb} {who} for good?", abort=True, err=True)
    return erasure.leave(labeler_id, kind, project, never_seen=never_seen)
