"""How often units were charged, and since when: counts, from which budgets are forecast."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from labelguard.ledger import schema
from labelguard.ledger.policies import PolicyRecord

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Activity:
    """Units that were charged for one kind of event, those with the same numbers together; (n,).

    Without pseudonyms. Releases are given by their numbers.
    """

    units: Integers
    """how many have these numbers"""
    capacity: Integers
    """what the policy in force allows them; -1 for those whom it has not charged yet"""
    used: Integers
    """how much of that they used"""
    total: Integers
    """what they used under all policies"""
    first: Integers
    """the first release that charged them"""
    last: Integers
    """the last one"""
    departed: NDArray[np.bool_]
    """whether they were retired or erased"""


def activity(connection: sa.Connection, record: PolicyRecord, event: str) -> Activity:
    """What was charged for a kind of event, whichever policy paid; capacities are of `record`.

    One statement, which adds up a million units in the database in seconds.
    """
    charges, releases = schema.charges.c, schema.releases.c
    counters, tombstones = schema.counters, schema.tombstones
    of_event = sa.select(schema.allowances.c.id).where(schema.allowances.c.event == event)
    each = (
        sa.select(
            charges.labeler,
            sa.func.sum(charges.labels).label("total"),
            sa.func.min(charges.release).label("first"),
            sa.func.max(charges.release).label("last"),
        )
        .where(
            charges.release.in_(
                sa.select(releases.number).where(releases.allowance_id.in_(of_event))
            )
        )
        .group_by(charges.labeler)
        .subquery()
    )
    own = sa.and_(
        counters.c.allowance_id == record.allowance_ids[event],
        counters.c.labeler == each.c.labeler,
    )
    same = (
        sa.func.coalesce(counters.c.capacity, -1).label("capacity"),
        sa.func.coalesce(counters.c.used, 0).label("used"),
        *(each.c.total, each.c.first, each.c.last),
        sa.case((tombstones.c.labeler.is_not(None), 1), else_=0).label("departed"),
    )
    query = (
        sa.select(sa.func.count(), *same)
        .select_from(each)
        .outerjoin(counters, own)
        .outerjoin(tombstones, tombstones.c.labeler == each.c.labeler)
        .group_by(*same)
    )
    rows = np.array([[int(n) for n in row] for row in connection.execute(query)], np.int64)
    units, capacity, used, total, began, ended, departed = rows.reshape(-1, 7).T
    return Activity(units, capacity, used, total, began, ended, departed.astype(bool))
