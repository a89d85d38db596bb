"""The tables of the ledger. No labels, no prompts: counts, prices, releases and a journal."""

from __future__ import annotations

import sqlalchemy as sa

SCHEMA_VERSION = 2

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
    sa.Column("created_at", sa.String(20), nullable=False),
    sa.Column("settings", sa.Text, nullable=False),
)
prices = sa.Table(
    "prices",
    metadata,
    sa.Column("policy_id", sa.ForeignKey("policies.id"), primary_key=True),
    sa.Column("k", sa.BigInteger, primary_key=True),
    # Thresholds of coins reach 2^63, beyond a signed integer.
    sa.Column("price", sa.String(20), nullable=False),
)
labelers = sa.Table(
    "labelers",
    metadata,
    sa.Column("labeler", sa.LargeBinary(16), primary_key=True),
    sa.Column("capacity", sa.BigInteger, nullable=False),
    sa.Column("used", sa.BigInteger, nullable=False),
    sa.CheckConstraint("used >= 0 AND used <= capacity", name="allowance"),
)
releases = sa.Table(
    "releases",
    metadata,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("number", sa.Integer, nullable=False, unique=True),
    sa.Column("idempotency_key", sa.String(64), nullable=False, index=True),
    sa.Column("policy_id", sa.ForeignKey("policies.id"), nullable=False),
    sa.Column("state", sa.String(12), nullable=False),
    sa.Column("created_at", sa.String(20), nullable=False),
    sa.Column("settings", sa.Text, nullable=False),
    sa.Column("charged", sa.BigInteger, nullable=False),
    sa.Column("rows", sa.BigInteger),
    sa.Column("files", sa.Text),
    # While computing: a keyed digest of what noise is about to hide (see Ledger.seal).
    sa.Column("seal", sa.String(64)),
)
charges = sa.Table(
    "charges",
    metadata,
    sa.Column("release_id", sa.ForeignKey("releases.id"), primary_key=True),
    sa.Column("labeler", sa.LargeBinary(16), primary_key=True),
    sa.Column("labels", sa.BigInteger, nullable=False),
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
)
