"""People, sources of ids, departures: `source`, `people`, `labeler`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labelguard.cli.options import HELP, CommandGroup
from labelguard.cli.terminal import (
    ask,
    confirm,
    echo,
    format_bullet_facts,
    print_facts,
    print_table,
    prints,
    wants_json,
)
from labelguard.text import format_budget, pluralize

if TYPE_CHECKING:
    from labelguard.ledger.people import Departure, Leaving
    from labelguard.ledger.sources import People, SourceRecord
    from labelguard.project.erasure import ReleaseUse, RemovalReport
    from labelguard.project.linking import Linked, LinkedTable, WhoIsWho
    from labelguard.report.overview import LabelerAllowance, LabelerFacts


@click.group(cls=CommandGroup, context_settings=HELP)
def source() -> None:
    """Manage the sources of labelers' ids."""


def _print_source(value: SourceRecord) -> None:
    facts = [("source", value.name), ("people", value.people)]
    if value.is_held:
        facts.append(("held until", "a file links those who are known (people link FILE), or"))
        facts.append(("", f"you say that all are linked: source add {value.name} --people linked"))
    facts.append(("release", f"labelguard privatize … --source {value.name}"))
    print_facts(facts)


@source.command("add", short_help="Accept labels of another tool.")
@click.argument("name")
@click.option(
    "--people",
    type=click.Choice(["new", "known", "linked"]),
    help="Whether all its people are new to the project, some are known, or all these are linked; "
    "default: ask.",
)
@prints(_print_source, wait=True)
def source_add(name: str, people: People | None, project: Path | None) -> SourceRecord:
    """Accept labels of source NAME, whose ids are separate from those of other sources.

    Release them with `privatize --source NAME`. People with labels under another source too share
    one budget only if they are linked before their first charge here. So where some are known,
    nothing is released until `people link FILE` links them, or until you add the source again and
    say that all are linked (or new, after all).

    \b
    Example:
      labelguard source add argilla --people known
    """
    from labelguard.project import linking

    if people is None:
        question = f"Are all people in {name} new to this project (none of them has labels under "
        agreed = ask(f"{question}another source)?", "answer by --people new or --people known")
        people = "new" if agreed else "known"
    return linking.add_source(name, people, project)


@click.group(cls=CommandGroup, context_settings=HELP)
def people() -> None:
    """Link ids that share one budget."""


def _print_linked(value: Linked | LinkedTable) -> None:
    from labelguard.project.linking import LinkedTable

    if isinstance(value, LinkedTable):
        new = pluralize(value.linked, "labeler")
        print_facts([("read", pluralize(value.pairs, "pair")), ("linked", f"{new} more")])
        return
    facts = []
    for who in value.ids:
        met = "" if who.known else ", without labels so far"
        facts.append(("labeler", f"{who.pseudonym} of {who.source}{met}"))
    print_facts([*facts, ("share", f"one budget{'' if value.linked else ', as before'}")])


@people.command("link", short_help="Let ids share one budget.")
@click.argument("ids", nargs=-1, required=True, metavar="ID ID | FILE")
@prints(_print_linked, wait=True)
def people_link(ids: tuple[str, ...], project: Path | None) -> Linked | LinkedTable:
    """Let two ids share one budget, for good: ids of one person, of a household, of a team.

    Only their charges are merged; their labels stay those of each. Each is ID, SOURCE:ID or a
    pseudonym. FILE lists many: its columns are named after two sources, or labeler_id and same_as.
    At most one of the linked ids may have been charged.

    \b
    Example:
      labelguard people link argilla:7 physician-0000
    """
    from labelguard.project import linking

    if len(ids) > 2:
        raise click.UsageError("name two ids, or one file with a pair of them in each row")
    if len(ids) == 1:
        return linking.link_table(ids[0], project)
    one, other = ids
    return linking.link_two_ids(one, other, project)


def _print_people(value: WhoIsWho) -> None:
    def format_row(one: SourceRecord) -> tuple[str, ...]:
        named = [f"{role}={name}" for role, name in one.columns.items() if role != name]
        same = [role for role, name in one.columns.items() if role == name]
        return one.name, one.people, one.at, ", ".join([*same, *named])

    names = ("source", "people", "since", "read as")
    none = "No source yet: the first release makes one."
    print_table(names, map(format_row, value.sources), empty=none)
    echo()
    rows = ((one.labeler, one.unit) for one in value.linked)
    print_table(("labeler", "takes from"), rows, empty="Every id has a budget of its own.")


@people.command("list", short_help="List sources, and linked ids.")
@prints(_print_people, project=True)
def people_list(project: Path | None) -> WhoIsWho:
    """List the sources of ids with the column of each role, which later releases must keep, and who
    shares a budget, by pseudonyms.

    \b
    Example:
      labelguard people list
    """
    from labelguard.project import linking

    return linking.list_people(project)


_never_seen_option = click.option(
    "--never-seen", is_flag=True, help="Accept an id that the project has never seen."
)


@click.group(cls=CommandGroup, context_settings=HELP)
def labeler() -> None:
    """Labelers who leave, or ask what was used of them."""


def _print_departure(value: RemovalReport, *, done: bool = True) -> None:
    """Print what happens, or would happen, when a labeler leaves, and what remains."""
    print_facts(_list_departure_facts(value, done))
    if value.releases:
        echo()
        _print_releases(value.releases)
    echo()
    print_facts(format_bullet_facts("remains", value.remains))


def _print_releases(values: Sequence[ReleaseUse]) -> None:
    from labelguard.budget import events

    rows = (
        (
            *(one.id, one.created_at, one.state, one.mechanism),
            pluralize(one.used, events.find_event_kind(one.event).shortage_noun),
        )
        for one in values
    )
    print_table(("release", "at", "state", "mechanism", "took"), rows, right=["took"])


def _list_departure_facts(value: RemovalReport, done: bool) -> Iterator[tuple[str, str]]:
    yield "labeler", value.labeler
    before = ", as before" if value.before == value.kind else ", retired before"
    yield "is" if done else "will be", value.kind + (before if value.before else "")
    if not value.known:
        yield "", "no labels of theirs found; later labels will be refused"
    for pseudonym in value.linked:
        yield "linked with", f"{pseudonym}, still active: name that id too, if it is theirs"
    if value.rows_remembered:
        rows = pluralize(value.rows_remembered, "row")
        forgotten = "forgotten" if done else "to be forgotten"
        yield "private maps", f"{rows} of theirs {forgotten}: one for each answer and release"
    erased = value.kind == "erased"
    becomes = "kept" if not erased else "removed" if done else "to be removed"
    if quarantined := value.rows_set_aside - value.stored_answers:
        yield "quarantine", f"{pluralize(quarantined, 'row')} of theirs {becomes}"
    if value.stored_answers:
        stored = pluralize(value.stored_answers, "answer")
        yield "ingested", f"{stored} of theirs, or waiting in the inbox, {becomes}"
    for name in value.unreadable_files if erased else ():
        yield "", f"{name} cannot be read and is removed entirely"
    for release_id in value.given_up:
        lost = f"{release_id}, unfinished: it cannot be finished without their labels, and stays "
        keep = "" if done else "; to keep it, run its command again first"
        yield "given up", f"{lost}charged{keep}"
    if value.releases:
        whose = "of theirs and of linked ids" if value.shared else "of theirs"
        took = []
        if value.randomized_blocks:
            took.append(f"{pluralize(value.randomized_blocks, 'randomized block')} {whose}")
        if value.statistic_releases:
            took.append(f"part of {pluralize(value.statistic_releases, 'statistic release')}")
        used = ", ".join(took) or f"part of {pluralize(len(value.releases), 'release')}"
        yield "earlier", f"{used}, under {format_budget(value)} over the project's life"


@labeler.command("retire", short_help="Refuse a labeler's labels, forget earlier ones.")
@click.argument("labeler_id")
@_never_seen_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@prints(_print_departure, wait=True)
def labeler_retire(
    labeler_id: str, never_seen: bool, yes: bool, project: Path | None
) -> RemovalReport:
    """Refuse a labeler's later labels, and forget which earlier ones were theirs, for good.

    LABELER_ID is the id in your files, SOURCE:ID where the project has several sources, or a
    pseudonym. Their rows are removed from the private maps of earlier releases, which stay as they
    are. Spent budget stays in the ledger.

    \b
    Example:
      labelguard labeler retire physician-0000
    """
    return _confirm_and_remove_labeler(labeler_id, "retired", never_seen, yes, project)


@labeler.command("erase", short_help="Retire a labeler and remove their raw rows.")
@click.argument("labeler_id")
@_never_seen_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@prints(_print_departure, wait=True)
def labeler_erase(
    labeler_id: str, never_seen: bool, yes: bool, project: Path | None
) -> RemovalReport:
    """Retire a labeler and remove the project's copies of their raw rows.

    LABELER_ID is the id in your files, SOURCE:ID where the project has several sources, or a
    pseudonym. Earlier releases stay as they are: this shows which ones used their labels, and what
    else it cannot undo. Repeat it in every project that they label in.

    \b
    Example:
      labelguard labeler erase physician-0000
    """
    return _confirm_and_remove_labeler(labeler_id, "erased", never_seen, yes, project)


def _print_labelers(value: LabelerFacts | Sequence[Departure]) -> None:
    if isinstance(value, Sequence):
        rows = ((one.pseudonym, one.kind, one.at, one.retired_at) for one in value)
        columns = ("labeler", "is", "since", "retired before")
        print_table(columns, rows, empty="No labeler has left.")
        return
    print_facts(_list_labeler_facts(value))
    names = ("policy", "event", "allowed", "used", "left")
    if value.allowances:
        echo()
        gone = value.departure
        uses = (
            (*(a.policy, a.event, a.allowed, a.used), _describe_left(a, gone))
            for a in value.allowances
        )
        print_table(names, uses, right=names[2:])
    if value.releases:
        echo()
        _print_releases(value.releases)


def _describe_left(allowance: LabelerAllowance, gone: Departure | None) -> object:
    return "closed" if allowance.state == "closed" else None if gone else allowance.left


def _list_labeler_facts(value: LabelerFacts) -> Iterator[tuple[str, str]]:
    yield "labeler", value.pseudonym
    if gone := value.departure:
        yield "left", f"{gone.kind} on {gone.at}"
    for pseudonym in value.linked:
        yield "linked with", f"{pseudonym}, with whom they share a budget"
    cost = f"{format_budget(value)} (all policies, at their full price)"
    if value.unit == "item":
        yield "spent", f"of each content {cost}; which charges were theirs is not known"
    else:
        yield "spent", cost if value.allowances else "nothing"
    if value.rows_remembered:
        yield "private maps", f"{pluralize(value.rows_remembered, 'row')} of theirs"
    if value.rows_set_aside:
        yield "raw", f"{pluralize(value.rows_set_aside, 'row')} of theirs set aside or ingested"


@labeler.command("show", short_help="What was spent of a labeler; without an id: who left.")
@click.argument("labeler_id", required=False)
@prints(_print_labelers, project=True)
def labeler_show(labeler_id: str | None, project: Path | None) -> LabelerFacts | list[Departure]:
    """Show what was spent of a labeler, by which releases, what is left, and whether they left.

    LABELER_ID is the id in your files, SOURCE:ID where the project has several sources, or a
    pseudonym. Without it, list who left, how and when. No label is read.

    \b
    Example:
      labelguard labeler show physician-0000
    """
    if labeler_id is None:
        from labelguard.project import erasure

        return erasure.list_departures(project)
    from labelguard.report.overview import read_labeler

    return read_labeler(labeler_id, project)


def _confirm_and_remove_labeler(
    labeler_id: str, kind: Leaving, never_seen: bool, yes: bool, project: Path | None
) -> RemovalReport:
    from labelguard.project import erasure

    if not yes:
        shown = erasure.preview_removal(labeler_id, kind, project, never_seen=never_seen)
        if not wants_json():
            _print_departure(shown, done=False)
        verb = "Retire" if kind == "retired" else "Erase"
        who = f"{labeler_id!r}, labeler {shown.labeler},"
        confirm(f"{verb} {who} for good?")
    return erasure.remove_labeler(labeler_id, kind, project, never_seen=never_seen)
