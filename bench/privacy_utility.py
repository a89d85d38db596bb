"""What each mechanism's labels and heads are worth on real labelers, against what they may lose.

    python bench/privacy_utility.py --data DIR              # all of it
    python bench/privacy_utility.py --data DIR --quick      # two seeds of the main settings
    python bench/privacy_utility.py --data DIR --only ukp50 --mechanism statistic-planned
    python bench/privacy_utility.py --data DIR --seeds 3 --mechanism uls --mechanism els
    python bench/privacy_utility.py --data labels.csv       # any file with labelers
    python bench/privacy_utility.py --data DIR --against earlier.jsonl

A fifth of the labelers is held out. *Accuracy* is that of a mechanism's head on their strict
labels; *label error* is how often the label that is released for a training row differs from its
labeler's own strict label. *Calibration error* is the mean gap between probabilities and how often
they are right, beyond what a finite test set shows anyway. `rr` flips all labels of a labeler
together, `rr-coins` each alone, both at the same (ε, δ). All read raw labels, which a benchmark on
public research data may do.

`--against` compares with `--results` of another version on the same splits. Splits share their
labelers: the standard error that is printed is the larger of that over splits and over labelers.

Every finished run is a line of `--results` and is not run again by the same code, so that an
interrupted benchmark goes on where it stopped.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from utility import joint, paired, tables
from utility.datasets import SPECS, Dataset, Problem, Spec, load, read, split
from utility.figures import draw
from utility.gradients import CHOSEN_BY, tuned
from utility.mechanisms import MECHANISMS, SWEEP, WITHOUT_BUDGET
from utility.meter import metered
from utility.outcomes import NOT_RELEASED, Mechanism, Outcome
from utility.reliability import draw as draw_reliability
from utility.reliability import reliability
from utility.results import Record, Results, Run, Setting, Store, code_version
from utility.targets import FEATURES, TIES_INSIDE, checks

from labelguard.learning import heads
from labelguard.mechanisms.geometry import Shape
from labelguard.text import LABEL_TIE

EPSILONS = (0.5, 1.0, 3.0, 8.0)
DELTA = 1e-5
SEEDS = 5
QUICK_EPSILONS = (1.0, 3.0)
QUICK_SEEDS = 2
TIES_PUBLIC = "public"
DOCS = Path(__file__).resolve().parents[1] / "docs"


def settings(spec_names: Sequence[str], quick: bool, only: str | None = None) -> Iterator[Setting]:
    """Every dataset with all its features, and once with ties dropped; `quick`: its first; or
    with those that are named alone.
    """
    for name in spec_names:
        spec = SPECS[name]
        for features in [only] if only else spec.features[: 1 if quick else None]:
            yield Setting(name, features, TIES_INSIDE)
        if spec.tie_status_public and not quick and not only:
            yield Setting(name, spec.features[0], TIES_PUBLIC)


def runs(
    setting: Setting,
    quick: bool,
    budgets: Sequence[float] = EPSILONS,
    seeds: int | None = None,
) -> Iterator[Run]:
    """Every mechanism, ε and seed, in an order that lets runs of one split follow each other.

    What is tuned in hindsight is tuned on the first split, and measured on the others.
    """
    spec = SPECS[setting.dataset]
    for seed in range(QUICK_SEEDS if quick else seeds or spec.seeds or SEEDS):
        for mechanism in MECHANISMS:
            if mechanism in SWEEP and not spec.sweep:
                continue
            if mechanism in (CHOSEN_BY if seed == 0 else CHOSEN_BY.values()):
                continue
            if quick and mechanism in {*CHOSEN_BY, *CHOSEN_BY.values()}:
                continue
            epsilons = QUICK_EPSILONS if quick else budgets
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
            record = {"key": key, **_record(run, problem[1], _mechanism(run, store))}
            store.add(record)
            print(_line(record), file=sys.stderr, flush=True)
        if record is not None:
            records.append(record)
    return records


def _dataset(setting: Setting, spec: Spec, data: Path) -> Dataset:
    if data.is_file():
        return read(data, setting.features)
    dataset = load(data, spec, setting.features)
    return dataset.without_ties() if setting.ties == TIES_PUBLIC else dataset


def _mechanism(run: Run, store: Store) -> Mechanism:
    """What to run; with the configuration that was best on the first split, if it has one."""
    if run.mechanism not in CHOSEN_BY:
        return MECHANISMS[run.mechanism]
    first = replace(run, mechanism=CHOSEN_BY[run.mechanism], seed=0)
    record = store.get(first.key(SPECS[run.setting.dataset]))
    if record is None:
        raise SystemExit(f"{run.mechanism} takes over what {first.mechanism} chose; run that first")
    return tuned(run.mechanism, record)


def _record(run: Run, problem: Problem, mechanism: Mechanism) -> Record:
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
    margin, held = outcome.margins[problem.held_pair], problem.held_labels
    scale = outcome.details.get("scale", 1.0)
    unscaled, power = reliability(margin / scale, held), reliability(margin / scale**0.25, held)
    return {
        "accuracy": heads.accuracy(margin, held),
        **reliability(margin, held),
        "calibration_excess_unscaled": unscaled["calibration_excess"],
        "calibration_excess_power": power["calibration_excess"],
        "reliability_unscaled": unscaled["reliability"],
        "by_labeler": _by_labeler(margin, held, problem.held_unit),
        "label_error": float(np.mean(wrong)),
        "labelers": problem.rows.units,
        "rows": len(problem.rows),
    }


def _by_labeler(
    margin: NDArray[np.float64], labels: NDArray[np.uint8], unit: NDArray[np.intp]
) -> list[list[float]]:
    """Of every held-out labeler: who, how many strict labels, how many of them right."""
    right = 0.5 + np.sign(margin) * (labels - 0.5)
    units, which = np.unique(unit, return_inverse=True)
    counts = np.bincount(which)
    return np.stack([units, counts, np.bincount(which, right)], axis=1).tolist()


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
        if len(calibrated := tables.calibration(results, setting)) > 1:
            parts.append(as_text(calibrated))
        compared = [tables.joint_flips(results, setting), tables.differences(results, setting)]
        parts += [as_text(table) for table in compared if len(table) > 1]
        parts.append(as_text(tables.cost(results, setting, names)))
    parts.append(as_text(joint.information_table(EPSILONS[1:], DELTA)))
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is missing, prints tables and targets; 1 if a target that was run is missed."""
    options = _parser().parse_args(arguments)
    mechanisms = options.mechanism or list(MECHANISMS)
    names = [options.only] if options.only else list(SPECS)
    if options.data.is_file():
        names = [options.data.name]
        SPECS[names[0]] = Spec(
            names[0],
            (options.features or FEATURES,),
            Shape(),
            options.min_labels,
            options.labelers,
            tie_status_public=False,
            sweep=options.sweep,
        )
    budgets = [float(e) for e in options.epsilons.split(",")] if options.epsilons else EPSILONS
    store = Store(options.results)
    found: list[Record] = []
    for setting in settings(names, options.quick, options.features):
        wanted = list(runs(setting, options.quick, budgets, options.seeds))
        found += measure(setting, wanted, mechanisms, options.data, store)
    results = Results(found)
    print(write(results, options.markdown), end="\n\n")
    lines = checks(results)
    print(*lines, sep="\n")
    if options.against:
        as_text = tables.markdown if options.markdown else tables.plain
        print(as_text(paired.table(found, Store(options.against).records())))
    if options.write_docs:
        for setting in results.settings():
            print(draw(results, setting, DOCS / "figures"))
        print(draw_reliability(results, 1.0, DOCS / "figures" / "reliability.png"))
    return int(any(check.passed is False for check in lines))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = os.environ.get("LABELGUARD_SHARED_DATA", "../shared/data")
    results = Path(tempfile.gettempdir()) / "labelguard-privacy-utility.jsonl"
    parser.add_argument("--data", type=Path, default=shared, help="datasets, or a file")
    parser.add_argument("--features", help="these alone; of a file, in place of the usual")
    parser.add_argument("--min-labels", type=int, default=0, help="labels a labeler of it needs")
    parser.add_argument("--labelers", type=int, help="how many of them train; default: all")
    parser.add_argument("--seeds", type=int, help="splits; default: the dataset's, or 5")
    parser.add_argument("--sweep", action="store_true", help="fixed sizes of a file, both noises")
    parser.add_argument("--against", type=Path, help="--results of another version")
    parser.add_argument("--epsilons", help="privacy budgets, for example 0.5,1,3")
    parser.add_argument("--results", type=Path, default=results, help="file of finished runs")
    parser.add_argument("--quick", action="store_true", help="two seeds, two ε, first features")
    parser.add_argument("--only", choices=list(SPECS), help="one dataset")
    parser.add_argument(
        "--mechanism",
        choices=list(MECHANISMS),
        action="append",
        help="run nothing else; may be given several times",
    )
    parser.add_argument("--markdown", action="store_true", help="tables for the documentation")
    parser.add_argument("--write-docs", action="store_true", help="figures into docs/figures")
    return parser


if __name__ == "__main__":
    sys.exit(main())
