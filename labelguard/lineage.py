"""Lineage: what keeps the coins of a restored project apart from those the lost one drew.

A coin depends on keys, labeler, item, version and threshold only, so that a crash draws it again.
A project that is restored from a backup has the keys, but no memory of labels that were released
after the backup. Under the same coins it would release such a label a second time, perhaps with
another value, and whether the two answers agree would show whether the labeler changed their mind.
So every restore begins a lineage, a random name that goes into the function that coins come from.
Row keys are left alone: labels that the backup remembers are found, and keep their values.
"""

from __future__ import annotations

import json

import sqlalchemy as sa

from labelguard import keys, tables


def begin() -> str:
    """A name that no project has had."""
    return keys.random_bytes(16).hex()


def newest(connection: sa.Connection) -> str:
    """The lineage that the journal's last `restored` entry began; empty if there is none."""
    own = tables.journal.c
    query = sa.select(own.body).where(own.kind == "restored").order_by(own.number.desc()).limit(1)
    body = connection.scalar(query)
    return str(json.loads(body)["lineage"]) if body else ""
