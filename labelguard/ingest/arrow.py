"""Arrow data before DuckDB takes it: valid, and not compressed."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa

from labelguard.ingest.reader_errors import NOT_UTF8


def damage(batch: pa.RecordBatch) -> str | None:
    """What breaks the Arrow format in a batch (DuckDB does not look).

    Neither the column nor the row, which not every type tells: of chosen and rejected, that would
    name a side.
    """
    problems = set()
    for values in batch.columns:
        try:
            values.validate(full=True)
        except pa.ArrowInvalid as error:
            problems.add(NOT_UTF8 if "UTF8" in str(error) else "damaged data")
    return min(problems, default=None)


def compressed(path: Path) -> bool:
    """Whether the body of an Arrow file or stream is compressed.

    Arrow unpacks a batch whole, to whatever size it says: 50 kB became 3 GB. What is stored as it
    is takes no memory at all, being mapped. Raises `pa.ArrowInvalid` for damaged data.
    """
    with pa.memory_map(str(path)) as source:
        # A file is a stream between a mark, padded to 8 bytes, and a table of contents.
        source.seek(8 if source.read(6) == b"ARROW1" else 0)
        for message in pa.ipc.MessageReader.open_stream(source):
            if message.type in ("record batch", "dictionary"):
                try:
                    if _is_compressed(message.metadata.to_pybytes(), message.type):
                        return True
                except struct.error:
                    raise pa.ArrowInvalid("damaged metadata") from None
    return False


def _is_compressed(message: bytes, kind: str) -> bool:
    """Whether a message names a codec (Message.fbs: Message.header, RecordBatch.compression)."""
    (root,) = struct.unpack_from("<I", message)
    batch = _member(message, root, 2)
    if kind == "dictionary":
        batch = _member(message, batch, 1)
    return _field(message, batch, 3) != 0


def _field(message: bytes, table: int, index: int) -> int:
    """Where a flatbuffer's table has its field number `index`; 0 if it has not."""
    vtable = table - struct.unpack_from("<i", message, table)[0]
    (size,) = struct.unpack_from("<H", message, vtable)
    entry = 4 + 2 * index
    offset = struct.unpack_from("<H", message, vtable + entry)[0] if entry < size else 0
    return table + offset if offset else 0


def _member(message: bytes, table: int, index: int) -> int:
    """Where the table is that this field refers to."""
    field = _field(message, table, index)
    return field + int(struct.unpack_from("<I", message, field)[0])
