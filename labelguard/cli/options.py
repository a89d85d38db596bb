"""Options that many commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from labelguard.cli import completion
from labelguard.project.waiting import waiting
from labelguard.storage import files
from labelguard.terms import AUTO_FORMAT, FORMAT_NAMES

F = TypeVar("F", bound=Callable[..., Any])

HELP = {"help_option_names": ["-h", "--help"]}
"""Settings of every group and of commands that may be run without one."""


def _there(context: click.Context, argument: click.Parameter, inputs: Any) -> Any:
    """Refuse paths that name nothing, before anything is loaded to read them."""
    from labelguard.ingest.paths import matching

    for one in inputs:
        if one != "-":
            matching(one)
    return inputs


def inputs_argument(*, required: bool = True) -> Callable[[F], F]:
    """The files of labels that a command reads."""
    return click.argument(
        "inputs",
        nargs=-1,
        required=required,
        metavar="INPUT..." if required else "[INPUT...]",
        shell_complete=completion.files,
        callback=_there,
    )


def file_option(example: str, **settings: Any) -> Callable[[F], F]:
    """Return `-o FILE`, such as `example`; it refuses a directory before anything is done."""
    return _output_option("FILE", files.check_file, example, **settings)


def directory_option(example: str, **settings: Any) -> Callable[[F], F]:
    """Return `-o DIR`, such as `example`; it refuses a file before anything is done."""
    return _output_option("DIR", files.check_directory, example, **settings)


def _output_option(
    metavar: str, check: Callable[[Path, str], None], example: str, **settings: Any
) -> Callable[[F], F]:
    def checked(context: click.Context, option: click.Parameter, output: Path | None) -> Any:
        if output is not None:
            check(output, example)
        return output

    kind = click.Path(path_type=Path)
    return click.option("-o", "--output", type=kind, metavar=metavar, callback=checked, **settings)


project_option = click.option(
    "--project",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Project directory; else LABELGUARD_PROJECT, else the nearest one upwards.",
)


def _wait(context: click.Context, option: click.Parameter, asked: bool) -> None:
    if asked:
        context.with_resource(waiting(lambda text: click.echo(f"labelguard: {text}", err=True)))


wait_option = click.option(
    "--wait",
    is_flag=True,
    expose_value=False,
    callback=_wait,
    help="Wait until no other job holds the project, instead of stopping at once; a release that "
    "learns does not hold it, and is not waited for.",
)
columns_option = click.option(
    "--columns",
    default="",
    metavar="ROLE=NAME,...",
    help="Names of your columns, for example labeler_id=worker,prompt=question.",
)
labeler_column_option = click.option(
    "--labeler-column",
    metavar="NAME",
    help="The column that names who gave each label; short for --columns labeler_id=NAME.",
)
format_option = click.option(
    "--format",
    type=click.Choice([AUTO_FORMAT, *FORMAT_NAMES]),
    default=AUTO_FORMAT,
    show_default=True,
    help="What INPUT looks like; auto goes by the names and types of its columns.",
)
split_option = click.option(
    "--split",
    metavar="NAME",
    help="Which split to read of a dataset that has several: train, test, …",
)
source_option = click.option(
    "--source",
    "namespace",
    metavar="NAME",
    help="Whose labelers these are, see `labelguard source`; default: input.source in "
    "labelguard.toml.",
)
question_option = click.option(
    "--question",
    metavar="NAME",
    help="What was asked about every pair; answers to several questions about one pair are "
    "several labels. Of an export with several questions: the one to read.",
)
bad_rows_option = click.option(
    "--bad-rows",
    type=click.Choice(["stop", "quarantine"]),
    default="stop",
    show_default=True,
    help="Stop at rows that cannot be used, or leave them out; privatize sets them aside in the "
    "project.",
)
ties_option = click.option(
    "--ties",
    type=click.Choice(["coin", "zero", "drop"]),
    help="What becomes of ties; default coin, of statistics alone zero. drop needs "
    "--tie-status-public.",
)
max_input_bytes_option = click.option(
    "--max-input-bytes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Stop when the input's rows take more bytes than this, unpacked; default: 1 GiB and 200 "
    "times the size of the files.",
)
label_values_option = click.option(
    "--label-values",
    metavar="CODING",
    help="What the column label says: a-b, left-right, 1-2, true-false, or "
    "a=VALUE,b=VALUE[,tie=VALUE][,skip=VALUE], with | between several values; default "
    "a=1|true,b=0|false,tie=0.5. Of choices: first=1 counts from 1, not 0.",
)
skips_option = click.option(
    "--skips",
    type=click.Choice(["public", "tie"]),
    help="Blank labels are left out, and which they are is public (default), or they are ties.",
)
unproven_option = click.option(
    "--accept-unproven",
    is_flag=True,
    default=None,
    help="Pay for mechanisms whose guarantee is as published and not proven (aup), too.",
)
reactive_option = click.option(
    "--assignment-reactive",
    is_flag=True,
    default=None,
    help="Declare that who labels what reacts to labels; the card says under what condition the "
    "guarantee then holds.",
)
public_column_option = click.option(
    "--public-column",
    "public_columns",
    multiple=True,
    metavar="NAME",
    callback=lambda context, option, names: names or None,
    help="Declare that a column (NAME, or NAME_a and NAME_b) was made of prompts and responses, of "
    "nobody's answers, so that features may read it; once for each. It belongs to the policy.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
