"""`privatize`: the command that makes releases."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labelguard.budget.request import PolicyRequest
from labelguard.cli.lifetime import ask, says_how_often
from labelguard.cli.options import (
    click_settings,
    declared_options,
    directory_option,
    inputs_argument,
    project_option,
    reading_options,
    source_option,
    wait_option,
)
from labelguard.cli.preview import found_or_made, patient, print_preview, reviewer
from labelguard.cli.release import card_facts
from labelguard.cli.terminal import echo, escape_controls, near, print_facts, prints, progress
from labelguard.options import RunOptions, declared
from labelguard.release.mechanisms import AUTO, list_mechanisms, of_mechanisms

if TYPE_CHECKING:
    from labelguard.release.plan import Preview
    from labelguard.release.writer import Release


@dataclass(frozen=True)
class Made:
    """A release that was made, or found."""

    # its id
    id: str
    # its directory
    path: str
    # whether it was made before: no label was looked at, nothing was charged
    reused: bool
    # its card, as `release show` prints it
    card: Mapping[str, Any]
    # commands worth trying next
    next: Sequence[str]
    # what else to know
    notes: Sequence[str]

    @classmethod
    def of(cls, release: Release, next_steps: Sequence[str]) -> Made:
        """What became of a release."""
        card, path = dict(release.card), str(release.path)
        return cls(release.id, path, release.reused, card, next_steps, release.notes)


def print_made(made: Made) -> None:
    """The summary of a release: whom it protects, what it cost, where it is."""
    facts = [*card_facts(made.card), ("where", near(made.path))]
    if made.reused:
        facts = [(name, value) for name, value in facts if name.strip() != "newly charged"]
    print_facts(facts)
    for note in made.notes:
        echo(f"labelguard: note: {escape_controls(note)}", err=True)
    if made.reused:
        echo(
            "This very release was made before: no label was looked at, nothing was charged.\n"
            "To draw the labels anew, at a new charge: --again"
        )
    echo("Next: " + "\n      ".join(_runnable(step) for step in made.next))


def _print(result: Made | Preview) -> None:
    print_made(result) if isinstance(result, Made) else print_preview(result)


def _runnable(command: str) -> str:
    """A command as it can be typed here, where no environment may be activated."""
    program = Path(sys.argv[0])
    if program.name == "labelguard" and shutil.which("labelguard") is None:
        return command.replace("labelguard", str(program), 1)
    return command


class _Privatize(click.Command):
    """`privatize`, with the options of all mechanisms that are installed."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's own, and those of mechanisms before the last few."""
        own = super().get_params(ctx)
        last = [parameter.name for parameter in own].index("once")
        return [own[0], _mechanism_option(), *own[1:last], *_of_mechanisms(own), *own[last:]]


def _mechanism_option() -> click.Option:
    return click.Option(
        ["--mechanism"],
        type=click.Choice([*list_mechanisms(), AUTO]),
        default=AUTO,
        show_default=True,
        help="How labels are privatized; auto takes what the project releases already, and at "
        "first what `labelguard plan` marks with *.",
    )


def _of_mechanisms(own: list[click.Parameter]) -> Iterator[click.Option]:
    """Yield the options of mechanisms, each once."""
    taken = {parameter.name for parameter in own}
    for name, (mechanisms, option) in of_mechanisms().items():
        if name not in taken:
            settings = click_settings(option, usual=False)
            text = f"{', '.join(mechanisms)}: {option.text}"
            yield click.Option([option.flag, name], **settings | {"help": text})


@click.command(cls=_Privatize, short_help="Release preference labels privately.")
@inputs_argument(required=False)
@declared_options(PolicyRequest)
@reading_options()
@source_option
@declared_options(RunOptions, without=["output"])
@click.option("--dry-run", is_flag=True, help="Say what would be released and charged, and stop.")
@click.option("--yes", is_flag=True, help="Do not ask before the first release of a project.")
@click.option(
    "--accept-little-use",
    is_flag=True,
    help="Make a first release that `labelguard plan` does not recommend; --yes is not enough.",
)
@directory_option("release", help=declared(RunOptions)["output"].text)
@project_option
@wait_option
@prints(_print)
def privatize(
    inputs: tuple[str, ...],
    project: Path | None,
    dry_run: bool,
    yes: bool,
    accept_little_use: bool,
    **options: Any,
) -> Made | Preview:
    """Release the labels in INPUT (Parquet, CSV, JSON, directories, globs, or -) privately.

    Without INPUT, what was ingested from annotation tools is released (`labelguard pull`,
    `labelguard ingest`), of --source if there are several. INPUT has a column labeler_id and the
    columns of one of these layouts:

    \b
      prompt, chosen, rejected[, tie]
      prompt, response_a, response_b, label[, tie]
      prompt, responses, ranks
      prompt, responses, choice (--mechanism statistic or rr)

    The first run fixes the project's policy, unless one was made before (`labelguard policy`): it
    asks whether more labels of the same people will come, shows what that means, and asks. Running
    the same command again returns the same release; labels that were released before cost nothing
    in any later one.

    \b
    Example:
      labelguard privatize labels.parquet --epsilon 3 --once --yes -o release
    """
    from labelguard.project import policies
    from labelguard.release.privatize import privatize as release_labels

    source = list(inputs) or None
    if dry_run:
        return _look(source, project, options)
    home = found_or_made(project, ask=not yes)
    if not says_how_often(options) and not policies.listing(home):
        options |= ask()
    with progress() as report:
        release = release_labels(
            source,
            project=home,
            progress=report,
            review=reviewer(report, yes=yes, accepted=accept_little_use),
            wait=patient(report, yes=yes),
            **options,
        )
    return Made.of(release, tuple(_next(release, project)))


def _look(source: list[str] | None, project: Path | None, options: dict[str, Any]) -> Preview:
    """Preview a release; a first one that nobody said more of as by --once."""
    from labelguard.release.privatize import plan

    said = says_how_often(options)
    with progress() as report:
        found = plan(
            source, project=project, progress=report, **options | ({} if said else {"once": True})
        ).preview
    if said or not found.first:
        return found
    note = "shown as for --once; with --uses K or --recurring weekly --for 1y releases share ε"
    return replace(found, notes=(*found.notes, note))


def _next(release: Release, project: Path | None) -> Iterator[str]:
    """What can be done with a release: look at it, learn from it, label more by its head."""
    where = f" --project {shlex.quote(str(project))}" if project else ""
    yield f"labelguard release show {release.id}{where}"
    if release.card["counts"]["rows"]:
        yield f"labelguard train dpo {release.id}{where} --model MODEL -o DIR"
    if (release.path / "head.npz").is_file():
        yield f"labelguard score {release.id} FILE{where} -o scored.parquet"
