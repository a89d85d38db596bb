"""Releases and pages on them: `release`, `score`, `agreement`, `report`, `demo`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import click

from labelguard.cli.budget import print_verification
from labelguard.cli.options import (
    HELP,
    Command,
    CommandGroup,
    complete_releases,
    complete_releases_else_files,
    declared_options,
    destination_options,
    file_option,
    inputs_argument,
    public_columns_option,
    reading_options,
)
from labelguard.cli.terminal import (
    choose_verification_exit_code,
    echo,
    format_bullet_facts,
    format_relative_path,
    print_bullets,
    print_facts,
    print_next_commands,
    print_notes,
    print_table,
    prints,
    show_progress,
)
from labelguard.options import RunOptions
from labelguard.text import format_budget, pluralize

if TYPE_CHECKING:
    from labelguard.analysis.agreement import Agreement, Scored
    from labelguard.mechanisms.agreement import AgreementEstimate
    from labelguard.project.opening import Abandoned
    from labelguard.project.verification import FilesVerification
    from labelguard.release.publication import Published
    from labelguard.report.demonstration import Demonstration
    from labelguard.report.overview import ReleaseLine
    from labelguard.report.page import Format, Reported


def list_card_facts(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A card as rows of names and values."""
    from labelguard.release import card as cards

    privacy = value["privacy"]
    whom = f"for each {privacy['unit']}, over {cards.describe_covered_releases(privacy)}"
    yield "release", value["release"]
    yield "guarantee", f"{format_budget(privacy)} {whom}"
    if "newly_charged" in privacy:
        yield "  newly charged", f"{format_budget(privacy['newly_charged'])} of it, by that policy"
    yield "mechanism", f"{value['mechanism']}, adjacency {privacy['adjacency']}"
    yield from cards.list_facts(value)


@click.group(cls=CommandGroup, context_settings=HELP)
def release() -> None:
    """The releases of a project."""


def _print_releases(values: Sequence[ReleaseLine]) -> None:
    rows = ((v.id, v.state, v.created_at, v.mechanism, v.charged, v.rows) for v in values)
    names = ("id", "state", "created", "mechanism", "charged", "rows")
    print_table(names, rows, right=names[-2:], empty="No release yet.")


@release.command("list")
@prints(_print_releases, project=True)
def release_list(project: Path | None) -> list[ReleaseLine]:
    """All releases, oldest first.

    \b
    Example:
      labelguard release list
    """
    from labelguard.report import overview

    return overview.list_releases(project)


# The loss that fits the rows of a release.
_LOSSES = {
    "forward": "forward, a loss that knows how often labels are flipped",
    "soft": "soft, a loss on label_probability",
    "plain": "plain, any loss: labels as they are",
}


def _print_card(value: Mapping[str, Any]) -> None:
    from labelguard.release import card as cards
    from labelguard.release.mechanisms.reports import list_weight_cells

    loss = _LOSSES.get(value["train_with"], value["train_with"])
    facts = [*list_card_facts(value), *cards.list_forecast_facts(value), ("train with", loss)]
    print_facts([*facts, *format_bullet_facts("not protected", value["not_protected"])])
    if cells := list_weight_cells(value):
        echo()
        print_table(("feature", "log-odds"), cells, right=["log-odds"])


@release.command("show")
@click.argument(
    "release_id", required=False, metavar="[RELEASE]", shell_complete=complete_releases_else_files
)
@prints(_print_card, project=True)
def release_show(release_id: str | None, project: Path | None) -> Mapping[str, Any]:
    """The card of one release, by default the newest.

    RELEASE may be a directory with a copy of a release, without its project.

    \b
    Example:
      labelguard release show
    """
    from labelguard.release.writer import read_card

    return read_card(_find_release_directory(release_id, project))


def _find_release_directory(release: str | None, project: Path | None) -> Path:
    """Return the directory of a release of a project, or of a copy of one."""
    from labelguard.report import overview

    if release is not None and Path(release).is_dir():
        return Path(release)
    return overview.find_release_directory(release, project)


def _print_abandoned(value: Abandoned) -> None:
    uses = pluralize(value.charged, "use")
    echo(f"Release {value.id} was abandoned; the {uses} it charged stay charged.")


@release.command("abandon", short_help="Abandon an unfinished release; it stays charged.")
@click.argument("release_id")
@prints(_print_abandoned, wait=True)
def release_abandon(release_id: str, project: Path | None) -> Abandoned:
    """Abandon a release that was begun but not finished. What it charged stays charged.

    Only for a release whose command cannot be run again; the secrets kept for it are destroyed.

    \b
    Example:
      labelguard release abandon r0002
    """
    from labelguard.project.opening import abandon

    return abandon(release_id, project)


@release.command("verify", short_help="Check that files are as committed.")
@click.argument(
    "release_id", required=False, metavar="[RELEASE]", shell_complete=complete_releases_else_files
)
@prints(print_verification, code=choose_verification_exit_code, project=True)
def release_verify(release_id: str | None, project: Path | None) -> FilesVerification:
    """Compare a release's files (by default every release's) with the hashes in the ledger.

    RELEASE may be a directory with a copy of a release: without its project it is compared with its
    own SHA256SUMS.

    \b
    Example:
      labelguard release verify
    """
    from labelguard.report import overview

    if release_id is not None and Path(release_id).is_dir():
        value, by_ledger = overview.verify_copy(Path(release_id))
        if not by_ledger:
            note = "only its project can tell whether they are the files that were committed"
            print_notes([f"compared with its own SHA256SUMS; {note}"])
        return value
    return overview.verify_releases(release_id, project)


def _print_published(value: Published) -> None:
    echo(f"Release {value.release} is at {value.where}")


@release.command("publish", short_help="Publish a release: Hub, annotation tool.")
@click.argument("release_id", metavar="RELEASE", shell_complete=complete_releases)
@destination_options("hf:ORG/NAME or CONNECTOR:TITLE.")
@prints(_print_published, project=True)
def release_publish(release_id: str, to: str, public: bool, project: Path | None) -> Published:
    """Publish RELEASE with its card as README.md, rows in Parquet, card.json and SHA256SUMS.

    Its files must be as they were committed; nothing else is read, and nothing is charged. On the
    Hub a repository is private, a newer release takes the place of the one before, and the same
    command again changes nothing, and completes what was interrupted. Into a directory: privatize
    -o DIR.

    \b
    Example:
      labelguard release publish r0001 --to hf:ORG/NAME
    """
    from labelguard.release import publication

    with show_progress() as report:
        return publication.publish(release_id, to, public=public, project=project, progress=report)


def _print_scored(value: Scored) -> None:
    echo(f"{pluralize(value.pairs, 'pair')} labeled and written to {value.path}")


@click.command(cls=Command, short_help="Label new pairs by a release's head.")
@click.argument("release", metavar="RELEASE", shell_complete=complete_releases_else_files)
@inputs_argument()
@file_option("scored.parquet", required=True, help="Parquet file to write.")
@reading_options("columns", "format", "split", "question", "drop_members")
@public_columns_option
@declared_options(RunOptions, "engine", "address", "workers")
@prints(_print_scored, project=True)
def score(
    release: str, inputs: tuple[str, ...], output: Path, project: Path | None, **options: Any
) -> Scored:
    """Label the pairs in INPUT by the head of RELEASE (its id, or a directory with a copy of it).

    INPUT is read like that of privatize; labels and labelers in it are ignored. Nothing is charged.
    Workers of --engine read files and encode texts, and need to see TMPDIR.

    \b
    Example:
      labelguard score r0001 labels.parquet -o scored.parquet
    """
    from labelguard.analysis.agreement import write_scores

    return write_scores(_find_release_directory(release, project), list(inputs), output, **options)


def _format_estimate(estimate: AgreementEstimate) -> str:
    """Return an estimate; of one that is no share, or that could be any, that it is unknown."""
    is_any = (estimate.low, estimate.high) == (0, 1)
    return "unknown" if is_any or not 0 <= estimate.agreement <= 1 else f"{estimate.agreement:.3f}"


def _print_agreement(value: Agreement) -> None:
    rows = [
        (name, _format_estimate(e), f"{e.low:.3f} – {e.high:.3f}", e.comparisons, e.items)
        for name, e in (("labelers", value.between), ("gold items", value.gold))
        if e is not None
    ]
    if rows:
        names = ("agreement with", "estimate", "95 % interval", "comparisons", "items")
        print_table(names, rows, right=names[1:])
    print_bullets(value.notes)
    if value.plan:
        echo(f"\nFor a plan: labelguard plan FILE {value.plan}")


@click.command(cls=Command, short_help="How labelers agree, from released labels.")
@click.argument("release", metavar="RELEASE", shell_complete=complete_releases_else_files)
@click.option(
    "--gold",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Public answers, Parquet or JSON lines: prompt, chosen, rejected.",
)
@prints(_print_agreement, project=True)
def agreement(release: str, gold: Path | None, project: Path | None) -> Agreement:
    """Show how often labels of RELEASE (its id, or a directory with a copy of it) agree.

    With one another where an item has several, and with gold items. Estimated from released labels,
    whose flips are known; nothing is charged. The interval covers the noise of the flips.

    \b
    Example:
      labelguard agreement r0001
    """
    from labelguard.analysis import agreement as report

    return report.agreement(_find_release_directory(release, project), gold)


def _print_report(value: Reported) -> None:
    echo(f"Report: {format_relative_path(value.path)}")
    if value.fault:
        echo(f"It reports a fault: {value.fault}")


@click.command(
    cls=Command, context_settings=HELP, short_help="Write a report: guarantee, use, verification."
)
@click.argument("release_id", required=False, metavar="[RELEASE]", shell_complete=complete_releases)
@file_option("report.html", default=Path("report.html"), help="File to write, or to replace.")
@click.option(
    "--format",
    type=click.Choice(["html", "md", "json"]),
    help="A page, Markdown or JSON; default: by the name of FILE, else a page.",
)
@click.option(
    "--anchor",
    metavar="LINE",
    help="What `budget verify` or an earlier report printed: the journal must still contain it.",
)
@prints(_print_report, code=choose_verification_exit_code, project=True)
def report(
    release_id: str | None,
    output: Path,
    format: Format | None,  # noqa: A002
    anchor: str | None,
    project: Path | None,
) -> Reported:
    """Write a report on the project, or first on one RELEASE of it: one file, to read or to send.

    It says what is promised to whom, how much of it is used, what was released with which noise,
    what happened, and whether hashes and journal verify. No label is read, nothing is charged. Exit
    code 1 if verification fails; the report is still written, and says what failed.

    \b
    Example:
      labelguard report -o report.html
      labelguard report r0001 -o release.md
    """
    from labelguard.report.page import write_report

    return write_report(output, release_id, project, format, anchor)


def _print_demonstration(demo: Demonstration) -> None:
    names = {"non-private": "none", "rr": "randomized response", "statistic": "statistic"}
    rows = ((names[o.mechanism], f"{o.wrong:.0%}", f"{o.accuracy:.0%}") for o in demo.outcomes)
    whom = f"{demo.labels:,} labels of {demo.labelers:,} simulated labelers"
    echo(f"{whom}, each protected at ε = 3.\n")
    print_table(("privacy", "wrong labels", "accuracy"), rows, right=("wrong labels", "accuracy"))
    echo(
        "\nwrong labels: released labels that differ from what the labeler said\n"
        "accuracy: labels of other labelers that a model trained on the release predicts\n"
        "\nRows of the statistic's release:"
    )
    for row in demo.rows:
        texts = {name: f"{value:.2f}" for name, value in row.items() if isinstance(value, float)}
        print_facts([(n, texts.get(n) or shorten(v, 60, placeholder=" …")) for n, v in row.items()])
    echo(f"\nEverything is in {format_relative_path(demo.directory)}.")
    print_next_commands(
        ("labelguard inspect FILE", "labelguard plan FILE"), ", on a file of your own"
    )


@click.command(
    cls=Command,
    context_settings=HELP,
    short_help="What privacy costs, on simulated labels; nothing to prepare.",
)
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@prints(_print_demonstration)
def demo(directory: Path | None) -> Demonstration:
    """Simulate labelers in DIRECTORY, release their labels in two ways at ε = 3, compare results.

    The labels are simulated, so that the true ones are known. On people's labels the comparison
    would cost budget. DIRECTORY defaults to labelguard-demo.

    \b
    Example:
      labelguard demo
    """
    from labelguard.report.demonstration import demonstrate

    with show_progress() as report:
        return demonstrate(directory or Path("labelguard-demo"), progress=report)
