"""Randomized response on real labelers: how much noise there should be, and how much there is.

    python bench/real_rr.py --data DIR      # the directory with ukpconvarg1.parquet, …
    python bench/real_rr.py --quick         # one set, one ε

A benchmark on public research data may look at raw labels to count flips; a release never tells.
Every run uses a project of its own, thrown away afterwards.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import polars as pl
from _measure import report

import labelguard as lg
from labelguard.mechanisms.randomized_response import FlippedRows

DATASETS = ("ukpconvarg1", "llmfao_crowd", "wmt15_pairs")
EPSILONS = (1.0, 3.0, 8.0)
DELTA = 1e-5


def traceable(path: Path) -> pl.DataFrame:
    """Return the set with the labeler in the prompt, so that every row can be told apart."""
    prompt = pl.concat_str("labeler_id", "prompt", separator="\n")
    return pl.read_parquet(path).with_columns(prompt=prompt).drop("item_id")


def run(raw: pl.DataFrame, name: str, epsilon: float) -> list[Any]:
    """Make a release, and return its row of the table."""
    with tempfile.TemporaryDirectory() as directory:
        project = lg.init(Path(directory))
        release = lg.privatize(
            raw,
            mechanism="rr",
            label_values="1-0",
            epsilon=epsilon,
            delta=DELTA,
            once=True,
            accept_little_use=True,
            bad_rows="quarantine",
            project=project,
        )
        flips = empirical_flips(raw, lg.load(release), release.card["flip_probability"]["blocks"])
    counts = release.card["counts"]
    return [
        name,
        f"{epsilon:g}",
        f"{counts['labelers']:,}",
        f"{counts['rows']:,} of {counts['rows_read']:,}",
        f"{flips['expected']:.4f}",
        f"{flips['measured']:.4f}",
        f"{flips['z']:+.1f}",
    ]


def empirical_flips(
    raw: pl.DataFrame, released: pl.DataFrame, blocks: list[dict[str, Any]]
) -> dict[str, float]:
    """Return the share of strict labels that were flipped, and what `flip_probability` says.

    `z` is the difference in standard deviations: beyond ±5 something is wrong. The k strict labels
    of a labeler were flipped together: their flips vary by k γ(1 − γ) + k(k − 1)(c2 − c1²)/4.
    """
    sides = ("response_a", "response_b")
    first = raw.with_columns(low=pl.min_horizontal(*sides), high=pl.max_horizontal(*sides)).unique(
        ["prompt", "low", "high"], keep="first", maintain_order=True
    )
    preferred = pl.when(pl.col("label") == 1).then("response_a").otherwise("response_b")
    strict = first.filter(pl.col("label").is_not_null()).with_columns(preferred=preferred)
    both = released.with_columns(
        low=pl.min_horizontal("chosen", "rejected"), high=pl.max_horizontal("chosen", "rejected")
    ).join(strict, on=["prompt", "low", "high"])
    gamma = both["flip_probability"]
    flips = int((both["chosen"] != both["preferred"]).sum())
    laws = FlippedRows.of(gamma.to_numpy(), blocks)
    together = (laws.second - (1 - 2 * laws.flip_probability) ** 2) / 4
    others = both.select(pl.len().over("labeler_id") - 1).to_series().to_numpy()
    variance = float((gamma * (1 - gamma)).sum()) + float(others @ together)
    expected, spread = float(gamma.sum()), variance**0.5
    return {
        "expected": expected / both.height,
        "measured": flips / both.height,
        "z": (flips - expected) / spread,
    }


def main() -> None:
    """Print a row for each set and ε."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = os.environ.get("LABELGUARD_SHARED_DATA", "../shared/data")
    parser.add_argument("--data", type=Path, default=default, help="directory of the datasets")
    parser.add_argument("--quick", action="store_true", help="llmfao_crowd at ε = 1")
    options = parser.parse_args()
    cases = [(name, epsilon) for name in DATASETS for epsilon in EPSILONS]
    if options.quick:
        cases = [("llmfao_crowd", 1.0)]
    rows = [run(traceable(options.data / f"{n}.parquet"), n, epsilon) for n, epsilon in cases]
    columns = ["dataset", "ε", "labelers", "labels released", "mean γ", "flipped", "z"]
    report("real_rr", columns, rows)


if __name__ == "__main__":
    main()
