"""Verify a ledger: the journal's chain, and every table against the journal.

The chain alone would not notice an entry removed from its end, or a table that was edited; so the
journal also says how much each release charged to whom, at which prices, and what it published.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from labelguard.ledger import charges, journal, people, schema, sources

_STATES = {"charged": "reserved"} | {
    state: state for state in ("computing", "drawn", "committed", "refunded", "abandoned")
}
_POLICY_STATES = {"activated": "active", "closed": "closed"}
# Entries that say how much is used.
_COUNTED = ("charged", "refunded")
# What an entry of each kind tells the date of.
_DATED = {"policy": "policy", "charged": "release", "retired": "labeler", "erased": "labeler"}
_POLICY_FACTS = ("name", "settings", "quote", "state")
_Entries = Sequence[tuple[str, Mapping[str, Any]]]


def find_fault(connection: sa.Connection, entries: Sequence[journal.Entry]) -> str | None:
    """Return the first thing in the ledger that does not hold, or None."""
    broken = find_terms_fault(connection, entries)
    if broken:
        return broken
    read = _parse_entries(entries)
    return (
        _find_sum_fault(connection)
        or _find_release_fault(connection, read)
        or _find_people_fault(connection, read)
        or _find_date_fault(connection, entries)
    )


def find_terms_fault(connection: sa.Connection, entries: Sequence[journal.Entry]) -> str | None:
    """Return what does not hold of the journal, the policies or the prices, or None.

    Whoever edits a stored price would take the noise from every release that follows.
    """
    broken = journal.find_first_fault(entries) or journal.find_first_forgery(
        entries, journal.find_signer(connection)
    )
    read = [] if broken else _parse_entries(entries)
    return broken or _find_policy_fault(connection, read) or _find_price_fault(connection, read)


def find_total_uses_fault(
    connection: sa.Connection, entries: Sequence[journal.Entry], policy: int, event: str
) -> str | None:
    """Return what does not hold of all uses of an event together under a policy, or None.

    One sum, so that every charge can afford it: whoever edits a counter would be charged again for
    what they have used up. That each labeler's uses hold, only `find_fault` tells.
    """
    charged: dict[str, int] = {}
    for kind, body in _parse_entries([one for one in entries if one.kind in _COUNTED]):
        if kind == "refunded":
            charged.pop(body["release"], None)
        elif (body["policy"], body["event"]) == (policy, event):
            charged[body["release"]] = body["labels"]
    a, counters = schema.allowances.c, schema.counters.c
    allowance = sa.select(a.id).where(a.policy_id == policy, a.event == event).scalar_subquery()
    used = sa.select(sa.func.sum(counters.used)).where(counters.allowance_id == allowance)
    if (connection.scalar(used) or 0) == sum(charged.values()):
        return None
    return (
        f"the uses of {event} do not add up to what the journal says was charged; "
        "labelguard budget verify tells more"
    )


def _parse_entries(entries: Sequence[journal.Entry]) -> _Entries:
    return [(entry.kind, json.loads(entry.body)) for entry in entries]


def _find_policy_fault(connection: sa.Connection, entries: _Entries) -> str | None:
    """Return the first policy that differs from the journal, or None."""
    story: dict[int, dict[str, Any]] = {}
    for kind, body in entries:
        if kind == "policy":
            story[body["policy"]] = {name: body[name] for name in _POLICY_FACTS}
        elif kind == "dropped":
            del story[body["policy"]]
        elif kind in _POLICY_STATES:
            story[body["policy"]]["state"] = _POLICY_STATES[kind]
    rows = {row.id: row for row in connection.execute(sa.select(schema.policies))}
    for number in sorted(rows.keys() | story.keys()):
        row, tale = rows.get(number), story.get(number)
        if row is None or tale is None:
            return f"policy {number} is not the one in the journal"
        facts = (row.name, json.loads(row.settings), json.loads(row.quote), row.state)
        if facts != tuple(tale[name] for name in _POLICY_FACTS):
            return f"policy {number} is not the one in the journal"
    return None


def _find_price_fault(connection: sa.Connection, entries: _Entries) -> str | None:
    prices: dict[tuple[int, str], dict[str, Any]] = defaultdict(dict)
    for kind, body in entries:
        if kind == "policy":
            for event, added in body["prices"].items():
                prices[body["policy"], event].update(added)
        elif kind == "dropped":
            for dropped in [key for key in prices if key[0] == body["policy"]]:
                del prices[dropped]
        elif kind == "charged":
            prices[body["policy"], body["event"]].update(body["prices"])
    rows = connection.execute(sa.select(schema.allowances))
    allowances = {row.id: (row.policy_id, row.event) for row in rows}
    stored: dict[tuple[int, str], dict[str, Any]] = defaultdict(dict)
    for row in connection.execute(sa.select(schema.prices)):
        stored[allowances.get(row.allowance_id, (0, ""))][str(row.k)] = json.loads(row.price)
    if {k: v for k, v in prices.items() if v} != dict(stored):
        return "the prices are not those in the journal"
    return None


def _find_sum_fault(connection: sa.Connection) -> str | None:
    """Return a labeler whose uses are not the sum of their charges, or charges of no release."""
    charged, releases, counters = schema.charges.c, schema.releases.c, schema.counters.c
    sums = (
        sa.select(
            releases.allowance_id,
            charged.labeler,
            sa.func.min(charged.capacity).label("least"),
            sa.func.max(charged.capacity).label("most"),
            sa.func.sum(charged.labels).label("used"),
        )
        .join_from(schema.charges, schema.releases, releases.number == charged.release)
        .group_by(releases.allowance_id, charged.labeler)
    )
    least, most = counters.capacity.label("least"), counters.capacity.label("most")
    book = sa.select(counters.allowance_id, counters.labeler, least, most, counters.used)
    for left, right in ((book, sums), (sums, book)):
        labeler = sa.except_(left, right).subquery().c.labeler
        differing = connection.scalar(sa.select(labeler).order_by(labeler).limit(1))
        if differing is not None:
            return f"labeler {bytes(differing).hex()}: the charges do not add up to what is used"
    orphans = sa.select(charged.release).where(charged.release.not_in(sa.select(releases.number)))
    orphan = connection.scalar(orphans.limit(1))
    if orphan is not None:
        return f"there are charges for release number {orphan}, which there is none of"
    return None


def _find_release_fault(connection: sa.Connection, entries: _Entries) -> str | None:
    """Return the first release that differs from the journal, in the journal's order, or None."""
    stories: dict[str, dict[str, Any]] = defaultdict(dict)
    for kind, body in entries:
        if kind in _STATES:
            stories[body["release"]].update(body, state=_STATES[kind])
        elif kind == "rewritten":  # somebody left: their rows were taken out of private maps
            for release, digest in body["maps"].items():
                stories[release]["map"] = digest
    query = sa.select(schema.releases).order_by(schema.releases.c.number)
    records = {row.id: row for row in connection.execute(query)}
    for release in [*stories, *(name for name in records if name not in stories)]:
        record, story = records.get(release), stories.get(release)
        if record is None:
            return f"release {release} is in the journal, but not among the releases"
        if story is None:
            return f"release {release} is not in the journal"
        refunded = story["state"] == "refunded"
        facts = (record.state, record.rows, json.loads(record.files or "null"), record.charged)
        request = charges.digest_request(record.idempotency_key, record.settings)
        if (*facts, record.map, record.drawn, request) != (
            story["state"],
            story.get("rows"),
            story.get("files"),
            0 if refunded else story["labels"],
            story.get("map"),
            story.get("drawn"),
            story["request"],
        ):
            return f"release {release} is not what the journal says of it"
        if not refunded and charges.digest_stored_charges(connection, record.number) != story.get(
            "charges"
        ):
            return f"release {release}: its charges are not those in the journal"
    return None


def _find_people_fault(connection: sa.Connection, entries: _Entries) -> str | None:
    """Return which table of people, sources or segments differs from the journal, or None."""
    for name, table, digest in (
        ("links", schema.links, people.digest_links),
        ("tombstones", schema.tombstones, people.digest_tombstones),
        ("sources", schema.sources, sources.digest_sources),
        ("segments", schema.segments, sources.digest_segments),
    ):
        digests = [body[name] for _, body in entries if name in body]
        rows = connection.scalar(sa.select(sa.func.count()).select_from(table))
        if digest(connection) != digests[-1] if digests else rows:
            return f"the {name} are not those in the journal"
    met: dict[str, str] = {}
    for _, body in entries:
        met |= body.get("identities", {})
    own = schema.identities.c
    # The digests are of whom a release met; beside them stands how many, 32 bytes each.
    miscounted = sa.select(own.release).where(own.labelers * 32 != sa.func.length(own.met))
    if people.digest_identities(connection) != met or connection.scalar(miscounted.limit(1)):
        return "the identities are not those in the journal"
    return None


def _find_date_fault(connection: sa.Connection, entries: Sequence[journal.Entry]) -> str | None:
    """Return what is dated otherwise than the entry of the journal that tells of it, or None."""
    dates = {
        (what, str(json.loads(entry.body)[what])): entry.at
        for entry in entries
        if (what := _DATED.get(entry.kind))
    }
    policies, releases, left = schema.policies.c, schema.releases.c, schema.tombstones.c
    for what, name, at in (
        ("policy", policies.id, policies.created_at),
        ("release", releases.id, releases.created_at),
        ("labeler", left.labeler, left.at),
    ):
        for key, date in connection.execute(sa.select(name, at).order_by(name)):
            text = bytes(key).hex() if what == "labeler" else str(key)
            if dates.get((what, text)) != date:
                return f"{what} {text} is dated {date}, and otherwise in the journal"
    return None
