"""The policies in the ledger: drafts, the one in force, those that were closed; and their ceiling.

A policy never changes. Another takes its place: the one in force is then closed, at its full
price, used or not, and the new one is paid on top.

The ceiling, what all policies together may cost a labeler for life, is fixed when the project is
made and checked in the transaction that charges or activates, so (ε, δ) of everything that is ever
released stays below it, however later policies were chosen. It can be raised, never lowered; from
then on only the raised one is promised (docs/guarantees.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Self

import sqlalchemy as sa

from labelguard import clock
from labelguard.budget import pricing
from labelguard.budget.event_kind import Price
from labelguard.budget.policy import Policy, check_budget
from labelguard.budget.pricing import Prices, Total
from labelguard.errors import LedgerError, PolicyError
from labelguard.ledger import journal, schema
from labelguard.ledger.database import Repository, in_snapshot, in_transaction
from labelguard.text import format_budget, format_number

# Name of the policy that the first `privatize` writes where none was made before.
IMPLICIT = "first"
# Journal entries that tell a ceiling; the newest is in force.
CEILINGS = ("created", "ceiling")


@dataclass(frozen=True)
class Ceiling:
    """ε and δ that the policies of a project stay below, together."""

    # ε of a labeler
    epsilon: float = 10.0
    # δ of a labeler
    delta: float = 1e-4

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta)

    def __str__(self) -> str:
        return format_budget(asdict(self))

    def to_journal(self) -> dict[str, float]:
        """As entries of the journal tell it."""
        return {"max_epsilon": self.epsilon, "max_delta": self.delta}

    @classmethod
    def from_journal(cls, body: Mapping[str, float]) -> Self:
        """Return the inverse of `to_journal`."""
        return cls(body["max_epsilon"], body["max_delta"])

    def check(self, total: Total) -> None:
        """Raise `PolicyError` if policies that cost `total` pass it."""
        if total.epsilon <= self.epsilon and total.delta <= self.delta:
            return
        needed = (max(total.epsilon, self.epsilon), max(total.delta, self.delta))
        numbers = ",".join(map(format_number, needed))
        raise PolicyError(
            f"the policies of this project would cost {format_budget(asdict(total))} over its "
            f"life, above its ceiling, {self}; nothing was charged; if it may cost that much: "
            f"labelguard project ceiling --raise {numbers}"
        )


DEFAULT = Ceiling()


@dataclass(frozen=True)
class PolicyRecord:
    """A policy as the ledger has it: `state` is draft, active or closed."""

    id: int
    name: str
    created_at: str
    policy: Policy
    quote: dict[str, Any]
    state: str
    allowance_ids: Mapping[str, int]
    prices: Prices


def add_policy(
    connection: sa.Connection, name: str, policy: Policy, state: str = "draft"
) -> PolicyRecord:
    """Store a new policy with its quote and prices; `PolicyError` if the name is taken."""
    if any(record.name == name for record in read_policies(connection)):
        raise PolicyError(
            f"there is a policy {name!r} already; policies never change: "
            "give the new one a name of its own"
        )
    quote, prices = pricing.compute_quote(policy)
    at = clock.now()
    number = 1 + (connection.scalar(sa.select(sa.func.max(schema.policies.c.id))) or 0)
    body = {"policy": number, "name": name, "settings": json.loads(policy.to_json())}
    connection.execute(
        sa.insert(schema.policies).values(
            id=number,
            name=name,
            created_at=at,
            settings=policy.to_json(),
            quote=json.dumps(quote, sort_keys=True),
            state=state,
        )
    )
    stored = {}
    for allowance in policy.allowances:
        identity = 1 + (connection.scalar(sa.select(sa.func.max(schema.allowances.c.id))) or 0)
        values = {"id": identity, "policy_id": number, "event": allowance.event}
        connection.execute(sa.insert(schema.allowances).values(values))
        stored[allowance.event] = store_prices(
            connection, identity, prices.get(allowance.event, {})
        )
    body |= {"quote": quote, "prices": stored, "state": state}
    journal.append_entry(connection, "policy", body, at)
    return next(record for record in read_policies(connection) if record.id == number)


def store_prices(
    connection: sa.Connection, allowance_id: int, prices: Mapping[int, Price]
) -> dict[str, dict[str, str]]:
    """Store the price of every k that has none yet; returns what is new, as the journal has it."""
    query = sa.select(schema.prices.c.k).where(schema.prices.c.allowance_id == allowance_id)
    stored = set(connection.scalars(query))
    new = {k: pricing.format_price(price) for k, price in prices.items() if k not in stored}
    if new:
        rows = [
            {"allowance_id": allowance_id, "k": k, "price": json.dumps(price, sort_keys=True)}
            for k, price in new.items()
        ]
        connection.execute(sa.insert(schema.prices), rows)
    return {str(k): price for k, price in new.items()}


def activate_draft(connection: sa.Connection, name: str) -> PolicyRecord:
    """Put a draft into force; the policy in force before is closed.

    Raises `PolicyError` if there is no such draft, or the project's ceiling would be passed.
    """
    record = _find_draft(connection, name)
    before = find_active(connection)
    if before:
        close_policy(connection, before)
    _update_policy(connection, record.id, state="active")
    check_ceiling(connection)
    journal.append_entry(connection, "activated", {"policy": record.id, "name": name})
    return next(record for record in read_policies(connection) if record.name == name)


def drop_draft(connection: sa.Connection, name: str) -> None:
    """Remove a draft. Raises `PolicyError` if there is none of that name."""
    record = _find_draft(connection, name)
    for table, column, value in (
        (schema.prices, schema.prices.c.allowance_id, list(record.allowance_ids.values())),
        (schema.allowances, schema.allowances.c.policy_id, [record.id]),
        (schema.policies, schema.policies.c.id, [record.id]),
    ):
        connection.execute(sa.delete(table).where(column.in_(value)))
    journal.append_entry(connection, "dropped", {"policy": record.id, "name": name})


def _find_draft(connection: sa.Connection, name: str) -> PolicyRecord:
    for record in read_policies(connection):
        if record.name == name and record.state == "draft":
            return record
    raise PolicyError(f"{name!r} is no draft of this project; see: labelguard policy show")


def close_policy(connection: sa.Connection, record: PolicyRecord) -> None:
    """Allow no more charges under a policy; it stays paid in full."""
    _update_policy(connection, record.id, state="closed")
    journal.append_entry(connection, "closed", {"policy": record.id, "name": record.name})


def read_history(connection: sa.Connection) -> list[Policy]:
    """Return the policies that were or are in force, oldest first: each is paid in full."""
    return [record.policy for record in read_policies(connection) if record.state != "draft"]


def check_ceiling(connection: sa.Connection) -> None:
    """Raise `PolicyError` if the policies that were or are in force pass the project's ceiling."""
    read_ceiling(connection).check(pricing.sum_budgets(read_history(connection)))


def read_ceiling(connection: sa.Connection) -> Ceiling:
    """Return the ceiling in force, from the journal's newest entry that tells one.

    Raises `LedgerError` if the project did not write that entry.
    """
    own = schema.journal
    query = sa.select(own).where(own.c.kind.in_(CEILINGS))
    row = connection.execute(query.order_by(own.c.number.desc()).limit(1)).one()
    entry = journal.Entry(*row)
    fault = journal.find_first_forgery([entry], journal.find_signer(connection))
    if fault:
        raise LedgerError(f"the project's ceiling is not known: {fault}; put a true copy back")
    return Ceiling.from_journal(json.loads(entry.body))


def raise_ceiling(connection: sa.Connection, raised: Ceiling) -> None:
    """Put a higher ceiling into force. Raises `PolicyError` if it is lower than the present one."""
    check_is_higher(read_ceiling(connection), raised)
    journal.append_entry(connection, "ceiling", raised.to_journal())


def check_is_higher(present: Ceiling, raised: Ceiling) -> None:
    """Raise `PolicyError` unless `raised` is above the present one in ε or δ, in neither below."""
    lower = raised.epsilon < present.epsilon or raised.delta < present.delta
    if lower or raised == present:
        raise PolicyError(
            f"the ceiling is {present}; it can be raised, never lowered; not to {raised}"
        )


def find_active(connection: sa.Connection) -> PolicyRecord | None:
    """Return the policy in force, if any."""
    return next((record for record in read_policies(connection) if record.state == "active"), None)


def read_policies(connection: sa.Connection) -> list[PolicyRecord]:
    """Return all policies, oldest first."""
    own, allowances, prices = schema.policies.c, schema.allowances.c, schema.prices.c
    query = (
        sa.select(schema.policies, allowances.id.label("allowance"), allowances.event)
        .add_columns(prices.k, prices.price)
        .outerjoin_from(schema.policies, schema.allowances, allowances.policy_id == own.id)
        .outerjoin(schema.prices, prices.allowance_id == allowances.id)
        .order_by(own.id, allowances.id, prices.k)
    )
    rows = groupby(connection.execute(query), lambda row: row.id)  # one for each price
    return [_build_record(list(of_policy)) for _, of_policy in rows]


def _build_record(rows: Sequence[Any]) -> PolicyRecord:
    """Return a policy from its rows: one for each allowance and each price of it."""
    first = rows[0]
    allowance_ids = {row.event: row.allowance for row in rows if row.event is not None}
    prices: dict[str, dict[int, Price]] = {event: {} for event in allowance_ids}
    for row in rows:
        if row.k is not None:
            prices[row.event][row.k] = pricing.parse_price(json.loads(row.price))
    return PolicyRecord(
        first.id,
        first.name,
        first.created_at,
        Policy.from_json(first.settings),
        json.loads(first.quote),
        first.state,
        allowance_ids,
        prices,
    )


def _update_policy(connection: sa.Connection, number: int, **values: Any) -> None:
    connection.execute(
        sa.update(schema.policies).where(schema.policies.c.id == number).values(**values)
    )


def read_prices(connection: sa.Connection, event: str) -> dict[int, Price]:
    """Return the stored price of every k, for one kind of event, under the policy in force."""
    active = find_active(connection)
    return dict(active.prices.get(event, {})) if active else {}


class PolicyRepository(Repository):
    """The policies of a ledger, and their ceiling."""

    all = in_snapshot(read_policies)
    active = in_snapshot(find_active)
    history = in_snapshot(read_history)
    prices = in_snapshot(read_prices)
    ceiling = in_snapshot(read_ceiling)
    raise_ceiling = in_transaction(raise_ceiling)
    add = in_transaction(add_policy)
    activate = in_transaction(activate_draft)
    close = in_transaction(close_policy)
    drop = in_transaction(drop_draft)
