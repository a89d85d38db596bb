"""What raw answers are forgotten: those whose labels were released long enough ago, and those that
are gone from the tool.

`[ingest] keep = "90d"` in labelguard.toml says how long an answer stays after the release of all
its labels, and after it came itself. What stays then is the pair that it was about and the keys of
its rows, by which a later pull knows it again; its label, its labeler and the tool's names of it
go. Which answers these are follows from who answered what, never from what was answered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa

from labelguard import clock
from labelguard.answers import connector as connectors
from labelguard.answers import segments as stored
from labelguard.answers.segments import Segments
from labelguard.configuration.loader import validate
from labelguard.configuration.project_file import FILE, IngestTable
from labelguard.errors import NotAnswered, ProjectError
from labelguard.inputs.canonical import GROUP_TAG, id_digest
from labelguard.inputs.columns import Reading
from labelguard.inputs.staging import canonical_rows
from labelguard.ledger import segmentbook
from labelguard.ledger.segmentbook import Segment
from labelguard.project import private_map
from labelguard.project.opening import OpenProject
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks
from labelguard.storage.buckets import BUCKETS
from labelguard.storage.files import fresh_directory

# Records, each with the pair it was about and the keys of its rows.
_Forgotten = dict[bytes, tuple[str, list[bytes]]]


def kept_for(settings: Mapping[str, object]) -> timedelta | None:
    """Return how long answers stay after their release; None: always. Raises `ProjectError`."""
    keep = validate(IngestTable, settings, FILE, at=("ingest",), error=ProjectError).keep
    return None if keep is None else timedelta(days=int(keep[:-1]))


def forget(opened: OpenProject, held: Segments, counted: Sequence[Segment], epoch: int) -> int:
    """Take what is to be forgotten out of the segments; how many answers that were released."""
    keep = kept_for(opened.project.ingest)
    # What is not later is old enough, as `clock.now` tells times; nothing is, if "".
    until = "" if keep is None else clock.format_time(clock.parse_time(clock.now()) - keep)
    released = _released(opened, until)
    changed, forgotten = {}, 0
    for name in sorted({segment.connector for segment in counted}):
        own = [segment for segment in counted if segment.connector == name]
        standing = stored.standing(held, own)
        found: _Forgotten = {}
        # Whose answers are another source's since, were released as those of their own.
        for source in sorted({segment.source for segment in own}) if len(released) else ():
            # Of a label that was released, a later state may still be asked for (`--again`).
            out = np.array([one.at > until or one.source != source for one in own])
            old = replace(standing, kept=standing.kept | out[standing.segment])
            found |= _answers(opened, held, own, old, released, source)
        gone = set(blocks.to_list(standing.record[~standing.alive]))
        forgotten += len(found)
        for number, segment in enumerate(own):
            tables = _pruned(held.read(segment), number, standing, gone, found)
            if tables:
                changed[segment.name] = held.rewrite(segment, tables)
    if changed:
        held.settle(opened.ledger.write(epoch, segmentbook.replace, changed))
    return forgotten


def _released(opened: OpenProject, until: str) -> Blocks:
    """Keys of the rows of all releases that are old enough, sorted, (n, 2)."""
    old = [
        record.id
        for record in opened.ledger.releases.all()
        if record.state == "committed" and record.created_at <= until
    ]
    directory = opened.project.private_maps
    keys = [private_map.read_bucket(directory, bucket, old).keys for bucket in range(BUCKETS)]
    return blocks.unique(np.concatenate(keys))[0]


def _answers(
    opened: OpenProject,
    held: Segments,
    own: Sequence[Segment],
    standing: stored.Standing,
    released: Blocks,
    source: str,
) -> _Forgotten:
    """Answers all of whose labels were released, by record."""
    tables = list(stored.counting(held, own, standing))
    if not tables:
        return {}
    settings = _settings(opened, own[0].connector, source)
    table = pa.concat_tables(tables)
    path = fresh_directory(opened.project.work / "retention", mode=0o700) / f"{settings.name}.jsonl"
    path.write_text("".join(f"{task}\n" for task in table["body"].to_pylist()), encoding="utf-8")
    found: _Forgotten | None = None
    policy = opened.ledger.policies.active()
    # Where skips are hidden among ties, nothing may tell which are.
    skips = policy.policy.skips if policy else "public"
    for question in _questions(opened, settings):
        reading = Reading(settings.columns, question=question, skips=skips)
        try:
            rows = _rows(opened, path, reading, settings.source)
        except NotAnswered:  # all that are left are skips, or answer something else
            rows = {}
        whole = _whole(rows, released)
        found = (
            whole
            if found is None
            else {  # forgotten once released under every question
                record: (pair, keys + whole[record][1])
                for record, (pair, keys) in found.items()
                if record in whole
            }
        )
    path.unlink()
    names = dict(zip(_id_digests(table["id"]), table["record"].to_pylist(), strict=True))
    return {names[digest]: row for digest, row in (found or {}).items() if digest in names}


def _settings(opened: OpenProject, name: str, source: str) -> connectors.Settings:
    """Return how answers are read: as their connector says, or the one that has its source now."""
    tables = opened.project.connectors
    heirs = [other for other in tables if connectors.named(tables, other).source == source]
    found = connectors.named(tables, name if name in tables or not heirs else heirs[0])
    return replace(found, source=source)


def _questions(opened: OpenProject, settings: connectors.Settings) -> list[str | None]:
    """Return the questions under which answers of a source were released."""
    columns = next(
        (s.columns for s in opened.ledger.people.sources() if s.name == settings.source), {}
    )
    asked = {role.partition(" of ")[2] for role in columns if " of " in role}
    return [*sorted(asked)] or [settings.question]


def _rows(opened: OpenProject, path: Path, reading: Reading, source: str) -> _Forgotten:
    """Of every answer in a file: its pair, and the keys of its rows, by the digest of its id."""
    found: _Forgotten = {}
    keys = opened.keys.row_keys()
    for batch in canonical_rows(path, reading):
        labelers = batch["labeler"].to_pylist()
        distinct = {name: number for number, name in enumerate(dict.fromkeys(labelers))}
        authors = opened.keys.labeler_keys(source, distinct)[[distinct[name] for name in labelers]]
        items = _digests(batch["given_id" if "given_id" in batch.schema.names else "content"])
        pair = np.zeros(len(labelers), np.uint16)
        if "pair" in batch.schema.names:
            pair = batch["pair"].to_numpy().astype(np.uint16)
        row_keys = blocks.to_list(keys.keys(keys.identify(authors, items), pair))
        public = batch.select(["prompt", "first", "second"]).to_pylist()
        for record, row_key, texts in zip(
            batch["record"].to_pylist(), row_keys, public, strict=True
        ):
            found.setdefault(record[:16], (json.dumps(texts), []))[1].append(row_key)
    return found


def _digests(column: pa.Array) -> Blocks:
    return blocks.from_bytes(b"".join(digest[:16] for digest in column.to_pylist()))


def _id_digests(ids: pa.ChunkedArray) -> list[bytes]:
    """Return what the tool's ids of answers are called in canonical rows."""
    import duckdb

    with duckdb.connect() as connection:
        listed = connection.from_arrow(pa.table({"id": ids}))
        digests = listed.project(f"{id_digest(GROUP_TAG, 'id')} AS digest")
        return [digest[:16] for (digest,) in digests.fetchall()]


def _whole(rows: _Forgotten, released: Blocks) -> _Forgotten:
    """Return the answers of which every row was released."""
    if not rows:
        return {}
    keys = blocks.from_bytes(b"".join(key for _, own in rows.values() for key in own))
    starts = np.cumsum([0, *(len(own) for _, own in rows.values())])[:-1]
    whole = np.logical_and.reduceat(blocks.positions(released, keys) >= 0, starts).tolist()
    return {record: rows[record] for record, found in zip(rows, whole, strict=True) if found}


def _pruned(
    tables: Mapping[int, pa.Table],
    number: int,
    standing: stored.Standing,
    gone: set[bytes],
    found: _Forgotten,
) -> dict[int, pa.Table]:
    """Return the tables of a segment that change, as they are then.

    Of forgotten records one row stays, that which counted; of those that are gone, none.
    """
    changed = {}
    for place, table in tables.items():
        if place == stored.DELETED:
            continue
        records = table["record"].to_pylist()
        touched = [record in gone or record in found for record in records]
        if not any(touched):
            continue
        counts = (standing.segment == number) & (standing.place == place)
        counting = set(standing.row[counts].tolist())
        rows = []
        for row, (own, old) in enumerate(zip(table.to_pylist(), touched, strict=True)):
            if not old:
                rows.append(own)
            elif own["record"] in found and row in counting:
                pair, keys = found[own["record"]]
                left = {"id": None, "labeler": None, "body": None}
                rows.append(own | left | {"pair": pair, "rows": keys})
        changed[place] = pa.Table.from_pylist(rows, schema=stored.SCHEMA)
    return changed
