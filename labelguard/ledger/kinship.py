"""Who is one person with whom, and who is not: the ledger's statements behind `people link`.

Like `labelguard.people`; every function runs in the transaction of its caller.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import sqlalchemy as sa
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from labelguard.errors import PolicyError
from labelguard.ledger import database, digests, journal, people, schema
from labelguard.ledger.groups import Groups
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks
from labelguard.terms import counted


def join(connection: sa.Connection, labelers: Blocks, other: Blocks) -> int:
    """Each labeler is one person with the `other` in their row, both (n, 2); how many are in it.

    All labels of a person use the allowance of one unit: that of whoever was charged, or was in a
    group before. Raises `PolicyError` for people with two such units: what they spent apart cannot
    be added up; for two who were said to be distinct; and for somebody who has left.
    """
    everybody, row = blocks.unique(np.concatenate([labelers, other]))
    people.refuse_forgetful(connection)
    if (blocks.positions(people.tombstones(connection), everybody) >= 0).any():
        raise PolicyError(
            "one of these labelers has left, and who is one person with them has left as well: "
            "retire or erase the other id too; nothing was written"
        )
    known, groups = people.members(connection)
    before = Groups(known, groups).unit_of(everybody)
    units, unit = blocks.unique(before)
    person = _components(len(units), unit[row[: len(labelers)]], unit[row[len(labelers) :]])
    settled = blocks.positions(blocks.unique(groups)[0], units) >= 0
    settled |= blocks.positions(people.charged(connection), units) >= 0
    taken = np.bincount(person[settled], minlength=len(units))
    if (taken > 1).any():
        raise PolicyError(
            f"{counted(int((taken > 1).sum()), 'person')} would have been charged, or put into "
            "groups, as two: link people before the first charge of either; nothing was written"
        )
    unit_of = np.arange(len(units))
    unit_of[person[settled]] = np.flatnonzero(settled)
    now = units[unit_of[person[unit]]]
    _refuse_distinct(connection, Groups(everybody, now))
    new = blocks.positions(known, everybody) < 0
    # Whose key names the unit is a member as well: by that a person is told from a group.
    database.insert(connection, schema.members, {"labeler": everybody[new], "unit": now[new]})
    if new.any():
        body = {"labelers": int(new.sum()), "members": digests.members_digest(connection)}
        journal.append(connection, "linked", body)
    return int(new.sum())


def _components(count: int, one: NDArray[np.intp], other: NDArray[np.intp]) -> NDArray[np.intp]:
    """The smallest of `count` nodes that each is connected with, where edges are given."""
    links = sp.coo_matrix((np.ones(len(one), np.int8), (one, other)), (count, count))
    component = connected_components(links, directed=False)[1]
    found: NDArray[np.intp] = np.unique(component, return_index=True)[1][component]
    return found


def _refuse_distinct(connection: sa.Connection, groups: Groups) -> None:
    one, other = map(groups.unit_of, people.distinct(connection))
    if (one == other).all(axis=1).any():
        raise PolicyError(
            "two of these labelers were said to be two people (labelguard people list); nothing "
            "was written"
        )


def set_apart(connection: sa.Connection, pair: Blocks) -> bool:
    """Say that two labelers, (2, 2), are two people; whether that is new.

    Raises `PolicyError` if they are in one group, or one person.
    """
    units = Groups(*people.members(connection)).unit_of(pair)
    if (units[0] == units[1]).all():
        raise PolicyError("these ids are one person, or in one group; nothing was written")
    labeler, other = database.stored(blocks.unique(pair)[0])
    own = schema.distinct.c
    same = sa.and_(own.labeler == labeler, own.other == other)
    if connection.scalar(sa.select(own.labeler).where(same)):
        return False
    connection.execute(sa.insert(schema.distinct).values(labeler=labeler, other=other))
    journal.append(connection, "distinct", {"distinct": digests.distinct_digest(connection)})
    return True
