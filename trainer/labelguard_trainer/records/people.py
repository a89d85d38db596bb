"""Find whose records there are: by the ids of files, which are public, and nothing of their texts.

Files are Parquet, whose columns have types: nothing that a person wrote can make a row a bad one,
or an error. A record of which any text is null is null as a whole, and teaches nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelguard.errors import InvalidLabels, ProjectError
from labelguard.keys.identities import Identities
from labelguard.ledger import sources
from labelguard.ledger.records import Admission
from labelguard.project.linking import refuse_lookalikes
from labelguard.project.opening import OpenProject
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks
from labelguard.text import pluralize
from labelguard_trainer.records.recipe import RecordsRecipe
from labelguard_trainer.training.settings import StageName

Indices: TypeAlias = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Part:
    """The records of one stage: n of them, in the order of their file.

    `people` (m, 2) are the units that have any, sorted, and `unit` (n,) whose each record is.
    """

    name: StageName
    file: Path
    columns: tuple[str, ...]
    ids: pa.Array = field(repr=False)
    people: Blocks = field(repr=False)
    unit: Indices = field(repr=False)

    @property
    def record_counts_digest(self) -> str:
        """SHA-256 of who has how many records."""
        counts = np.bincount(self.unit, minlength=len(self.people)).astype(">u8")
        return hashlib.sha256(blocks.to_bytes(self.people) + counts.tobytes()).hexdigest()

    def read_texts(self, column: str) -> tuple[list[pa.Array], NDArray[np.bool_]]:
        """Return the columns of texts, null ones empty, and which records are there, (n,).

        PRIVATE: for who was granted the charge of everybody in it. Raises `ProjectError` if the
        file has the records of others by now.
        """
        table = pq.read_table(self.file, columns=[column, *self.columns])
        if not _cast_ids(table[column]).equals(self.ids):
            raise ProjectError(f"{self.file} has changed since its ids were read; run this again")
        texts = [table[name].cast(pa.large_string()).combine_chunks() for name in self.columns]
        present = np.ones(len(table), bool)
        for each in texts:
            present &= ~each.is_null().to_numpy(zero_copy_only=False)
        there = pa.array(present)
        return [pc.fill_null(pc.if_else(there, each, ""), "") for each in texts], present


@dataclass(frozen=True)
class People:
    """Everybody in the parts of a recipe, and how the project meets them."""

    parts: tuple[Part, ...]
    # (m, 2), sorted, and in how many parts each is, (m,)
    units: Blocks = field(repr=False)
    stages: NDArray[np.int64] = field(repr=False)
    admission: Admission = field(repr=False)


def read_people(recipe: RecordsRecipe, opened: OpenProject) -> People:
    """Return whose records the files of a recipe hold; reads no text.

    Raises `InvalidLabels` for a file without its columns, a row without an id, one person under two
    spellings, or somebody who left the project.
    """
    column, ledger = f"{recipe.unit}_id", opened.ledger
    namespace = opened.project.namespace
    columns = {"labeler_id": column}
    sources.check_columns(ledger.people.sources(), namespace, columns)
    read = [(*source, _read_ids(source[1], column, source[2])) for source in recipe.sources()]
    every = pc.unique(pa.chunked_array([ids for *_, ids in read]))
    names = sorted(every.to_pylist())
    labelers = opened.keys.hash_labelers(namespace, names)
    identities = Identities.of(opened.keys, namespace, names, labelers)
    links = ledger.people.links()
    refuse_lookalikes(identities, ledger.people.known(), links)
    gone = int((blocks.find_positions(ledger.people.tombstones(), labelers) >= 0).sum())
    if gone:
        raise InvalidLabels(
            f"{pluralize(gone, recipe.unit)} of these files left the project; take their records "
            "out"
        )
    units = links.unit_of(labelers)
    parts = []
    for name, file, texts, ids in read:
        rows = pc.index_in(ids, pa.array(names, ids.type)).to_numpy()
        people, unit = blocks.unique(units[rows])
        parts.append(Part(name, file, texts, ids, people, unit))
    everybody, place = blocks.unique(np.concatenate([part.people for part in parts]))
    return People(
        tuple(parts),
        everybody,
        np.bincount(place, minlength=len(everybody)).astype(np.int64),
        Admission(namespace, columns, identities.without(ledger.people.identities())),
    )


def _read_ids(file: Path, column: str, texts: Sequence[str]) -> pa.Array:
    try:
        schema = pq.read_schema(file)
    except (OSError, pa.ArrowException):
        raise InvalidLabels(
            f"{file} cannot be read as Parquet, in which private records come: its columns have "
            "types, so that nothing that somebody wrote is a bad row"
        ) from None
    for name in (column, *texts):
        if name not in schema.names:
            raise InvalidLabels(f"{file} has no column {name}, found {', '.join(schema.names)}")
        kind = schema.field(name).type
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if not (text or (name == column and pa.types.is_integer(kind))):
            raise InvalidLabels(f"{file}: column {name} must hold texts, found {kind}")
    ids = _cast_ids(pq.read_table(file, columns=[column])[column])
    if not len(ids):
        raise InvalidLabels(f"{file} holds no record")
    if (row := pc.index(pc.utf8_trim_whitespace(ids), "").as_py()) >= 0:
        raise InvalidLabels(f"{file}: row {row + 1} has no {column}")
    return ids


def _cast_ids(column: pa.ChunkedArray) -> pa.Array:
    return pc.fill_null(column.cast(pa.large_string()), "").combine_chunks()
