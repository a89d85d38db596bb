"""Files of pairs that say which side is preferred: a release's rows, or public probes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from polars.exceptions import PolarsError

from labelguard.errors import LabelguardError
from labelguard.learning.content import content_column, joined

__all__ = ["PAIRS", "check_pairs", "longer", "read_preferred", "scan_pairs"]

PAIRS = ("prompt", "chosen", "rejected")


def check_pairs(file: Path) -> None:
    """Raises `LabelguardError` unless a file holds pairs, each with three parts."""
    frame = scan_pairs(file)
    schema = frame.collect_schema()
    missing = [name for name in PAIRS if name not in schema]
    if missing:
        raise LabelguardError(f"{file} has no column {missing[0]}; wanted are {', '.join(PAIRS)}")
    for name in PAIRS:
        if not isinstance(schema[name], pl.String | pl.List | pl.Null):
            raise LabelguardError(f"{file}: column {name} must hold texts or chats")
    counts = frame.select(pl.len().alias("rows"), pl.col(PAIRS).null_count()).collect()
    if not counts["rows"][0]:
        raise LabelguardError(f"{file} holds no pair")
    for name in PAIRS:
        if counts[name][0]:
            raise LabelguardError(f"{file}: {counts[name][0]:,} rows have no {name}")


def read_preferred(file: Path) -> pa.Table:
    """Prompt, chosen and rejected of a file that `check_pairs` accepts, in its order."""
    check_pairs(file)
    return scan_pairs(file).select(PAIRS).collect().to_arrow()


def longer(pairs: pa.Table) -> NDArray[np.float64]:
    """Characters of `chosen` less those of `rejected`, (n,): the margins of length."""
    sides = [
        pc.utf8_length(joined(content_column(pairs, side), "")).to_numpy() for side in PAIRS[1:]
    ]
    return np.asarray(sides[0] - sides[1], np.float64)


def scan_pairs(file: Path) -> pl.LazyFrame:
    """The columns of a file, Parquet or JSON lines. Raises `LabelguardError` for anything else."""
    try:
        frame = pl.scan_parquet(file) if file.suffix == ".parquet" else pl.scan_ndjson(file)
        frame.collect_schema()
    except (PolarsError, OSError):
        raise LabelguardError(f"{file} cannot be read as Parquet or JSON lines") from None
    return frame
