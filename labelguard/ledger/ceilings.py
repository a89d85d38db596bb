"""The ceiling of a project: what all its policies together may cost a labeler, for life.

It is fixed when the project is made and checked in the transaction that charges or activates, so
(ε, δ) of everything that is ever released stays below it, however later policies were chosen. It
can be raised, never lowered; from then on only the raised one is promised (docs/guarantees.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self

import sqlalchemy as sa

from labelguard.errors import LedgerError, PolicyError
from labelguard.ledger import journal, schema
from labelguard.policy.lifetime import Total
from labelguard.policy.policy import check_budget
from labelguard.terms import budget_of

KINDS = ("created", "ceiling")
"""Journal entries that tell a ceiling; the newest is in force."""


@dataclass(frozen=True)
class Ceiling:
    """ε and δ that the policies of a project stay below, together."""

    epsilon: float = 10.0
    """ε of a labeler"""
    delta: float = 1e-4
    """δ of a labeler"""

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta)

    def __str__(self) -> str:
        return budget_of(asdict(self))

    def to_journal(self) -> dict[str, float]:
        """As entries of the journal tell it."""
        return {"max_epsilon": self.epsilon, "max_delta": self.delta}

    @classmethod
    def from_journal(cls, body: Mapping[str, float]) -> Self:
        """The inverse of `to_journal`."""
        return cls(body["max_epsilon"], body["max_delta"])

    def check(self, total: Total) -> None:
        """Raise `PolicyError` if policies that cost `total` pass it."""
        if total.epsilon <= self.epsilon and total.delta <= self.delta:
            return
        needed = (max(total.epsilon, self.epsilon), max(total.delta, self.delta))
        numbers = ",".join(repr(float(value)).removesuffix(".0") for value in needed)
        raise PolicyError(
            f"the policies of this project would cost {budget_of(asdict(total))} over its life, "
            f"above its ceiling, {self}; nothing was charged; if it may cost that much: "
            f"labelguard project ceiling --raise {numbers}"
        )


DEFAULT = Ceiling()


def of(connection: sa.Connection) -> Ceiling:
    """The ceiling in force, from the journal's newest entry that tells one.

    Raises `LedgerError` if the project did not write that entry.
    """
    own = schema.journal
    query = sa.select(own).where(own.c.kind.in_(KINDS))
    row = connection.execute(query.order_by(own.c.number.desc()).limit(1)).one()
    entry = journal.Entry(*row)
    fault = journal.first_forged([entry], journal.mac(connection))
    if fault:
        raise LedgerError(f"the project's ceiling is not known: {fault}; put a true copy back")
    return Ceiling.from_journal(json.loads(entry.body))


def raise_to(connection: sa.Connection, ceiling: Ceiling) -> None:
    """Promise no more than `ceiling` from now on. Raises `PolicyError` if that lowers it."""
    check_raise(of(connection), ceiling)
    journal.append(connection, "ceiling", ceiling.to_journal())


def check_raise(present: Ceiling, ceiling: Ceiling) -> None:
    """Raise `PolicyError` unless `ceiling` is above the present one, in ε, in δ, or both."""
    lower = ceiling.epsilon < present.epsilon or ceiling.delta < present.delta
    if lower or ceiling == present:
        raise PolicyError(
            f"the ceiling is {present}; it can be raised, never lowered; asked: {ceiling}"
        )
