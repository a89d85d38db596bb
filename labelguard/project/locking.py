"""File locks, and waiting for a project that another job holds instead of `ProjectBusy` at once.

    with waiting():
        privatize(...)

It waits without limit; an interrupt ends it, and nothing was begun.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from time import sleep as pause
from typing import TypeVar

from filelock import lock_descriptor

from labelguard.errors import ProjectBusy

R = TypeVar("R")
_PAUSE = 0.5
_say: ContextVar[Callable[[str], None] | None] = ContextVar("waiting", default=None)


@contextlib.contextmanager
def waiting(say: Callable[[str], None] = lambda text: None) -> Iterator[None]:
    """Let jobs that are begun in here wait until the project is free; `say` is told if one does.

    Example:
        >>> study = lg.init("study")
        >>> with lg.waiting(print):
        ...     made = lg.privatize("labels.parquet", mechanism="rr", project=study)
    """
    before = _say.set(say)
    try:
        yield
    finally:
        _say.reset(before)


def when_free(hold: Callable[[], R]) -> R:
    """Return the result of `hold`; under `waiting`, call it until it raises no `ProjectBusy`."""
    say = _say.get()
    try:
        return hold()
    except ProjectBusy:
        if say is None:
            raise
    say("waiting for another labelguard job to end")
    while True:
        pause(_PAUSE)
        with contextlib.suppress(ProjectBusy):
            return hold()


@contextlib.contextmanager
def file_lock(path: Path, flags: int, busy: str) -> Iterator[None]:
    """Lock a file or a directory, opened with `flags`.

    Raises `ProjectBusy`, saying `busy`, at once if another process or thread holds it, `OSError` if
    it cannot be opened.
    """
    descriptor = os.open(path, flags, 0o600)
    try:
        if not lock_descriptor(descriptor, blocking=False):
            raise ProjectBusy(busy)
        yield
    finally:
        os.close(descriptor)
