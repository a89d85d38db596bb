"""One statistic release of a million pairs: seconds and memory, against one product XᵀX.

    python bench/statistic_core.py          # --pairs, --features, --labelers for other sizes

The release is everything after the features: principal axes, coordinates, bounds and sensitivity,
the exact sum, noise, and the fit of a head. The floor reads the same matrix once, block by
block: XᵀX in double precision, which the principal axes need anyway, and for comparison in single.

Seconds mean something on a machine that does nothing else. OPENBLAS_NUM_THREADS=1 is slower and
steadier.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from _measure import measure, report
from numpy.typing import NDArray

from labelguard.accounting import gaussian
from labelguard.learning import heads
from labelguard.mechanisms import geometry, statistic
from labelguard.mechanisms.geometry import Shape
from labelguard.mechanisms.noise import Noise
from labelguard.mechanisms.statistic import Rows

EPSILON, DELTA = 1.0, 1e-5
BLOCK = 1 << 15
WANTED_SECONDS, WANTED_GB, WANTED_RATIO = 20, 6, 6


def matrix(pairs: int, features: int) -> NDArray[np.float32]:
    """Random features whose k-th axis has variance 1/k, turned by a random rotation."""
    generator = np.random.default_rng(0)
    scale = np.arange(1, features + 1, dtype=np.float32) ** -0.5
    rotation = np.linalg.qr(generator.standard_normal((features, features)))[0].astype(np.float32)
    x = np.empty((pairs, features), np.float32)
    for start in range(0, pairs, BLOCK):
        rows = x[start : start + BLOCK]
        drawn = generator.standard_normal(rows.shape, dtype=np.float32)
        np.matmul(drawn * scale, rotation, out=rows)
    return x


def labels(pairs: int, labelers: int) -> tuple[Rows, NDArray[np.uint8]]:
    """One label of each pair, by labelers of whom some are ten times as busy as others."""
    generator = np.random.default_rng(1)
    share = generator.exponential(size=labelers) + 0.1
    unit = generator.choice(labelers, pairs, p=share / share.sum())
    return Rows(np.arange(pairs), unit, labelers), generator.integers(0, 3, pairs, dtype=np.uint8)


def floor(pairs: int, features: int, precision: str) -> float:
    """Seconds of XᵀX, its blocks multiplied in `precision` and added up in double."""
    x = matrix(pairs, features)
    start = time.perf_counter()
    total = np.zeros((features, features))
    for begin in range(0, pairs, BLOCK):
        rows = x[begin : begin + BLOCK].astype(precision, copy=False)
        total += rows.T @ rows
    return time.perf_counter() - start


def release(pairs: int, features: int, labelers: int) -> dict[str, float]:
    """Seconds of each step of a release with as many components as features."""
    x = matrix(pairs, features)
    rows, given = labels(pairs, labelers)
    shape = Shape(components=features)
    watch = _Watch()
    axes = geometry.compute_spectrum(x)
    basis = geometry.choose_basis(axes, shape)
    watch.lap("principal axes")
    z = basis.coordinates(x)
    watch.lap("coordinates")
    bounds = statistic.compute_bounds(z, rows, shape.clip_quantile)
    watch.lap("bounds")
    noise = Noise("gaussian", gaussian.calibrate(EPSILON, DELTA))
    grid = statistic.choose_grid(bounds, features, noise)
    total = statistic.clip_and_sum_labels(z, rows, given, bounds, grid.step)
    watch.lap("exact sum")
    released = np.asarray(statistic.add_noise(total, grid, bytes(32)) * grid.step, np.float64)
    watch.lap("noise")
    weight = statistic.sum_pair_weights(rows, bounds, pairs)
    penalty = shape.ridge * basis.metric**2
    ridge = statistic.compute_noise_aware_ridge(z, weight, penalty, grid.deviation)
    watch.lap("ridge")
    heads.fit_statistic(z, weight, released, ridge)
    watch.lap("fit")
    return watch.seconds


class _Watch:
    """Seconds between laps."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = round(now - self._last, 2)
        self._last = now


def main() -> None:
    """The floor and the release, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=384)
    parser.add_argument("--labelers", type=int, default=20_000)
    sizes = parser.parse_args()
    double, single = (
        measure(floor, sizes.pairs, sizes.features, precision)["result"]
        for precision in ("float64", "float32")
    )
    done = measure(release, sizes.pairs, sizes.features, sizes.labelers)
    steps: dict[str, float] = done["result"]
    seconds = sum(steps.values())
    rows: list[list[Any]] = [[name, f"{lap:.2f}", ""] for name, lap in steps.items()]
    rows += [
        ["release, seconds", f"{seconds:.1f}", f"≤ {WANTED_SECONDS}"],
        ["release, peak memory (GB)", f"{done['peak_gb']:.2f}", f"≤ {WANTED_GB}"],
        ["XᵀX in double precision, seconds", f"{double:.2f}", ""],
        ["XᵀX in single precision, seconds", f"{single:.2f}", ""],
        ["release / XᵀX in double precision", f"{seconds / double:.1f}", f"≤ {WANTED_RATIO}"],
        ["release / XᵀX in single precision", f"{seconds / single:.1f}", ""],
    ]
    report("statistic_core", ["what", "measured", "wanted"], rows)


if __name__ == "__main__":
    main()
