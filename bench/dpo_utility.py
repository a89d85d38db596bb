"""What DPO learns from each mechanism's labels, on texts with a planted preference.

    python bench/dpo_utility.py                 # the table; about half an hour on two idle cores
    python bench/dpo_utility.py --tiny          # every kind of labels once, in seconds
    python bench/dpo_utility.py --labels "RR, forward"

A GPT-2 of 120,000 parameters, pretrained on a made-up language, learns from 2,000 pairs of about
128 tokens, whose labels simulated labelers gave and `labelguard.privatize` released. *Accuracy* is
how often its implicit reward orders the sides of 1,000 fresh pairs as the planted utility does. All
kinds of labels have the same pairs and as many optimizer steps.

Every finished run is a line of `runs.jsonl` in `--work` and is not run again by the same code, so
that an interrupted benchmark goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from dpo import tables
from dpo.base import TINY, Size
from dpo.runs import CLEAN, FEW, Run, finished, prepare, runs
from utility.results import Record, Store
from utility.tables import markdown, plain

FIGURE = Path(__file__).resolve().parents[1] / "docs" / "figures" / "dpo_utility"


def records(
    wanted: list[Run], size: Size, directory: Path, workers: int, log: Any = sys.stderr
) -> list[Record]:
    """The records of all runs; those that are missing are run, each kept as soon as it is there."""
    directory.mkdir(parents=True, exist_ok=True)
    store = Store(directory / "runs.jsonl")
    missing = [run for run in wanted if store.get(run.key(size)) is None]
    prepare(missing, size, directory)
    for record in _run(missing, size, directory, workers):
        store.add(record)
        print(json.dumps(record), file=log, flush=True)
    return [record for run in wanted if (record := store.get(run.key(size))) is not None]


def _run(missing: list[Run], size: Size, directory: Path, workers: int) -> Iterator[Record]:
    if workers == 1:
        yield from (finished(run, size, directory) for run in missing)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        begun = [pool.submit(finished, run, size, directory) for run in missing]
        yield from (future.result() for future in as_completed(begun))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is missing; prints the table, and a line of JSON."""
    options = _parser().parse_args(arguments)
    size = TINY if options.tiny else Size()
    wanted = [
        run
        for run in runs(size, tiny=options.tiny)
        if not options.labels or run.labels in options.labels
    ]
    found = records(
        wanted, size, options.work / ("tiny" if options.tiny else "full"), options.workers
    )
    accuracies = tables.accuracies(found)
    table = tables.table(accuracies, size.pairs)
    print((markdown if options.markdown else plain)(table), end="\n\n")
    print(json.dumps({"bench": "dpo_utility", "runs": found}))
    if options.write_docs:
        tables.draw(accuracies, FIGURE)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    work = Path(tempfile.gettempdir()) / "labelguard-dpo-utility"
    parser.add_argument("--work", type=Path, default=work, help="models, releases, finished runs")
    parser.add_argument("--tiny", action="store_true", help="a few pairs, to see that it runs")
    kinds = [CLEAN, *FEW]
    parser.add_argument("--labels", action="append", choices=kinds, help="run no other kind")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time; 1: in this process")
    parser.add_argument("--markdown", action="store_true", help="the table for the documentation")
    parser.add_argument("--write-docs", action="store_true", help="the figure into docs/figures")
    return parser


if __name__ == "__main__":
    sys.exit(main())
