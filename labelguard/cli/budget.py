"""The commands that show the ledger: `budget`."""

from __future__ import annotations

from pathlib import Path

import click

from labelguard.cli.options import HELP, json_option, project_option


@click.group(context_settings=HELP)
def budget() -> None:
    """What labelers have spent, and what is left."""


@budget.command("show")
@project_option
@json_option
def budget_show(project: Path | None, as_json: bool) -> None:
    """The policy, and how much of it is used and left.

    \b
    Example:
      labelguard budget show
    """
    from labelguard.cli import render_budget
    from labelguard.report import overview

    render_budget.budget(overview.budget(project), as_json=as_json)


@budget.command("labeler", short_help="What one labeler has spent, and what is left.")
@click.argument("labeler_id")
@project_option
@json_option
def budget_labeler(labeler_id: str, project: Path | None, as_json: bool) -> None:
    """What one labeler has spent; LABELER_ID is the id in your files, or a pseudonym.

    \b
    Example:
      labelguard budget labeler physician-0000
    """
    from labelguard.cli import render_budget
    from labelguard.report import overview

    render_budget.labeler(overview.labeler(labeler_id, project), as_json=as_json)


@budget.command("journal", short_help="Everything that was charged and committed.")
@project_option
@json_option
def budget_journal(project: Path | None, as_json: bool) -> None:
    """Everything that was charged, computed, committed or given back.

    \b
    Example:
      labelguard budget journal
    """
    from labelguard.cli import render_budget
    from labelguard.report import overview

    render_budget.journal(overview.journal(project), as_json=as_json)


@budget.command("verify", short_help="Whether journal, charges and releases hold.")
@click.option(
    "--anchor",
    metavar="LINE",
    help="What `budget anchor` printed once: the journal must still contain it.",
)
@project_option
@json_option
def budget_verify(anchor: str | None, project: Path | None, as_json: bool) -> None:
    """Recompute the journal's chain, the sums of charges and the releases' hashes.

    Names the first thing that does not hold and ends with exit code 1. A whole history that was
    rewritten, cut off or set back is found with an anchor that was kept elsewhere.

    \b
    Example:
      labelguard budget verify
    """
    from labelguard.cli import render
    from labelguard.report import overview

    render.verdict(overview.verify(project, anchor), as_json=as_json)


@budget.command("anchor", short_help="One line that fixes all that happened so far.")
@project_option
@json_option
def budget_anchor(project: Path | None, as_json: bool) -> None:
    """Print the journal's newest entry as one line, to be kept where this machine cannot change it.

    \b
    Example:
      labelguard budget anchor
    """
    from labelguard.cli import render_budget
    from labelguard.report import overview

    render_budget.anchor(overview.anchor(project), as_json=as_json)


@budget.command("combine", short_help="What several projects cost the same people.")
@click.argument("projects", nargs=-1, required=True, metavar="PROJECT...")
@json_option
def budget_combine(projects: tuple[str, ...], as_json: bool) -> None:
    """Add up two or more projects, each a directory or the JSON file of its `budget export`.

    Projects do not know each other: who labels in several of them loses what all of them cost, and
    may lose up to the sum of their ceilings.

    \b
    Example:
      labelguard budget combine study-1 study-2
    """
    from labelguard.cli import render_budget
    from labelguard.report.combining import combine

    render_budget.combined(combine(projects), as_json=as_json)


@budget.command("export", short_help="The whole ledger as JSON or CSV.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="PATH",
    required=True,
    help="File to write; of CSV a directory with a file for each table.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["json", "csv"]),
    default="json",
    show_default=True,
    help="What to write.",
)
@project_option
@json_option
def budget_export(output: Path, kind: str, project: Path | None, as_json: bool) -> None:
    """Write every table of the ledger to PATH: pseudonyms, counts, prices, the journal. No label.

    \b
    Example:
      labelguard budget export -o ledger.json
      labelguard budget export --format csv -o ledger
    """
    from labelguard.cli import render_budget
    from labelguard.report import export

    found = export.export(output, kind, project)  # type: ignore[arg-type]
    render_budget.exported(found, as_json=as_json)
