"""Options that many commands share, and how a shell completes their values."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from labelguard.budget.request import PolicyRequest
from labelguard.errors import InvalidLabels
from labelguard.options import Option, ReadingOptions, option_declarations
from labelguard.storage import files

F = TypeVar("F", bound=Callable[..., Any])

# Settings of every group and of commands that may be run without one; all others inherit them.
HELP = {"help_option_names": ["-h", "--help"], "show_default": True}


class Command(click.Command):
    """A command that refuses an option which is given twice, unless it takes several values."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            _, _, given = self.make_parser(ctx).parse_args(list(args))
            for option, times in Counter(given).items():
                if times > 1 and isinstance(option, click.Option) and not option.multiple:
                    raise click.UsageError(f"{option.opts[-1]} is given {times} times", ctx)
        return super().parse_args(ctx, args)


class CommandGroup(click.Group):
    """A group of such commands."""

    command_class, group_class = Command, type


def _check_paths(context: click.Context, argument: click.Parameter, inputs: Any) -> Any:
    """Refuse paths that name nothing, before anything is loaded to read them."""
    for one in inputs:
        if not files.is_remote(one):
            files.find_matching_paths(one)
    return inputs


def inputs_argument(*, required: bool = True) -> Callable[[F], F]:
    """The files of labels that a command reads."""
    return click.argument(
        "inputs",
        nargs=-1,
        required=required,
        metavar="INPUT..." if required else "[INPUT...]",
        shell_complete=complete_files,
        callback=_check_paths,
    )


def file_option(example: str, **settings: Any) -> Callable[[F], F]:
    """Return `-o FILE`, such as `example`; it refuses a directory before anything is done."""
    return _output_option("FILE", files.check_output_file, example, **settings)


def directory_option(example: str, **settings: Any) -> Callable[[F], F]:
    """Return `-o DIR`, such as `example`; it refuses a file before anything is done."""
    return _output_option("DIR", files.check_output_directory, example, **settings)


def _output_option(
    metavar: str, check: Callable[[Path, str], None], example: str, **settings: Any
) -> Callable[[F], F]:
    def check_output(context: click.Context, option: click.Parameter, output: Path | None) -> Any:
        if output is not None:
            check(output, example)
        return output

    kind = click.Path(path_type=Path)
    return click.option(
        "-o", "--output", type=kind, metavar=metavar, callback=check_output, **settings
    )


def destination_options(where: str) -> Callable[[F], F]:
    """Return `--to`, whose help is `where`, and `--public`."""

    def add(command: F) -> F:
        public = "Make the repository of the Hub public; default: private."
        command = click.option("--public", is_flag=True, help=public)(command)
        return click.option("--to", required=True, metavar="PLACE", help=where)(command)

    return add


_PROJECT: dict[str, Any] = {"type": click.Path(path_type=Path), "metavar": "DIR"}
_WHERE = "Project directory; default: LABELGUARD_PROJECT, or the nearest one upwards."
project_option = click.option("--project", **_PROJECT, help=_WHERE)


def project_options(help_if_several: str) -> Callable[[F], F]:
    """Return --project, which may be given again; `help_if_several` says what that means."""
    return click.option("--project", **_PROJECT, multiple=True, help=_WHERE + help_if_several)


def _wait_for_project(context: click.Context, option: click.Parameter, is_given: bool) -> None:
    if is_given:
        from labelguard.project.project import waiting

        context.with_resource(waiting(lambda text: click.echo(f"labelguard: {text}", err=True)))


wait_option = click.option(
    "--wait",
    is_flag=True,
    expose_value=False,
    callback=_wait_for_project,
    help="Wait while another job has the project locked, instead of stopping at once; a "
    "release that is learning does not lock it.",
)
source_option = click.option(
    "--source",
    "namespace",
    metavar="NAME",
    help="Source of the labelers' ids, see `labelguard source`; default: input.source in "
    "labelguard.toml.",
)


def build_click_settings(option: Option, *, usual: bool = True) -> dict[str, Any]:
    """Return what click needs to know of an option as it was declared.

    Where nothing is typed it has its default, if it is `usual`, and else is None.
    """
    kind: Any = click.Choice(option.choices) if option.choices else option.kind
    if option.least is not None:
        kind = click.IntRange(min=option.least)
    settings = {"type": kind, "metavar": option.metavar, "help": option.text}
    if option.kind is bool:
        return {"help": option.text, "is_flag": True, "default": option.default}
    if option.table:
        return settings | {"type": str, "callback": _parse_columns}
    if option.many and "," in (option.metavar or ""):
        return settings | {"type": str, "callback": lambda context, one, text: _split_names(text)}
    if option.many:
        return settings | {"multiple": True, "callback": lambda context, one, texts: texts or None}
    if option.choices and option.kind is not str:
        settings["callback"] = lambda context, one, text: (
            None if text is None else option.kind(text)
        )
    if usual and option.default is not None:
        settings["default"] = option.default
    return settings


def declared_options(
    kind: Any, *names: str, without: Sequence[str] = (), **changes: dict[str, Any]
) -> Callable[[F], F]:
    """Add the options that a dataclass declares: these `names`, or all but those `without`.

    `changes` are settings of click's, by the option's name, that are another's here.
    """
    known = {name: one for name, one in option_declarations(kind).items() if name not in without}

    def add(command: F) -> F:
        for name in reversed(names or tuple(known)):
            settings = build_click_settings(known[name]) | changes.get(name, {})
            command = click.option(known[name].flag, name, **settings)(command)
        return command

    return add


def reading_options(*names: str) -> Callable[[F], F]:
    """Add the options that say how INPUT is read: these, or all."""
    labelers = click.option(
        "--labeler-column",
        metavar="NAME",
        expose_value=False,
        is_eager=True,  # so that `_parse_columns` knows it
        callback=lambda context, one, name: context.meta.update({_LABELERS: name}),
        help="Column with the labeler of each label; short for --columns labeler_id=NAME.",
    )
    no_prompt = click.option(
        "--no-prompt",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=lambda context, one, given: context.meta.update({_NO_PROMPT: given}),
        help="Nothing was asked: the prompt of every pair is an empty text; short for "
        "--columns prompt= .",
    )
    declared = declared_options(ReadingOptions, *names)
    return lambda command: labelers(no_prompt(declared(command)))


def _split_names(text: str | None) -> tuple[str, ...]:
    return tuple(filter(None, (name.strip() for name in (text or "").split(","))))


_LABELERS, _NO_PROMPT = "labelguard.labeler_column", "labelguard.no_prompt"


def _parse_columns(context: click.Context, option: click.Parameter, text: str | None) -> Any:
    """Return `labeler_id=worker,prompt=…`, and --labeler-column, as column names by role."""
    columns: dict[str, str] = {}
    for assignment in filter(None, (piece.strip() for piece in (text or "").split(","))):
        role, sign, name = (piece.strip() for piece in assignment.partition("="))
        if not sign or not (name or role == "prompt"):
            raise InvalidLabels(f"--columns expects ROLE=NAME pairs, found {assignment!r}")
        if role in columns:
            raise InvalidLabels(f"--columns names {role} twice")
        columns[role] = name
    labelers, no_prompt = context.meta.get(_LABELERS), context.meta.get(_NO_PROMPT, False)
    if not (labelers or no_prompt):
        return columns
    from labelguard.inputs.columns import merge_reading_options

    options = {"columns": columns, "labeler_column": labelers, "no_prompt": no_prompt}
    return merge_reading_options(options)["columns"]


public_columns_option = declared_options(PolicyRequest, "public_columns")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


# What shells type as it is: bash would put `$(…)`, found in a name on disk, into the line.
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def complete_files(_: click.Context, option: click.Parameter, typed: str) -> list[CompletionItem]:
    """Files and directories, as the shell itself finds them."""
    return [CompletionItem(typed, type="file")]


def complete_releases(
    context: click.Context, _: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Ids of the project's releases on disk; no ledger and no key is opened for it."""
    from labelguard.project.project import find

    with contextlib.suppress(Exception):
        paths = find(context.params.get("project")).releases.glob("r[0-9]*")
        names = sorted(path.name for path in paths if not path.suffix)
        plain = (name for name in names if _PLAIN.fullmatch(name))
        return [CompletionItem(name) for name in plain if name.startswith(typed)]
    return []


def complete_releases_else_files(
    context: click.Context, option: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Releases, else files: where a directory with a copy of one may be named."""
    return complete_releases(context, option, typed) or complete_files(context, option, typed)
