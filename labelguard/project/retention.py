"""Retention of raw answers: those whose labels were released long enough ago are forgotten, and
those that are gone from the tool; and a connector's unreleased ones, when somebody says so.

`[ingest] keep = "90d"` in labelguard.toml says how long an answer stays after the release of all
its labels, and after it came itself. What stays then is the pair that it was about and the keys of
its rows, by which a later pull knows it again; its label, its labeler and the tool's names of it
go. Which answers these are follows from who answered what, never from what was answered.

What is forgotten never comes back, so a clock that is wrong once must not decide it. The times of
the journal's entries bear a clock out: after a step ahead of more than a week, or a step back, the
clock is believed once an entry of the day before has been written by it. Until then what counts is
the time before the step ahead; after a step back nothing is forgotten.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa

from labelguard import clock
from labelguard.answers import segments as stored
from labelguard.configuration.loader import validate_settings
from labelguard.configuration.project_file import FILE, IngestTable
from labelguard.errors import ConnectorError, InvalidLabels, NotAnswered, ProjectError
from labelguard.inputs.canonical import GROUP_TAG, id_digest_sql
from labelguard.inputs.columns import Reading
from labelguard.inputs.staging import read_canonical_rows
from labelguard.ledger import journal, sources
from labelguard.ledger.sources import Segment
from labelguard.project import private_map
from labelguard.project.opening import OpenProject, Where
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks
from labelguard.storage.buckets import BUCKETS
from labelguard.storage.files import fresh_directory

# The longest step of the clock between entries of the journal that is believed at once, how far the
# clocks of machines may differ, and how long a longer step is watched: till the next nightly run.
_STEP, _SKEW, _WATCHED = timedelta(days=7), timedelta(hours=1), timedelta(hours=20)

# Later than any time.
_ALWAYS = "9999"

# Records, each with the pair it was about and the keys of its rows.
_Forgotten = dict[bytes, tuple[str, list[bytes]]]


def parse_retention_period(settings: Mapping[str, object]) -> timedelta | None:
    """Return how long answers stay after their release; None: always. Raises `ProjectError`."""
    keep = validate_settings(IngestTable, settings, FILE, at=("ingest",), error=ProjectError).keep
    return None if keep is None else timedelta(days=int(keep[:-1]))


def forget_due_answers(opened: OpenProject, epoch: int) -> int:
    """Take out of segments what is to be forgotten; return the number of released answers."""
    files, written = opened.answers.files, opened.ledger.read(journal.read_times)
    now = clock.now()
    # What is not later is old enough, as `clock.now` tells times; nothing is, if "".
    until = _subtract_period(opened, find_proven_time(written, now))
    if explain_wait(opened) and find_proven_time(written[-1:], now) != now:  # for the next run
        opened.ledger.write(epoch, journal.append_entry, "clock", {"retention": "waits"})
    released = _read_released_keys(opened, until, written[0])
    every = opened.answers.list_segments()
    times = _put_in_order([segment.at for segment in every], written[0])
    came = {segment.name: at for segment, at in zip(every, times, strict=True)}
    rewritten, count = {}, 0
    for name in sorted({segment.connector for segment in every}):
        segments = opened.answers.list_segments(name)
        standing = stored.read_counting_states(files, segments)
        forgotten: _Forgotten = {}
        # Whose answers are another source's since, were released as those of their own.
        for source in sorted({s.source for s in segments}) if len(released) else ():
            # Of a label that was released, a later state may still be asked for (`--again`).
            stays = np.array([came[s.name] > until or s.source != source for s in segments])
            old = replace(standing, forgotten=standing.forgotten | stays[standing.segment])
            forgotten |= _find_released_answers(opened, segments, old, released, source)
        deleted = set(blocks.to_list(standing.record[~standing.alive]))
        count += len(forgotten)
        for number, segment in enumerate(segments):
            tables = _rewrite_without_forgotten(
                files.read(segment), number, standing, deleted, forgotten
            )
            if tables:
                rewritten[segment.name] = files.rewrite(segment, tables)
    if rewritten:
        files.complete_rewrites(
            opened.ledger.write(epoch, sources.record_rewritten_segments, rewritten)
        )
    return count


@dataclass(frozen=True)
class ForgottenConnector:
    """Counts of the answers of a connector that were dropped."""

    # the connector's name
    connector: str
    # answers that were stored, and not released
    dropped: int
    # answers that waited in the inbox
    waiting: int
    # answers with a label that was released, which stay
    released: int


def forget_connector(name: str, project: Where = None) -> ForgottenConnector:
    """Drop the answers of a connector, named in labelguard.toml or not, that were not released.

    They come back with its next pull, which reads everything. Raises `ConnectorError` where nothing
    is known of such a connector, `InvalidLabels` where answers cannot be read of which some were
    released, `PolicyError` while a release is unfinished; then nothing is dropped.
    """
    with OpenProject.hold_for_job(project) as opened:
        epoch = opened.begin_epoch_between_releases()
        opened.answers.recover_segments()
        segments = opened.answers.list_segments()
        names = {*opened.project.connectors, *(segment.connector for segment in segments)}
        with contextlib.closing(opened.answers.open_inbox()) as inbox:
            inbox.finish_claims({segment.name for segment in segments})
            letters = inbox.list_dead_letters()
            names |= {*inbox.list_connectors(), *(letter.connector for letter in letters)}
            if name not in names:
                known = ", ".join(sorted(names)) or "none"
                raise ConnectorError(f"nothing is known of a connector {name!r}; known: {known}")
            dropped, released = _drop_unreleased_answers(opened, epoch, name)
            for letter in letters:
                if letter.connector == name:
                    inbox.delete_dead_letter(letter.number)
            waiting = inbox.filter_events(lambda one: None if one.connector == name else one)
        return ForgottenConnector(name, dropped, waiting, released)


def _drop_unreleased_answers(opened: OpenProject, epoch: int, connector: str) -> tuple[int, int]:
    """Take a connector's answers out of segments, but for those with a label that was released.

    Returns how many went, and how many stay.
    """
    files, every = opened.answers.files, opened.answers.list_segments(connector)
    released = _read_released_keys(opened, _ALWAYS, clock.now())
    dropped = stay = 0
    rewritten, emptied = {}, []
    for source in sorted({segment.source for segment in every}):
        segments = [segment for segment in every if segment.source == source]
        standing = stored.read_counting_states(files, segments)
        stays = set(blocks.to_list(standing.record[standing.forgotten]))
        if any(one.name == source and one.columns for one in opened.ledger.people.sources()):
            try:
                answers = _find_released_answers(
                    opened, segments, standing, released, source, partly=True
                )
            except InvalidLabels as error:
                raise InvalidLabels(
                    f"which answers of source {source!r} were released cannot be told, so none is "
                    f"dropped: {error}"
                ) from None
            stays |= answers.keys()
        goes = set(blocks.to_list(standing.record)) - stays
        for number, segment in enumerate(segments):
            tables = files.read(segment)
            changed = _rewrite_without_forgotten(tables, number, standing, goes, {})
            if changed:
                rewritten[segment.name] = files.rewrite(segment, changed)
            left = (tables | changed).items()
            if not any(len(table) for place, table in left if place != stored.DELETED):
                emptied.append(segment.name)
        dropped += int(standing.alive.sum()) - len(stays)
        stay += len(stays)
    if every:
        record = sources.record_dropped_answers
        files.complete_rewrites(opened.ledger.write(epoch, record, connector, rewritten, emptied))
    return dropped, stay


def find_proven_time(written: Sequence[str], now: str) -> str:
    """Return the newest time that the journal bears out, `written` at these times, oldest first.

    "" after a step back, when either now or what was written before it is wrong.
    """
    first = clock.parse_time(now)
    for at in map(clock.parse_time, reversed(written)):
        if clock.parse_time(now) - first >= _WATCHED:
            break
        if at > first + _SKEW:
            return ""
        if at < first - _STEP:
            return clock.format_time(at)
        first = min(first, at)
    return now


def explain_wait(opened: OpenProject) -> str:
    """Return why answers that are due by this machine's clock are kept as yet, or ""."""
    written, now = opened.ledger.read(journal.read_times), clock.now()
    proven, due = find_proven_time(written, now), _subtract_period(opened, now)
    if not due or proven == now:
        return ""
    if not proven:
        return (
            f"retention waits: the clock says {now}, and the journal has a later time, "
            f"{max(written)}; see that the clock is right, then it goes on the next day"
        )
    before = _subtract_period(opened, proven)
    if not any(before < one.created_at <= due for one in opened.ledger.releases.list_committed()):
        return ""
    return (
        f"retention waits: the clock says {now}, and the newest time before was {proven}; see that "
        "the clock is right, then what is due is forgotten when this is run the next day"
    )


def _subtract_period(opened: OpenProject, time: str) -> str:
    """Return the time before which answers are due at a time; "" where none is, at none."""
    keep = parse_retention_period(opened.project.ingest)
    return clock.format_time(clock.parse_time(time) - keep) if time and keep is not None else ""


def _put_in_order(times: Sequence[str], first: str) -> list[str]:
    """Return times of what came in this order after the `first`: none is before an earlier one.

    A clock that was behind made nothing older than it is; times ahead of now tell nothing.
    """
    now = clock.now()
    later = accumulate(
        times, lambda last, at: at if last > now else max(last, at), initial=min(first, now)
    )
    return list(later)[1:]


def _read_released_keys(opened: OpenProject, until: str, first: str) -> Blocks:
    """Return the keys of the rows of all releases that are old enough, sorted, (n, 2).

    `first` is the time at which the project was made.
    """
    records = opened.ledger.releases.list_committed()
    times = _put_in_order([record.created_at for record in records], first)
    old = [record.id for record, at in zip(records, times, strict=True) if at <= until]
    directory = opened.project.private_maps
    maps = private_map.count_files(directory, old)
    keys = [private_map.read_bucket(directory, b, BUCKETS, maps).keys for b in range(BUCKETS)]
    return blocks.unique(np.concatenate(keys))[0]


def _find_released_answers(
    opened: OpenProject,
    segments: Sequence[Segment],
    standing: stored.AnswerStates,
    released: Blocks,
    source: str,
    *,
    partly: bool = False,
) -> _Forgotten:
    """Return the answers all of whose labels were released, or any (`partly`), by record."""
    tables = list(stored.read_counting_rows(opened.answers.files, segments, standing))
    if not tables:
        return {}
    read_as = opened.answers.find_reading(source)
    table = pa.concat_tables(tables)
    path = (
        fresh_directory(opened.project.work / "retention", mode=0o700)
        / f"{segments[0].connector}.jsonl"
    )
    path.write_text("".join(f"{task}\n" for task in table["body"].to_pylist()), encoding="utf-8")
    policy = opened.ledger.policies.active()
    # Where skips are hidden among ties, nothing may tell which are.
    skips = policy.policy.skips if policy else "public"
    answers: _Forgotten | None = None
    for question in _list_released_questions(opened, source) or [read_as["question"]]:
        reading = Reading(read_as["columns"], question=question, skips=skips)
        try:
            rows = _read_rows(opened, path, reading, source)
        except NotAnswered:  # all that are left are skips, or answer something else
            rows = {}
        complete = _select_released(rows, released, partly=partly)
        if answers is not None and partly:
            complete |= answers
        elif answers is not None:  # forgotten once released under every question
            complete = {
                record: (pair, keys + complete[record][1])
                for record, (pair, keys) in answers.items()
                if record in complete
            }
        answers = complete
    path.unlink()
    names = dict(zip(_digest_ids(table["id"]), table["record"].to_pylist(), strict=True))
    return {names[digest]: row for digest, row in (answers or {}).items() if digest in names}


def _list_released_questions(opened: OpenProject, source: str) -> list[str]:
    """Return the questions by whose names answers of a source were released."""
    columns = next((s.columns for s in opened.ledger.people.sources() if s.name == source), {})
    return sorted({role.partition(" of ")[2] for role in columns if " of " in role})


def _read_rows(opened: OpenProject, path: Path, reading: Reading, source: str) -> _Forgotten:
    """Of every answer in a file: its pair, and the keys of its rows, by the digest of its id."""
    rows: _Forgotten = {}
    keys = opened.keys.row_keys()
    for whole in read_canonical_rows(path, reading):
        batch = whole.filter(whole["labeler"].is_valid())  # what nobody answered was never released
        labelers = batch["labeler"].to_pylist()
        distinct = {name: number for number, name in enumerate(dict.fromkeys(labelers))}
        authors = opened.keys.hash_labelers(source, distinct)[[distinct[name] for name in labelers]]
        digests = batch["given_id" if "given_id" in batch.schema.names else "content"].to_pylist()
        items = blocks.from_bytes(b"".join(digest[:16] for digest in digests))
        pair = np.zeros(len(labelers), np.uint16)
        if "pair" in batch.schema.names:
            pair = batch["pair"].to_numpy().astype(np.uint16)
        row_keys = blocks.to_list(keys.keys(keys.identify(authors, items), pair))
        public = batch.select(["prompt", "first", "second"]).to_pylist()
        for record, row_key, texts in zip(
            batch["record"].to_pylist(), row_keys, public, strict=True
        ):
            rows.setdefault(record[:16], (json.dumps(texts), []))[1].append(row_key)
    return rows


def _digest_ids(ids: pa.ChunkedArray) -> list[bytes]:
    """Return what the tool's ids of answers are called in canonical rows."""
    import duckdb

    with duckdb.connect() as connection:
        listed = connection.from_arrow(pa.table({"id": ids}))
        digests = listed.project(f"{id_digest_sql(GROUP_TAG, 'id')} AS digest")
        return [digest[:16] for (digest,) in digests.fetchall()]


def _select_released(rows: _Forgotten, released: Blocks, *, partly: bool = False) -> _Forgotten:
    """Return the answers of which every row was released, or any (`partly`)."""
    if not rows:
        return {}
    keys = blocks.from_bytes(b"".join(key for _, of_answer in rows.values() for key in of_answer))
    starts = np.cumsum([0, *(len(of_answer) for _, of_answer in rows.values())])[:-1]
    combine = np.logical_or if partly else np.logical_and
    chosen = combine.reduceat(blocks.find_positions(released, keys) >= 0, starts).tolist()
    return {record: rows[record] for record, is_one in zip(rows, chosen, strict=True) if is_one}


def _rewrite_without_forgotten(
    tables: Mapping[int, pa.Table],
    number: int,
    standing: stored.AnswerStates,
    deleted: set[bytes],
    forgotten: _Forgotten,
) -> dict[int, pa.Table]:
    """Return the tables of a segment that change, as they are then.

    Of forgotten records one row stays, that which counted; of those that are deleted, none.
    """
    changed = {}
    for place, table in tables.items():
        if place == stored.DELETED:
            continue
        records = table["record"].to_pylist()
        if not any(record in deleted or record in forgotten for record in records):
            continue
        counts = (standing.segment == number) & (standing.place == place)
        counting = set(standing.row[counts].tolist())
        rows = []
        for number_of_row, row in enumerate(table.to_pylist()):
            record = row["record"]
            if record in forgotten and number_of_row in counting:
                pair, keys = forgotten[record]
                empty = {"id": None, "labeler": None, "body": None}
                rows.append(row | empty | {"pair": pair, "rows": keys})
            elif record not in deleted and record not in forgotten:
                rows.append(row)
        changed[place] = pa.Table.from_pylist(rows, schema=stored.SCHEMA)
    return changed
