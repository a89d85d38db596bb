"""Commands of annotation tools: `pull`, `ingest`, `connect`, `push`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labelguard.cli.options import HELP, complete_releases
from labelguard.cli.terminal import echo, print_facts, print_notes, print_table, prints, progress
from labelguard.inputs.left_out import describe_counts
from labelguard.text import pluralize

if TYPE_CHECKING:
    from labelguard.project.ingestion import IngestionResult
    from labelguard.report.doctor import ConnectorCheck


def _print_ingested(value: IngestionResult) -> None:
    facts = [("new", pluralize(value.answers, "answer"))]
    gone = "deleted in the tool; their released labels stay released"
    for name, number, what in (
        ("deleted", value.deleted, gone),
        ("known", value.known, "as before"),
        ("refused", value.refused, "of labelers who have left"),
        ("forgotten", value.forgotten, "after their release"),
    ):
        if number:
            facts.append((name, f"{pluralize(number, 'answer')} {what}"))
    if value.left_out:
        facts.append(("left out", describe_counts(value.left_out)))
    print_facts(facts)


@click.command(short_help="Ingest the answers in the hook's inbox.")
@prints(_print_ingested, wait=True)
def ingest(project: Path | None) -> IngestionResult:
    """Ingest the answers in the hook's inbox, and forget what need not be kept.

    Answers are then stored sealed in the project, by labeler; `labelguard privatize` without INPUT
    releases them. With `keep = "90d"` under `[ingest]` in labelguard.toml, an answer is forgotten
    90 days after its labels were released, those of all questions that releases asked for by then.

    \b
    Example:
      labelguard ingest
    """
    from labelguard.project import ingestion

    with progress() as report:
        return ingestion.ingest(project, report)


@click.command(short_help="Read new answers from an annotation tool.")
@click.argument("name")
@prints(_print_ingested, wait=True)
def pull(name: str, project: Path | None) -> IngestionResult:
    """Read the answers of connector NAME that are new since the last pull.

    NAME is that of a table [connectors.NAME] in labelguard.toml. A stopped pull resumes where it
    was; running it again reads nothing twice.

    \b
    Example:
      labelguard pull label-studio
    """
    from labelguard.project import ingestion

    with progress() as report:
        return ingestion.pull(name, project, report)


@click.group(context_settings=HELP)
def connect() -> None:
    """Connectors to annotation tools, as labelguard.toml names them."""


def _print_checked(value: ConnectorCheck) -> None:
    facts = [("connector", f"{value.connector} ({value.kind})"), ("source", value.source)]
    facts += [(name, text) for name, text in value.about.items()]
    if value.question:
        facts.append(("reads", value.question))
    skipped = f", {value.skipped} skipped" if value.skipped else ""
    read = f"{pluralize(len(value.comparisons), 'comparison')}{skipped}"
    facts.append(("understood", f"{read} in {pluralize(value.answers, 'answer')}"))
    if value.left_out:
        facts.append(("left out", describe_counts(value.left_out)))
    print_facts(facts)
    rows = ((c.labeler, c.prompt, *c.responses, c.fault or "(hidden)") for c in value.comparisons)
    print_table(("labeler", "prompt", "response", "response", "label"), rows)
    print_notes(value.notes)


@connect.command("check", short_help="Show what a connector understands.")
@click.argument("name")
@prints(_print_checked, project=True)
def connect_check(name: str, project: Path | None) -> ConnectorCheck:
    """Read ten answers of connector NAME and show what was understood. Nothing is stored.

    \b
    Example:
      labelguard connect check label-studio
    """
    from labelguard.report.doctor import check_connector

    return check_connector(name, project)


@connect.command("reconcile", short_help="Repair what a hook missed.")
@click.argument("name")
@click.option(
    "--accept-deletions",
    is_flag=True,
    help="Treat missing answers as deleted, even if the tool lists less than half of them.",
)
@prints(_print_ingested, wait=True)
def connect_reconcile(name: str, accept_deletions: bool, project: Path | None) -> IngestionResult:
    """Compare the tool's answers with those received, and repair the difference.

    A hook misses events while it is down, and tools do not announce every event.

    \b
    Example:
      labelguard connect reconcile label-studio
    """
    from labelguard.project import ingestion

    with progress() as report:
        return ingestion.reconcile(name, project, report, accept_deletions=accept_deletions)


@dataclass(frozen=True)
class Pushed:
    """A release that was published in an annotation tool."""

    # the release
    release: str
    # by which connector
    connector: str
    # where it is to be seen
    where: str


def _print_pushed(value: Pushed) -> None:
    echo(f"Release {value.release} is at {value.where}")


@click.command(short_help="Publish a release in an annotation tool.")
@click.argument("name")
@click.argument("release_id", metavar="RELEASE", shell_complete=complete_releases)
@click.option(
    "--as", "title", metavar="TITLE", help="Its name in the tool; default: the release's id."
)
@prints(_print_pushed, project=True)
def push(name: str, release_id: str, title: str | None, project: Path | None) -> Pushed:
    """Publish RELEASE as a new data set of the tool of connector NAME, without labelers.

    \b
    Example:
      labelguard push label-studio r0001
    """
    from labelguard.release import publication

    with progress() as report:
        release, where = publication.push(name, release_id, title, project, report)
    return Pushed(release, name, where)
