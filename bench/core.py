"""The small costs: the coin core, calibration of a million labelers, start-up of the command line.

python bench/core.py
"""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
from _measure import report

from labelguard.accounting import randomized_response as rr
from labelguard.accounting.blocks import PAIR
from labelguard.keys.coins import Coins
from labelguard.keys.keyring import random_bytes
from labelguard.keys.prf import RowKeys
from labelguard.mechanisms.randomized_response import NOTHING, LabelBlocks, randomize
from labelguard.storage import blocks
from labelguard.text import LABEL_TIE


def core(rows: int = 5_000_000, labelers: int = 20_000) -> float:
    """Labels a second on one core: row keys, coins and flips, from Arrow columns to one."""
    generator = np.random.default_rng(0)
    table = pa.table(
        {
            "label": generator.integers(0, 3, rows, dtype=np.uint8),
            "unit": generator.integers(0, labelers, rows),
            "item_hi": generator.integers(0, 1 << 63, rows, dtype=np.uint64),
            "item_lo": generator.integers(0, 1 << 63, rows, dtype=np.uint64),
        }
    )
    coins, names = Coins.fresh(), RowKeys(random_bytes(32))
    known = blocks.from_bytes(random_bytes(16 * labelers))
    threshold = rr.threshold(0.1)
    start = time.perf_counter()
    for begin in range(0, rows, 250_000):  # a bucket at a time, as the pipeline does
        part = table.slice(begin, 250_000)
        columns = [part[name].chunk(0).to_numpy() for name in table.column_names]
        label, unit, items = columns[0], columns[1], np.stack(columns[2:], axis=1)
        row_keys = names.keys(names.identify(known[unit], items), np.zeros(len(label), np.uint16))
        letters = np.full(len(label), PAIR, np.int64)
        together = LabelBlocks.of_rows(unit, letters, threshold)
        true = np.where(label == LABEL_TIE, NOTHING, label.astype(np.int16))
        pa.array(randomize(true, letters, coins, row_keys, together))
    return rows / (time.perf_counter() - start)


def calibration(labelers: int = 1_000_000, distinct: int = 2_000) -> float:
    """Seconds to price a million labelers with 2,000 distinct counts."""
    counts = np.random.default_rng(1).integers(1, distinct + 1, labelers)
    start = time.perf_counter()
    for count in np.unique(counts).tolist():
        rr.calibrate(3.0, 1e-6, count)
    return time.perf_counter() - start


def command(*arguments: str) -> float:
    """Seconds of a command, the best of five."""
    program = [sys.executable, "-m", "labelguard", *arguments]
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run(program, check=True, capture_output=True)
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    """Measure and report."""
    rows = [
        ["coin core, labels/s on one core", f"{core():,.0f}", "≥ 3,000,000"],
        ["calibrate 1M labelers, 2,000 counts", f"{calibration():.2f} s", "≤ 3 s"],
        ["labelguard --help", f"{command('--help'):.2f} s", "≤ 0.35 s"],
    ]
    report("core", ["what", "measured", "wanted"], rows)


if __name__ == "__main__":
    main()
