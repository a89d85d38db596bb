"""What is told of a job while it runs: a line that moves on a terminal, a few lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import click

from labelguard.text import escape_controls

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Line", "Lines", "Reporter"]

Clock: TypeAlias = Callable[[], float]

# Seconds of which nothing is told, and from which nothing is concluded.
_SOON = 5.0
_RARELY = 600.0


class Reporter:
    """A `Progress` that tells nothing, and makes room for questions while `paused`."""

    def __call__(self, step: str, share: float | None) -> None:
        """What is being done, and the share of it that is done."""

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """No line meanwhile."""
        yield


class Line(Reporter):
    """One line on a terminal, with a bar where a share is known."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("starting", total=None)
        self._left = _Left(time.monotonic)

    def __call__(self, step: str, share: float | None) -> None:
        # update() takes no total back, and a bar that stands at nothing looks stuck.
        self._bar.tasks[0].total = None if share is None else 1.0
        told = escape_controls(", ".join([step, *self._left(share)]))
        self._bar.update(self._task, description=told, completed=share or 0.0)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self._bar.stop()
        yield
        self._bar.start()


class Lines(Reporter):
    """Lines on standard error, where nobody watches: few in a log, and fewer the longer it takes.

    The first comes after five seconds, or `at_once`; each further one when the job has lasted twice
    as long, or ten minutes longer. When they come depends on the time alone, what they say on what
    is public.
    """

    def __init__(self, clock: Clock = time.monotonic, *, at_once: bool = False) -> None:
        self._clock, self._began, self._due = clock, clock(), 0.0 if at_once else _SOON
        self._left = _Left(clock)

    def __call__(self, step: str, share: float | None) -> None:
        left, lasted = self._left(share), self._clock() - self._began
        if lasted < self._due:
            return
        self._due = max(lasted + min(lasted, _RARELY), _SOON)
        done = [] if share is None else [f"{share:.0%}"]
        click.echo(escape_controls(f"labelguard: {', '.join([step, *done, *left])}"), err=True)


class _Left:
    """How long a step goes on, by the shares that were told; 0, or a smaller one, begins anew."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began: tuple[float, float] | None = None
        self._last = 0.0

    def __call__(self, share: float | None) -> list[str]:
        """Nothing, or about how long."""
        if share is None:
            self._began = None
            return []
        now = self._clock()
        if self._began is None or not share or share < self._last:
            self._began = now, share
        self._last = share
        began, before = self._began
        if now - began < _SOON or share <= before:
            return []
        return [f"about {_duration((now - began) * (1 - share) / (share - before))} left"]


def _duration(seconds: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
