"""Labelers who are one unit of privacy: a person with several ids, a household, a team.

A group shares its uses, its contribution bound and its clip. Its members have their own
pseudonyms and row keys, so that who is grouped later keeps the labels they released. A labeler's
group never changes once the group was charged: labels are remembered with the unit that they were
charged to, and elsewhere they would be drawn and charged again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import numpy as np

from labelguard.errors import InvalidLabels
from labelguard.inputs import readers
from labelguard.inputs.layouts import ID_EXPECTED, can_hold_ids
from labelguard.inputs.query import NO_ID, is_blank_sql
from labelguard.inputs.readers import InputFile, identifier
from labelguard.inputs.sources import ByteLimit, Input, resolve_input
from labelguard.keys.identities import Identities, normalize_id
from labelguard.keys.keyring import KeyRing
from labelguard.ledger.records import UnitGroups
from labelguard.spelling import suggest
from labelguard.storage import blocks
from labelguard.text import pluralize

if TYPE_CHECKING:
    import polars as pl

    from labelguard.ledger.ledger import Ledger

COLUMNS = ("labeler_id", "group_id")
_WHERE = "read from"


def find_groups_in_force(ledger: Ledger, unit: str) -> UnitGroups | None:
    """Return who belongs together in a project: in groups, or as one person with several ids.

    Single labels, as units, belong to nobody; and groups of nobody matter to the unit `group` only.
    """
    groups = UnitGroups(*ledger.people.members())
    return groups if unit == "group" or (unit == "labeler" and len(groups.labelers)) else None


def read_groups(
    source: Input, keys: KeyRing, namespace: str, scratch: Path | None = None
) -> tuple[UnitGroups, Identities]:
    """Read who belongs together, and the forms of their ids: columns labeler_id and group_id, in
    any format of labels.

    Labelers that it does not name are units of their own. A group's pseudonym is a keyed hash of
    (namespace, group id), of another domain than those of labelers. Raises `InvalidLabels` for
    unreadable files, missing columns, empty ids, labelers in two groups, and ids of groups that
    differ only in how they are written.
    """
    import polars as pl

    members = read_ids(source, lambda names: COLUMNS, scratch)
    _refuse_double_membership(members)
    ids, group_ids = members["labeler_id"], members["group_id"]
    labelers = keys.hash_labelers(namespace, ids)
    order = blocks.sort_order(labelers)
    names = group_ids.unique(maintain_order=True)
    _refuse_ids_spelled_alike(names)
    groups = keys.hash_groups(namespace, names)
    number = group_ids.replace_strict(names, np.arange(len(names)), return_dtype=pl.Int64)
    together = UnitGroups(labelers[order], groups[number.to_numpy()[order]])
    return together, Identities.of(keys, namespace, ids.to_list(), labelers)


def read_ids(
    source: Input,
    choose_columns: Callable[[Sequence[str]], Sequence[str]],
    scratch: Path | None = None,
) -> pl.DataFrame:
    """Return the distinct rows of columns of ids, as texts, with `read from`: their first place.

    `choose_columns` picks the columns among those of the first part. Raises `InvalidLabels`
    for unreadable files, missing columns and empty ids.
    """
    import polars as pl

    files = resolve_input(source, spool=scratch)
    with (
        tempfile.TemporaryDirectory(prefix="labelguard-", dir=scratch) as spill,
        readers.connect(Path(spill)) as connection,
    ):
        columns = choose_columns(list(readers.read_columns(files[0], connection)))
        limit = ByteLimit.from_file_sizes(files, None)
        rows = pl.concat(_read_id_columns(file, connection, columns, limit) for file in files)
    if not len(rows):
        raise InvalidLabels(f"{files[0].name}: no rows in the input")
    return rows.unique(columns, keep="first", maintain_order=True)


def _read_id_columns(
    file: InputFile, connection: duckdb.DuckDBPyConnection, names: Sequence[str], limit: ByteLimit
) -> pl.DataFrame:
    """Return columns of ids of one file as texts, with `read from`: where each row stands."""
    import polars as pl

    types = readers.read_columns(file, connection)
    for name in names:
        if name not in types:
            free = tuple(column for column in types if column not in names)
            raise InvalidLabels(
                f"{file.name}: no column {name}{suggest(name, free)}; expected "
                f"{' and '.join(names)}; found: {', '.join(types)}"
            )
        if not can_hold_ids(types[name]):
            kind = str(types[name])[:80]
            raise InvalidLabels(
                f"{file.name}: column {name}: expected {ID_EXPECTED}, found type {kind}"
            )
    texts = ", ".join(f"{identifier(name)}::VARCHAR AS {identifier(name)}" for name in names)
    flags = ", ".join(f"{is_blank_sql(identifier(n))} AS blank_{i}" for i, n in enumerate(names))
    query = f"SELECT *, {flags} FROM (SELECT {texts} FROM part)"
    frames, count = [], 0
    for batch in readers.read_batches(file, connection, query):
        limit.subtract(file.name, batch.nbytes)
        frame = pl.DataFrame(pl.from_arrow(batch))
        for number, name in enumerate(names):
            if (blanks := frame[f"blank_{number}"]).any():
                row = count + (blanks.arg_max() or 0) + 1
                raise InvalidLabels(f"{file.name} row {row}: column {name}: {NO_ID}")
        count += len(frame)
        frames.append(frame.select(names))
    frame = pl.concat(frames) if frames else pl.DataFrame(schema=dict.fromkeys(names, pl.String))
    where = pl.format("{} row {}", pl.lit(file.name), pl.int_range(1, pl.len() + 1))
    return frame.with_columns(where.alias(_WHERE))


def _refuse_ids_spelled_alike(names: pl.Series) -> None:
    """Raise `InvalidLabels` for two ids of groups, all distinct, that have one normal form."""
    forms: dict[str, str] = {}
    for name in names.to_list():
        first = forms.setdefault(normalize_id(name), name)
        if first != name:
            raise InvalidLabels(
                f"group ids {first!a} and {name!a} differ only in how they are written; "
                "write one like the other"
            )


def _refuse_double_membership(members: pl.DataFrame) -> None:
    """Raise `InvalidLabels` if a labeler is in two groups; `members` has distinct rows."""
    import polars as pl

    clashing = members.filter(pl.len().over("labeler_id") > 1)
    if not len(clashing):
        return
    labelers = clashing["labeler_id"]
    one, other = clashing.filter(pl.col("labeler_id") == labelers[0])[_WHERE][:2]
    raise InvalidLabels(
        f"{one} and {other}: the same labeler in two groups "
        f"({pluralize(labelers.n_unique(), 'such labeler')}); put everybody into one group"
    )
