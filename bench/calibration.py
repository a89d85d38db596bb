"""Whether probabilities and forecasts hold on labelers whom nothing was tuned on.

    python bench/calibration.py --data DIR --cache DIR

On three public sets, with 20, 50 and all training labelers and ε = .5, 1 and 3, a statistic is
released as planned, and a fifth of the labelers are held out. *Calibration error*: the gap, in ten
bins of equal count, between what the head says and how often held-out labelers say so, less the
mean of the same number where labels are drawn anew from what the head says and held-out labelers
are drawn again as wholes; `best` is that of the best of some scales, known in hindsight alone.
*Forecast*: the accuracy that the head has on held-out labelers, a mean over splits, beside the mean
90% range that is forecast without labels. Both with the agreement of the set's labelers given
(`given`) and without (`range`).

It reads raw labels, which a benchmark on public research data may do. Finished runs are lines of
`--results` and are not run again by the same code; features are kept in `--cache`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pickle
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from _measure import report
from numpy.typing import NDArray
from utility.datasets import SPECS, Dataset, Problem, load, split
from utility.results import Record, Store, code_version

from labelguard.learning import heads
from labelguard.mechanisms import geometry, statistic
from labelguard.planner import calibration, components
from labelguard.planner.prior import Prior
from labelguard.planner.trials import Worlds
from labelguard.planner.tuning import DRAWS
from labelguard.text import LABEL_A

Floats = NDArray[np.float64]

# Features, the fewest labels of a labeler where few train, and how often two labelers agree.
SETS = {
    "ukpconvarg1": ("length+style+minilm", 20, 0.73),
    "llmfao_crowd": ("length+style+minilm", 0, 0.70),
    "wmt15_rankings": ("names", 0, 0.80),
}
SIZES = (20, 50, None)
EPSILONS = (0.5, 1.0, 3.0)
DELTA = 1e-5
BINS, REPEATS = 10, 20
SCALES = tuple(np.geomspace(0.25, 8, 11))
WANTED = "error <= .03 from 50 labelers on, else .05; ranges hold 85% of cells, 75% of each set's"


def problems(name: str, data: Path, cache: Path, splits: int) -> Iterator[tuple[Any, int, Problem]]:
    """Yield labelers, seed and problem of every split; of large sets half as many."""
    features, least, _ = SETS[name]
    file = cache / f"{name}-{features}.pickle"
    if not file.is_file():
        file.write_bytes(pickle.dumps(load(data, SPECS[name], features)))
    dataset: Dataset = pickle.loads(file.read_bytes())
    for size in SIZES:
        spec = replace(SPECS[name], train_labelers=size, min_labels=least if size else 0)
        # Where few labelers are held out, one split says little.
        few, many = len(np.unique(dataset.unit)) < 128, len(dataset.labels) > 10_000
        number = splits * 2 if few and not many else splits
        for seed in range(-(-number // 2) if size is None and many else number):
            yield size, seed, split(dataset, spec, seed)


def measure(name: str, problem: Problem, size: int | None, seed: int) -> Iterator[Record]:
    """Yield the release of each ε: accuracy, scale, calibration error, and what was forecast."""
    x, rows, agreement = problem.x, problem.rows, SETS[name][2]
    given = [Worlds.of(x, rows, prior, DRAWS) for prior in (Prior(), Prior(agreement))]
    for epsilon in EPSILONS:
        noises = components.make_noise_chooser(epsilon, DELTA)
        shape = components.Directions.of_features(x, rows).choose_shape(noises)
        noise = noises(shape.components)
        basis = geometry.choose_basis(geometry.compute_spectrum(x, problem.counts()), shape)
        z = basis.coordinates(x)
        bounds = statistic.compute_bounds(z, rows, shape.clip_quantile)
        grid = statistic.choose_grid(bounds, len(basis.metric), noise)
        total = statistic.clip_and_sum_labels(z, rows, problem.labels, bounds, grid.step)
        nonce = hashlib.sha256(f"{epsilon} {seed}".encode()).digest()
        released = np.asarray(statistic.add_noise(total, grid, nonce) * grid.step, np.float64)
        weight = statistic.sum_pair_weights(rows, bounds, len(z))
        penalty = shape.ridge * basis.metric**2
        ridge = statistic.compute_noise_aware_ridge(z, weight, penalty, grid.deviation)
        theta = heads.fit_statistic(z, weight, released, ridge)
        margin = heads.margins(z, theta)[problem.held_pair]
        record: Record = {
            "components": len(basis.metric),
            "accuracy": heads.accuracy(margin, problem.held_labels),
        }
        right = (problem.held_labels == LABEL_A) == (margin >= 0)
        best = min(calibration_error(scale * margin, right, problem.held_unit) for scale in SCALES)
        record["error_best"] = best
        for worlds, way in zip(given, ("range", "given"), strict=True):
            release = (x, rows, basis, shape, bounds, grid.deviation, noise.kind)
            scale = calibration.calibrate_head(*release, worlds.prior)
            forecast = worlds.statistic(epsilon, noise, shape).accuracy
            record |= {
                f"scale_{way}": scale,
                f"error_{way}": calibration_error(scale * margin, right, problem.held_unit),
                f"forecast_{way}": [forecast.low, forecast.mean, forecast.high],
            }
        yield {"set": name, "labelers": size, "epsilon": epsilon, "seed": seed, **record}


def calibration_error(margin: Floats, right: NDArray[np.bool_], unit: NDArray[np.intp]) -> float:
    """Return the error beyond chance, of margins of labels, if the head was `right`, and whose."""
    said = 1 / (1 + np.exp(-np.abs(margin)))
    units, which = np.unique(unit, return_inverse=True)
    order = np.argsort(which, kind="stable")
    own = np.split(order, np.cumsum(np.bincount(which))[:-1])
    rng = np.random.default_rng(0)
    chance = []
    for _ in range(REPEATS):
        drawn = rng.random(len(said)) < said
        rows = np.concatenate([own[u] for u in rng.integers(len(units), size=len(units))])
        chance.append(_gap(said[rows], drawn[rows]))
    return _gap(said, right) - float(np.mean(chance))


def _gap(said: Floats, right: NDArray[np.bool_]) -> float:
    bins = np.array_split(np.argsort(said, kind="stable"), BINS)
    return float(sum(abs((said[rows] - right[rows]).sum()) for rows in bins)) / len(said)


def run(options: argparse.Namespace) -> list[Record]:
    """Return the records of this code; those that are missing are measured."""
    store, found = Store(options.results), []
    for name in options.set or SETS:
        for size, seed, problem in problems(name, options.data, options.cache, options.splits):
            keys = [f"{code_version()} {name} {size} {seed} {epsilon}" for epsilon in EPSILONS]
            known = [store.get(key) for key in keys]
            if None in known:
                known = []
                for key, record in zip(keys, measure(name, problem, size, seed), strict=True):
                    known.append({"key": key, "code": code_version(), **record})
                    store.add(known[-1])
                print(f"{name}, {size or 'all'} labelers, split {seed}", file=sys.stderr)
            found += known
    return found


def table(records: list[Record]) -> list[list[Any]]:
    """Return one row for each cell."""
    rows = []
    for name in SETS:
        for size in SIZES:
            for epsilon in EPSILONS:
                cell = (name, size, epsilon)
                found = _cell(records, cell)
                if not found:
                    continue
                row: list[Any] = [name, size or "all", epsilon, f"{_mean(found, 'accuracy'):.3f}"]
                for way in ("range", "given"):
                    row += [f"{_mean(found, f'error_{way}'):.3f}", _forecast(found, way)]
                rows.append(row)
    return rows


def _cell(records: list[Record], cell: tuple[Any, ...]) -> list[Record]:
    return [r for r in records if (r["set"], r["labelers"], r["epsilon"]) == cell]


def _mean(records: list[Record], measure: str) -> float:
    return float(np.mean([record[measure] for record in records]))


def _range(records: list[Record], way: str) -> tuple[float, float, bool]:
    low, _, high = np.mean([record[f"forecast_{way}"] for record in records], axis=0)
    return float(low), float(high), bool(low <= _mean(records, "accuracy") <= high)


def _forecast(records: list[Record], way: str) -> str:
    low, high, holds = _range(records, way)
    return f"{low:.3f}–{high:.3f}{'' if holds else ' ✗'}"


def summary(records: list[Record]) -> Iterator[str]:
    """Yield what was reached, with the agreement given and without."""
    cells = {(r["set"], r["labelers"], r["epsilon"]) for r in records}
    for way in ("range", "given"):
        ranges = {cell: _range(_cell(records, cell), way) for cell in cells}
        errors = {cell: _mean(_cell(records, cell), f"error_{way}") for cell in cells}
        holds = {name: [ranges[c][2] for c in cells if c[0] == name] for name in SETS}
        each = ", ".join(f"{name} {np.mean(held):.0%}" for name, held in holds.items() if held)
        wide = [ranges[c][1] - ranges[c][0] for c in cells if c[1] != SIZES[0]]
        few = [errors[c] for c in cells if c[1] == SIZES[0]]
        many = [errors[c] for c in cells if c[1] != SIZES[0]]
        yield (
            f"{way}: ranges hold {np.mean([r[2] for r in ranges.values()]):.0%} of cells ({each}), "
            f"from 50 labelers on at most {max(wide, default=0):.3f} wide, "
            f"{np.mean(np.array(wide) <= 0.12):.0%} within .12; largest calibration error "
            f"{max(many, default=0):.3f} from 50 labelers on, {max(few, default=0):.3f} with 20; "
            f"{np.mean(np.array(many) <= 0.03):.0%} and {np.mean(np.array(few) <= 0.05):.0%} "
            "of cells as wanted"
        )


def main() -> None:
    """Print the table, and what was reached."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    shared = os.environ.get("LABELGUARD_SHARED_DATA", "../shared/data")
    parser.add_argument("--data", type=Path, default=shared, help="directory of the datasets")
    parser.add_argument("--cache", type=Path, required=True, help="directory for features")
    parser.add_argument("--results", type=Path, help="file of finished runs")
    parser.add_argument("--set", action="append", choices=list(SETS), help="one dataset")
    parser.add_argument("--splits", type=int, default=4)
    options = parser.parse_args()
    options.results = options.results or options.cache / "results.jsonl"
    records = run(options)
    ways = [f"{what}, {way}" for way in ("range", "given") for what in ("error", "90% range")]
    names = ["set", "labelers", "epsilon", "accuracy", *ways]
    report("calibration", names, table(records))
    print(f"wanted: {WANTED}")
    print(*summary(records), sep="\n")


if __name__ == "__main__":
    main()
