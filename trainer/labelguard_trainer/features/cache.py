"""Vectors that were computed before, found by the content they were computed from.

A key is 16 bytes of SHA-256 of encoder and text. Vectors lie in append-only segments, Arrow IPC
files that are mapped into memory, one directory per encoder:

    <cache>/<digest of the encoder's identity>/<SHA-256 of the segment>.arrow

A segment is written whole and renamed into place, under the digest of its bytes, so that many
processes may write at once, equal segments coincide, and a segment that was damaged no longer fits
its name: it is ignored, and its texts are encoded again. No texts are stored, only vectors of
public texts. Deleting the directory costs time and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from platformdirs.unix import Unix

from labelguard.errors import LabelguardError
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks
from labelguard.storage.files import fsync_path

Vectors = NDArray[np.float32]

_KEY = pa.binary(16)


def find_cache_directory() -> Path:
    """`LABELGUARD_CACHE`, else `labelguard/features` in `XDG_CACHE_HOME` or `~/.cache`."""
    named = os.environ.get("LABELGUARD_CACHE")
    return Path(named) if named else Unix("labelguard").user_cache_path / "features"


class VectorCache:
    """The cached vectors of one encoder, as its segments stand when the cache is opened."""

    def __init__(self, identity: str, directory: Path | None = None) -> None:
        name = hashlib.sha256(identity.encode()).hexdigest()[:32]
        self.directory = (directory or find_cache_directory()) / name
        self._segments: list[Vectors] = []
        self._keys: Blocks = np.zeros((0, 2), np.uint64)
        self._segment = np.zeros(0, np.intp)
        self._row = np.zeros(0, np.intp)
        self._read_segments()

    def contains(self, keys: Blocks) -> NDArray[np.bool_]:
        """Return which of the keys, shape (n, 2), have a vector."""
        return blocks.find_positions(self._keys, keys) >= 0

    def vectors(self, keys: Blocks) -> Vectors:
        """Their vectors, shape (n, d), float32; every key must be in the cache, and n >= 1."""
        positions = blocks.find_positions(self._keys, keys)
        if (positions < 0).any():
            raise KeyError(f"{int((positions < 0).sum())} of {len(keys)} keys are not in the cache")
        segment, row = self._segment[positions], self._row[positions]
        vectors = np.empty((len(keys), self._segments[segment[0]].shape[1]), np.float32)
        for number in np.unique(segment):
            here = segment == number
            vectors[here] = self._segments[number][row[here]]
        return vectors

    def prepare(self) -> None:
        """Make the directory, so that a missing permission shows before anything is encoded."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._make_write_error(error) from None
        if not os.access(self.directory, os.W_OK):
            raise self._make_write_error(PermissionError("permission denied"))

    def store(self, keys: Blocks, vectors: Vectors) -> None:
        """Add vectors, shape (n, d), under their keys, shape (n, 2): one new segment, on disk."""
        order = blocks.sort_order(keys)
        data = _serialize(keys[order], np.ascontiguousarray(vectors[order], dtype=np.float32))
        path = self.directory / f"{hashlib.sha256(data).hexdigest()}.arrow"
        temporary = path.with_name(f"{uuid.uuid4().hex}.partial")
        try:
            temporary.write_bytes(data)
            fsync_path(temporary)
            temporary.replace(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise self._make_write_error(error) from None
        self._index_segments([_parse_segment(data)])

    def _read_segments(self) -> None:
        segments = (_open_segment(path) for path in sorted(self.directory.glob("*.arrow")))
        whole = [segment for segment in segments if segment is not None]
        widths = [vectors.shape[1] for _, vectors in whole]
        self._index_segments([part for part in whole if part[1].shape[1] == widths[0]])

    def _index_segments(self, segments: list[tuple[Blocks, Vectors]]) -> None:
        """Merge the keys of new segments into the sorted ones; the first of equal keys stays."""
        first = len(self._segments)
        self._segments += [vectors for _, vectors in segments]
        numbers = [np.full(len(keys), first + at) for at, (keys, _) in enumerate(segments)]
        rows = [np.arange(len(keys)) for keys, _ in segments]
        merged = np.concatenate([self._keys, *(keys for keys, _ in segments)])
        segment = np.concatenate([self._segment, *numbers])
        row = np.concatenate([self._row, *rows])
        self._keys, inverse = blocks.unique(merged)
        # Written in reverse, so that of equal keys the first one is the last to be written.
        first_of = np.empty(len(self._keys), np.intp)
        first_of[inverse[::-1]] = np.arange(len(merged))[::-1]
        self._segment, self._row = segment[first_of], row[first_of]

    def _make_write_error(self, error: OSError) -> LabelguardError:
        return LabelguardError(
            f"the cache of features {self.directory} cannot be written "
            f"({error.strerror or error}); set LABELGUARD_CACHE to a directory that can"
        )


def _serialize(keys: Blocks, vectors: Vectors) -> bytes:
    names = pa.FixedSizeBinaryArray.from_buffers(
        _KEY, len(keys), [None, pa.py_buffer(blocks.to_bytes(keys))]
    )
    values = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    batch = pa.record_batch([names, values], names=["key", "vector"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _open_segment(path: Path) -> tuple[Blocks, Vectors] | None:
    """Return a segment's keys and its vectors, mapped into memory; None if it is damaged."""
    try:
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != path.stem:
                return None
        return _parse_segment(pa.memory_map(str(path)))
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return None


def _parse_segment(source: bytes | pa.NativeFile) -> tuple[Blocks, Vectors]:
    batch = pa.ipc.open_file(source).get_batch(0)
    keys, vectors = batch["key"], batch["vector"]
    width = vectors.type.list_size
    names = blocks.from_bytes(memoryview(keys.buffers()[1])[: 16 * len(keys)])
    return names, vectors.values.to_numpy().reshape(len(keys), width)
