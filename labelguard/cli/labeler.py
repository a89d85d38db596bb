"""The commands for labelers who leave: `labeler`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from labelguard.cli.options import HELP, json_option, project_option

if TYPE_CHECKING:
    from labelguard.ledger.people import Leaving

_yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


@click.group(context_settings=HELP)
def labeler() -> None:
    """Labelers who leave: retired or erased."""


@labeler.command("retire", short_help="No more labels of a labeler, none remembered.")
@click.argument("labeler_id")
@_yes_option
@project_option
@json_option
def labeler_retire(labeler_id: str, yes: bool, project: Path | None, as_json: bool) -> None:
    """Refuse a labeler's later labels, and forget which earlier ones were theirs, for good.

    LABELER_ID is the id in your files, or a pseudonym. Their rows are taken out of the private maps
    of earlier releases, which stay as they are. What was spent stays in the ledger.

    \b
    Example:
      labelguard labeler retire physician-0000
    """
    _leave(labeler_id, "retired", yes, project, as_json)


@labeler.command("erase", short_help="Retire a labeler and remove their raw rows.")
@click.argument("labeler_id")
@_yes_option
@project_option
@json_option
def labeler_erase(labeler_id: str, yes: bool, project: Path | None, as_json: bool) -> None:
    """Retire a labeler, and remove what the project holds of their rows as they were given.

    LABELER_ID is the id in your files, or a pseudonym. Earlier releases stay as they are: this
    shows which ones took labels of theirs, and what else it cannot undo.

    \b
    Example:
      labelguard labeler erase physician-0000
    """
    _leave(labeler_id, "erased", yes, project, as_json)


@labeler.command("list")
@project_option
@json_option
def labeler_list(project: Path | None, as_json: bool) -> None:
    """Who left, how and when, by pseudonym.

    \b
    Example:
      labelguard labeler list
    """
    from labelguard.cli import render_labeler
    from labelguard.project import erasure

    render_labeler.departures(erasure.listing(project), as_json=as_json)


def _leave(labeler_id: str, kind: Leaving, yes: bool, project: Path | None, as_json: bool) -> None:
    from labelguard.cli import render_labeler
    from labelguard.project import erasure

    if not as_json and not yes:
        render_labeler.leaving(erasure.preview(labeler_id, kind, project), done=False)
    if not yes:
        verb = "Retire" if kind == "retired" else "Erase"
        click.confirm(f"{verb} this labeler for good?", abort=True, err=True)
    found = erasure.leave(labeler_id, kind, project)
    render_labeler.leaving(found, done=True, as_json=as_json)
