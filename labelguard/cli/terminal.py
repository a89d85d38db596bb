"""What everything shown on a terminal is made of: facts, tables, JSON, and progress."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from labelguard.cli.options import json_option, project_option, wait_option
from labelguard.cli.reporter import Line, Lines, Reporter
from labelguard.text import escape_controls as escape_controls

P = ParamSpec("P")
R = TypeVar("R")


def prints(
    show: Callable[[R], None],
    *,
    code: Callable[[R], int] = lambda result: 0,
    project: bool = False,
    wait: bool = False,
) -> Callable[[Callable[P, R]], Callable[..., None]]:
    """Let a command print what it returns: as `show` does, or as JSON where --json is given.

    `code` is the exit code that a result means. Of a `project` it takes --project, and --wait
    where it may `wait` for the project.
    """

    def decorate(command: Callable[P, R]) -> Callable[..., None]:
        @json_option
        @functools.wraps(command)
        def run(*args: Any, as_json: bool, **options: Any) -> None:
            result = command(*args, **options)
            print_json(result) if as_json else show(result)
            if status := code(result):
                sys.exit(status)

        run = wait_option(run) if wait else run
        return project_option(run) if project or wait else run

    return decorate


def json_asked() -> bool:
    """Whether the running command was asked for JSON."""
    return bool(click.get_current_context().params.get("as_json"))


def verdict_code(verdict: Any) -> int:
    """The exit code of what does not hold."""
    return 0 if verdict.ok else 1


def width() -> int:
    """Columns of the terminal; 100 where there is none."""
    # Where nobody watches, lines must not depend on the width of a window that is not there.
    return shutil.get_terminal_size(fallback=(100, 24)).columns


def echo(text: str = "", *, err: bool = False) -> None:
    """Print lines; only their line breaks are left as they are."""
    click.echo("\n".join(map(escape_controls, text.split("\n"))), err=err)


def print_json(value: Any) -> None:
    """Any result as JSON on standard output."""
    # In JSON itself such characters may stand for themselves; escaped, they mean the same.
    text = to_json(value)
    click.echo("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))


def to_json(value: Any) -> str:
    """Any result as JSON."""
    return json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    """A result as JSON has it, with null for what it has no number for (a multiplier at γ = ½)."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_facts(facts: Iterable[tuple[str, str]], *, err: bool = False) -> None:
    """Names and values side by side; long values are wrapped between words, so paths stay whole."""
    rows = list(facts)
    indent = max(len(name) for name, _ in rows) + 2
    for name, value in rows:
        wrapped = textwrap.wrap(
            escape_controls(value),
            max(width() - indent, 20),
            subsequent_indent="  " if value.startswith("· ") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line, text in enumerate(wrapped or [""]):
            first = "" if line else name
            click.echo(click.style(first, bold=True) + " " * (indent - len(first)) + text, err=err)


def print_table(
    names: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Collection[str] = (),
    gap: int = 2,
    wrap: bool = True,
    empty: str = "",
) -> None:
    """Rows under a line of column names, without the spaces that would fill its lines up.

    Columns in `right` hold numbers; `gap` is between two columns; cells are as `cell` shows them.
    Where there is no row it prints what `empty` says, if it says anything.
    """
    from rich.console import Console
    from rich.table import Table

    rows = list(rows)
    if empty and not rows:
        echo(empty)
        return
    made = Table(box=None, header_style="bold", padding=(0, gap, 0, 0))
    for name in names:
        made.add_column(name, justify="right" if name in right else "left", no_wrap=not wrap)
    for row in rows:
        made.add_row(*(escape_controls(cell(value)) for value in row))
    console = Console(width=width(), highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        console.print(made)
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def cell(value: object) -> str:
    """A whole number with its thousands apart, – for nothing, or anything else as it is."""
    return f"{value:,}" if isinstance(value, int) else "–" if value is None else str(value)


def print_bullets(lines: Iterable[str]) -> None:
    """Sentences after a blank line, each with a dot before it."""
    echo()
    for line in lines:
        echo(f"· {line}")


def print_notes(notes: Iterable[str]) -> None:
    """Print what else to know on standard error."""
    for note in notes:
        echo(f"labelguard: note: {escape_controls(note)}", err=True)


def print_next(commands: Sequence[str], when: str = "") -> None:
    """Print commands to go on with, if there are any."""
    if commands:
        head = f"Next{when}: "
        echo(head + f"\n{' ' * len(head)}".join(commands))


def nested(name: str, lines: Iterable[str]) -> list[tuple[str, str]]:
    """Facts that have one name together: sentences, each with a dot before it."""
    return [("" if number else name, f"· {line}") for number, line in enumerate(lines)]


def near(path: str | Path) -> str:
    """A path as it may be typed here."""
    with contextlib.suppress(ValueError):
        return str(Path(path).relative_to(Path.cwd()))
    return str(path)


@contextlib.contextmanager
def progress(*, at_once: bool = False) -> Iterator[Reporter]:
    """Progress on standard error while a job runs: a line that moves on a terminal, else `Lines`,
    whose first comes `at_once`.

    Silent where a program reads the result, and where LABELGUARD_PROGRESS is off.
    """
    off = os.environ.get("LABELGUARD_PROGRESS") == "off"
    if off or not sys.stderr.isatty():
        yield Reporter() if off or json_asked() else Lines(at_once=at_once)
        return
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    text = TextColumn("{task.description}", markup=False)
    console = Console(stderr=True)
    columns = (SpinnerColumn(), text, BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        yield Line(bar)
