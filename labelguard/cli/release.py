"""`release` and `score`: releases are shown, verified, given up, and label new pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labelguard.cli import completion
from labelguard.cli.budget import verdict
from labelguard.cli.options import (
    HELP,
    columns_option,
    file_option,
    format_option,
    inputs_argument,
    public_column_option,
    question_option,
    split_option,
)
from labelguard.cli.terminal import echo, nested, print_facts, print_table, prints, verdict_code
from labelguard.terms import budget_of, counted

if TYPE_CHECKING:
    from labelguard.project.recovery import Abandoned
    from labelguard.project.verdict import FilesVerdict
    from labelguard.release.coefficients import Coefficients
    from labelguard.release.score import Scored
    from labelguard.report.overview import ReleaseLine


def card_facts(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A card as rows of names and values."""
    from labelguard.release import card as cards

    privacy = value["privacy"]
    whom = f"for each {privacy['unit']}, over {cards.span(privacy)}"
    yield "release", value["release"]
    yield "guarantee", f"{budget_of(privacy)} {whom}"
    if "newly_charged" in privacy:
        yield "  newly charged", f"{budget_of(privacy['newly_charged'])} of it, by that policy"
    yield "mechanism", f"{value['mechanism']}, adjacency {privacy['adjacency']}"
    yield from cards.facts(value)


@click.group(context_settings=HELP)
def release() -> None:
    """The releases of a project."""


def _releases(values: Sequence[ReleaseLine]) -> None:
    if not values:
        echo("No release yet.")
        return
    rows = ((v.id, v.state, v.created_at, v.mechanism, v.charged, v.rows) for v in values)
    numbers = ("charged", "rows")
    print_table(("id", "state", "created", "mechanism", *numbers), rows, right=numbers)


@release.command("list")
@prints(_releases, project=True)
def release_list(project: Path | None) -> list[ReleaseLine]:
    """All releases, oldest first.

    \b
    Example:
      labelguard release list
    """
    from labelguard.report import overview

    return overview.releases(project)


def _card(value: Mapping[str, Any]) -> None:
    from labelguard.release import card as cards

    facts = [*card_facts(value), *cards.expected(value), ("train with", value["train_with"])]
    print_facts([*facts, *nested("not protected", value["not_protected"])])


def _shown(value: Mapping[str, Any] | Coefficients) -> None:
    _card(value) if isinstance(value, Mapping) else _head(value)


def _head(value: Coefficients) -> None:
    echo(f"{value.words}\n")
    print_facts(
        [
            ("features", value.features),
            ("released", f"{value.components:,} directions of {value.directions:,} columns"),
            *(
                (
                    f"  {one.group}",
                    f"{one.share:z.0%} of it, {counted(one.columns, 'column')}",
                )
                for one in value.groups
            ),
        ]
    )
    if value.columns:
        from labelguard.release.coefficients import COLUMNS, rows

        echo()
        print_table(COLUMNS, rows(value.columns), right=COLUMNS[1:])
    echo()
    for note in value.notes:
        echo(f"- {note}")


@release.command("show")
@click.argument("release_id", required=False, metavar="[RELEASE]", shell_complete=completion.copies)
@click.option(
    "--head",
    is_flag=True,
    help="What its head decides by: signed coefficients with intervals, of columns with names.",
)
@prints(_shown, project=True)
def release_show(
    release_id: str | None, head: bool, project: Path | None
) -> Mapping[str, Any] | Coefficients:
    """The card of one release, or what its head decides by; by default the newest.

    With --head, RELEASE may be a directory with a copy of a release.

    \b
    Example:
      labelguard release show
    """
    from labelguard.report import overview

    if not head:
        return overview.card(release_id, project)
    from labelguard.release.coefficients import coefficients_of, described_head

    if release_id is not None and Path(release_id).is_dir():
        return coefficients_of(described_head(Path(release_id)))
    return coefficients_of(described_head(overview.release_path(release_id, project)))


def _abandoned(value: Abandoned) -> None:
    uses = counted(value.charged, "use")
    echo(f"Release {value.id} is given up; the {uses} it charged stay charged.")


@release.command("abandon", short_help="Give up an unfinished release; it stays charged.")
@click.argument("release_id")
@prints(_abandoned, wait=True)
def release_abandon(release_id: str, project: Path | None) -> Abandoned:
    """Give up a release that was begun and never finished. What it charged stays charged.

    Only for a release whose command cannot be run again; the secrets kept for it are destroyed.

    \b
    Example:
      labelguard release abandon r0002
    """
    from labelguard.project.recovery import abandon

    return abandon(release_id, project)


@release.command("verify", short_help="Whether files are what was committed.")
@click.argument("release_id", required=False, shell_complete=completion.releases)
@prints(verdict, code=verdict_code, project=True)
def release_verify(release_id: str | None, project: Path | None) -> FilesVerdict:
    """Compare a release's files (by default every release's) with the hashes in the ledger.

    \b
    Example:
      labelguard release verify
    """
    from labelguard.report import overview

    return overview.verify_releases(release_id, project)


def _scored(value: Scored) -> None:
    echo(f"{counted(value.pairs, 'pair')} labeled and written to {value.path}")


@click.command(short_help="Label new pairs by a release's head.")
@click.argument("release", metavar="RELEASE", shell_complete=completion.copies)
@inputs_argument()
@file_option("scored.parquet", required=True, help="Parquet file to write.")
@columns_option
@format_option
@split_option
@question_option
@public_column_option
@prints(_scored, project=True)
def score(
    release: str,
    inputs: tuple[str, ...],
    output: Path,
    columns: str,
    project: Path | None,
    **options: Any,
) -> Scored:
    """Label the pairs in INPUT by the head of RELEASE (its id, or a directory with a copy of it).

    INPUT is read like that of privatize; labels and labelers in it are ignored. Nothing is charged.

    \b
    Example:
      labelguard score r0001 labels.parquet -o scored.parquet
    """
    from labelguard.ingest import layouts
    from labelguard.release.score import score_to
    from labelguard.report import overview

    path = Path(release) if Path(release).is_dir() else overview.release_path(release, project)
    mapping = layouts.parse_columns(columns)
    return score_to(path, list(inputs), output, columns=mapping, **options)
