"""Answers of tools whose label is outside the domain: ties, listed for the curator alone.

A labeler may send a tool any value. An error would stop everybody's release for one answer, and
tell what it is; so it is drawn as a tie is, and nothing public depends on it.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from labelguard.ingest import scan
from labelguard.ingest.sql import file_literal
from labelguard.ingest.staged import Staged
from labelguard.storage.files import write_atomically

_TASKS = """
    SELECT json->>'/id', coalesce(json->>'/annotations/0/id', json->>'/responses/0/id') AS answer
    FROM read_ndjson_objects({path}) WHERE answer IN (SELECT unnest(?))"""


def write(path: Path, staged: Staged, scratch: Path) -> None:
    """List connector, answer and task of every such answer in a file of mode 0600.

    It is PRIVATE: which answers are in it follows from labels.
    """
    lines = []
    with scan.connect(scratch) as connection:
        for one in staged.understood:
            rows = np.unique(np.asarray(staged.outside.get(one.part.name, []), np.int64))
            if one.part.answers is None or not len(rows):
                continue
            records = one.part.open(connection.cursor()).select("record_id").to_arrow_table()
            wanted = records["record_id"].take(rows).to_pylist()
            query = _TASKS.format(path=file_literal(one.part.answers))
            for task, answer in connection.execute(query, [wanted]).fetchall():
                lines.append({"connector": one.part.answers.stem, "answer": answer, "task": task})
    listed = sorted(json.dumps(line) for line in lines)
    write_atomically(path, "".join(f"{line}\n" for line in listed).encode(), mode=0o600)
