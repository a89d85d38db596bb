"""Time the first step of `plan` and `--mechanism auto`: features, then the forecast at one ε.

    python bench/forecast.py                # --labels, --labelers, --items for other sizes
    python bench/forecast.py --features random      # 384 random numbers a pair: a sentence encoder

Labels are simulated; the forecast reads none. The floor is one product XᵀX in double precision of
the pairs' features, which the principal axes need anyway.

Seconds mean something on a machine that does nothing else: where other programs take turns on its
cores, the threads of a product wait for each other. `--cpu` counts the seconds of all threads.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from _measure import measure, report
from numpy.typing import NDArray

from labelguard.inputs.pairs import read_public_pairs
from labelguard.learning.features import fit_features
from labelguard.planner import tuning
from labelguard.simulation import simulate
from labelguard.text import no_progress

EPSILON, DELTA = 1.0, 1e-5
DIMENSIONS = 384
WANTED_SECONDS = 10


def random_features(pairs: int) -> NDArray[np.float32]:
    """Return features whose axes have standard deviations from 1 down to 0.05."""
    generator = np.random.default_rng(0)
    scale = np.geomspace(1, 0.05, DIMENSIONS)
    return (generator.standard_normal((pairs, DIMENSIONS)) * scale).astype(np.float32)


def first_choice(config: dict[str, int], spec: str, cpu: bool) -> dict[str, Any]:
    """Return the seconds of each step, and the mechanism that is chosen."""
    clock = time.process_time if cpu else time.perf_counter
    table = simulate(**config)
    laps = [clock()]
    named = "length" if spec == "random" else spec
    pairs = read_public_pairs(table, features=named)
    laps.append(clock())
    count = pairs.table.num_rows
    if spec == "random":
        x = random_features(count)
    else:
        x = fit_features(spec, pairs.table, no_progress)[1]
    laps.append(clock())
    sizing = tuning.recommend(x, pairs.rows, EPSILON, DELTA)
    laps.append(clock())
    wide = x.astype(np.float64)
    start = clock()
    wide.T @ wide
    floor = clock() - start
    names = ("reading", "features", "recommend")
    seconds = dict(zip(names, np.diff(laps).round(2).tolist(), strict=True))
    return {**seconds, "XᵀX": round(floor, 3), "chosen": sizing.mechanism}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--labels", type=int, default=84_000)
    parser.add_argument("--labelers", type=int, default=3_800)
    parser.add_argument("--items", type=int, default=40_000)
    parser.add_argument("--features", default="text+length")
    parser.add_argument("--cpu", action="store_true", help="seconds of all threads")
    asked = parser.parse_args()
    config = {name: getattr(asked, name) for name in ("labels", "labelers", "items")}
    found = measure(first_choice, config, asked.features, asked.cpu)
    rows = [*found["result"].items(), ("peak GB", found["peak_gb"])]
    report(f"forecast at ε = {EPSILON:g}, seconds (wanted: ≤ {WANTED_SECONDS})", ["", ""], rows)


if __name__ == "__main__":
    main()
