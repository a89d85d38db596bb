"""Compare the probabilities and forecasts of a statistic with labelers that nothing was tuned on.

    python bench/calibration.py --data DIR --splits 8       # 6 minutes on two cores; resumable
    python bench/calibration.py --data DIR --quick          # one set, few splits

On three public sets, with 20, 50 and all training labelers, a statistic is released as planned. A
fifth of the labelers is held out. *Error*: the gap, in ten bins of equal count, between the
probability of the head and the share of held-out labels that it is right about, less the mean of
the same number where labels are drawn from the head's probabilities and held-out labelers are drawn
again as wholes. *Range*: the mean 90% range of accuracy that is forecast without labels; ✗ where
the mean accuracy lies outside. Both without and with the agreement of the set's labelers (*given*).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from _measure import report
from _runs import Record, Store, digest_code, select
from numpy.typing import NDArray
from utility.mechanisms import release_statistic
from utility.problems import SPECS, Dataset, Floats, Problem, load, split

import labelguard
from labelguard.learning import heads
from labelguard.planner.prior import Prior
from labelguard.planner.trials import Worlds
from labelguard.planner.tuning import DRAWS
from labelguard.text import LABEL_A

# The fewest labels of a labeler where few train, and how often two labelers agree.
SETS = {"ukpconvarg1": (20, 0.73), "llmfao_crowd": (0, 0.70), "wmt15_rankings": (0, 0.80)}
SIZES = (20, 50, None)
EPSILONS = (0.5, 1.0, 3.0)
DELTA = 1e-5
BINS, REPEATS = 10, 20
WAYS = ("range", "given")
FIGURE = Path(__file__).resolve().parents[1] / "docs" / "figures" / "reliability.png"


def list_splits(name: str, dataset: Dataset, splits: int) -> Iterator[tuple[Any, int]]:
    """Yield labelers and seed of each split; of large sets half as many."""
    # Where few labelers are held out, one split says little.
    few, many = len(np.unique(dataset.unit)) < 128, len(dataset.labels) > 10_000
    number = splits * 2 if few and not many else splits
    for size in SIZES:
        for seed in range(-(-number // 2) if size is None and many else number):
            yield size, seed


def measure(name: str, problem: Problem, seed: int) -> Iterator[Record]:
    """Yield accuracy, calibration errors, forecasts and bins of a release at each ε."""
    x, rows = problem.x, problem.rows
    priors = (Prior(), Prior(SETS[name][1]))
    worlds = [Worlds.of(x, rows, prior, DRAWS) for prior in priors]
    for epsilon in EPSILONS:
        made = release_statistic(problem, epsilon, DELTA, seed)
        margin = made.margins[problem.held_pair]
        right = (problem.held_labels == LABEL_A) == (margin >= 0)
        record: Record = {"accuracy": heads.accuracy(margin, problem.held_labels)}
        for way, simulated in zip(WAYS, worlds, strict=True):
            scaled = made.calibrate(problem, simulated.prior) * margin
            forecast = simulated.statistic(epsilon, made.noise, made.shape).accuracy
            record[f"error_{way}"] = compute_error(scaled, right, problem.held_unit)
            record[f"forecast_{way}"] = [forecast.low, forecast.high]
            if way == WAYS[0]:
                record["bins"] = [_bin(scaled, right), _bin(margin, right)]
        yield {"epsilon": epsilon, **record}


def compute_error(margin: Floats, right: NDArray[np.bool_], unit: NDArray[np.intp]) -> float:
    """Return the error beyond chance: margins of labels, whether the head was right, and whose."""
    likelihood = 1 / (1 + np.exp(-np.abs(margin)))
    units, which = np.unique(unit, return_inverse=True)
    order = np.argsort(which, kind="stable")
    own = np.split(order, np.cumsum(np.bincount(which))[:-1])
    rng = np.random.default_rng(0)
    chance = []
    for _ in range(REPEATS):
        drawn = rng.random(len(likelihood)) < likelihood
        rows = np.concatenate([own[u] for u in rng.integers(len(units), size=len(units))])
        chance.append(_gap(likelihood[rows], drawn[rows]))
    return _gap(likelihood, right) - float(np.mean(chance))


def _gap(likelihood: Floats, right: NDArray[np.bool_]) -> float:
    bins = np.array_split(np.argsort(likelihood, kind="stable"), BINS)
    gaps = [abs((likelihood[rows] - right[rows]).sum()) for rows in bins]
    return float(sum(gaps)) / len(likelihood)


def _bin(margin: Floats, right: NDArray[np.bool_]) -> list[list[float]]:
    """Return of each bin the mean probability, and the share that is right."""
    likelihood = 1 / (1 + np.exp(-np.abs(margin)))
    bins = np.array_split(np.argsort(likelihood, kind="stable"), BINS)
    return [[float(likelihood[rows].mean()), float(right[rows].mean())] for rows in bins]


def run(data: Path, names: Sequence[str], splits: int, store: Store) -> list[Record]:
    """Return a record for each split and ε; those that are missing are measured."""
    package = Path(labelguard.__file__).parent
    folders = [package / name for name in ("accounting", "mechanisms", "learning", "planner")]
    code = digest_code(*folders, Path(__file__).parent / "utility", Path(__file__))
    records = []
    for name in names:
        dataset = load(data, SPECS[name], SPECS[name].features)
        for size, seed in list_splits(name, dataset, splits):
            least = SETS[name][0] if size else 0
            spec = replace(SPECS[name], train_labelers=size, min_labels=least)
            key = (code, name, size, seed)
            record = store.get(*key) or store.put(
                {"releases": [*measure(name, split(dataset, spec, seed), seed)]}, *key
            )
            releases = record["releases"]
            records += [{"set": name, "labelers": size, **release} for release in releases]
    return records


def tabulate(records: list[Record]) -> Iterator[list[Any]]:
    """Yield a row for each set, number of labelers and ε."""
    cells = dict.fromkeys((r["set"], r["labelers"], r["epsilon"]) for r in records)
    for name, size, epsilon in cells:
        found = select(records, set=name, labelers=size, epsilon=epsilon)
        accuracy = np.mean([r["accuracy"] for r in found])
        row = [name, size or "all", epsilon, f"{accuracy:.3f}"]
        for way in WAYS:
            low, high = np.mean([r[f"forecast_{way}"] for r in found], axis=0)
            error = np.mean([r[f"error_{way}"] for r in found])
            row += [
                f"{error:.3f}",
                f"{low:.3f}–{high:.3f}{'' if low <= accuracy <= high else ' ✗'}",
            ]
        yield row


def draw(records: list[Record], epsilon: float, path: Path) -> None:
    """Draw the reliability of heads of all labelers, scaled and (dotted) as they are fitted."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot([0.5, 1], [0.5, 1], color="0.6", linestyle="--", linewidth=1, label="as it should be")
    for number, name in enumerate(SETS):
        found = select(records, set=name, labelers=None, epsilon=epsilon)
        bins = np.mean([r["bins"] for r in found], axis=0)
        for (said, right), style, label in zip(
            bins.swapaxes(1, 2), "-:", (name, None), strict=True
        ):
            axes.plot(said, right, style, color=f"C{number}", marker="o", markersize=3, label=label)
    axes.set(
        xlabel="what the head says",
        ylabel="how often it is right",
        title=f"ε = {epsilon:g}; dotted: before scaling",
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table; draw the picture if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = os.environ.get("LABELGUARD_SHARED_DATA", "../shared/data")
    results = Path(tempfile.gettempdir()) / "labelguard-calibration.jsonl"
    parser.add_argument("--data", type=Path, default=shared, help="directory of the sets")
    parser.add_argument("--results", type=Path, default=results, help="file of finished runs")
    parser.add_argument("--only", action="append", choices=list(SETS), help="a set; repeatable")
    parser.add_argument("--splits", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="llmfao_crowd, few splits")
    parser.add_argument("--write-docs", action="store_true", help="the picture into docs/figures")
    options = parser.parse_args(arguments)
    names = options.only or (["llmfao_crowd"] if options.quick else list(SETS))
    splits = 1 if options.quick else options.splits
    records = run(options.data, names, splits, Store(options.results))
    ways = [f"{what}, {way}" for way in ("not known", "given") for what in ("error", "90% range")]
    report("calibration", ["set", "labelers", "ε", "accuracy", *ways], list(tabulate(records)))
    if options.write_docs:
        draw(records, 1.0, FIGURE)


if __name__ == "__main__":
    main()
