"""Compare the labels and heads of all mechanisms on real labelers, by ε.

    python bench/privacy_utility.py --data DIR              # all sets; resumable
    python bench/privacy_utility.py --data DIR --quick      # two splits of ukp50, two ε
    python bench/privacy_utility.py --data DIR --only ukp50 --mechanism statistic --mechanism uls
    python bench/privacy_utility.py --data labels.parquet --features length+style --labelers 50

A fifth of the labelers is held out. *Accuracy* is that of a mechanism's head on their strict
labels; *label error* is the share of released labels that differ from what training labelers said,
where that is strict. `--data` names the directory of the sets, or a Parquet file with the columns
prompt, response_a, response_b, label, tie and labeler_id, and columns of numbers that `--features`
name (`verdict:COLUMN`).
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _measure import report
from _runs import Record, Store, digest_code, format_mean, select
from labelguard_trainer import gradient
from utility.gradients import HINDSIGHT, with_configuration
from utility.mechanisms import CAPS, MECHANISMS, NON_PRIVATE, tabulate_information
from utility.problems import NOT_RELEASED, SPECS, Dataset, Outcome, Problem, Spec, load, split

import labelguard
from labelguard.learning import heads
from labelguard.text import LABEL_TIE

EPSILONS = (0.5, 1.0, 3.0, 8.0)
DELTA = 1e-5
BOUNDS = ("rr", *(f"rr-cap-{cap}" for cap in CAPS))


@dataclass(frozen=True)
class Run:
    """One line of results; there is no ε without privacy."""

    dataset: str
    features: str
    mechanism: str
    epsilon: float | None
    seed: int


def list_runs(name: str, options: argparse.Namespace) -> list[Run]:
    """Return the runs of a set, those of a split after each other."""
    spec = SPECS[name]
    features = options.features or spec.features
    epsilons = [float(e) for e in options.epsilons.split(",")] if options.epsilons else EPSILONS
    seeds = options.seeds or spec.seeds
    mechanisms = options.mechanism or list(MECHANISMS)
    if options.quick:
        epsilons, seeds = (1.0, 3.0), 2
        mechanisms = options.mechanism or [m for m in MECHANISMS if m not in HINDSIGHT]
    return [
        Run(name, features, mechanism, epsilon, seed)
        for seed in range(seeds)
        for mechanism in mechanisms
        for epsilon in ((None,) if mechanism == NON_PRIVATE else epsilons)
    ]


def measure(runs: Sequence[Run], data: Path, store: Store) -> list[Record]:
    """Return the records of the runs of one set; those that are missing are run."""
    package = Path(labelguard.__file__).parent
    folders = [package / name for name in ("accounting", "mechanisms", "learning", "planner")]
    folders += [Path(gradient.__file__).parent, Path(__file__).parent / "utility"]
    spec, code = SPECS[runs[0].dataset], digest_code(*folders)
    dataset: Dataset | None = None
    problem: tuple[int, Problem] | None = None
    records = []
    for run in runs:
        record = store.get(run, spec, code)
        if record is None:
            dataset = dataset or load(data, spec, run.features)
            if problem is None or problem[0] != run.seed:
                problem = run.seed, split(dataset, spec, run.seed)
            mechanism = MECHANISMS[run.mechanism]
            if run.mechanism in HINDSIGHT and run.seed:  # as the first split chose
                same = {"mechanism": run.mechanism, "epsilon": run.epsilon}
                (chosen,) = select(records, **same, seed=0)
                mechanism = with_configuration(run.mechanism, chosen["configuration"])
            epsilon = math.inf if run.epsilon is None else run.epsilon
            outcome = mechanism(problem[1], epsilon, DELTA, run.seed)
            found = {**vars(run), **score(problem[1], outcome), **outcome.details}
            record = store.put(found, run, spec, code)
        records.append(record)
    return [record for record in records if "configuration" not in record]


def score(problem: Problem, outcome: Outcome) -> Record:
    """Return the accuracy and the label error of an outcome."""
    strict = (problem.labels != LABEL_TIE) & (outcome.released != NOT_RELEASED)
    wrong = outcome.released[strict] != problem.labels[strict]
    margins = outcome.margins[problem.held_pair]
    return {
        "accuracy": heads.accuracy(margins, problem.held_labels),
        "label_error": float(np.mean(wrong)),
        "labelers": problem.rows.units,
        "rows": len(problem.rows),
    }


def tabulate(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Return a row for each mechanism: accuracy ± standard error / label error, by ε."""
    epsilons = sorted({r["epsilon"] for r in records if r["epsilon"] is not None}) or [math.inf]
    rows = []
    for name in dict.fromkeys(record["mechanism"] for record in records):
        if name not in BOUNDS[1:]:
            rows.append([name, *(_cell(records, name, epsilon) for epsilon in epsilons)])
        if name == BOUNDS[-1]:
            best = [max((_mean(records, b, e), b) for b in BOUNDS)[1] for e in epsilons]
            cells = [_cell(records, b, e) for b, e in zip(best, epsilons, strict=True)]
            rows.append(["rr, best bound", *cells])
    return ["accuracy / label error", *(f"ε = {epsilon:g}" for epsilon in epsilons)], rows


def _cell(records: list[Record], name: str, epsilon: float) -> str:
    cells = select(records, mechanism=name, epsilon=None if name == NON_PRIVATE else epsilon)
    if not cells:
        return ""
    error = f"{np.mean([cell['label_error'] for cell in cells]):.3f}".replace("0.", ".")
    return f"{format_mean(cell['accuracy'] for cell in cells)} / {error}"


def _mean(records: list[Record], name: str, epsilon: float) -> float:
    cells = select(records, mechanism=name, epsilon=epsilon)
    return float(np.mean([cell["accuracy"] for cell in cells])) if cells else -1.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, and print a table for each set."""
    options = _parser().parse_args(arguments)
    names = ["ukp50"] if options.quick else list(SPECS)
    if options.data.is_file():
        names = [options.data.stem]
        SPECS[names[0]] = Spec(
            names[0], min_labels=options.min_labels, train_labelers=options.labelers
        )
    store = Store(options.results)
    for name in options.only or names:
        report(name, *tabulate(measure(list_runs(name, options), options.data, store)))
    columns = ["labels", *(f"ε = {e:g}: γ, signal (of coins)" for e in EPSILONS[1:])]
    report("labels of one labeler", columns, list(tabulate_information(EPSILONS[1:], DELTA)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = os.environ.get("LABELGUARD_SHARED_DATA", "../shared/data")
    results = Path(tempfile.gettempdir()) / "labelguard-privacy-utility.jsonl"
    parser.add_argument(
        "--data", type=Path, default=shared, help="directory of the sets, or a file"
    )
    parser.add_argument("--results", type=Path, default=results, help="file of finished runs")
    parser.add_argument("--quick", action="store_true", help="two splits of ukp50, two ε")
    parser.add_argument("--only", choices=list(SPECS), action="append", help="a set; repeatable")
    parser.add_argument("--mechanism", choices=list(MECHANISMS), action="append", help="repeatable")
    parser.add_argument("--features", help="in place of the set's own")
    parser.add_argument("--epsilons", help="for example 0.5,1,3")
    parser.add_argument("--seeds", type=int, help="splits; default: those of the set")
    parser.add_argument("--labelers", type=int, help="of a file: at most so many train")
    parser.add_argument("--min-labels", type=int, default=0, help="of a file: labels of each")
    return parser


if __name__ == "__main__":
    main()
