"""Answers of annotation tools on their way into segments: from the inbox, and from the tools.

Every answer is stored once, whatever crashes. The file of a segment is flushed to disk, then one
transaction of the ledger lets it count and keeps how far the pull has come, then the inbox forgets.
Whoever starts next completes or undoes what was left between. Labelers who have left are dropped at
the door; labels are never looked at.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from labelguard.answers import connector as connectors
from labelguard.answers import segments as stored
from labelguard.answers.connector import Answer, Page, Settings, Unreadable
from labelguard.answers.inbox import Inbox
from labelguard.answers.segments import Rows, Segments, Standing
from labelguard.errors import ConnectorError, InvalidLabels, NothingIngested, ProjectError
from labelguard.inputs.left_out import SKIP, UNREADABLE
from labelguard.inputs.quarantine import DepartedLabelers
from labelguard.keys import keyring
from labelguard.ledger import segmentbook
from labelguard.ledger.segmentbook import Segment
from labelguard.project import retention
from labelguard.project.locking import waiting
from labelguard.project.opening import OpenProject, Where, locate_project
from labelguard.project.project import Project
from labelguard.storage import blocks
from labelguard.storage.files import fresh_directory
from labelguard.text import Progress, no_progress

# Answers that may always be gone at once.
_FEW = 10
# Events, or answers, that one segment holds at most.
_MOST = 20_000


@dataclass(frozen=True)
class Ingested:
    """What came into the segments."""

    # answers that are new, or changed
    answers: int
    # answers that are gone from the tool; those that were released stay in their releases
    deleted: int
    # answers that were stored before as they are
    known: int
    # answers of labelers who were retired or erased
    refused: int
    # labels that were forgotten, as `[ingest] keep` asks for
    forgotten: int
    # pulled answers that no release will count, by reason; skips only where the policy says that
    # they are public
    left_out: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Ingested) -> Ingested:
        found, more = ({**vars(one), "left_out": Counter(one.left_out)} for one in (self, other))
        sums = {name: found[name] + more[name] for name in found}
        return Ingested(**{**sums, "left_out": dict(sums["left_out"])})


_NOTHING = Ingested(0, 0, 0, 0, 0)
_NOBODY = np.zeros((0, 2), np.uint64)


def settings(project: Where = None) -> dict[str, Settings]:
    """Return the connectors of labelguard.toml by name. Raises `ConnectorError`."""
    tables = locate_project(project).connectors
    return {name: connectors.named(tables, name) for name in tables}


def inbox_of(opened: OpenProject) -> Inbox:
    """Return the project's inbox, which is made if there is none."""
    return Inbox.at(opened.project.state, opened.project.ledger_url, opened.keys)


def ingest(project: Where = None, progress: Progress = no_progress) -> Ingested:
    """Put what waits in the inbox into segments, and forget what `[ingest] keep` says.

    Raises `ConnectorError` for events of a connector that labelguard.toml does not name,
    `ProjectBusy` while another job runs.
    """
    with OpenProject.job(project) as opened:
        work = _Ingestion(opened, progress)
        return work.forget(work.drain())


def pull(name: str, project: Where = None, progress: Progress = no_progress) -> Ingested:
    """Read what is new in a tool since the last pull, and put it into segments.

    The tool is read without holding the project, which other jobs may have meanwhile. Raises what
    its connector raises; what came until then is stored, and the next pull goes on from there.
    """
    return _Pull.of(name, project, progress, whole=False).done(accept=False)


def reconcile(
    name: str,
    project: Where = None,
    progress: Progress = no_progress,
    *,
    accept_deletions: bool = False,
) -> Ingested:
    """Compare all that a tool holds with what was heard of it, and mend the difference.

    A hook may have missed what was announced, or have been down. Answers that are gone from the
    tool count as deleted; if that is most of them, only with `accept_deletions`, for it may be
    another project that was listed. Raises `ConnectorError` otherwise; what is new is stored then.
    """
    return _Pull.of(name, project, progress, whole=True).done(accept=accept_deletions)


def source_of(project: Project, named: str | None) -> str:
    """Whose answers are meant: those of the source that was named, or of the only one ingested.

    Raises `NothingIngested` where there is none, `InvalidLabels` if several could be meant.
    """
    found = sources(OpenProject.open(project))
    if named is not None and named not in found:
        held = f"; ingested were: {', '.join(found)}" if found else ""
        raise NothingIngested(f"nothing of source {named!r} was ingested{held}")
    if not found:
        raise NothingIngested(
            "no INPUT was given, and nothing was ingested (labelguard ingest, labelguard pull)"
        )
    if named is None and len(found) > 1:
        raise InvalidLabels(
            f"answers of several sources were ingested ({', '.join(found)}); pick one: --source"
        )
    return named or found[0]


def sources(opened: OpenProject) -> list[str]:
    """Of which sources answers were ingested."""
    return sorted({segment.source for segment in _segments(opened)})


def reading_of(project: Project, source: str) -> Settings:
    """Return how the answers of a source are read: as all its connectors say.

    Raises `ConnectorError` if labelguard.toml names none, or they differ.
    """
    found = [one for one in settings(project).values() if one.source == source]
    if not found:
        raise ConnectorError(f"labelguard.toml names no connector of source {source!r}")
    if any((one.columns, one.question) != (found[0].columns, found[0].question) for one in found):
        raise ConnectorError(
            f"the connectors of source {source!r} differ in columns or question; one source is "
            "read in one way"
        )
    return found[0]


def write_out(opened: OpenProject, source: str, directory: Path) -> list[Path]:
    """Return what counts of a source's answers, as exports of its tools; one file for each
    connector.

    Raises `InvalidLabels` if nothing of it counts.
    """
    fresh_directory(directory, mode=0o700)
    own = [segment for segment in _segments(opened) if segment.source == source]
    files = []
    for name in sorted({segment.connector for segment in own}):
        found = [segment for segment in own if segment.connector == name]
        held = Segments(opened.project.labels, opened.keys)
        path = directory / f"{name}.jsonl"
        with path.open("x", encoding="utf-8") as file:
            for table in stored.counting(held, found, stored.standing(held, found)):
                file.writelines(f"{task}\n" for task in table["body"].to_pylist())
        if path.stat().st_size:
            files.append(path)
    if not files:
        raise InvalidLabels(
            f"no answer of source {source!r} is left to release: all were deleted in the tool, or "
            "forgotten after their release"
        )
    return files


@dataclass(frozen=True)
class Held:
    """What a project holds of answers."""

    # rows in segments: states of answers, and deletions
    answers: int
    # segments
    segments: int
    # events in the inbox
    waiting: int


def held(opened: OpenProject) -> Held:
    """Return how much was ingested, and how much waits."""
    home, counted = opened.project, _segments(opened)
    inbox, waiting = Inbox.find(home.state, home.ledger_url, opened.keys), 0
    if inbox:
        with contextlib.closing(inbox):
            waiting = inbox.waiting()
    return Held(sum(segment.rows for segment in counted), len(counted), waiting)


def settle(opened: OpenProject) -> None:
    """Complete or undo what a crash left of segments. Only for who holds the project."""
    Segments(opened.project.labels, opened.keys).settle(_segments(opened))


def fault(opened: OpenProject) -> str | None:
    """Return what does not hold of segments or inbox, or None; and nothing is changed."""
    home = opened.project
    broken = Segments(home.labels, opened.keys).fault(_segments(opened))
    if broken:
        return broken
    inbox = Inbox.find(home.state, home.ledger_url, opened.keys)
    if inbox is None:
        return None
    with contextlib.closing(inbox):
        return inbox.fault()


def _segments(opened: OpenProject) -> list[Segment]:
    return opened.ledger.read(segmentbook.records)


class _Ingestion:
    """One job that puts answers into segments."""

    def __init__(self, opened: OpenProject, progress: Progress) -> None:
        self.opened, self._progress = opened, progress
        self._held = Segments(opened.project.labels, opened.keys)
        self._epoch = opened.ledger.begin_job()
        self._counted = _segments(opened)
        self._held.settle(self._counted)
        self._met: dict[str, Standing] = {}
        record = opened.ledger.policies.active()
        self._skips_public = record is not None and record.policy.skips == "public"

    @property
    def last(self) -> int:
        """The number of the newest segment, or 0."""
        return self._counted[-1].number if self._counted else 0

    @property
    def names(self) -> list[str]:
        """The names of all segments, by which a copy of the project is told from another."""
        return [one.name for one in self._counted]

    def drain(self) -> Ingested:
        """Put what waits in the inbox into segments."""
        done = _NOTHING
        with contextlib.closing(inbox_of(self.opened)) as inbox:
            inbox.settle(set(self.names))
            # Events of a connector that is gone wait, and stop those of no other.
            known = self.opened.project.connectors
            for name in sorted(inbox.connectors(), key=lambda name: (name not in known, name)):
                own = connectors.named(known, name)
                while taken := inbox.claim(name, segment := keyring.random_bytes(16).hex(), _MOST):
                    events = inbox.claimed(segment)
                    answers = [answer for event in events for answer in event.answers]
                    done += self._store(own, answers, segment, pulled=False)
                    inbox.settle({*self.names, segment})
                    self._progress(f"ingesting {name}: {taken:,} events", None)
        return done

    def take(self, pull: _Pull, page: Page) -> Ingested:
        """Store what was read of a tool while others may have had the project."""
        own = pull.own
        with contextlib.closing(inbox_of(self.opened)) as inbox:
            name = keyring.random_bytes(16).hex()
            again = inbox.repeated(own.name, page.answers)
            # Whether it was listed before it was deleted, nobody can tell: the next pull will.
            since = [one for one in self._counted if one.number > pull.segment]
            gone = stored.deleted(self._held, [one for one in since if one.connector == own.name])
            done = self._store(
                own, page.answers, name, pulled=True, gone=gone, repeated=again, cursor=page.cursor
            )
            inbox.settle_repeated(own.name, page.answers, pull.began)
        return done

    def note(self, pull: _Pull, *, whole: bool) -> None:
        """Let what could not be read be dead letters; after a `whole` reading, nothing else."""
        with contextlib.closing(inbox_of(self.opened)) as inbox:
            inbox.note(pull.own.name, pull.unreadable, whole=whole)

    def vanished(self, pull: _Pull, *, accept: bool) -> Ingested:
        """Mark those as deleted that stood when the tool was read from its start, and which it did
        not list. What came meanwhile is none of them.
        """
        own, found = pull.own, self.standing(pull.own.name)
        listed = blocks.unique(np.concatenate([np.zeros((0, 2), np.uint64), *pull.listed]))[0]
        missing = blocks.positions(listed, found.record) < 0
        before = pull.before.record[pull.before.alive]
        standing = found.alive & ~found.kept & (blocks.positions(before, found.record) >= 0)
        gone = found.record[standing & missing]
        if not len(gone):
            return _NOTHING
        if len(gone) > max(standing.sum() / 2, _FEW) and not accept:
            raise ConnectorError(
                f"connector {own.name}: the tool lists {int((standing & ~missing).sum()):,} of "
                f"{int(standing.sum()):,} answers that it had, so none counts as deleted; see that "
                "it is the right project and the account sees all of it; if they are gone: "
                f"labelguard connect reconcile {own.name} --accept-deletions"
            )
        rows = replace(Rows.of([], own.name, own.source, self.opened.keys), deleted=gone)
        self._write(own, rows, keyring.random_bytes(16).hex(), pulled=True, cursor=None)
        return replace(_NOTHING, deleted=len(gone))

    def _store(
        self,
        own: Settings,
        answers: Sequence[Answer],
        name: str,
        *,
        pulled: bool,
        gone: blocks.Blocks = _NOBODY,
        repeated: Sequence[bool] = (),
        cursor: str | None = None,
    ) -> Ingested:
        """Put answers into a segment, but for those that are known, or of people who have left.

        Of those that are `repeated` the state that counts is taken anew; records that are `gone`
        (n, 2) are left out.
        """
        opened = self.opened
        rows = Rows.of(answers, own.name, own.source, opened.keys)
        left = DepartedLabelers(opened.keys, own.source, opened.ledger.people.tombstones())
        refused = left.of_keys(rows.labeler_key)
        each = zip(repeated or [False] * len(answers), answers, strict=True)
        again = np.array([known for known, one in each if not one.deleted], bool)
        if own.name not in self._met:  # what counted before is enough to tell what comes again
            self._met[own.name] = self.standing(own.name)
        known, before = self._met[own.name].of(rows, pulled=pulled, repeated=again)
        known |= blocks.positions(gone, rows.record) >= 0
        rows = rows.taken(~refused & ~known, ~before)
        if len(rows):
            self._write(own, rows, name, pulled=pulled, cursor=cursor)
        elif (
            cursor is not None
            and cursor != self.cursor(own.name)
            and (last := [segment for segment in self._counted if segment.connector == own.name])
        ):  # how far the pull came, if anything of the connector was ever stored
            self.opened.ledger.write(self._epoch, segmentbook.advance, last[-1].name, cursor)
            self._counted = _segments(self.opened)
        new = zip((one for one in answers if not one.deleted), ~refused & ~known, strict=True)
        reasons = Counter(one.left_out for one, fresh in new if fresh and one.left_out)
        if not self._skips_public:
            del reasons[SKIP]
        return Ingested(
            *(len(rows.body), len(rows.deleted), int((known & ~refused).sum())),
            *(int(refused.sum()), 0, dict(reasons)),
        )

    def _write(
        self, own: Settings, rows: Rows, name: str, *, pulled: bool, cursor: str | None
    ) -> None:
        digest = self._held.write(name, rows.tables())
        segment = Segment(
            self.last + 1, name, own.name, own.source, pulled, len(rows), digest, cursor
        )
        self.opened.ledger.write(self._epoch, segmentbook.add, segment, len(rows.deleted))
        self._counted.append(segment)

    def forget(self, done: Ingested) -> Ingested:
        """Forget what is gone from the tool, and labels that were released long ago, as
        `[ingest] keep` says; all that was `done` then.
        """
        due = self.opened.ledger.read(segmentbook.unpruned)
        if not due and retention.kept_for(self.opened.project.ingest) is None:
            return done
        counted = _segments(self.opened)
        count = retention.forget(self.opened, self._held, counted, self._epoch)
        return replace(done, forgotten=done.forgotten + count)

    def cursor(self, name: str) -> str:
        """From where the next pull goes on."""
        found = [s.cursor for s in self._counted if s.connector == name and s.cursor is not None]
        return found[-1] if found else ""

    def standing(self, name: str) -> Standing:
        """Return which answers of a connector stand."""
        own = [segment for segment in self._counted if segment.connector == name]
        return stored.standing(self._held, own)


def _grouped(pages: Iterable[Page]) -> Iterator[Page]:
    """Put pages together, so that segments are not many and small."""
    answers, unreadable, cursor = list[Answer](), list[Unreadable](), None
    for page in pages:
        answers += page.answers
        unreadable += page.unreadable
        cursor = page.cursor
        if len(answers) >= _MOST:
            yield Page(answers, cursor, unreadable)
            answers, unreadable = [], []
    if cursor is not None:
        yield Page(answers, cursor, unreadable)


@dataclass
class _Pull:
    """One reading of a tool, during which the project is held only to store what was read.

    `before` is what stood when it began (µs, `began`) after `segment`, at the `cursor`; `stored` is
    what came of it so far. A tool that is silent keeps no other job waiting.
    """

    project: Where
    progress: Progress
    own: Settings
    cursor: str
    before: Standing
    segment: int
    began: int
    stored: Ingested
    names: list[str]
    listed: list[blocks.Blocks] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, name: str, project: Where, progress: Progress, *, whole: bool) -> _Pull:
        """Take in what was announced before; `whole` reads everything, not what is new."""
        with OpenProject.job(project) as opened:
            work = _Ingestion(opened, progress)
            stored, own = work.drain(), connectors.named(opened.project.connectors, name)
            before = work.standing(name)
            cursor = "" if whole else work.cursor(name)
            began, last = int(time.time() * 1e6), work.last
            return cls(
                *(opened.project, progress, own, cursor, before, last, began, stored, work.names)
            )

    def done(self, *, accept: bool) -> Ingested:
        """Read, store and forget; `accept` that most of what was there is gone."""
        read = 0
        for page in _grouped(connectors.connector(self.own).pull(self.cursor)):
            read += len(page.answers)
            self.progress(f"pulling {self.own.name}: {read:,} answers", None)
            self.unreadable += [f"answer {one.record}: {one.why}" for one in page.unreadable]
            with self._job() as work:
                work.note(self, whole=False)
                listed = [a.record for a in page.answers] + [u.record for u in page.unreadable]
                self.listed.append(work.opened.keys.record_keys(self.own.name, listed))
                self.stored += work.take(self, page)
                if page.unreadable:
                    self.stored += replace(_NOTHING, left_out={UNREADABLE: len(page.unreadable)})
        with self._job() as work:
            work.note(self, whole=not self.cursor)
            if not self.cursor:
                self.stored += work.vanished(self, accept=accept)
            return work.forget(self.stored)

    @contextlib.contextmanager
    def _job(self) -> Iterator[_Ingestion]:
        """The project, as soon as no other job holds it: what was read is not thrown away."""
        with (
            waiting(lambda text: self.progress(text, None)),
            OpenProject.job(self.project) as opened,
        ):
            work = _Ingestion(opened, self.progress)
            if self.names != work.names[: len(self.names)]:
                raise ProjectError(
                    f"{opened.project.state} is another copy of the project than when the tool was "
                    "asked; pull again"
                )
            yield work
            self.names = work.names
