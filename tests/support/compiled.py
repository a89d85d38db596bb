"""SQL that was compiled for one ledger serves the next: a quarter of what a small project takes.

SQLAlchemy compiles statements once for every engine. Users have one ledger, tests thousands.
"""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache


def share():
    """From now on: one cache for all engines, whose dialects are equal if they are of one kind."""
    for kind in (PGDialect_psycopg, SQLiteDialect_pysqlite):
        kind.__eq__ = lambda self, other: type(self) is type(other)  # type: ignore[method-assign]
        kind.__hash__ = lambda self: hash(type(self))  # type: ignore[method-assign]
    statements: LRUCache[object, object] = LRUCache(2_000)

    @sa.event.listens_for(sa.Engine, "engine_connect")
    def _shared(connection):
        connection.execution_options(compiled_cache=statements)
