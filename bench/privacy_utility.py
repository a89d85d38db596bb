"""What each mechanism's labels and heads are worth on real labelers, against what they may lose.

    python bench/privacy_utility.py --data DIR              # all of it
    python bench/privacy_utility.py --data DIR --quick      # two seeds of the main settings
    python bench/privacy_utility.py --data DIR --only ukp50 --mechanism statistic-tuned

A fifth of the labelers is held out. *Accuracy* is that of a mechanism's head on their strict
labels; *label error* is how often the label that is released for a training row differs from its
labeler's own strict label. Both read raw labels, which a benchmark on public research data may do.

Every finished run is a line of `--results` and is not run again by the same code, so that an
interrupted benchmark goes on where it stopped.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from utility import tables
from utility.datasets import SPECS, Dataset, Problem, Spec, load, split
from utility.figures import draw
from utility.mechanisms import MECHANISMS, NOT_RELEASED, SWEEP, WITHOUT_BUDGET, Outcome
from utility.meter import metered
from utility.results import Record, Results, Run, Setting, Store, code_version
from utility.targets import TIES_INSIDE, checks

from labelguard.learning import heads
from labelguard.terms import LABEL_TIE

EPSILONS = (0.5, 1.0, 3.0, 8.0)
DELTA = 1e-5
SEEDS = 5
QUICK_EPSILONS = (1.0, 3.0)
QUICK_SEEDS = 2
TIES_PUBLIC = "public"
DOCS = Path(__file__).resolve().parents[1] / "docs"


def settings(spec_names: Sequence[str], quick: bool) -> Iterator[Setting]:
    """Every dataset with all its features, and once with ties dropped; `quick`: its first."""
    for name in spec_names:
        spec = SPECS[name]
        for features in spec.features[: 1 if quick else None]:
            yield Setting(name, features, TIES_INSIDE)
        if spec.tie_status_public and not quick:
            yield Setting(name, spec.features[0], TIES_PUBLIC)


def runs(setting: Setting, quick: bool) -> Iterator[Run]:
    """Every mechanism, ε and seed, in an order that lets runs of one split follow each other."""
    spec = SPECS[setting.dataset]
    seeds = QUICK_SEEDS if quick else spec.seeds or SEEDS
    for seed in range(seeds):
        for mechanism in MECHANISMS:
            if mechanism in SWEEP and not spec.sweep:
                continue
            epsilons = QUICK_EPSILONS if quick else EPSILONS
            for epsilon in (None,) if mechanism in WITHOUT_BUDGET else epsilons:
                yield Run(setting, mechanism, epsilon, DELTA, seed)


def measure(
    setting: Setting,
    wanted: Sequence[Run],
    mechanisms: Sequence[str],
    directory: Path,
    store: Store,
) -> list[Record]:
    """The records of a setting's runs; those of `mechanisms` are run where they are missing."""
    spec, dataset = SPECS[setting.dataset], None
    problem: tuple[int, Problem] | None = None
    records = []
    for run in wanted:
        key = run.key(spec)
        record = store.get(key)
        if record is None and run.mechanism in mechanisms:
            dataset = dataset or _dataset(setting, spec, directory)
            if problem is None or problem[0] != run.seed:
                problem = run.seed, split(dataset, spec, run.seed)
            record = {"key": key, **_record(run, problem[1])}
            store.add(record)
            print(_line(record), file=sys.stderr, flush=True)
        if record is not None:
            records.append(record)
    return records


def _dataset(setting: Setting, spec: Spec, directory: Path) -> Dataset:
    dataset = load(directory, spec, setting.features)
    return dataset.without_ties() if setting.ties == TIES_PUBLIC else dataset


def _record(run: Run, problem: Problem) -> Record:
    mechanism = MECHANISMS[run.mechanism]
    epsilon = float("inf") if run.epsilon is None else run.epsilon
    outcome, seconds, megabytes = metered(lambda: mechanism(problem, epsilon, run.delta, run.seed))
    return {
        "dataset": run.setting.dataset,
        "features": run.setting.features,
        "ties": run.setting.ties,
        "mechanism": run.mechanism,
        "epsilon": run.epsilon,
        "delta": run.delta,
        "seed": run.seed,
        "code": code_version(),
        **_measures(problem, outcome),
        "seconds": round(seconds, 3),
        "peak_mb": round(megabytes, 1),
        **outcome.details,
    }


def _measures(problem: Problem, outcome: Outcome) -> dict[str, Any]:
    strict = (problem.labels != LABEL_TIE) & (outcome.released != NOT_RELEASED)
    wrong = outcome.released[strict] != problem.labels[strict]
    return {
        "accuracy": heads.accuracy(outcome.margins[problem.held_pair], problem.held_labels),
        "label_error": float(np.mean(wrong)),
        "labelers": problem.rows.units,
        "rows": len(problem.rows),
    }


def _line(record: Record) -> str:
    budget = "" if record["epsilon"] is None else f" ε={record['epsilon']:g}"
    where = f"{record['dataset']} {record['features']} ties {record['ties']}"
    return (
        f"{where} {record['mechanism']}{budget} seed {record['seed']}: "
        f"accuracy {record['accuracy']:.4f}, label error {record['label_error']:.4f}, "
        f"{record['seconds']:.2f} s"
    )


def write(results: Results, markdown: bool) -> str:
    """All tables."""
    as_text = tables.markdown if markdown else tables.plain
    parts = []
    for setting in results.settings():
        names = results.mechanisms(setting)
        parts.append(f"{'### ' if markdown else ''}{setting}")
        parts.append(as_text(tables.utility(results, setting, names)))
        parts.append(as_text(tables.cost(results, setting, names)))
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is missing, prints tables and targets; 1 if a target that was run is missed."""
    options = _parser().parse_args(arguments)
    mechanisms = [options.mechanism] if options.mechanism else list(MECHANISMS)
    names = [options.only] if options.only else list(SPECS)
    store = Store(options.results)
    found: list[Record] = []
    for setting in settings(names, options.quick):
        wanted = list(runs(setting, options.quick))
        found += measure(setting, wanted, mechanisms, options.data, store)
    results = Results(found)
    print(write(results, options.markdown), end="\n\n")
    lines = checks(results)
    print(*lines, sep="\n")
    if options.write_docs:
        for setting in results.settings():
            print(draw(results, setting, DOCS / "figures"))
    return int(any(check.passed is False for check in lines))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = os.environ.get("LABELGUARD_SHARED_DATA", "../shared/data")
    results = Path(tempfile.gettempdir()) / "labelguard-privacy-utility.jsonl"
    parser.add_argument("--data", type=Path, default=shared, help="directory of the datasets")
    parser.add_argument("--results", type=Path, default=results, help="file of finished runs")
    parser.add_argument("--quick", action="store_true", help="two seeds, two ε, first features")
    parser.add_argument("--only", choices=list(SPECS), help="one dataset")
    parser.add_argument("--mechanism", choices=list(MECHANISMS), help="run nothing else")
    parser.add_argument("--markdown", action="store_true", help="tables for the documentation")
    parser.add_argument("--write-docs", action="store_true", help="figures into docs/figures")
    return parser


if __name__ == "__main__":
    sys.exit(main())
