"""`labelguard serve` and `labelguard hook`: answers received, looked at and released."""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labelguard import extras
from labelguard.cli.options import HELP, Command, CommandGroup, project_options
from labelguard.cli.terminal import StopSignal, echo, print_table, prints, wants_json
from labelguard.errors import LabelguardError
from labelguard.text import pluralize

if TYPE_CHECKING:
    from labelguard.answers.inbox import Letter
    from labelguard_connectors.hook.server import ServerSummary
    from labelguard_connectors.hook.serving import Discarded, RetryResult
    from labelguard_connectors.hook.worker import Turn

_EXTRA = "serve"
_NUMBERS = 3


def _print_nothing(_: Any) -> None:
    """Print no result: the log has it, of which every line is one JSON object."""


@contextlib.contextmanager
def _log_errors() -> Iterator[None]:
    """Let the log tell why a command ends, unless --json asks for that."""
    from labelguard_connectors.hook import logs

    logs.configure()
    log, end = logs.logger(), click.get_current_context().exit
    try:
        yield
    except (KeyboardInterrupt, StopSignal) as stop:
        log.info("stopped")
        end(getattr(stop, "code", 130))
    except (LabelguardError, OSError) as error:
        if wants_json():
            raise
        why = getattr(error, "strerror", None) or logs.describe_own_error(error)
        log.error("refused", why=why)
        end(getattr(error, "exit_code", 1))


@click.command(
    cls=Command, short_help="Receive webhooks of annotation tools.", context_settings=HELP
)
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8410, help="0 takes any.")
@click.option("--no-worker", is_flag=True, help="Release nothing: see `labelguard hook work`.")
@project_options(" Several: deliveries go to /hooks/DIR/CONNECTOR.")
@prints(_print_nothing)
def serve(host: str, port: int, no_worker: bool, project: tuple[Path, ...]) -> ServerSummary:
    """Receive webhooks of the connectors in labelguard.toml, at POST /hooks/CONNECTOR.

    A delivery that is answered with 200 is on disk. Expose it only behind TLS:
    see docs/connectors.md. Its worker follows [hook.release].

    \b
    Example:
      labelguard serve --port 8410
    """
    extras.require_extra(_EXTRA, "labelguard serve")
    from labelguard_connectors.hook import server

    worker = [] if no_worker else [sys.executable, "-m", "labelguard", "hook", "work", "--attached"]
    with _log_errors():
        return server.serve(*project, host=host, port=port, worker=worker)


@click.group(
    cls=CommandGroup,
    context_settings=HELP,
    short_help="Release what the hook received; dead letters.",
)
def hook() -> None:
    """Answers that the hook received, and the releases that are made of them."""


@hook.command("work", short_help="Ingest and release what the hook received.")
@click.option("--once", is_flag=True, help="Do what is due now, and exit.")
@click.option("--attached", is_flag=True, hidden=True, help="Exit when standard input ends.")
@click.option("--named", default="", hidden=True, help="Its name in log lines.")
@prints(_print_nothing, code=lambda value: 1 if value.failed else 0, project=True)
def hook_work(once: bool, attached: bool, named: str, project: Path | None) -> Turn:
    """Ingest what the hook received, once a day what it missed, and release as [hook.release] says.

    `labelguard serve` does this too, unless it runs with --no-worker.

    \b
    Example:
      labelguard hook work --once
    """
    extras.require_extra(_EXTRA, "labelguard hook work")
    from labelguard_connectors.hook import worker

    with _log_errors():
        if once:
            return worker.work_once(project)
        return worker.run_forever(project, attached=attached, name=named)


def _print_letters(values: Sequence[Letter]) -> None:
    groups: defaultdict[tuple[str, str], list[Letter]] = defaultdict(list)
    for value in values:
        groups[value.connector, value.shared_cause].append(value)
    rows = []
    for (connector, cause), letters in sorted(groups.items(), key=lambda group: -len(group[1])):
        numbers = [str(letter.number) for letter in letters]
        listed = ", ".join([*numbers[:_NUMBERS], *["…"][: len(numbers[_NUMBERS:])]])
        first, last = (
            datetime.fromtimestamp(letters[at].received_at, UTC).date() for at in (0, -1)
        )
        rows.append((len(letters), connector, str(first), str(last), listed, cause))
    names = ("letters", "connector", "first", "last", "no.", "why")
    print_table(
        names, rows, right=["letters"], empty="No dead letter: every delivery was understood."
    )


def _print_dead_letters(value: list[Letter] | RetryResult | Discarded) -> None:
    from labelguard_connectors.hook.serving import Discarded

    if isinstance(value, list):
        _print_letters(value)
    elif isinstance(value, Discarded):
        letters = pluralize(len(value.numbers), "dead letter")
        echo(f"Discarded {letters} (deliveries that could not be read).")
    else:
        known, left = pluralize(value.understood, "dead letter"), f"{len(value.left):,} left"
        echo(f"{known} (deliveries that were not understood) can be read now; {left}.")
        if value.left:
            _print_letters(value.left)


@hook.command("dead-letters", short_help="Deliveries that could not be understood.")
@click.argument("numbers", nargs=-1, type=int, metavar="[NUMBER]...")
@click.option("--retry", is_flag=True, help="Read them again, all or those named.")
@click.option("--discard", is_flag=True, help="Delete those named: they are in no release.")
@prints(
    _print_dead_letters, code=lambda value: 1 if getattr(value, "left", ()) else 0, project=True
)
def dead_letters(
    numbers: tuple[int, ...], retry: bool, discard: bool, project: Path | None
) -> list[Letter] | RetryResult | Discarded:
    """List dead letters by cause; with --json each by itself, oldest first.

    Retry them after an update or a change of labelguard.toml. Discard those that no update will
    make readable. Their content is never shown.

    \b
    Example:
      labelguard hook dead-letters
      labelguard hook dead-letters 3 4 --discard
    """
    from labelguard_connectors.hook import serving

    if (discard and (retry or not numbers)) or (numbers and not (retry or discard)):
        raise click.UsageError("give --retry, or --discard and numbers, or nothing to list them")
    if discard:
        return serving.discard(project, numbers)
    return serving.retry(project, numbers) if retry else serving.dead_letters(project)
