"""A DuckDB engine that was started for one input serves the next: a tenth of a small release.

Users start an engine for each input, tests thousands. What is read lies in tables of its own, and
no file is cached from one input to the next.
"""

import os
import tempfile
import threading
from pathlib import Path

import duckdb

from labelguard.inputs import readers

# An engine that is started anew, as users have it.
of_its_own = readers.connect
_kept = threading.local()


def share():
    """From now on: one engine for each thread."""
    readers.connect = _of_all


def _of_all(scratch):
    """A connection of its own to the engine of this thread."""
    if not hasattr(_kept, "engine"):
        _kept.engine = of_its_own(Path(tempfile.gettempdir()) / f"labelguard-{os.getpid()}-spill")
        _kept.engine.execute("SET enable_external_file_cache = false")
    cursor: duckdb.DuckDBPyConnection = _kept.engine.cursor()
    return cursor
