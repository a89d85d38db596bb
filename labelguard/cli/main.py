"""The command line. Each command is one library call; what is heavy is imported when it runs."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import click

import labelguard
from labelguard.cli.audit import audit
from labelguard.cli.budget import budget
from labelguard.cli.labeler import labeler
from labelguard.cli.options import HELP, json_option, project_option
from labelguard.cli.people import people, source
from labelguard.cli.plan import plan
from labelguard.cli.policy import policy
from labelguard.cli.project import project
from labelguard.cli.release import privatize, score
from labelguard.errors import LabelguardError
from labelguard.terms import DEFAULT_AGREEMENT


class Main(click.Group):
    """Turns labelguard's errors into one line and an exit code, and finds commands of extras."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LabelguardError as error:
            _say(str(error))
            ctx.exit(error.exit_code)
        except BrokenPipeError:
            raise  # `labelguard … | head` is no error; click ends quietly
        except OSError as error:
            _say(f"{error.strerror}: {error.filename or ''}".rstrip(": "))
            ctx.exit(1)
        except click.ClickException as error:
            usage = io.StringIO()
            error.show(usage)
            _print(usage.getvalue().rstrip("\n"))
            ctx.exit(error.exit_code)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *_extra_commands()]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return self.commands.get(name) or _extra_command(name)


def _say(problem: str) -> None:
    from labelguard.cli.terminal import echo, shown

    echo(f"labelguard: {shown(problem)}", err=True)


def _print(text: str) -> None:
    from labelguard.cli.terminal import echo

    echo(text, err=True)


def _extra_commands() -> list[str]:
    from importlib.metadata import entry_points

    return sorted(entry.name for entry in entry_points(group="labelguard.commands"))


def _extra_command(name: str) -> click.Command | None:
    from importlib.metadata import entry_points

    for entry in entry_points(group="labelguard.commands", name=name):
        command = entry.load()
        assert isinstance(command, click.Command)
        return command
    return None


@click.group(cls=Main, context_settings=HELP)
@click.version_option(labelguard.__version__, prog_name="labelguard")
def main() -> None:
    """Release preference labels with labeler-level label differential privacy."""


@main.command(short_help="Make a project: configuration, keys, an empty ledger.")
@click.argument("directory", type=click.Path(path_type=Path), default=".")
@click.option(
    "--max-epsilon",
    type=float,
    default=10.0,
    show_default=True,
    help="Ceiling of ε for the project's life, all policies together.",
)
@click.option(
    "--max-delta",
    type=float,
    default=1e-4,
    show_default=True,
    help="Ceiling of δ for the project's life, all policies together.",
)
def init(directory: Path, max_epsilon: float, max_delta: float) -> None:
    """Make a project in DIRECTORY (by default here): configuration, keys, an empty ledger.

    Its ceiling is what all its policies together may cost a labeler; it can be raised later
    (`project ceiling`), never lowered.

    \b
    Example:
      labelguard init my-project
    """
    from labelguard.cli.terminal import echo
    from labelguard.project.opening import init as make

    project = make(directory, max_epsilon=max_epsilon, max_delta=max_delta)
    echo(f"Project made in {project.state}")
    echo(f"Its policies together will cost at most ε = {max_epsilon:g}, δ = {max_delta:g}.")
    echo(f"Keys are in {project.keys}: back them up apart from the data; never share them.")


main.add_command(privatize)
main.add_command(score)
main.add_command(plan)
main.add_command(audit)
main.add_command(policy)
main.add_command(source)
main.add_command(people)
main.add_command(budget)
main.add_command(labeler)
main.add_command(project)


@main.group(short_help="What a mechanism costs, before anything is spent.")
def account() -> None:
    """What a mechanism costs, before anything is spent."""


@account.command("rr", short_help="Noise per label, by composition theorem.")
@click.option("--epsilon", type=float, required=True, help="ε of a labeler.")
@click.option("--delta", type=float, required=True, help="δ of a labeler.")
@click.option("--labels", type=int, required=True, help="Labels of one labeler (k).")
@json_option
def account_rr(epsilon: float, delta: float, labels: int, as_json: bool) -> None:
    """Per-label ε0, flip probability and loss multiplier, by composition theorem.

    \b
    Example:
      labelguard account rr --epsilon 3 --delta 1e-5 --labels 50
    """
    from labelguard.accounting.compare import compositions
    from labelguard.cli import render

    render.comparison(compositions(epsilon, delta, labels), as_json=as_json)


@account.command("statistic", short_help="Noise of statistic releases, priced together.")
@click.option("--epsilon", type=float, required=True, help="ε of a labeler.")
@click.option("--delta", type=float, required=True, help="δ of a labeler.")
@click.option("--releases", type=int, default=1, show_default=True, help="Releases in all.")
@json_option
def account_statistic(epsilon: float, delta: float, releases: int, as_json: bool) -> None:
    """Noise of each of several statistic releases, in units of the sensitivity.

    \b
    Example:
      labelguard account statistic --epsilon 3 --delta 1e-5 --releases 12
    """
    from labelguard.accounting.compare import statistic_noise
    from labelguard.cli import render

    render.noise(statistic_noise(epsilon, delta, releases), as_json=as_json)


@main.group()
def release() -> None:
    """The releases of a project."""


@release.command("list")
@project_option
@json_option
def release_list(project: Path | None, as_json: bool) -> None:
    """All releases, oldest first.

    \b
    Example:
      labelguard release list
    """
    from labelguard.cli import render
    from labelguard.report import overview

    render.releases(overview.releases(project), as_json=as_json)


@release.command("show")
@click.argument("release_id", required=False)
@project_option
@json_option
def release_show(release_id: str | None, project: Path | None, as_json: bool) -> None:
    """The card of one release; by default the newest.

    \b
    Example:
      labelguard release show
    """
    from labelguard.cli import render
    from labelguard.report import overview

    render.card(overview.card(release_id, project), as_json=as_json)


@release.command("abandon", short_help="Give up an unfinished release; it stays charged.")
@click.argument("release_id")
@project_option
@json_option
def release_abandon(release_id: str, project: Path | None, as_json: bool) -> None:
    """Give up a release that was begun and never finished. What it charged stays charged.

    Only for a release whose command cannot be run again; the secrets kept for it are destroyed.

    \b
    Example:
      labelguard release abandon r0002
    """
    from labelguard.cli import render
    from labelguard.project.abandoning import abandon

    render.abandoned(abandon(release_id, project), as_json=as_json)


@release.command("verify", short_help="Whether files are what was committed.")
@click.argument("release_id", required=False)
@project_option
@json_option
def release_verify(release_id: str | None, project: Path | None, as_json: bool) -> None:
    """Compare a release's files (by default every release's) with the hashes in the ledger.

    \b
    Example:
      labelguard release verify
    """
    from labelguard.cli import render
    from labelguard.report import overview

    render.verdict(overview.verify_releases(release_id, project), as_json=as_json)


@main.command(short_help="Write simulated preference labels.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    required=True,
    help="Parquet file to write.",
)
@click.option("--labelers", type=int, default=200, show_default=True, help="Number of labelers.")
@click.option("--labels", type=int, default=20_000, show_default=True, help="Number of labels.")
@click.option("--items", type=int, default=5_000, show_default=True, help="Number of pairs.")
@click.option("--tie-rate", type=float, default=0.08, show_default=True, help="Share of ties.")
@click.option(
    "--agreement",
    type=float,
    default=DEFAULT_AGREEMENT,
    show_default=True,
    help="How often two labelers agree on a strict label.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="The same seed, the same file."
)
@json_option
def simulate(output: Path, as_json: bool, **options: Any) -> None:
    """Write simulated preference labels, to try labelguard without anybody's data.

    \b
    Example:
      labelguard simulate -o labels.parquet --labelers 50 --labels 2000 --items 500
    """
    from labelguard.cli import render
    from labelguard.report import overview

    render.simulation(overview.simulate_to(output, **options), as_json=as_json)


@main.command(short_help="A release of simulated labels, from start to end.")
@click.argument("directory", type=click.Path(path_type=Path), default="labelguard-demo")
@json_option
def demo(directory: Path, as_json: bool) -> None:
    """Simulate labelers in DIRECTORY, release their labels at ε = 3, show what comes out.

    \b
    Example:
      labelguard demo
    """
    from labelguard.cli import render
    from labelguard.cli.demo import demo as run

    with render.progress() as progress:
        result = run(directory, progress)
    render.release(result.release, as_json=as_json, next_steps=result.next_steps)


@main.command()
@project_option
@json_option
def doctor(project: Path | None, as_json: bool) -> None:
    """Check the installation and, if there is one, the project.

    \b
    Example:
      labelguard doctor
    """
    from labelguard.cli import render
    from labelguard.report.doctor import examine

    checks = examine(project)
    render.checks(checks, as_json=as_json)
    sys.exit(0 if all(check.ok for check in checks) else 1)
