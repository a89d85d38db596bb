"""For how many releases a project's first policy is made: three options, one question."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

from labelguard.budget.request import EVERY, Horizon
from labelguard.cli.options import declared_options
from labelguard.cli.terminal import echo
from labelguard.errors import PolicyError
from labelguard.options import RunOptions

__all__ = ["ask", "lifetime_options", "says_how_often"]

_WAYS = {
    "once": "no: this release may spend all of ε, and no later label of theirs is released",
    "several": "yes, a number of times: the releases share ε, each with more noise",
    "regularly": "yes, every day, week or month for some time: as several",
}
_OPTIONS = (
    "--once                       they will not: this release may spend all of ε\n"
    "--uses K                     K releases in all share ε, each with more noise\n"
    "--recurring weekly --for 1y  as many as come in that time"
)


lifetime_options = declared_options(RunOptions, "uses", "recurring", "duration")


def says_how_often(options: Mapping[str, Any]) -> bool:
    """Return whether one of them is given, or contents are protected, which come once."""
    given = ("once", "uses", "recurring", "duration")
    return options["unit"] == "item" or any(options[name] not in (None, False) for name in given)


def ask() -> Mapping[str, Any]:
    """Ask whether more labels of the same people will come; what that means, as options.

    Raises `UsageError` where nobody is there to ask.
    """
    if not sys.stdin.isatty():
        raise click.UsageError(
            "a project's first release fixes how many releases share ε; say whether more labels of "
            f"the same people will come:\n{_OPTIONS}"
        )
    echo("Will more labels of the same people come later? It is fixed now, for good.", err=True)
    for way, meaning in _WAYS.items():
        echo(f"  {way:<9}  {meaning}", err=True)
    way = click.prompt("Later labels", type=click.Choice(list(_WAYS)), err=True)
    if way == "once":
        return {"once": True}
    if way == "several":
        number = click.IntRange(min=1)
        return {"uses": click.prompt("Releases in all, with this one", type=number, err=True)}
    every = click.prompt("How often", type=click.Choice(EVERY), default="weekly", err=True)
    return {
        "recurring": every,
        "duration": click.prompt(
            "For how long", default="1y", value_proc=lambda text: _duration(every, text), err=True
        ),
    }


def _duration(every: str, text: str) -> str:
    try:
        return Horizon(every, text.strip()).length
    except PolicyError as error:
        raise click.BadParameter(str(error)) from None
