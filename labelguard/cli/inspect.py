"""The command that shows how an input is understood: `inspect`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from labelguard.cli.options import (
    HELP,
    inputs_argument,
    public_columns_option,
    reading_options,
)
from labelguard.cli.terminal import (
    echo,
    print_bullets,
    print_facts,
    print_next,
    prints,
    progress,
    width,
)
from labelguard.inputs.left_out import describe_counts
from labelguard.text import pluralize

if TYPE_CHECKING:
    from labelguard.report.inspection import Bar, Inspection

__all__ = ["inspect"]

_MASK = "•"
_LONGEST_BAR = 40


def _print(found: Inspection) -> None:
    print_facts(_facts(found))
    if found.labelers:
        _histogram(found.labelers.histogram)
    for number, example in enumerate(found.examples, 1):
        echo(f"\n{_line(f'pair {number}', example.prompt)}")
        for side in (example.first, example.second):
            echo(_line(f"  {_MASK}", side))
    if found.examples:
        echo(f"\n{_MASK} which one was preferred is not read here")
    if found.notes:
        print_bullets(found.notes)
    if found.problems:
        print_bullets(f"A release would be refused: {problem}" for problem in found.problems)
    if found.next:
        echo()
        print_next(found.next)


def _facts(found: Inspection) -> Iterator[tuple[str, str]]:
    yield "format", f"{found.format}: {found.about}"
    read = (role for role in found.roles if role.read)
    named = (r.role if r.role == r.column else f"{r.role} = {r.column}" for r in read)
    yield "columns", ", ".join(named)
    labels = [role.column for role in found.roles if not role.read]
    if labels:
        yield "  of labels", f"{', '.join(labels)} (not read)"
    yield "rows", f"{found.rows:,}"
    if found.bad_rows:
        why = f"most: {found.bad_row_reason}"
        yield (
            "  cannot be used",
            f"{found.bad_rows:,} ({why}); --bad-rows quarantine sets them aside",
        )
    if found.left_out:
        yield "  left out", describe_counts(found.left_out)
    yield "  identical sides", f"{found.identical_sides:,}"
    yield "  repeated", f"{found.repeated:,}"
    pairs = pluralize(found.pairs, "distinct pair")
    if found.answers == "labels":
        yield "labels", f"{found.labels:,} of {pairs}"
    else:
        compared = pluralize(found.comparisons, "pair")
        yield found.answers, f"{found.labels:,} ({compared}) of {pairs}"
    for question in found.questions:
        yield "  question", f"{question.name}: {pluralize(question.pairs, 'pair')}"
    if found.labelers:
        own = found.labelers
        yield "labelers", f"{own.count:,}"
        spread = f"{own.least:,} / {own.median:,g} / {own.most:,}"
        yield f"  {found.answers} of each", f"{spread}  (min / median / max)"


def _histogram(bars: tuple[Bar, ...]) -> None:
    """How many labelers have how many labels, as bars below the facts."""
    names = [f"{b.least:,}" if b.least == b.most else f"{b.least:,}–{b.most:,}" for b in bars]
    indent, most = max(map(len, names)), max(bar.labelers for bar in bars)
    for name, bar in zip(names, bars, strict=True):
        length = -(-bar.labelers * _LONGEST_BAR // most)
        echo(f"    {name:>{indent}}  {'▇' * length} {bar.labelers:,}")


def _line(name: str, text: str) -> str:
    """A name and the beginning of a text, in one line of the terminal."""
    room = max(width() - len("pair 9") - 2, 20)
    said = " ".join(text.split())
    return f"{name:<{len('pair 9')}}  {said if len(said) <= room else said[: room - 1] + '…'}"


@click.command(context_settings=HELP, short_help="Show how an input is understood; reads no label.")
@inputs_argument()
@reading_options("columns", "format", "split", "question", "max_input_bytes")
@public_columns_option
@prints(_print)
def inspect(inputs: tuple[str, ...], **options: Any) -> Inspection:
    """Show how INPUT is understood: its columns, labelers and pairs, and the command to go on with.

    INPUT is as in privatize. Labels are not read: whatever they are, the same is shown. Needs no
    project and charges nothing.

    \b
    Example:
      labelguard inspect labels.parquet
    """
    from labelguard.report.inspection import inspect as run

    with progress() as report:
        return run(list(inputs), progress=report, **options)
