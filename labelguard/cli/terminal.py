"""What everything shown on a terminal is made of: facts, tables, JSON."""

from __future__ import annotations

import json
import math
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table


def width() -> int:
    """Columns of the terminal; 100 where there is none."""
    # Where nobody watches, lines must not depend on the width of a window that is not there.
    return shutil.get_terminal_size(fallback=(100, 24)).columns


def shown(text: str) -> str:
    """Text in one line, with whatever could command a terminal, or turn its letters, escaped.

    Names of files and columns, and cards, come from anywhere.
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    return character if character.isprintable() else ascii(character)[1:-1]


def echo(text: str = "", *, err: bool = False) -> None:
    """Print lines; only their line breaks are left as they are."""
    click.echo("\n".join(map(shown, text.split("\n"))), err=err)


def print_json(value: Any) -> None:
    """Any result as JSON on standard output."""
    text = json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False)
    # In JSON itself such characters may stand for themselves; escaped, they mean the same.
    click.echo("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))


def _finite(value: Any) -> Any:
    """The value with null for what JSON has no number for (a loss multiplier at γ = ½)."""
    if isinstance(value, Mapping):
        return {name: _finite(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_facts(facts: Iterable[tuple[str, str]], *, err: bool = False) -> None:
    """Names and values side by side; long values are wrapped between words, so paths stay whole."""
    rows = list(facts)
    indent = max(len(name) for name, _ in rows) + 2
    for name, value in rows:
        wrapped = textwrap.wrap(
            shown(value),
            max(width() - indent, 20),
            subsequent_indent="  " if value.startswith("· ") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line, text in enumerate(wrapped or [""]):
            first = "" if line else name
            click.echo(click.style(first, bold=True) + " " * (indent - len(first)) + text, err=err)


class _Rows(Table):
    """A table whose cells cannot command the terminal."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*(shown(c) if isinstance(c, str) else c for c in cells), **options)


def table(*names: str, right: Sequence[str] = ()) -> Table:
    """A table with a line of column names; those in `right` hold numbers."""
    made = _Rows(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in names:
        made.add_column(name, justify="right" if name in right else "left")
    return made


def print_table(rows: Table) -> None:
    """A table without the spaces that would fill its lines up."""
    console = Console(width=width(), highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        console.print(rows)
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def number(value: object) -> str:
    """A whole number with its thousands apart, or anything else as it is."""
    return f"{value:,}" if isinstance(value, int) else str(value)
