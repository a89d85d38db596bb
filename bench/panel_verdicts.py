"""Write preferences beside the verdicts of a judge that is made of some of their labelers.

    python bench/panel_verdicts.py ukpconvarg1.parquet judged.parquet --every 4
    python bench/privacy_utility.py --data judged.parquet --features verdict:judge --labelers 50 \\
        --mechanism "no privacy" --mechanism statistic --epsilons 0.5,1,3 --seeds 5

A part of the labelers is the panel: the column `judge` is the mean of their votes on a pair (1 for
response_a, -1 for response_b, 0 for a tie or no vote), and their labels leave the file. No large
model is asked: such a judge is as good as the one or two people who are behind it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import polars as pl

PAIR = ("prompt", "response_a", "response_b")


def add_verdicts(labels: pl.DataFrame, share: float) -> pl.DataFrame:
    """Return the labels of the others, with the mean vote of a panel of this share of labelers."""
    a, b, label = pl.col("response_a"), pl.col("response_b"), pl.col("label").cast(pl.Float64)
    vote = pl.when("tie").then(0.0).otherwise(2 * label - 1).fill_null(0.0)
    labels = labels.with_columns(
        response_a=pl.when(a > b).then(b).otherwise(a),
        response_b=pl.when(a > b).then(a).otherwise(b),
        label=pl.when(a > b).then(1 - label).otherwise(label),
    ).sort(*PAIR, "labeler_id")
    people = labels["labeler_id"].unique().sort()
    panel = people.filter(pl.Series(np.random.default_rng(0).random(len(people)) < share))
    of_panel = pl.col("labeler_id").is_in(panel.implode())
    verdicts = labels.filter(of_panel).group_by(PAIR).agg(judge=vote.mean())
    rest = labels.filter(~of_panel).join(verdicts, on=PAIR, how="left")
    return rest.select(*PAIR, "label", "tie", "labeler_id", pl.col("judge").fill_null(0.0))


def main() -> None:
    """Write the file; print how often the judge decides, and how often it agrees."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--share", type=float, default=0.35, help="of labelers in the panel")
    parser.add_argument("--every", type=int, default=1, help="keep one topic in so many")
    options = parser.parse_args()
    labels = pl.read_parquet(options.source)
    topics = labels["topic"].unique().sort().gather_every(options.every)
    judged = add_verdicts(labels.filter(pl.col("topic").is_in(topics.implode())), options.share)
    judged.write_parquet(options.output)
    strict = judged.filter(~pl.col("tie"))
    decided = strict.filter(pl.col("judge") != 0)
    agreed = ((decided["judge"] > 0) == (decided["label"] == 1)).mean()
    share = len(decided) / len(strict)
    print(f"{len(judged):,} labels: the judge decides {share:.3f} of strict ones, {agreed:.3f} so")


if __name__ == "__main__":
    main()
