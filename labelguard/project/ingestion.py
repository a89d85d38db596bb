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

import numpy as np

from labelguard.answers import connector as connectors
from labelguard.answers import segments as stored
from labelguard.answers.connector import Answer, Page, Settings, Unreadable
from labelguard.answers.segments import AnswerRows, AnswerStates
from labelguard.errors import ConnectorError, GoneFromTool, ProjectError
from labelguard.inputs.quarantine import DepartedLabelers
from labelguard.keys import keyring
from labelguard.ledger import sources
from labelguard.ledger.sources import Segment
from labelguard.project import retention
from labelguard.project.opening import OpenProject, Where
from labelguard.project.project import waiting
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks
from labelguard.text import SKIP, UNREADABLE, Progress, no_progress

# Answers that may always be gone at once.
_FEW = 10
# Events, or answers, that one segment holds at most.
_MOST = 20_000


@dataclass(frozen=True)
class IngestionResult:
    """Counts of answers that were ingested."""

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
    # why labels that are due by the clock were not forgotten; empty: none was kept back
    waits: str = ""

    def __add__(self, other: IngestionResult) -> IngestionResult:
        names = ("answers", "deleted", "known", "refused", "forgotten")
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        left_out = Counter(self.left_out) + Counter(other.left_out)
        return IngestionResult(**sums, left_out=dict(left_out), waits=other.waits or self.waits)


_NOTHING = IngestionResult(0, 0, 0, 0, 0)
_NOBODY = np.zeros((0, 2), np.uint64)


def ingest(project: Where = None, progress: Progress = no_progress) -> IngestionResult:
    """Put what waits in the inbox into segments, and forget what `[ingest] keep` says.

    Raises `ConnectorError` for events of a connector that labelguard.toml does not name,
    `ProjectBusy` while another job runs.
    """
    with OpenProject.hold_for_job(project) as opened:
        job = _Ingestion(opened, progress)
        return job.forget(job.drain_inbox())


def pull(name: str, project: Where = None, progress: Progress = no_progress) -> IngestionResult:
    """Read what is new in a tool since the last pull, and put it into segments.

    The tool is read without holding the project, which other jobs may have meanwhile. Raises what
    its connector raises; what came until then is stored, and the next pull goes on from there.
    """
    return _Pull.begin(name, project, progress, is_whole=False).run(accept_deletions=False)


def reconcile(
    name: str,
    project: Where = None,
    progress: Progress = no_progress,
    *,
    accept_deletions: bool = False,
) -> IngestionResult:
    """Compare all that a tool holds with what is stored of it, and store the difference.

    A hook may have missed what was announced, or have been down. Answers that are gone from the
    tool count as deleted; if that is most of them, only with `accept_deletions`, for it may be
    another project that was listed. Raises `ConnectorError` otherwise; what is new is stored then.
    """
    return _Pull.begin(name, project, progress, is_whole=True).run(
        accept_deletions=accept_deletions
    )


class _Ingestion:
    """One job that puts answers into segments."""

    def __init__(self, opened: OpenProject, progress: Progress) -> None:
        self.opened, self._progress = opened, progress
        self._epoch = opened.ledger.begin_job()
        opened.answers.recover_segments()
        self._segments = opened.answers.list_segments()
        self._standing: dict[str, AnswerStates] = {}
        record = opened.ledger.policies.active()
        self._skips_public = record is not None and record.policy.skips == "public"

    @property
    def last_segment_number(self) -> int:
        """The number of the newest segment, or 0."""
        return self._segments[-1].number if self._segments else 0

    @property
    def segment_names(self) -> list[str]:
        """The names of all segments, by which a copy of the project is told from another."""
        return [segment.name for segment in self._segments]

    def drain_inbox(self) -> IngestionResult:
        """Put what waits in the inbox into segments, and leave what comes meanwhile to the next
        job: others want the project too.
        """
        result = _NOTHING
        with contextlib.closing(self.opened.answers.open_inbox()) as inbox:
            inbox.finish_claims(set(self.segment_names))
            refused: list[ConnectorError] = []
            for name in inbox.list_connectors():
                try:
                    settings = connectors.read_settings(self.opened.project.connectors, name)
                    self.opened.answers.check_reading(settings)
                except ConnectorError as error:  # its events wait, and stop those of no other
                    refused.append(error)
                    continue
                for _ in range(0, inbox.count_waiting(name), _MOST):
                    count = inbox.claim_events(name, segment := _draw_segment_name(), _MOST)
                    events = inbox.read_claimed(segment)
                    answers = [answer for event in events for answer in event.answers]
                    result += self._store_new_answers(settings, answers, segment, is_pull=False)
                    inbox.finish_claims({*self.segment_names, segment})
                    self._progress(f"ingesting {name}: {count:,} events", None)
        if refused:
            raise refused[0]
        return result

    def add_page(self, pull: _Pull, page: Page) -> IngestionResult:
        """Store what was read of a tool while others may have had the project."""
        settings = pull.settings
        self.opened.answers.check_reading(settings)
        with contextlib.closing(self.opened.answers.open_inbox()) as inbox:
            repeated = inbox.find_repeated(settings.name, page.answers)
            # Whether it was listed before it was deleted cannot be said: the next pull will.
            since = [
                s for s in self._list_connector_segments(settings.name) if s.number > pull.segment
            ]
            deleted = stored.read_deletions(self.opened.answers.files, since)
            result = self._store_new_answers(
                *(settings, page.answers, _draw_segment_name()),
                is_pull=True,
                deleted=deleted,
                repeated=repeated,
                cursor=page.cursor,
            )
            inbox.forget_repeated(settings.name, page.answers, pull.began)
        return result

    def record_unreadable_as_dead_letters(self, pull: _Pull, *, is_whole: bool) -> None:
        """Let what could not be read be dead letters; after a whole reading, nothing else."""
        with contextlib.closing(self.opened.answers.open_inbox()) as inbox:
            inbox.record_omissions(pull.settings.name, pull.unreadable, whole=is_whole)

    def delete_unlisted(self, pull: _Pull, *, accept_deletions: bool) -> IngestionResult:
        """Mark those as deleted that counted when the tool was read from its start, and which it
        did not list. What came meanwhile is none of them.
        """
        settings, now = pull.settings, self.read_answer_states(pull.settings.name)
        listed = blocks.unique(np.concatenate([_NOBODY, *pull.listed]))[0]
        missing = blocks.find_positions(listed, now.record) < 0
        before = pull.before.record[pull.before.alive]
        stood = now.alive & ~now.forgotten & (blocks.find_positions(before, now.record) >= 0)
        deleted = now.record[stood & missing]
        if not len(deleted):
            return _NOTHING
        if len(deleted) > max(stood.sum() / 2, _FEW) and not accept_deletions:
            raise ConnectorError(
                f"connector {settings.name}: the tool lists {int((stood & ~missing).sum()):,} of "
                f"{int(stood.sum()):,} answers that it had, so none counts as deleted; see that "
                "it is the right project and the account sees all of it; if they are gone: "
                f"labelguard connect reconcile {settings.name} --accept-deletions"
            )
        return self._delete(settings, deleted)

    def note_presence(self, pull: _Pull, *, is_gone: bool) -> None:
        """Note whether the tool has what the connector reads: what is gone is not released."""
        segments = self._list_connector_segments(pull.settings.name)
        was_gone = pull.settings.name in self.opened.answers.list_gone()
        if segments and was_gone != is_gone:
            cursor = sources.GONE if is_gone else ""
            self.opened.ledger.write(
                self._epoch, sources.record_pull_cursor, segments[-1].name, cursor
            )
            self._segments = self.opened.answers.list_segments()

    def delete_all(self, pull: _Pull) -> IngestionResult:
        """Mark all answers as deleted, of a project or data set that the tool no longer has."""
        now = self.read_answer_states(pull.settings.name)
        self.note_presence(pull, is_gone=False)
        standing = now.record[now.alive & ~now.forgotten]
        return self._delete(pull.settings, standing) if len(standing) else _NOTHING

    def _delete(self, settings: Settings, deleted: Blocks) -> IngestionResult:
        rows = AnswerRows.from_answers([], settings.name, settings.source, self.opened.keys)
        rows = replace(rows, deleted=deleted)
        self._write_segment(settings, rows, _draw_segment_name(), is_pull=True, cursor=None)
        return replace(_NOTHING, deleted=len(deleted))

    def _store_new_answers(
        self,
        settings: Settings,
        answers: Sequence[Answer],
        name: str,
        *,
        is_pull: bool,
        deleted: Blocks = _NOBODY,
        repeated: Sequence[bool] = (),
        cursor: str | None = None,
    ) -> IngestionResult:
        """Put answers into a segment, but for those that are known, or of people who have left.

        Of those that are `repeated` the state that counts is taken anew; records that are `deleted`
        (n, 2) are left out.
        """
        opened, connector = self.opened, settings.name
        rows = AnswerRows.from_answers(answers, connector, settings.source, opened.keys)
        tombstones = opened.ledger.people.tombstones()
        departed = DepartedLabelers(opened.keys, settings.source, tombstones)
        refused = departed.match_keys(rows.labeler_key)
        flags = zip(repeated or [False] * len(answers), answers, strict=True)
        again = np.array([flag for flag, answer in flags if not answer.is_deleted], bool)
        if connector not in self._standing:  # what counted before is enough to know what is new
            self._standing[connector] = self.read_answer_states(connector)
        known, known_deletions = self._standing[connector].match_known(
            rows, is_pull=is_pull, repeated=again
        )
        known |= blocks.find_positions(deleted, rows.record) >= 0
        rows = rows.select(~refused & ~known, ~known_deletions)
        if len(rows):
            self._write_segment(settings, rows, name, is_pull=is_pull, cursor=cursor)
        elif (
            cursor is not None
            and cursor != self.cursor(connector)
            and (segments := self._list_connector_segments(connector))
        ):  # how far the pull came, if anything of the connector was ever stored
            opened.ledger.write(self._epoch, sources.record_pull_cursor, segments[-1].name, cursor)
            self._segments = opened.answers.list_segments()
        present = (answer for answer in answers if not answer.is_deleted)
        new = zip(present, ~refused & ~known, strict=True)
        reasons = Counter(answer.left_out for answer, is_new in new if is_new and answer.left_out)
        if not self._skips_public:
            del reasons[SKIP]
        return IngestionResult(
            answers=len(rows.table),
            deleted=len(rows.deleted),
            known=int((known & ~refused).sum()),
            refused=int(refused.sum()),
            forgotten=0,
            left_out=dict(reasons),
        )

    def _write_segment(
        self, settings: Settings, rows: AnswerRows, name: str, *, is_pull: bool, cursor: str | None
    ) -> None:
        digest = self.opened.answers.files.write(name, rows.split_by_place())
        reading = settings.reading if len(rows.table) else ""
        segment = Segment(
            *(self.last_segment_number + 1, name, settings.name, settings.source, reading),
            *(is_pull, len(rows), digest, cursor),
        )
        self.opened.ledger.write(self._epoch, sources.add_segment, segment, len(rows.deleted))
        self._segments.append(segment)

    def forget(self, result: IngestionResult) -> IngestionResult:
        """Forget what is gone from the tool, and labels that were released long ago, as
        `[ingest] keep` says; return the result with their number.
        """
        is_due = self.opened.ledger.read(sources.has_unpruned_deletions)
        is_over = retention.parse_retention_period(self.opened.project.ingest) is not None
        count = retention.forget_due_answers(self.opened, self._epoch) if is_due or is_over else 0
        waits = retention.explain_wait(self.opened)
        return replace(result, forgotten=result.forgotten + count, waits=waits)

    def cursor(self, connector: str) -> str:
        """Return the cursor from which the next pull goes on; what was gone is read anew."""
        segments = self._list_connector_segments(connector)
        cursor = next((s.cursor for s in reversed(segments) if s.cursor is not None), "")
        return "" if cursor == sources.GONE else cursor

    def read_answer_states(self, connector: str) -> AnswerStates:
        """Return which answers of a connector count."""
        return stored.read_counting_states(
            self.opened.answers.files, self._list_connector_segments(connector)
        )

    def _list_connector_segments(self, connector: str) -> list[Segment]:
        return [segment for segment in self._segments if segment.connector == connector]


def _draw_segment_name() -> str:
    return keyring.random_bytes(16).hex()


def _mark_future_unreadable(page: Page) -> Page:
    """Return the page with answers from the future as unreadable ones."""
    ahead = [Unreadable(one.record, connectors.AHEAD) for one in page.answers if one.is_ahead]
    answers = [one for one in page.answers if not one.is_ahead]
    return replace(page, answers=answers, unreadable=[*page.unreadable, *ahead])


def _merge_small_pages(pages: Iterable[Page]) -> Iterator[Page]:
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

    `before` is what counted when it began (µs, `began`) after `segment`, at the `cursor`; `result`
    is what came of it so far. A tool that is silent keeps no other job waiting.
    """

    project: Where
    progress: Progress
    settings: Settings
    cursor: str
    before: AnswerStates
    segment: int
    began: int
    result: IngestionResult
    names: list[str]
    drops: int
    listed: list[Blocks] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    @classmethod
    def begin(cls, name: str, project: Where, progress: Progress, *, is_whole: bool) -> _Pull:
        """Ingest what waits in the inbox; a whole pull reads everything, not what is new."""
        with OpenProject.hold_for_job(project) as opened:
            job = _Ingestion(opened, progress)
            settings = connectors.read_settings(opened.project.connectors, name)
            opened.answers.check_reading(settings)
            result = job.drain_inbox()
            return cls(
                project=opened.project,
                progress=progress,
                settings=settings,
                cursor="" if is_whole else job.cursor(name),
                before=job.read_answer_states(name),
                segment=job.last_segment_number,
                began=int(time.time() * 1e6),
                result=result,
                names=job.segment_names,
                drops=opened.ledger.read(sources.count_drops, name),
            )

    def run(self, *, accept_deletions: bool) -> IngestionResult:
        """Read, store and forget; of what is gone, nothing is released until that is accepted."""
        try:
            return self._read(accept_deletions=accept_deletions)
        except ConnectorError as error:
            is_gone = isinstance(error, GoneFromTool)
            if not is_gone and (self.listed or not accept_deletions):
                raise
            with self._hold_project() as job:
                # Since it was gone, its server may be gone too.
                if is_gone or self.settings.name in job.opened.answers.list_gone():
                    if accept_deletions:
                        return job.forget(self.result + job.delete_all(self))
                    job.note_presence(self, is_gone=True)
            raise

    def _read(self, *, accept_deletions: bool) -> IngestionResult:
        count, name = 0, self.settings.name
        pages = connectors.open_connector(self.settings).pull(self.cursor)
        for page in _merge_small_pages(map(_mark_future_unreadable, pages)):
            count += len(page.answers)
            self.progress(f"pulling {name}: {count:,} answers", None)
            self.unreadable += [f"answer {item.record}: {item.why}" for item in page.unreadable]
            with self._hold_project() as job:
                job.record_unreadable_as_dead_letters(self, is_whole=False)
                listed = [a.record for a in page.answers] + [u.record for u in page.unreadable]
                self.listed.append(job.opened.keys.hash_records(name, listed))
                self.result += job.add_page(self, page)
                if page.unreadable:
                    self.result += replace(_NOTHING, left_out={UNREADABLE: len(page.unreadable)})
        with self._hold_project() as job:
            job.record_unreadable_as_dead_letters(self, is_whole=not self.cursor)
            job.note_presence(self, is_gone=False)
            if not self.cursor:
                self.result += job.delete_unlisted(self, accept_deletions=accept_deletions)
            return job.forget(self.result)

    @contextlib.contextmanager
    def _hold_project(self) -> Iterator[_Ingestion]:
        """Hold the project as soon as no other job does: what was read is not thrown away."""
        with (
            waiting(lambda text: self.progress(text, None)),
            OpenProject.hold_for_job(self.project) as opened,
        ):
            job = _Ingestion(opened, self.progress)
            if self.names != job.segment_names[: len(self.names)]:
                raise ProjectError(
                    f"{opened.project.state} is another copy of the project than when the tool was "
                    "read; pull again"
                )
            if self.drops != opened.ledger.read(sources.count_drops, self.settings.name):
                raise ProjectError(
                    f"connector {self.settings.name} was forgotten while its tool was read; pull "
                    "again"
                )
            yield job
            self.names = job.segment_names
