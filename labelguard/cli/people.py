"""The commands that say who is who: `source`, `people`, and `policy distinct`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labelguard.cli.options import HELP
from labelguard.cli.policy import policy
from labelguard.cli.terminal import echo, print_facts, print_table, prints
from labelguard.terms import counted

if TYPE_CHECKING:
    from labelguard.ledger.sourcebook import People, SourceRecord
    from labelguard.project.linking import Distinct, Linked, LinkedTable, WhoIsWho


@click.group(context_settings=HELP)
def source() -> None:
    """Where labelers' ids come from."""


def _added(value: SourceRecord) -> None:
    facts = [("source", value.name), ("people", value.people)]
    if value.people == "known":
        facts.append(("", "link those who are known before their first charge: people link"))
    print_facts([*facts, ("release", f"labelguard privatize … --source {value.name}")])


@source.command("add", short_help="Let labels of another tool in.")
@click.argument("name")
@click.option(
    "--people",
    type=click.Choice(["new", "known"]),
    help="Whether all people in it are new to the project, or some are known; else it asks.",
)
@prints(_added, wait=True)
def source_add(name: str, people: People | None, project: Path | None) -> SourceRecord:
    """Let labels of source NAME in, whose ids are other people's than those of other sources.

    Release them with `privatize --source NAME`. People who have labels under another source too
    have one budget only if they are linked before their first charge here: `people link`.

    \b
    Example:
      labelguard source add argilla --people known
    """
    from labelguard.project import linking

    if people is None:
        question = f"Are all people in {name} new to this project (nobody of them has labels under "
        agreed = click.confirm(f"{question}another source)?", err=True)
        people = "new" if agreed else "known"
    return linking.add_source(name, people, project)


def _sources(values: Sequence[SourceRecord]) -> None:
    if not values:
        echo("No source yet: the first release makes one.")
        return

    def row(one: SourceRecord) -> tuple[str, ...]:
        named = [f"{role}={name}" for role, name in one.columns.items() if role != name]
        same = [role for role, name in one.columns.items() if role == name]
        return one.name, one.people, one.at, ", ".join([*same, *named])

    print_table(("source", "people", "since", "read as"), map(row, values))


@source.command("list", short_help="All sources, and how they are read.")
@prints(_sources, project=True)
def source_list(project: Path | None) -> list[SourceRecord]:
    """All sources, oldest first, and the column of each role, which later releases must keep.

    \b
    Example:
      labelguard source list
    """
    from labelguard.project import linking

    return linking.list_sources(project)


@click.group(context_settings=HELP)
def people() -> None:
    """Who is one person with whom."""


def _linked(value: Linked | LinkedTable) -> None:
    from labelguard.project.linking import LinkedTable

    if isinstance(value, LinkedTable):
        new = counted(value.linked, "labeler")
        print_facts([("read", counted(value.pairs, "pair")), ("linked", f"{new} more")])
        return
    facts = []
    for who in value.people:
        met = "" if who.known else ", without labels so far"
        facts.append(("labeler", f"{who.pseudonym} of {who.source}{met}"))
    print_facts([*facts, ("are", f"one person{'' if value.linked else ', as before'}")])


@people.command("link", short_help="Several ids are one person.")
@click.argument("ids", nargs=-1, required=True, metavar="ID ID | FILE")
@prints(_linked, wait=True)
def people_link(ids: tuple[str, ...], project: Path | None) -> Linked | LinkedTable:
    """Say, for good, that two ids are one person: one budget for the labels of both.

    Each is ID, SOURCE:ID or a pseudonym. FILE has many: its columns are named by two sources, or
    labeler_id and same_as. Of ids that are linked at most one may have been charged.

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
    return linking.link(one, other, project)


def _people(value: WhoIsWho) -> None:
    if not value.linked and not value.distinct:
        echo("Every id is a person of their own.")
    if value.linked:
        print_table(("labeler", "takes from"), ((one.labeler, one.unit) for one in value.linked))
    if value.distinct:
        print_table(("labeler", "is not"), value.distinct)


@people.command("list", short_help="Who was linked, and who is distinct.")
@prints(_people, project=True)
def people_list(project: Path | None) -> WhoIsWho:
    """Who shares a unit, as one person or in a group, and who is distinct, by pseudonyms.

    \b
    Example:
      labelguard people list
    """
    from labelguard.project import linking

    return linking.listing(project)


def _distinct(value: Distinct) -> None:
    are = "two people" if value.new else "two people, as before"
    print_facts([*(("labeler", name) for name in value.people), ("are", are)])


@policy.command("distinct", short_help="Two ids that look alike are two people.")
@click.argument("one", metavar="ID")
@click.argument("other", metavar="ID")
@prints(_distinct, wait=True)
def policy_distinct(one: str, other: str, project: Path | None) -> Distinct:
    """Say, for good, that two ids are two people, each with a budget of their own.

    Ids that differ only in how they are written (accents, blanks, upper case, 7 and 07) are refused
    until this is said, or that they are one: `people link`. Each is ID, SOURCE:ID or a pseudonym.

    \b
    Example:
      labelguard policy distinct 7 07
    """
    from labelguard.project import linking

    return linking.distinct(one, other, project)
