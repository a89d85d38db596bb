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
import polars as pl

from labelguard.errors import InvalidLabels
from labelguard.inputs import query as queries
from labelguard.inputs import scan, sources
from labelguard.inputs.layouts import ID_EXPECTED, NO_ID, is_id
from labelguard.inputs.readers import identifier
from labelguard.inputs.sources import Input, Part
from labelguard.keys.identities import Identities, normal_form
from labelguard.keys.keyring import KeyRing
from labelguard.ledger.records import Groups
from labelguard.spelling import suggest
from labelguard.storage import blocks
from labelguard.text import pluralize

if TYPE_CHECKING:
    from labelguard.ledger.ledger import Ledger

COLUMNS = ("labeler_id", "group_id")
_WHERE = "read from"


def in_force(ledger: Ledger, unit: str) -> Groups | None:
    """Who belongs together in a project, if anybody: in groups, or as one person with several ids.

    Single labels, as units, belong to nobody; and groups of nobody matter to the unit `group` only.
    """
    groups = Groups(*ledger.people.members())
    return groups if unit == "group" or (unit == "labeler" and len(groups.labelers)) else None


def read_groups(
    source: Input, keys: KeyRing, namespace: str, scratch: Path | None = None
) -> tuple[Groups, Identities]:
    """Read who belongs together, and the forms of their ids: columns labeler_id and group_id, in
    any format of labels.

    Labelers that it does not name are units of their own. A group's pseudonym is a keyed hash of
    (namespace, group id), of another domain than those of labelers. Raises `InvalidLabels` for
    unreadable files, missing columns, empty ids, labelers in two groups, and ids of groups that
    differ only in how they are written.
    """
    found = read_ids(source, lambda names: COLUMNS, scratch)
    _refuse_clashes(found)
    labelers = keys.labeler_keys(namespace, found["labeler_id"])
    order = blocks.order(labelers)
    names = found["group_id"].unique(maintain_order=True)
    _refuse_spellings(names)
    groups = keys.group_keys(namespace, names)
    number = found["group_id"].replace_strict(names, np.arange(len(names)), return_dtype=pl.Int64)
    together = Groups(labelers[order], groups[number.to_numpy()[order]])
    return together, Identities.of(keys, namespace, found["labeler_id"].to_list(), labelers)


def read_ids(
    source: Input,
    choose: Callable[[Sequence[str]], Sequence[str]],
    scratch: Path | None = None,
) -> pl.DataFrame:
    """The distinct rows of columns of ids, as texts, with `read from`: where each stands first.

    `choose` picks the columns among those of the first part. Raises `InvalidLabels` for unreadable
    files, missing columns and empty ids.
    """
    parts = sources.parts(source, spool=scratch)
    with (
        tempfile.TemporaryDirectory(prefix="labelguard-", dir=scratch) as spill,
        scan.connect(Path(spill)) as connection,
    ):
        columns = choose(list(scan.columns(parts[0], connection)))
        allowed = sources.Allowance.of(parts, None)
        found = pl.concat(_read(part, connection, columns, allowed) for part in parts)
    if not len(found):
        raise InvalidLabels(f"{parts[0].name}: no rows in the input")
    return found.unique(columns, keep="first", maintain_order=True)


def _read(
    part: Part,
    connection: duckdb.DuckDBPyConnection,
    columns: Sequence[str],
    allowed: sources.Allowance,
) -> pl.DataFrame:
    """Columns of ids of one part as texts, with `read from`: where each row stands."""
    _check_columns(part, connection, columns)
    named = ", ".join(f"{identifier(name)}::VARCHAR AS {identifier(name)}" for name in columns)
    blanks = ", ".join(
        f"{queries.blank(identifier(name))} AS blank_{number}"
        for number, name in enumerate(columns)
    )
    query = f"WITH named AS (SELECT {named} FROM part) SELECT *, {blanks} FROM named"
    frames, rows = [], 0
    for batch in scan.batches(part, connection, query):
        allowed.take(part.name, batch.nbytes)
        frame = pl.DataFrame(pl.from_arrow(batch))
        for number, name in enumerate(columns):
            if (blank := frame[f"blank_{number}"]).any():
                row = rows + (blank.arg_max() or 0) + 1
                raise InvalidLabels(f"{part.name} row {row}: column {name}: {NO_ID}")
        rows += len(frame)
        frames.append(frame.select(columns))
    frame = pl.concat(frames) if frames else pl.DataFrame(schema=dict.fromkeys(columns, pl.String))
    where = pl.format("{} row {}", pl.lit(part.name), pl.int_range(1, pl.len() + 1))
    return frame.with_columns(where.alias(_WHERE))


def _check_columns(
    part: Part, connection: duckdb.DuckDBPyConnection, columns: Sequence[str]
) -> None:
    types = scan.columns(part, connection)
    for name in columns:
        if name not in types:
            free = tuple(column for column in types if column not in columns)
            raise InvalidLabels(
                f"{part.name}: no column {name}{suggest(name, free)}; expected "
                f"{' and '.join(columns)}; found: {', '.join(types)}"
            )
        if not is_id(types[name]):
            found = str(types[name])[:80]
            raise InvalidLabels(
                f"{part.name}: column {name}: expected {ID_EXPECTED}, found type {found}"
            )


def _refuse_spellings(names: pl.Series) -> None:
    """Raise `InvalidLabels` for two ids of groups, all distinct, that have one normal form."""
    met: dict[str, str] = {}
    for name in names.to_list():
        other = met.setdefault(normal_form(name), name)
        if other != name:
            raise InvalidLabels(
                f"group ids {other!a} and {name!a} differ only in how they are written; "
                "write one like the other"
            )


def _refuse_clashes(found: pl.DataFrame) -> None:
    """Raise `InvalidLabels` if a labeler is in two groups; `found` has distinct rows."""
    clashing = found.filter(pl.len().over("labeler_id") > 1)
    if not len(clashing):
        return
    labelers = clashing["labeler_id"]
    one, other = clashing.filter(pl.col("labeler_id") == labelers[0])[_WHERE][:2]
    raise InvalidLabels(
        f"{one} and {other}: the same labeler in two groups "
        f"({pluralize(labelers.n_unique(), 'such labeler')}); put everybody into one group"
    )
