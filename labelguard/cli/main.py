"""The command line. Each command is one library call; what is heavy is imported when it runs."""

from __future__ import annotations

import gc
import io
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

import labelguard
from labelguard import extras, processes
from labelguard.cli.budget import budget
from labelguard.cli.options import HELP, Command, CommandGroup, file_option
from labelguard.cli.people import labeler, people, source
from labelguard.cli.plan import inspect, plan
from labelguard.cli.policy import policy
from labelguard.cli.privatize import privatize
from labelguard.cli.project import project
from labelguard.cli.release import agreement, demo, release, report, score
from labelguard.cli.terminal import (
    StopSignal,
    echo,
    escape_controls,
    handle_stop_signals,
    print_json,
    print_notes,
    prints,
)
from labelguard.cli.tools import connect, export, ingest, pull, retrain
from labelguard.errors import LabelguardError
from labelguard.text import DEFAULT_AGREEMENT

if TYPE_CHECKING:
    from labelguard.report.doctor import Finding
    from labelguard.report.overview import Simulated


class Main(CommandGroup):
    """Turns labelguard's errors into one line and an exit code, and finds commands of extras."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_TYPED] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with handle_stop_signals():
                return super().invoke(ctx)
        except LabelguardError as error:
            notes = getattr(error, "__notes__", ())
            _exit_with_error(ctx, type(error).__name__, str(error), error.exit_code, notes=notes)
        except BrokenPipeError:
            raise  # `labelguard … | head` is no error; click ends quietly
        except OSError as error:
            problem = f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")
            _exit_with_error(ctx, "OSError", problem, 1)
        except click.ClickException as error:
            if isinstance(error, click.NoSuchOption) and (at := error.ctx):  # --eps is --epsilon
                options = (one for own in at.command.get_params(at) for one in own.opts)
                longer = [one for one in options if one.startswith(error.option_name)]
                error.possibilities = longer or error.possibilities  # type: ignore[misc]
            usage = io.StringIO()
            error.show(usage)
            echo(usage.getvalue().rstrip("\n"), err=True)
            _exit_with_error(
                ctx, "UsageError", error.format_message(), error.exit_code, is_printed=True
            )
        except (KeyboardInterrupt, StopSignal) as stop:
            again = shlex.join(["labelguard", *ctx.meta[_TYPED]])
            code = stop.code if isinstance(stop, StopSignal) else 130
            _exit_with_error(ctx, "Interrupted", f"stopped; to finish, run it again: {again}", code)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *extras.list_entry_points(_EXTRA)]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if own := self.commands.get(name):
            return own
        extra = extras.find_entry_point(_EXTRA, name)
        return extra.load() if extra else None


_EXTRA = "labelguard.commands"
_TYPED = "labelguard.typed"
_OBJECTS_BEFORE_COLLECTION = 50_000
# Commands that say themselves what of them several processes may do together.
_BY_SEVERAL = ("align", "train")


def _exit_with_error(
    ctx: click.Context,
    kind: str,
    message: str,
    code: int,
    *,
    is_printed: bool = False,
    notes: Sequence[str] = (),
) -> NoReturn:
    """End with a line on standard error and, where JSON was asked for, an object on the other."""
    if not is_printed:
        echo(f"labelguard: {escape_controls(message)}", err=True)
    print_notes(notes)
    if "--json" in ctx.meta[_TYPED]:
        print_json(Failure(kind, message, code))
    ctx.exit(code)


@dataclass(frozen=True)
class Failure:
    """The reason why a command failed."""

    # the kind of error, as Python has it
    error: str
    # what is wrong, where, and what to do
    message: str
    # the exit code of the command
    exit_code: int


@click.group(cls=Main, context_settings=HELP)
@click.version_option(labelguard.__version__, prog_name="labelguard")
def main() -> None:
    """Release preference labels with labeler-level label differential privacy."""
    command = click.get_current_context().invoked_subcommand
    if command in main.commands:  # those of other packages may hold more in cycles than we do
        # What a command loads stays: looking through it at every 700th object takes 0.15 s.
        gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
    if command not in _BY_SEVERAL:
        processes.require_one_process(f"labelguard {command}")


@dataclass(frozen=True)
class CreatedProject:
    """A project that was made."""

    # its directory
    project: str
    # the directory of its keys
    keys: str
    # ε that all its policies together may cost
    max_epsilon: float
    # their δ
    max_delta: float


def _print_project(value: CreatedProject) -> None:
    echo(f"Project made in {value.project}")
    ceiling = f"ε = {value.max_epsilon:g}, δ = {value.max_delta:g}"
    echo(f"Its policies together will cost at most {ceiling}: each release's ε counts toward it.")
    echo(f"Keys are in {value.keys}: back them up apart from the data; never share them.")


@main.command(short_help="Make a project: configuration, keys, an empty ledger.")
@click.argument("directory", type=click.Path(path_type=Path), default=".")
@click.option(
    "--max-epsilon",
    default=10.0,
    help="Ceiling of ε for the project's life, all policies together.",
)
@click.option(
    "--max-delta", default=1e-4, help="Ceiling of δ for the project's life, all policies together."
)
@prints(_print_project)
def init(directory: Path, max_epsilon: float, max_delta: float) -> CreatedProject:
    """Make a project in DIRECTORY (by default here): configuration, keys, an empty ledger.

    Its ceiling is what all its policies together may cost a labeler; it can be raised later
    (`project ceiling`), never lowered.

    \b
    Example:
      labelguard init my-project
    """
    from labelguard.project.opening import init as make
    from labelguard.project.project import format_registry_path, is_registered

    project = make(directory, max_epsilon=max_epsilon, max_delta=max_delta)
    if not is_registered(project.state):
        print_notes(
            [
                f"could not record this project in {format_registry_path()}: name it by --project "
                "or LABELGUARD_PROJECT"
            ]
        )
    return CreatedProject(str(project.state), str(project.keys), max_epsilon, max_delta)


for command in (
    *(inspect, privatize, score, plan, policy, source, people, retrain),
    *(pull, ingest, connect),
    *(budget, labeler, project, release, agreement, report),
):
    main.add_command(command)


def _print_simulated(value: Simulated) -> None:
    echo(f"{value.rows:,} simulated labels written to {value.path}")


@main.command(short_help="Write simulated preference labels.")
@file_option("labels.parquet", required=True, help="Parquet file to write.")
@click.option("--labelers", default=200, help="Number of labelers.")
@click.option("--labels", default=20_000, help="Number of labels.")
@click.option("--items", default=5_000, help="Number of pairs.")
@click.option("--tie-rate", default=0.08, help="Share of ties.")
@click.option(
    "--agreement",
    type=float,
    default=DEFAULT_AGREEMENT,
    help="How often two labelers agree on a strict label.",
)
@click.option("--seed", default=0, help="The same seed gives the same file.")
@prints(_print_simulated)
def simulate(output: Path, **options: Any) -> Simulated:
    """Write simulated preference labels, to try labelguard without real data.

    \b
    Example:
      labelguard simulate -o labels.parquet --labelers 50 --labels 2000 --items 500
    """
    from labelguard.report import overview

    return overview.write_simulated_labels(output, **options)


def _print_checks(values: Sequence[Finding]) -> None:
    indent = max(len(value.name) for value in values)
    for value in values:
        mark = "FAULT" if not value.ok else "note " if value.notice else "ok   "
        echo(f"{mark}  {value.name:<{indent}}  {value.detail}")


@click.command(cls=Command, context_settings=HELP)
@prints(
    _print_checks, code=lambda checks: 0 if all(check.ok for check in checks) else 1, project=True
)
def doctor(project: Path | None) -> list[Finding]:
    """Check the installation and, if there is one, the project.

    \b
    Example:
      labelguard doctor
    """
    from labelguard.report.doctor import check_installation

    return check_installation(project)


release.add_command(export)
main.add_command(demo)
main.add_command(doctor)
