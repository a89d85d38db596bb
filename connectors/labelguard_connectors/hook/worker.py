"""The worker: takes in what the hook heard, and releases it as `[hook.release]` says.

It is a process of its own, for a release takes the project and minutes of processor time, and the
hook must go on answering. Whatever fails is said in the log and tried again; whatever is asked
twice was charged once.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType

from labelguard.answers import connector as connectors
from labelguard.answers.connector import Settings
from labelguard.answers.inbox import EXPORTS, Progressed
from labelguard.cli.stopping import Stopped
from labelguard.errors import ConnectorError, LabelguardError, ProjectBusy
from labelguard.ledger import segmentbook
from labelguard.project import attempts, ingestion
from labelguard.project.opening import OpenProject, Where, located
from labelguard.project.project import Project
from labelguard.release import writer
from labelguard.release.privatize import privatize
from labelguard.text import Progress, no_progress
from labelguard_connectors.hook import logs
from labelguard_connectors.hook.schedule import Completes, Schedule, agreed

TURN_SECONDS = 15.0
_COMPLETED_SECONDS, _LONGEST_SECONDS = 300.0, 3_600.0
"""How often a tool is asked whether all is answered; and how long nothing is taken in at most."""
_MANY = 10_000
"""Events that are taken in whatever the schedule says."""


@dataclass
class Turn:
    """What a worker did in one turn."""

    answers: int = 0
    """answers that were taken in, new or changed"""
    releases: list[str] = field(default_factory=list)
    """releases that were made"""
    published: list[str] = field(default_factory=list)
    """where they were published"""
    failed: list[str] = field(default_factory=list)
    """what did not succeed, and will be tried again"""


class Worker:
    """Works for one project. Raises at its making what `Schedule` raises."""

    def __init__(self, where: Where = None, today: Callable[[], str] | None = None) -> None:
        self._project: Project = located(where)
        self._schedule = Schedule.of(self._project.hook)
        self._settings: Mapping[str, Settings] = ingestion.settings(self._project)
        self._today = today or (lambda: datetime.now(UTC).date().isoformat())
        self._log = logs.logger()
        self._ended = threading.Event()
        self._ingested = -math.inf
        self._missed: set[str] = set()
        self._failures: dict[tuple[str, ...], tuple[int, float]] = {}
        self.standing = self._schedule.standing(self._project)
        if self._schedule.when == "completed":
            for settings in self._settings.values():
                _completes(settings)

    def run(self, ended: threading.Event) -> None:
        """One turn after another, until told to end.

        What the tools announced while the hook was down is pulled first.
        """
        self._missed, self._ended = set(self._settings), ended
        for sentence in self.standing:
            self._log.info("standing", why=sentence)
        while not ended.is_set():
            self.turn()
            ended.wait(TURN_SECONDS)

    def turn(self) -> Turn:
        """Do what is due; `Turn` says what came of it."""
        done = Turn()
        self._attempt(done, lambda: self._turn(done), "worker")
        return done

    def _turn(self, done: Turn) -> None:
        progressed = Progressed.read(self._project.state)
        for name in self._settings:
            if name in self._missed or progressed.reconciled.get(name) != self._today():
                act = partial(self._reconcile, done, progressed, name)
                self._attempt(done, act, "reconcile", name)
        self._attempt(done, partial(self._ingest, done, progressed), "ingest")
        for source in self._sources:
            self._attempt(done, partial(self._release, done, progressed, source), "release", source)
        for name, settings in self._settings.items():
            made = progressed.releases.get(settings.source)
            if self._schedule.push and made and progressed.pushed.get(name) != made:
                act = partial(self._publish, done, progressed, name, made)
                self._attempt(done, act, "push", name)

    @property
    def _sources(self) -> list[str]:
        return sorted({settings.source for settings in self._settings.values()})

    def _reconcile(self, done: Turn, progressed: Progressed, name: str) -> None:
        """What the hook missed: once a day, and when it was down."""
        done.answers += ingestion.reconcile(name, self._project).answers
        self._missed.discard(name)
        progressed.reconciled[name] = self._today()
        progressed.write(self._project.state)
        self._log.info("reconciled", connector=name)

    def _ingest(self, done: Turn, progressed: Progressed) -> None:
        """What waits in the inbox, where it may make a release due: every time is a segment."""
        with contextlib.closing(ingestion.inbox_of(OpenProject.open(self._project))) as inbox:
            waiting = inbox.waiting()
        if waiting and self._wanted(waiting, progressed):
            done.answers += ingestion.ingest(self._project).answers
            self._ingested = time.monotonic()

    def _wanted(self, waiting: int, progressed: Progressed) -> bool:
        since = time.monotonic() - self._ingested
        if waiting >= _MANY or since >= _LONGEST_SECONDS:
            return True
        if self._schedule.when == "every":
            fresh = [self._fresh(progressed, source)[1] for source in self._sources]
            return max(fresh, default=0) + waiting >= self._schedule.count
        if self._schedule.when == "daily":
            return any(progressed.days.get(source) != self._today() for source in self._sources)
        return self._schedule.when == "completed" and since >= _COMPLETED_SECONDS

    def _release(self, done: Turn, progressed: Progressed, source: str) -> None:
        last, fresh = self._fresh(progressed, source)
        if not fresh or not self._due(fresh, progressed, source):
            return
        how = self._schedule.options
        release = privatize(None, namespace=source, project=self._project, **how)
        progressed.segments[source], progressed.days[source] = last, self._today()
        progressed.releases[source] = release.id
        progressed.write(self._project.state)
        if not release.reused:
            done.releases.append(release.id)
            self._log.info("released", source=source, release=release.id)

    def _fresh(self, progressed: Progressed, source: str) -> tuple[int, int]:
        """The last segment, and how many answers of a source came since its last release."""
        with OpenProject.open(self._project).ledger.snapshot() as connection:
            segments = segmentbook.records(connection)
        before = progressed.segments.get(source, 0)
        own = [one for one in segments if one.source == source and one.number > before]
        return max((one.number for one in own), default=before), sum(one.rows for one in own)

    def _due(self, fresh: int, progressed: Progressed, source: str) -> bool:
        when = self._schedule.when
        if when == "every":
            return fresh >= self._schedule.count
        if when == "daily":
            return progressed.days.get(source) != self._today()
        own = [one for one in self._settings.values() if one.source == source]
        return when == "completed" and all(_completes(one).completed() for one in own)

    def _publish(self, done: Turn, progressed: Progressed, name: str, release: str) -> None:
        """The newest release of its source as a new data set of the connector's tool."""
        _, where = writer.push(name, release, project=self._project)
        progressed.pushed[name] = release
        progressed.write(self._project.state)
        done.published.append(where)
        self._log.info("published", connector=name, release=release)

    def _attempt(self, done: Turn, act: Callable[[], None], what: str, of: str = "") -> None:
        """Do it, or say what went wrong; then it is tried again later and later."""
        times, not_before = self._failures.get((what, of), (0, -math.inf))
        if time.monotonic() < not_before:
            return
        try:
            act()
        except ProjectBusy as error:
            self._log.info("waiting", what=what, of=of, why=str(error))
        except Exception as error:
            if self._ended.is_set():  # an engine that a signal interrupts raises its own error
                raise
            if what == "ingest":  # nothing new is released while it fails
                attempts.fail(self._project, error)
            # What another package says may hold a label: its kind and its place are enough.
            ours = isinstance(error, LabelguardError)
            why = str(error) if ours else type(error).__name__
            pause = min(TURN_SECONDS * 2**times, _LONGEST_SECONDS)
            self._failures[what, of] = (min(times + 1, 16), time.monotonic() + pause)
            at = {} if ours else {"at": logs.places(error)}
            self._log.error("failed", what=what, of=of, why=why, again_in_seconds=pause, **at)
            done.failed.append(f"{what} {of}: {why}")
        else:
            if self._failures.pop((what, of), None) and what == "ingest":
                attempts.clear(self._project)


def _completes(settings: Settings) -> Completes:
    """The connector, which must know when all is answered."""
    found = connectors.connector(settings)
    if not isinstance(found, Completes):
        raise ConnectorError(
            f'[hook.release]: when = "completed" needs a tool that says so, and connector '
            f"{settings.name} ({settings.kind}) cannot tell; take daily or every:500"
        )
    return found


@dataclass(frozen=True)
class Ran:
    """A release of an export."""

    release: str
    """its id"""
    path: str
    """its directory"""
    reused: bool
    """whether it was made before: no label was looked at, nothing was charged"""
    where: str | None
    """where it was published now; null: nowhere, or before"""
    notes: Sequence[str]
    """what else to know"""


def release_export(
    export: Path,
    connector: str | None = None,
    where: Where = None,
    progress: Progress = no_progress,
) -> Ran:
    """Release the labels in `export` under the policy in force, as `connector` reads them.

    They are published by it where `[hook.release]` says `push = true`. Raises what `privatize` and
    `push` raise, and `PolicyError` where there is no policy in force.
    """
    home = located(where)
    schedule = Schedule.of(home.hook)
    settings = _settings(ingestion.settings(home), connector)
    agreed(home)
    release = privatize(
        export,
        namespace=settings.source,
        project=home,
        progress=progress,
        columns=settings.columns,
        question=settings.question,
        format=connectors.connector(settings).format,
        **schedule.options,
    )
    place = None
    progressed = Progressed.read(home.state, EXPORTS)
    if schedule.push and progressed.pushed.get(settings.name) != release.id:
        _, place = writer.push(settings.name, release.id, project=home, progress=progress)
        progressed.pushed[settings.name] = release.id
        progressed.write(home.state, EXPORTS)
    return Ran(release.id, str(release.path), release.reused, place, release.notes)


def _settings(found: dict[str, Settings], name: str | None) -> Settings:
    """Those that were named, or the only ones there are."""
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if name not in found:
        there = ", ".join(sorted(found)) or "none"
        raise ConnectorError(
            f"name one of the connectors in labelguard.toml (--connector); there are: {there}"
        )
    return found[name]


def work_once(where: Where = None) -> Turn:
    """Do what is due now. Raises what `Worker` raises."""
    logs.configure()
    return Worker(where).turn()


def work(where: Where = None, *, attached: bool = False) -> Turn:
    """Work until SIGTERM, Ctrl-C or, `attached`, the end of standard input; what was done last.

    A release that is under way is stopped, and finished by the next worker at no further charge.
    """
    logs.configure()
    worker, ended = Worker(where), threading.Event()
    if attached:
        threading.Thread(target=_watch, daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        _note(number, ended)
    try:
        worker.run(ended)
    except (Stopped, KeyboardInterrupt):
        pass
    except Exception:
        if not ended.is_set():
            raise
    logs.logger().info("worker ended")
    return Turn()


def _note(number: int, ended: threading.Event) -> None:
    """Let `ended` know of a signal, whatever becomes of what its handler raises."""
    handler = signal.getsignal(number)

    def told(number: int, frame: FrameType | None) -> None:
        ended.set()
        if callable(handler):
            handler(number, frame)

    if callable(handler):
        signal.signal(number, told)


def _watch() -> None:
    """The server holds the other end open for as long as it lives."""
    # Not by sys.stdin: a thread that waits in it holds its lock, which the interpreter wants when
    # it ends.
    while os.read(0, 4_096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
