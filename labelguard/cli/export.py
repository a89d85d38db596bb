"""`release export`: a release for another trainer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from labelguard.cli.options import complete_releases_or_files, directory_option
from labelguard.cli.terminal import echo, print_notes, prints, progress, relative_path
from labelguard.release.frameworks import NOISES, FrameworkName
from labelguard.text import pluralize

if TYPE_CHECKING:
    from labelguard.release.export import ExportResult


def _print_exported(value: ExportResult) -> None:
    rate = "" if value.rate is None else f" at the rate {value.rate:.6g}"
    written = f"{pluralize(value.rows, 'pair')} written to {relative_path(value.path)}"
    echo(f"{written}; noise: {value.noise}{rate}")
    echo(f"Train: {value.command}")
    print_notes(value.notes)


@click.command("export", short_help="Write a release for another trainer.")
@click.argument("release", metavar="RELEASE", shell_complete=complete_releases_or_files)
@click.option(
    "--to",
    type=click.Choice(get_args(FrameworkName)),
    required=True,
    help="The trainer that reads it; jsonl is for a script of your own.",
)
@directory_option("exported", required=True, help="New directory to write.")
@click.option(
    "--copies",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Write each pair N times, as often turned around as its probability says.",
)
@click.option(
    "--noise",
    type=click.Choice(NOISES),
    default="auto",
    show_default=True,
    help="How flipped labels are taken: as they are; by the trainer's unbiased robust loss; as the "
    "teacher's probability; or as that, joined with the label.",
)
@click.option(
    "--teacher",
    metavar="RELEASE",
    help="A release with a head that reads texts, for --noise soft and posterior.",
)
@prints(_print_exported, project=True)
def export(release: str, output: Path, project: Path | None, **options: Any) -> ExportResult:
    """Write RELEASE (its id, or a directory with a copy of it) as another trainer's rows.

    Beside the rows are the file by which the trainer finds them, README.md with its command, and
    the card. Nothing is charged. See docs/training.md#other-trainers.

    \b
    Example:
      labelguard release export r0001 --to trl -o for-trl
      labelguard release export r0001 --to axolotl -o for-axolotl --json
    """
    from labelguard.release.export import export as write_export

    directory: str | Path = Path(release) if Path(release).is_dir() else release
    teacher = options.pop("teacher")
    with progress() as report:
        return write_export(
            directory,
            output,
            teacher=Path(teacher) if teacher and Path(teacher).is_dir() else teacher,
            project=project,
            progress=report,
            **options,
        )
