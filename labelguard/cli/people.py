"""The commands that say who is who: `source`, `people`, and `policy distinct`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from labelguard.cli.options import HELP, json_option, project_option
from labelguard.cli.policy import policy

if TYPE_CHECKING:
    from labelguard.ledger.sourcebook import People


@click.group(context_settings=HELP)
def source() -> None:
    """Where labelers' ids come from."""


@source.command("add", short_help="Let labels of another tool in.")
@click.argument("name")
@click.option(
    "--people",
    type=click.Choice(["new", "known"]),
    help="Whether all people in it are new to the project, or some are known; else it asks.",
)
@project_option
@json_option
def source_add(name: str, people: People | None, project: Path | None, as_json: bool) -> None:
    """Let labels of source NAME in, whose ids are other people's than those of other sources.

    Release them with `privatize --source NAME`. People who have labels under another source too
    have one budget only if they are linked before their first charge here: `people link`.

    \b
    Example:
      labelguard source add argilla --people known
    """
    from labelguard.cli import render_people
    from labelguard.project import linking

    if people is None:
        question = f"Are all people in {name} new to this project (nobody of them has labels under "
        agreed = click.confirm(f"{question}another source)?", err=True)
        people = "new" if agreed else "known"
    render_people.added(linking.add_source(name, people, project), as_json=as_json)


@source.command("list", short_help="All sources, and how they are read.")
@project_option
@json_option
def source_list(project: Path | None, as_json: bool) -> None:
    """All sources, oldest first, and the column of each role, which later releases must keep.

    \b
    Example:
      labelguard source list
    """
    from labelguard.cli import render_people
    from labelguard.project import linking

    render_people.sources(linking.list_sources(project), as_json=as_json)


@click.group(context_settings=HELP)
def people() -> None:
    """Who is one person with whom."""


@people.command("link", short_help="Several ids are one person.")
@click.argument("ids", nargs=-1, required=True, metavar="ID ID | FILE")
@project_option
@json_option
def people_link(ids: tuple[str, ...], project: Path | None, as_json: bool) -> None:
    """Say, for good, that two ids are one person: one budget for the labels of both.

    Each is ID, SOURCE:ID or a pseudonym. FILE has many: its columns are named by two sources, or
    labeler_id and same_as. Of ids that are linked at most one may have been charged.

    \b
    Example:
      labelguard people link argilla:7 physician-0000
    """
    from labelguard.cli import render_people
    from labelguard.project import linking

    if len(ids) > 2:
        raise click.UsageError("name two ids, or one file with a pair of them in each row")
    if len(ids) == 1:
        render_people.linked_table(linking.link_table(ids[0], project), as_json=as_json)
    else:
        one, other = ids
        render_people.linked(linking.link(one, other, project), as_json=as_json)


@people.command("list", short_help="Who was linked, and who is distinct.")
@project_option
@json_option
def people_list(project: Path | None, as_json: bool) -> None:
    """Who shares a unit, as one person or in a group, and who is distinct, by pseudonyms.

    \b
    Example:
      labelguard people list
    """
    from labelguard.cli import render_people
    from labelguard.project import linking

    render_people.people(linking.listing(project), as_json=as_json)


@policy.command("distinct", short_help="Two ids that look alike are two people.")
@click.argument("one", metavar="ID")
@click.argument("other", metavar="ID")
@project_option
@json_option
def policy_distinct(one: str, other: str, project: Path | None, as_json: bool) -> None:
    """Say, for good, that two ids are two people, each with a budget of their own.

    Ids that differ only in how they are written (accents, blanks, upper case, 7 and 07) are refused
    until this is said, or that they are one: `people link`. Each is ID, SOURCE:ID or a pseudonym.

    \b
    Example:
      labelguard policy distinct 7 07
    """
    from labelguard.cli import render_people
    from labelguard.project import linking

    render_people.distinct(linking.distinct(one, other, project), as_json=as_json)
