"""Randomized response on real labelers: what is kept, how much noise, what actually flips.

    python bench/real_rr.py --data DIR      # the directory with ukpconvarg1.parquet, …

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
from labelguard.mechanisms.joint_flips import FlippedRows

DATASETS = ("ukpconvarg1", "llmfao_crowd", "wmt15_pairs")
EPSILONS = (1.0, 3.0, 8.0)
CAPS: tuple[int | None, ...] = (8, 64, None)
DELTA = 1e-5


def traceable(path: Path) -> pl.DataFrame:
    """The dataset with the labeler written into the prompt, so that every row can be told apart."""
    prompt = pl.concat_str("labeler_id", "prompt", separator="\n")
    return pl.read_parquet(path).with_columns(prompt=prompt).drop("item_id")


def run(raw: pl.DataFrame, name: str, epsilon: float, cap: int | None) -> list[Any]:
    """One release, and its row of the table."""
    with tempfile.TemporaryDirectory() as directory:
        project = lg.init(Path(directory))
        release = lg.privatize(
            raw,
            mechanism="rr",
            epsilon=epsilon,
            delta=DELTA,
            max_labels_per_labeler=cap,
            bad_rows="quarantine",
            project=project,
        )
        flips = empirical_flips(raw, lg.load(release), release.card["flip_probability"]["blocks"])
    counts, gamma = release.card["counts"], release.card["flip_probability"]
    return [
        name,
        f"{epsilon:g}",
        cap or "none",
        f"{counts['labelers']:,}",
        f"{counts['rows']:,} of {counts['rows_read']:,}",
        " / ".join(f"{gamma[key]:.4f}" for key in ("min", "median", "max")),
        f"{flips['expected']:.4f}",
        f"{flips['measured']:.4f}",
        f"{flips['z']:+.1f}",
    ]


def empirical_flips(
    raw: pl.DataFrame, released: pl.DataFrame, blocks: list[dict[str, Any]]
) -> dict[str, float]:
    """The share of strict labels that were flipped, against what `flip_probability` says.

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
    """All datasets, budgets and caps."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = os.environ.get("LABELGUARD_SHARED_DATA", "../shared/data")
    parser.add_argument("--data", type=Path, default=default, help="directory of the datasets")
    arguments = parser.parse_args()
    rows = [
        run(raw, name, epsilon, cap)
        for name in DATASETS
        for raw in [traceable(arguments.data / f"{name}.parquet")]
        for epsilon in EPSILONS
        for cap in CAPS
    ]
    columns = ["dataset", "ε", "cap", "labelers", "labels released", "γ min / median / max"]
    report("real_rr", [*columns, "mean γ", "flipped", "z"], rows)


if __name__ == "__main__":
    main()
