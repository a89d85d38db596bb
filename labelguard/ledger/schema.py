"""The tables of the ledger. No labels, no prompts: counts, prices, releases and a journal."""

from __future__ import annotations

import sqlalchemy as sa

VERSION = 2
"""Of the tables below. Who changes them counts it up; a ledger with another number is refused."""

metadata = sa.MetaData()
meta = sa.Table(
    "meta",
    metadata,
    sa.Column("name", sa.String(40), primary_key=True),
    sa.Column("value", sa.String(200), nullable=False),
)
policies = sa.Table(
    "policies",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(64), nullable=False, unique=True),
    sa.Column("created_at", sa.String(20), nullable=False),
    sa.Column("settings", sa.Text, nullable=False),
    # What its allowances cost together, how that was computed, and by which version.
    sa.Column("quote", sa.Text, nullable=False),
    sa.Column("state", sa.String(8), nullable=False),  # draft, active, closed
)
allowances = sa.Table(
    "allowances",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("policy_id", sa.ForeignKey("policies.id"), nullable=False),
    sa.Column("event", sa.String(12), nullable=False),
    sa.UniqueConstraint("policy_id", "event"),
)
prices = sa.Table(
    "prices",
    metadata,
    sa.Column("allowance_id", sa.ForeignKey("allowances.id"), primary_key=True),
    sa.Column("k", sa.BigInteger, primary_key=True),
    # JSON: numbers by name, each as text, for thresholds reach 2^63 (`pricing.written`).
    sa.Column("price", sa.Text, nullable=False),
)
counters = sa.Table(
    "counters",
    metadata,
    # Of allowances and releases, but not declared so: a million checks would take seconds.
    sa.Column("allowance_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("labeler", sa.LargeBinary(16), primary_key=True),
    sa.Column("capacity", sa.BigInteger, nullable=False),
    sa.Column("used", sa.BigInteger, nullable=False),
    sa.CheckConstraint("used >= 0 AND used <= capacity", name="allowance"),
    sqlite_with_rowid=False,
    # Room for a new version of every row beside the old one: counting up touches no index.
    postgresql_with={"fillfactor": 50},
)
releases = sa.Table(
    "releases",
    metadata,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("number", sa.Integer, nullable=False, unique=True),
    sa.Column("idempotency_key", sa.String(64), nullable=False, index=True),
    sa.Column("allowance_id", sa.ForeignKey("allowances.id"), nullable=False),
    sa.Column("state", sa.String(12), nullable=False),
    sa.Column("created_at", sa.String(20), nullable=False),
    sa.Column("settings", sa.Text, nullable=False),
    sa.Column("charged", sa.BigInteger, nullable=False),
    sa.Column("rows", sa.BigInteger),
    sa.Column("files", sa.Text),
    # From `drawn` on: a keyed digest of the private map, and how many labels it holds.
    sa.Column("map", sa.String(64)),
    sa.Column("drawn", sa.BigInteger),
)
charges = sa.Table(
    "charges",
    metadata,
    sa.Column("release", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("labeler", sa.LargeBinary(16), primary_key=True),
    sa.Column("capacity", sa.BigInteger, nullable=False),
    sa.Column("labels", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
members = sa.Table(
    "members",
    metadata,
    sa.Column("labeler", sa.LargeBinary(16), primary_key=True),
    sa.Column("unit", sa.LargeBinary(16), nullable=False),
)
identities = sa.Table(
    "identities",
    metadata,
    sa.Column("release", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("labelers", sa.BigInteger, nullable=False),
    # Whom a release, or a list of groups (numbered below 0), was the first to name: for each the
    # pseudonym and the form of the id (see `labelguard.identities`), 16 bytes each, sorted. They
    # are always read together, and a million rows would take seconds.
    sa.Column("met", sa.LargeBinary, nullable=False),
)
# Pairs of labelers who are two people, though their ids have one form; the smaller one first.
distinct = sa.Table(
    "distinct_people",
    metadata,
    sa.Column("labeler", sa.LargeBinary(16), primary_key=True),
    sa.Column("other", sa.LargeBinary(16), primary_key=True),
)
sources = sa.Table(
    "sources",
    metadata,
    sa.Column("name", sa.String(200), primary_key=True),
    sa.Column("people", sa.String(8), nullable=False),  # first, new, known
    sa.Column("columns", sa.Text, nullable=False),  # role: column, as its releases read them
    sa.Column("at", sa.String(20), nullable=False),
)
tombstones = sa.Table(
    "tombstones",
    metadata,
    sa.Column("labeler", sa.LargeBinary(16), primary_key=True),
    sa.Column("kind", sa.String(8), nullable=False),  # retired, erased
    sa.Column("at", sa.String(20), nullable=False),
)
# Files of ingested answers that count (see `segmentbook`).
segments = sa.Table(
    "segments",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("name", sa.String(32), nullable=False, unique=True),
    sa.Column("connector", sa.String(64), nullable=False),
    sa.Column("source", sa.String(200), nullable=False),
    sa.Column("pulled", sa.Boolean, nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("cursor", sa.Text),
    sa.Column("at", sa.String(20), nullable=False),
)
journal = sa.Table(
    "journal",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("at", sa.String(20), nullable=False),
    sa.Column("kind", sa.String(20), nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("previous", sa.String(64), nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("mac", sa.String(64), nullable=False),  # of the digest, under the project's key
)
