"""Print results as facts, tables and JSON; show progress; serve, and stop cleanly at signals."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import shutil
import signal
import socket
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

import click

from labelguard.cli.options import json_option, project_option, wait_option
from labelguard.errors import LabelguardError, NotAgreed
from labelguard.text import escape_controls as escape_controls

if TYPE_CHECKING:
    from rich.progress import Progress


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


def wants_json() -> bool:
    """Return True if the running command has --json."""
    return bool(click.get_current_context().params.get("as_json"))


def choose_verification_exit_code(verdict: Any) -> int:
    """The exit code of what does not hold."""
    return 0 if verdict.ok else 1


def ask(question: str, otherwise: str) -> bool:
    """Ask on standard error; raise `NotAgreed` where no answer can come, saying what does else."""
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        echo(err=True)
        raise NotAgreed(f"nothing was changed: no terminal to ask at; {otherwise}") from None


def confirm(question: str) -> None:
    """Ask, and stop the command at a no; see `ask`."""
    if not ask(question, "continue with --yes"):
        raise click.Abort


def measure_terminal_width() -> int:
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
    return json.dumps(_to_plain_json(value), indent=2, ensure_ascii=False, allow_nan=False)


def _to_plain_json(value: Any) -> Any:
    """A result as JSON has it, with null for what it has no number for (a multiplier at γ = ½)."""
    if is_dataclass(value):
        return {field.name: _to_plain_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: _to_plain_json(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain_json(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_facts(facts: Iterable[tuple[str, str]], *, err: bool = False) -> None:
    """Names and values side by side; long values are wrapped between words, so paths stay whole."""
    rows = list(facts)
    indent = max(len(name) for name, _ in rows) + 2
    for name, value in rows:
        wrapped = textwrap.wrap(
            escape_controls(value),
            max(measure_terminal_width() - indent, 20),
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
    """Print rows under a line of column names, without trailing spaces.

    Columns in `right` hold numbers; `gap` is the space between columns; see `format_cell` for
    cells. Without a row, print `empty` if it is given.
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
        made.add_row(*(escape_controls(format_cell(value)) for value in row))
    console = Console(width=measure_terminal_width(), highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        console.print(made)
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def format_cell(value: object) -> str:
    """A whole number with its thousands apart, – for nothing, or anything else as it is."""
    return f"{value:,}" if isinstance(value, int) else "–" if value is None else str(value)


def format_range(spread: Mapping[str, float]) -> str:
    """Return the minimum and maximum of a spread as text; one number if they are equal."""
    least, most = (f"{spread[name]:,.0f}" for name in ("min", "max"))
    return least if least == most else f"{least} to {most}"


def print_bullets(lines: Iterable[str]) -> None:
    """Sentences after a blank line, each with a dot before it."""
    echo()
    for line in lines:
        echo(f"· {line}")


def print_notes(notes: Iterable[str]) -> None:
    """Print what else to know on standard error."""
    for note in notes:
        echo(f"labelguard: note: {escape_controls(note)}", err=True)


def print_next_commands(commands: Sequence[str], when: str = "") -> None:
    """Print commands to go on with, if there are any."""
    if commands:
        head = f"Next{when}: "
        echo(head + f"\n{' ' * len(head)}".join(commands))


def format_bullet_facts(name: str, lines: Iterable[str]) -> list[tuple[str, str]]:
    """Facts that have one name together: sentences, each with a dot before it."""
    return [("" if number else name, f"· {line}") for number, line in enumerate(lines)]


def format_relative_path(path: str | Path) -> str:
    """A path as it may be typed here."""
    with contextlib.suppress(ValueError):
        return str(Path(path).relative_to(Path.cwd()))
    return str(path)


@contextlib.contextmanager
def show_progress(*, at_once: bool = False) -> Iterator[Reporter]:
    """Show progress on standard error: a moving line on a terminal, else `ProgressLines`, whose
    first comes `at_once`.

    Silent where a program reads the result, and where LABELGUARD_PROGRESS is off.
    """
    off = os.environ.get("LABELGUARD_PROGRESS") == "off"
    if off or not sys.stderr.isatty():
        yield Reporter() if off or wants_json() else ProgressLines(at_once=at_once)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar

    text = TextColumn("{task.description}", markup=False)
    times = TimeElapsedColumn(), TimeRemainingColumn(compact=True, elapsed_when_finished=False)
    columns = (SpinnerColumn(), text, BarColumn(), *times)
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        yield ProgressBar(bar)


Clock: TypeAlias = Callable[[], float]

# Seconds before anything is shown.
_SOON = 5.0
_RARELY = 600.0


class Reporter:
    """A `Progress` that shows nothing; `pause` makes room for questions."""

    def __call__(self, step: str, share: float | None) -> None:
        """Report a step, and the share of it that is done."""

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Show no line meanwhile."""
        yield


class ProgressBar(Reporter):
    """One line on a terminal, with a bar where a share is known."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("starting", total=None)

    def __call__(self, step: str, share: float | None) -> None:
        # update() takes no total back, and a bar that stands at nothing looks stuck.
        self._bar.tasks[0].total = None if share is None else 1.0
        self._bar.update(self._task, description=escape_controls(step), completed=share or 0.0)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        self._bar.stop()
        yield
        self._bar.start()


class ProgressLines(Reporter):
    """Lines on standard error, for logs: few, and fewer the longer a job takes.

    The first comes after five seconds, or `at_once`; each further one when the job has lasted twice
    as long, or ten minutes longer. When they come depends on the time alone, what they say on what
    is public.
    """

    def __init__(self, clock: Clock = time.monotonic, *, at_once: bool = False) -> None:
        self._clock, self._began, self._due = clock, clock(), 0.0 if at_once else _SOON

    def __call__(self, step: str, share: float | None) -> None:
        lasted = self._clock() - self._began
        if lasted < self._due:
            return
        self._due = max(lasted + min(lasted, _RARELY), _SOON)
        echo(f"labelguard: {step}" + ("" if share is None else f", {share:.0%}"), err=True)


_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class StopSignal(SystemExit):
    """The process was told by a signal to end; `code` is what a shell says of the signal."""

    code: int


@contextlib.contextmanager
def handle_stop_signals() -> Iterator[None]:
    """Raise `StopSignal` where these signals would end the process and leave raw labels on disk.

    Signals that are ignored (`nohup`) or handled already are left as they are. One is enough:
    another does not disturb the cleaning up.
    """
    signals: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if not signals:
            signals.append(number)
            raise StopSignal(128 + number)

    in_main = threading.current_thread() is threading.main_thread()
    ours = [one for one in _SIGNALS if in_main and signal.getsignal(one) is signal.SIG_DFL]
    for one in ours:
        signal.signal(one, stop)
    try:
        yield
    except BaseException:
        # An engine that is interrupted raises an error of its own instead.
        if signals:
            raise StopSignal(128 + signals[0]) from None
        raise
    finally:
        if not signals:  # else the process is about to end, and cleans up until then
            for one in ours:
                signal.signal(one, signal.SIG_DFL)


def ignore_hangups() -> None:
    """Go on at SIGHUP from now on: a service that reads nothing anew has nothing to do then."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


BACKLOG = 2_048
_SHUTDOWN_SECONDS = 30


def open_listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises `LabelguardError` where the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named, asyncio sends what it writes at once (TCP_NODELAY); else every
    # answer would wait 40 ms for an acknowledgment.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise LabelguardError(
            f"cannot listen on {host}, port {port}: {error.strerror}; name another: --host, --port"
        ) from None
    return listener


def format_address(listener: socket.socket) -> str:
    """Return the URL of a socket that listens."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_server(application: Any, listener: socket.socket, **settings: Any) -> None:
    """Serve an ASGI application until SIGTERM or Ctrl-C; `settings` are further ones of uvicorn.

    What was accepted until then is answered. No log has a path or a query, which may hold anything.
    """
    import uvicorn

    config = uvicorn.Config(
        application,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        **settings,
    )
    # Told to end, it ends well; the signal, which uvicorn raises once more, has done its work.
    with contextlib.suppress(StopSignal, KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
