"""The commands that make and change policies: `policy`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from labelguard.cli.options import (
    HELP,
    bad_rows_option,
    columns_option,
    json_option,
    label_values_option,
    max_input_bytes_option,
    project_option,
    question_option,
    reactive_option,
    skips_option,
    source_option,
    ties_option,
)
from labelguard.errors import BudgetExceeded


@click.group(context_settings=HELP)
def policy() -> None:
    """What labelers may lose, and by which events."""


@policy.command("new", short_help="Make a policy and compute its joint price.")
@click.argument("name")
@click.option("--epsilon", type=float, required=True, help="ε of a labeler, all events together.")
@click.option("--delta", type=float, required=True, help="δ of a labeler, all events together.")
@click.option(
    "--allow",
    multiple=True,
    required=True,
    metavar="EVENT",
    help="rr:labels=K (K randomized labels of a labeler; props works on them) or "
    "statistic:releases=N; give it once for each.",
)
@click.option(
    "--shares",
    default="",
    metavar="EVENT=NUMBER,...",
    help="How the events weigh, for example rr=1,statistic=3; default: alone, each would cost "
    "the same ε.",
)
@click.option(
    "--closing-points",
    type=int,
    default=1,
    show_default=True,
    metavar="C",
    help="Even levels of use at which the policy can be closed early, at the price of that level.",
)
@ties_option
@click.option(
    "--tie-status-public",
    is_flag=True,
    help="Declare that which labels are ties is no secret.",
)
@label_values_option
@skips_option
@reactive_option
@click.option(
    "--unit",
    type=click.Choice(["labeler", "item", "group"]),
    default="labeler",
    show_default=True,
    help="What is protected as a whole; for groups see `policy groups`.",
)
@project_option
@json_option
def policy_new(
    name: str, allow: tuple[str, ...], project: Path | None, as_json: bool, **options: Any
) -> None:
    """Make a policy NAME, compute once what all its allowances cost together, and show it.

    Nothing is charged by it until it is activated. It never changes.

    \b
    Example:
      labelguard policy new clinic --epsilon 3 --delta 1e-5 --allow rr:labels=50 \\
        --allow statistic:releases=12 --closing-points 4
    """
    from labelguard.cli import render_budget
    from labelguard.project import policies

    made = policies.new(name, allow=allow, project=project, **options)
    render_budget.policy(made, as_json=as_json)


@policy.command("show")
@click.argument("name", required=False)
@project_option
@json_option
def policy_show(name: str | None, project: Path | None, as_json: bool) -> None:
    """A policy with its price; by default the one in force.

    \b
    Example:
      labelguard policy show clinic
    """
    from labelguard.cli import render_budget
    from labelguard.project import policies

    render_budget.policy(policies.show(name, project), as_json=as_json)


@policy.command("list")
@project_option
@json_option
def policy_list(project: Path | None, as_json: bool) -> None:
    """All policies, oldest first.

    \b
    Example:
      labelguard policy list
    """
    from labelguard.cli import render_budget
    from labelguard.project import policies

    render_budget.policies(policies.listing(project), as_json=as_json)


@policy.command("activate", short_help="Put a policy into force, after showing the total.")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@project_option
@json_option
def policy_activate(name: str, yes: bool, project: Path | None, as_json: bool) -> None:
    """Put policy NAME into force; shows what all policies then cost together, and asks.

    The policy in force before is closed and stays paid in full, used or not, or at the closing
    point that covers its use.

    \b
    Example:
      labelguard policy activate clinic --yes
    """
    from labelguard.cli import render_budget
    from labelguard.project import policies

    shown = policies.preview(name, project)
    if not (as_json and yes):
        render_budget.preview(shown, err=as_json)
    if not yes:
        click.confirm("Put it into force?", abort=True, err=True)
    done = policies.activate(name, project, agreed=shown)
    render_budget.activated(done, as_json=as_json)


@policy.command("close", short_help="End the policy in force, without another.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@project_option
@json_option
def policy_close(yes: bool, project: Path | None, as_json: bool) -> None:
    """Close the policy in force: nothing more can be charged to it.

    It stays paid in full, or at the closing point that covers its use. Releases stay what they are.

    \b
    Example:
      labelguard policy close --yes
    """
    from labelguard.cli import render_budget
    from labelguard.project import policies

    if not yes:
        click.confirm("Close the policy in force, for good?", abort=True, err=True)
    render_budget.closed(policies.close(project), as_json=as_json)


@policy.command("check", short_help="Whether an input fits, before anything is spent.")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@question_option
@click.option("--policy", "name", metavar="NAME", help="A draft; default: the policy in force.")
@click.option(
    "--mechanism",
    type=click.Choice(["rr", "props", "statistic"]),
    default="rr",
    show_default=True,
    help="How labels would be privatized.",
)
@bad_rows_option
@max_input_bytes_option
@columns_option
@source_option
@project_option
@json_option
def policy_check(
    inputs: tuple[str, ...], columns: str, project: Path | None, as_json: bool, **options: Any
) -> None:
    """What a release of INPUT would charge, and whose allowance would not do. Reads no label.

    Ends with exit code 3 if the input does not fit.

    \b
    Example:
      labelguard policy check labels.parquet
    """
    from labelguard.cli import render, render_budget
    from labelguard.ingest import layouts
    from labelguard.release.check import check

    mapping = layouts.parse_columns(columns)
    with render.progress() as progress:
        found = check(list(inputs), columns=mapping, project=project, progress=progress, **options)
    render_budget.check(found, as_json=as_json)
    sys.exit(0 if found["fits"] else BudgetExceeded.exit_code)


@policy.command("groups", short_help="Which labelers are one unit.")
@click.argument("file", metavar="FILE")
@project_option
@json_option
def policy_groups(file: str, project: Path | None, as_json: bool) -> None:
    """Read who belongs together from FILE (columns labeler_id, group_id), for --unit group.

    More can be added at any time; a labeler's group never changes, and who was charged without one
    stays a unit of their own.

    \b
    Example:
      labelguard policy groups groups.csv
    """
    from labelguard.cli import render_budget
    from labelguard.project import policies

    render_budget.groups(policies.add_groups(file, project), as_json=as_json)
