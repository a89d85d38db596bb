"""Answers of one project: the segments that the ledger lists, and the inbox of its hook."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from labelguard.answers import connector as connectors
from labelguard.answers import segments as stored
from labelguard.answers.connector import Settings
from labelguard.answers.inbox import Event, Inbox
from labelguard.answers.segments import Segments
from labelguard.errors import ConnectorError, InvalidLabels, NothingIngested, ProjectError
from labelguard.inputs.quarantine import DepartedLabelers, RawRows
from labelguard.keys.keyring import KeyRing
from labelguard.ledger import sources
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.sources import Segment
from labelguard.storage import buckets
from labelguard.storage.files import fresh_directory, write_atomically


def explain_gone(name: str) -> str:
    """Return what it means, and what to do, where a tool no longer has what a connector reads."""
    return (
        f"connector {name}: the tool no longer has its project or data set, so none of its answers "
        "is released; if it is there, correct labelguard.toml and pull; if these answers are gone: "
        f"labelguard connect reconcile {name} --accept-deletions"
    )


@dataclass(frozen=True)
class StoredAnswers:
    """Counts of the answers of a project."""

    # rows in segments: states of answers, and deletions
    answers: int
    # segments
    segments: int
    # events in the inbox
    waiting: int


@dataclass(frozen=True)
class AnswerStore:
    """The answers of the project in `state`; `tables` are `[connectors]` of labelguard.toml."""

    state: Path
    ledger_url: str = field(repr=False)
    tables: Mapping[str, Any] = field(repr=False)
    keys: KeyRing
    ledger: Ledger

    @property
    def files(self) -> Segments:
        """The files of segments."""
        return Segments(self.state / "labels", self.keys)

    def list_segments(self, connector: str | None = None) -> list[Segment]:
        """Return the segments that count, or those of a connector, oldest first."""
        segments = self.ledger.read(sources.read_segments)
        return [s for s in segments if connector is None or s.connector == connector]

    def open_inbox(self) -> Inbox:
        """Return the inbox, which is made if there is none."""
        return Inbox.open(self.state, self.ledger_url, self.keys)

    def open_inbox_if_exists(self) -> Inbox | None:
        """Return the inbox if there may be one."""
        return Inbox.open_if_exists(self.state, self.ledger_url, self.keys)

    def list_sources(self) -> list[str]:
        """Return the sources of which answers were ingested."""
        return sorted({segment.source for segment in self.list_segments()})

    def resolve_source(self, name: str | None) -> str:
        """Return the source of this name, or the only one that was ingested.

        Raises `NothingIngested` where there is none, `InvalidLabels` if there are several,
        `ConnectorError` where labelguard.toml says to read it otherwise than it was ingested.
        """
        sources = self.list_sources()
        if name is not None and name not in sources:
            others = f"; ingested sources: {', '.join(sources)}" if sources else ""
            raise NothingIngested(f"no answers of source {name!r} were ingested{others}")
        if not sources:
            raise NothingIngested(
                "no INPUT was given, and nothing was ingested (labelguard ingest, labelguard pull)"
            )
        if name is None and len(sources) > 1:
            raise InvalidLabels(
                f"answers of several sources were ingested ({', '.join(sources)}); pick one: "
                "--source"
            )
        source = name or sources[0]
        self.check_readings(source)
        return source

    def check_readings(self, source: str | None = None) -> None:
        """Raise what `check_reading` raises of any connector, or of one of this source."""
        for settings in connectors.read_all_settings(self.tables).values():
            if source in (None, settings.source):
                self.check_reading(settings)

    def check_reading(self, settings: Settings) -> None:
        """Raise `ConnectorError` where answers of its source are read otherwise than it says."""
        for other in connectors.read_all_settings(self.tables).values():
            if other.source == settings.source and other.reading != settings.reading:
                raise ConnectorError(
                    f"connectors {settings.name} and {other.name} share source {settings.source!r} "
                    "and differ in columns or question, though a release reads all answers of a "
                    "source in one way: let them agree, or give one of them another source"
                )
        for segment in self.list_segments():
            if segment.source == settings.source and segment.reading not in ("", settings.reading):
                raise ConnectorError(
                    f"connector {settings.name} names other columns or another question than "
                    f"{segment.connector} did when it ingested answers of source "
                    f"{settings.source!r}: put back what labelguard.toml said; or drop what was "
                    f"not released (labelguard connect forget {segment.connector}); if some of it "
                    "was, name another source"
                )

    def find_reading(self, source: str) -> dict[str, Any]:
        """Return the `columns` and the `question` by which answers of a source are read."""
        readings = [s.reading for s in self.list_segments() if s.source == source and s.reading]
        reading: dict[str, Any] = json.loads(readings[-1]) if readings else {}
        return {"columns": {}, "question": None} | reading

    def list_gone(self) -> list[str]:
        """Return the connectors of whom a tool no longer has the project or data set."""
        cursors = {s.connector: s.cursor for s in self.list_segments() if s.cursor is not None}
        return sorted(name for name, cursor in cursors.items() if cursor == sources.GONE)

    def export_source(self, source: str, directory: Path) -> list[Path]:
        """Write the answers of a source that count, as exports of its tools; a file each connector.

        Raises `InvalidLabels` if none counts, `ConnectorError` where a tool may have lost them.
        """
        fresh_directory(directory, mode=0o700)
        segments = [segment for segment in self.list_segments() if segment.source == source]
        files, names = [], sorted({segment.connector for segment in segments})
        for name in set(names) & set(self.list_gone()):
            raise ConnectorError(explain_gone(name))
        for name in names:
            of_tool = [segment for segment in segments if segment.connector == name]
            standing = stored.read_counting_states(self.files, of_tool)
            path = directory / f"{name}.jsonl"
            with path.open("x", encoding="utf-8") as file:
                for table in stored.read_counting_rows(self.files, of_tool, standing):
                    file.writelines(f"{task}\n" for task in table["body"].to_pylist())
            if path.stat().st_size:
                files.append(path)
        if not files:
            raise InvalidLabels(
                f"no answer of source {source!r} is left to release: all were deleted in the tool, "
                "forgotten after their release, or dropped (pull again)"
            )
        return files

    def count_stored(self) -> StoredAnswers:
        """Return how much was ingested, and how much waits."""
        segments, waiting = self.list_segments(), 0
        if inbox := self.open_inbox_if_exists():
            with contextlib.closing(inbox):
                waiting = inbox.count_waiting()
        return StoredAnswers(sum(segment.rows for segment in segments), len(segments), waiting)

    def explain_held_sources(self) -> dict[str, str]:
        """Return why answers are not released, by source; none before there is a first one."""
        known = {record.name: record for record in self.ledger.people.sources()}
        held = {name: sources.explain_held(name) for name, one in known.items() if one.is_held}
        for one in connectors.read_all_settings(self.tables).values() if known else ():
            if one.source not in known:
                held[one.source] = (
                    f"answers of source {one.source!r} are not released until it is added: "
                    f"labelguard source add {one.source}"
                )
        return held

    def recover_segments(self) -> None:
        """Complete or undo what a crash left of segments. Only for who holds the project."""
        self.files.complete_rewrites(self.list_segments())

    def find_fault(self) -> str | None:
        """Return the first thing that does not hold of segments or inbox, or None."""
        broken = self.files.find_fault(self.list_segments())
        if broken or not (inbox := self.open_inbox_if_exists()):
            return broken
        with contextlib.closing(inbox):
            return inbox.find_fault()

    def remove_labelers(
        self, departed: DepartedLabelers, row_keys: set[bytes], epoch: int | None
    ) -> RawRows:
        """Remove answers of labelers who leave, and dead letters, which cannot be attributed.

        `row_keys` are the keys of their released rows. Without an `epoch` of a job, only count
        them.
        """
        ingested = self._remove_ingested(departed, row_keys, epoch)
        return ingested + self._remove_waiting(departed, remove=epoch is not None)

    def _remove_ingested(
        self, departed: DepartedLabelers, row_keys: set[bytes], epoch: int | None
    ) -> RawRows:
        """Remove their answers from segments, whichever state of them counts."""
        if epoch is not None:
            self.recover_segments()
        held = buckets.assign_buckets(departed.labelers, buckets.BUCKETS)
        places, count, rewritten = set(held.tolist()), 0, {}
        for segment in self.list_segments():
            changed = {}
            for place, table in self.files.read(segment, places).items():
                theirs = departed.match_ids(table["labeler"], segment.source)
                # Of a label that was forgotten, the keys of its rows tell whose it was.
                keys = table["rows"].to_pylist()
                theirs |= np.array([not row_keys.isdisjoint(row or ()) for row in keys], bool)
                if theirs.any():
                    count += int(theirs.sum())
                    changed[place] = table.take(np.flatnonzero(~theirs))
            if changed and epoch is not None:
                rewritten[segment.name] = self.files.rewrite(segment, changed)
        if rewritten and epoch is not None:
            self.files.complete_rewrites(
                self.ledger.write(epoch, sources.record_rewritten_segments, rewritten)
            )
        return RawRows(count, answers=count)

    def _remove_waiting(self, departed: DepartedLabelers, *, remove: bool) -> RawRows:
        """Remove their answers from the inbox, and all dead letters."""
        settings = connectors.read_all_settings(self.tables)
        count, unknown = 0, list[str]()

        def keep(event: Event) -> Event | None:
            nonlocal count
            if event.connector not in settings:  # whose its ids are, cannot be said any more
                unknown.append(event.connector)
                return None if remove else event
            source = settings[event.connector].source
            labelers = [answer.labeler for answer in event.answers]
            theirs = departed.match_keys(self.keys.hash_labelers(source, labelers))
            count += int(theirs.sum())
            rest = tuple(a for a, left in zip(event.answers, ~theirs, strict=True) if left)
            return event if not remove else replace(event, answers=rest) if rest else None

        inbox = self.open_inbox_if_exists()
        if inbox is None:
            return RawRows()
        with contextlib.closing(inbox):
            inbox.filter_events(keep)
            letters = inbox.list_dead_letters()
            for letter in letters if remove else ():
                inbox.delete_dead_letter(letter.number)
        names = [f"dead letter {letter.number} for {letter.connector}" for letter in letters]
        names += [f"event of {name}, which labelguard.toml does not name" for name in unknown]
        return RawRows(count, tuple(names), answers=count)


_IGNORED_FILE = "ignored.json"


def write_hook_refusal_reasons(state: Path, ignored: Mapping[str, str]) -> None:
    """Keep why a hook takes nothing of deliveries, by connector; on a full disk, not."""
    with contextlib.suppress(OSError):
        write_atomically(state / _IGNORED_FILE, json.dumps(ignored).encode(), mode=0o600)


def read_hook_refusal_reasons(state: Path) -> dict[str, str]:
    """Return why a hook takes nothing of deliveries, by connector, since it was started."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        ignored = json.loads((state / _IGNORED_FILE).read_bytes())
        return {str(name): str(why) for name, why in ignored.items()}
    return {}


_WORKER_FILE = "worker.json"


@dataclass
class WorkerState:
    """Progress of the hook's worker.

    By source: the last segment that was released (`segments`), by which release (`releases`) and on
    which day (`days`). By connector: the day of its last reconciliation (`reconciled`), `since`
    which day they fail and `why` the last did (`unreconciled`), and the release that was published
    last (`pushed`). `exhausted`: labelers with nothing left after the last release.
    """

    segments: dict[str, int] = field(default_factory=dict)
    releases: dict[str, str] = field(default_factory=dict)
    days: dict[str, str] = field(default_factory=dict)
    reconciled: dict[str, str] = field(default_factory=dict)
    pushed: dict[str, str] = field(default_factory=dict)
    unreconciled: dict[str, dict[str, str]] = field(default_factory=dict)
    exhausted: int | None = None

    @classmethod
    def read(cls, state: Path) -> Self:
        """Return the state of the project in `state`, or that of a start if there is none."""
        path = state / _WORKER_FILE
        try:
            return cls(**json.loads(path.read_bytes()))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, TypeError):
            raise ProjectError(
                f"{path} was not written by a worker; it can be removed safely"
            ) from None

    def list_reconciliations(self) -> Iterator[tuple[str, str]]:
        """Yield connectors with the day of the last reconciliation, and since when they fail."""
        done, failing = self.reconciled, self.unreconciled
        for name in sorted({*done, *failing}):
            fails = f" (failing since {failing[name]['since']})" if name in failing else ""
            yield name, f"{done.get(name, 'never')}{fails}"

    def write(self, state: Path) -> None:
        """Write it, whole, or leave the file as it was."""
        write_atomically(state / _WORKER_FILE, json.dumps(asdict(self)).encode(), mode=0o600)
