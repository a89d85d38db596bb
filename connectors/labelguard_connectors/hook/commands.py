"""`labelguard serve` and `labelguard hook`: what tools tell, received, looked at and released."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labelguard import extras
from labelguard.cli.options import HELP, project_option
from labelguard.cli.terminal import echo, print_table, prints
from labelguard.terms import counted

if TYPE_CHECKING:
    from labelguard.ingest.inbox import Letter
    from labelguard_connectors.hook.dead_letters import Retried
    from labelguard_connectors.hook.server import Served

_EXTRA = "serve"


def _served(value: Served) -> None:
    stored = counted(value.events, "event")
    echo(f"{value.address} answered {value.deliveries:,} with 200; {stored} stored.")


@click.command(short_help="Receive what annotation tools tell (webhooks).", context_settings=HELP)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8410, show_default=True, help="0 takes any."
)
@click.option("--no-worker", is_flag=True, help="Release nothing: see `labelguard hook work`.")
@project_option
@prints(_served)
def serve(host: str, port: int, no_worker: bool, project: Path | None) -> Served:
    """Receive webhooks of the connectors in labelguard.toml, at POST /hooks/CONNECTOR.

    A delivery that is answered with 200 is on disk. Others see it only where TLS stands before
    it: see docs/hook.md. The worker beside it does what [hook.release] says.

    \b
    Example:
      labelguard serve --port 8410
    """
    extras.require(_EXTRA, "labelguard serve")
    from labelguard_connectors.hook import server

    worker = [] if no_worker else [sys.executable, "-m", "labelguard", "hook", "work", "--attached"]
    if project:
        worker += ["--project", str(project)] if worker else []
    return server.serve(project, host=host, port=port, worker=worker)


@click.group(context_settings=HELP, short_help="What hooks were told, and its releases.")
def hook() -> None:
    """What hooks were told, and the releases that are made of it."""


@hook.group("dead-letters", context_settings=HELP)
def dead_letters() -> None:
    """Deliveries that could not be understood. What is in them is never shown."""


def _letters(values: Sequence[Letter]) -> None:
    if not values:
        echo("No dead letter.")
        return
    rows = ((v.number, v.connector, _time(v.received_at), v.bytes, v.why) for v in values)
    print_table(("no.", "connector", "came", "bytes", "why"), rows, right=("no.", "bytes"))


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dead_letters.command("list")
@project_option
@prints(_letters)
def dead_letters_list(project: Path | None) -> list[Letter]:
    """All of them, oldest first.

    \b
    Example:
      labelguard hook dead-letters list
    """
    from labelguard_connectors.hook.dead_letters import letters

    return letters(project)


def _retried(value: Retried) -> None:
    echo(f"{counted(value.understood, 'dead letter')} understood now; {len(value.left):,} left.")
    if value.left:
        _letters(value.left)


@dead_letters.command("retry")
@click.argument("numbers", nargs=-1, type=int, metavar="[NUMBER]...")
@project_option
@prints(_retried, code=lambda value: 1 if value.left else 0)
def dead_letters_retry(numbers: tuple[int, ...], project: Path | None) -> Retried:
    """Read dead letters again, those named or all: after an update, or a change of labelguard.toml.

    \b
    Example:
      labelguard hook dead-letters retry
    """
    from labelguard_connectors.hook.dead_letters import retry

    return retry(project, numbers)
