"""The worker: ingests what the hook received, and releases it as `[hook.release]` says.

It is a process of its own, for a release takes the project and minutes of processor time, and the
hook must go on answering. Whatever fails is written to the log and tried again; what is requested
twice is charged once.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from types import FrameType

from labelguard.answers import connector as connectors
from labelguard.answers.connector import Settings
from labelguard.answers.store import WorkerState
from labelguard.cli import terminal
from labelguard.cli.terminal import StopSignal
from labelguard.errors import ConnectorError, LabelguardError, PolicyError, ProjectBusy
from labelguard.ledger import sources
from labelguard.project import attempts, ingestion
from labelguard.project.opening import OpenProject, Where, locate_project
from labelguard.project.project import Project
from labelguard.release import publication
from labelguard.release.privatize import privatize
from labelguard.report import overview
from labelguard_connectors.hook import logs
from labelguard_connectors.hook.schedule import NO_POLICY, CountsCompletion, Schedule

TURN_SECONDS = 15.0
# How often a tool is asked whether all is answered; and how long nothing is taken in at most.
_COMPLETED_SECONDS, _LONGEST_SECONDS = 300.0, 3_600.0
# How often the end of standard input is looked for.
_WATCH_SECONDS = 0.2
# Events that are taken in whatever the schedule says.
_MANY = 10_000


@dataclass
class Turn:
    """Results of one turn of a worker."""

    # answers that were taken in, new or changed
    answers: int = 0
    # releases that were made
    releases: list[str] = field(default_factory=list)
    # where they were published
    published: list[str] = field(default_factory=list)
    # what did not succeed, and will be tried again
    failed: list[str] = field(default_factory=list)


class Worker:
    """Works for one project, by whose `name` its log lines are known where a server has several.

    `total` is what came of its turns so far. Raises at its making what `Schedule` raises.
    """

    def __init__(
        self, where: Where = None, today: Callable[[], str] | None = None, name: str = ""
    ) -> None:
        self._project: Project = locate_project(where)
        self._schedule = Schedule.of(self._project.hook)
        self._settings: Mapping[str, Settings] = connectors.read_all_settings(
            self._project.connectors
        )
        self._today = today or (lambda: datetime.now(UTC).date().isoformat())
        self._log = logs.logger(name)
        self._ended = threading.Event()
        self.total = Turn()
        self._ingested = -math.inf
        self._missed: set[str] = set()
        self._held: set[str] = set()
        self._failures: dict[tuple[str, ...], tuple[int, float]] = {}
        self.outlook = self._schedule.describe_releases_and_allowance(self._project)
        for settings in self._settings.values():
            if self._schedule.when == "completed":
                _open_completion_connector(settings)
            if self._schedule.push:
                connectors.open_push(settings)

    def run_forever(self, ended: threading.Event) -> None:
        """One turn after another, until told to end.

        What the tools announced while the hook was down is pulled first.
        """
        self._missed, self._ended = set(self._settings), ended
        for sentence in self.outlook:
            self._log.info("release status", why=sentence)
        while not ended.is_set():
            self.turn()
            ended.wait(TURN_SECONDS)

    def turn(self) -> Turn:
        """Do what is due; return what came of it."""
        turn = Turn()
        try:
            self._do_or_retry_later(turn, lambda: self._take_turn(turn), "worker")
        finally:  # a signal may end it
            self.total.answers += turn.answers
            self.total.releases += turn.releases
            self.total.published += turn.published
        return turn

    def _take_turn(self, turn: Turn) -> None:
        progress = WorkerState.read(self._project.state)
        for name in self._settings:
            if name in self._missed or progress.reconciled.get(name) != self._today():
                act = partial(self._reconcile, turn, progress, name)
                self._do_or_retry_later(turn, act, "reconcile", name)
        self._do_or_retry_later(turn, partial(self._ingest, turn, progress), "ingest")
        held = set(OpenProject.open(self._project).answers.explain_held_sources())
        for source in self._held - held:  # its release is tried at once
            self._failures.pop(("release", source), None)
        self._held = held
        for source in self._sources:
            self._do_or_retry_later(
                turn, partial(self._release, turn, progress, source), "release", source
            )
        for name, settings in self._settings.items():
            release = progress.releases.get(settings.source)
            if self._schedule.push and release and progress.pushed.get(name) != release:
                act = partial(self._publish, turn, progress, name, release)
                self._do_or_retry_later(turn, act, "push", name)

    @property
    def _sources(self) -> list[str]:
        return sorted({settings.source for settings in self._settings.values()})

    def _reconcile(self, turn: Turn, progress: WorkerState, name: str) -> None:
        """Ingest what the hook missed: once a day, and when it was down."""
        try:
            result = ingestion.reconcile(name, self._project)
            turn.answers += result.answers
        except ProjectBusy:
            raise
        except Exception as error:
            if not self._ended.is_set():
                since = progress.unreconciled.get(name, {}).get("since", self._today())
                why = logs.describe_own_error(error)
                progress.unreconciled[name] = {"since": since, "why": why}
                progress.write(self._project.state)
            raise
        self._missed.discard(name)
        progress.unreconciled.pop(name, None)
        progress.reconciled[name] = self._today()
        progress.write(self._project.state)
        waits = {"why": result.waits} if result.waits else {}
        self._log.info("reconciled", connector=name, **waits)

    def _ingest(self, turn: Turn, progress: WorkerState) -> None:
        """Ingest what waits where it may make a release due: every time is a segment."""
        with contextlib.closing(OpenProject.open(self._project).answers.open_inbox()) as inbox:
            waiting = inbox.count_waiting()
        if waiting and self._is_ingestion_due(waiting, progress):
            turn.answers += ingestion.ingest(self._project).answers
            self._ingested = time.monotonic()

    def _is_ingestion_due(self, waiting: int, progress: WorkerState) -> bool:
        since = time.monotonic() - self._ingested
        if waiting >= _MANY or since >= _LONGEST_SECONDS:
            return True
        if self._schedule.when == "every":
            new = [self._count_new_answers(progress, source)[1] for source in self._sources]
            return max(new, default=0) + waiting >= self._schedule.count
        if self._schedule.when == "daily":
            return any(progress.days.get(source) != self._today() for source in self._sources)
        return self._schedule.when == "completed" and since >= _COMPLETED_SECONDS

    def _release(self, turn: Turn, progress: WorkerState, source: str) -> None:
        last, new = self._count_new_answers(progress, source)
        if not new or not self._is_release_due(new, progress, source):
            return
        self._require_policy_in_force()
        options = self._schedule.options
        release = privatize(None, namespace=source, project=self._project, **options)
        progress.segments[source], progress.days[source] = last, self._today()
        progress.releases[source] = release.id
        usages = overview.read_budget(self._project).allowances
        progress.exhausted = max((one.exhausted_labelers for one in usages), default=None)
        progress.write(self._project.state)
        if not release.reused:
            turn.releases.append(release.id)
            self._log.info("released", source=source, release=release.id)

    def _require_policy_in_force(self) -> None:
        """Raise `PolicyError` where no policy is in force, and note it: a machine agrees to
        nothing.
        """
        if overview.read_budget(self._project).policy is None:
            error = PolicyError(NO_POLICY)
            attempts.record_failure(self._project, error)
            raise error

    def _count_new_answers(self, progress: WorkerState, source: str) -> tuple[int, int]:
        """Return the last segment, and how many answers of a source came since its last release."""
        with OpenProject.open(self._project).ledger.snapshot() as connection:
            segments = sources.read_segments(connection)
        before = progress.segments.get(source, 0)
        new = [s for s in segments if s.source == source and s.number > before]
        return max((s.number for s in new), default=before), sum(s.rows for s in new)

    def _is_release_due(self, new: int, progress: WorkerState, source: str) -> bool:
        when = self._schedule.when
        if when == "every":
            return new >= self._schedule.count
        if when == "daily":
            return progress.days.get(source) != self._today()
        settings = [s for s in self._settings.values() if s.source == source]
        return when == "completed" and all(
            _open_completion_connector(s).is_completed() for s in settings
        )

    def _publish(self, turn: Turn, progress: WorkerState, name: str, release: str) -> None:
        """Push the newest release of its source as a new data set of the connector's tool."""
        address = publication.publish(release, f"{name}:", project=self._project).where
        progress.pushed[name] = release
        progress.write(self._project.state)
        turn.published.append(address)
        self._log.info("published", connector=name, release=release)

    def _do_or_retry_later(
        self, turn: Turn, act: Callable[[], None], what: str, of: str = ""
    ) -> None:
        """Do it, or log what went wrong; then it is tried again later and later."""
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
                attempts.record_failure(self._project, error)
            is_ours, why = isinstance(error, LabelguardError), logs.describe_own_error(error)
            pause = min(TURN_SECONDS * 2**times, _LONGEST_SECONDS)
            self._failures[what, of] = (min(times + 1, 16), time.monotonic() + pause)
            # What an error of ours says beside its public reason stands there, for its owner alone.
            details = {"details": str(self._project.state / attempts.FILE)}
            more = details if is_ours else {"at": logs.list_code_places(error)}
            self._log.error("failed", what=what, of=of, why=why, again_in_seconds=pause, **more)
            turn.failed.append(f"{what} {of}: {why}")
        else:
            if self._failures.pop((what, of), None) and what == "ingest":
                attempts.clear_failures(self._project)


def _open_completion_connector(settings: Settings) -> CountsCompletion:
    """Return the connector, which must know when all is answered. Raises `ConnectorError`."""
    connector = connectors.open_connector(settings)
    if not isinstance(connector, CountsCompletion):
        raise ConnectorError(
            f'[hook.release]: when = "completed" needs a tool that says so, and connector '
            f"{settings.name} ({settings.kind}) cannot tell; take daily or every:500"
        )
    return connector


def work_once(where: Where = None) -> Turn:
    """Do what is due now. Raises what `Worker` raises."""
    logs.configure()
    turn = Worker(where).turn()
    _log_end(turn)
    return turn


def run_forever(where: Where = None, *, attached: bool = False, name: str = "") -> Turn:
    """Work until SIGTERM, Ctrl-C or, `attached`, the end of standard input.

    A release that is under way is stopped, and finished by the next worker at no further charge.
    """
    logs.configure()
    terminal.ignore_hangups()
    worker, ended = Worker(where, name=name), threading.Event()
    watcher = threading.Thread(target=_end_with_standard_input, args=(ended,))
    if attached:
        watcher.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        _set_on_signal(number, ended)
    try:
        worker.run_forever(ended)
    except (StopSignal, KeyboardInterrupt):
        pass
    except Exception:
        if not ended.is_set():
            raise
    finally:
        ended.set()
        if attached:  # a thread that outlives this one keeps what duckdb would complain of
            watcher.join()
    _log_end(worker.total, name)
    return worker.total


def _log_end(turn: Turn, name: str = "") -> None:
    done = {"answers": turn.answers, "releases": turn.releases, "published": turn.published}
    logs.logger(name).info("worker ended", **done)


def _set_on_signal(number: int, ended: threading.Event) -> None:
    """Set `ended` at a signal, whatever becomes of what the signal's handler raises."""
    handler = signal.getsignal(number)

    def set_and_handle(number: int, frame: FrameType | None) -> None:
        ended.set()
        if callable(handler):
            handler(number, frame)

    if callable(handler):
        signal.signal(number, set_and_handle)


def _end_with_standard_input(ended: threading.Event) -> None:
    """End this process when the server does, which holds the other end open."""
    # Not by sys.stdin: a thread that waits in it holds its lock, which the interpreter wants when
    # it ends.
    while not ended.is_set():
        if select.select([0], [], [], _WATCH_SECONDS)[0] and not os.read(0, 4_096):
            if not ended.is_set():
                os.kill(os.getpid(), signal.SIGTERM)
            return
