"""Recognises the rows of labelers who have left: in an input, and wherever raw rows are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labelguard.keys.keyring import KeyRing
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks


class Leavers:
    """Tells by their ids which rows are of labelers who have left. Its repr shows nothing.

    `labelers` are their keys, shape (n, 2).
    """

    def __init__(self, keys: KeyRing, namespace: str, labelers: Blocks | None) -> None:
        nobody = np.zeros((0, 2), np.uint64)
        self.labelers = nobody if labelers is None else blocks.unique(labelers)[0]
        self._keys, self._namespace = keys, namespace
        self._known: dict[str, dict[str, int]] = {}
        self._met: set[int] = set()

    def __repr__(self) -> str:
        return "Leavers(…)"

    @property
    def met(self) -> int:
        """How many of them had rows in what was looked at."""
        return len(self._met)

    def rows(self, ids: pa.Array | pa.ChunkedArray, source: str = "") -> NDArray[np.bool_]:
        """Which of these ids (text, or null) are theirs, shape (len(ids),); of another `source`
        than that of an input, where it is named.
        """
        if not len(self.labelers) or not len(ids):
            return np.zeros(len(ids), dtype=bool)
        encoded = pc.fill_null(ids, "").dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        distinct = encoded.dictionary.to_pylist()
        known = self._look_up(source or self._namespace, distinct)
        position = np.array([known[labeler] for labeler in distinct], dtype=np.intp)
        found = position[encoded.indices.to_numpy()]
        self._met.update(position[position >= 0].tolist())
        theirs: NDArray[np.bool_] = found >= 0
        return theirs

    def of_keys(self, labelers: Blocks) -> NDArray[np.bool_]:
        """Which of these keys, (n, 2), are theirs, shape (n,)."""
        position = blocks.positions(self.labelers, labelers)
        self._met.update(position[position >= 0].tolist())
        theirs: NDArray[np.bool_] = position >= 0
        return theirs

    def rows_of(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Which rows of a canonical batch are theirs; none if it tells no labeler."""
        if "labeler" not in batch.schema.names:
            return np.zeros(batch.num_rows, dtype=bool)
        return self.rows(batch["labeler"])

    def _look_up(self, namespace: str, ids: list[str]) -> dict[str, int]:
        """Where in `labelers` each id of a source stands, or -1; those of earlier calls as well."""
        known = self._known.setdefault(namespace, {})
        new = [labeler for labeler in ids if labeler not in known]
        found = blocks.positions(self.labelers, self._keys.labeler_keys(namespace, new))
        known.update(zip(new, found.tolist(), strict=True))
        return known
