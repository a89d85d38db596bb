"""Simulate a year of weekly retraining: preferences drift, labelers come and go, one policy follows
another.

    python examples/simulate_year.py year      # a few minutes; writes year/year.png

Every week, new labels arrive as a file and `labelguard retrain` does one run: a statistic release,
a head of the newest eight windows, a gate that reads public probes, a promotion. Accuracy is
measured against the simulated preferences, which only simulated labelers have: on people's labels
every such number would be one more release.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
from matplotlib.figure import Figure

import labelguard as lg

SENTENCES = (
    "Keep a diary for two weeks and bring it along.",
    "Check the costs, the risks, and what waiting means.",
    "Questions like this come up often, and they look simpler once they are written down.",
    "It may well depend, and I cannot be sure.",
    "Thank you for asking, and do write again.",
)
FIRST = np.array([0.85, 1.0, -0.25, -0.6, 0.33])  # weight of each sentence at the beginning
TOWARDS = np.array([-0.5, 0.2, 0.9, 0.6, 0.5])  # the direction into which the weights turn
TURN = np.radians(120)  # in a year: what was good at its beginning hardly counts at its end
SCALE, DEVIATION = 2.2, 0.15  # two labelers agree on 73 % of labels; spread of a labeler's weights
LABELERS, LABELS, ITEMS, LEAVING = 300, 10, 600, 0.015  # at a time; a labeler's, and new, a week

JOB = """\
name: weekly
input: incoming.parquet
release:
  mechanism: statistic
  min_new_labels: 100
  options: {label_values: 1-0, features: text+length, components: 16, whitening: 0.25, floor: 0.001,
            clip_quantile: 0.5, ridge: 1.0}
train: {step: head, options: {windows: 8}}
gate: {by: probes, probes: probes.parquet, margin: 0.02, confidence: CONFIDENCE}
"""


def weights(year: float) -> np.ndarray:
    """Return the shared weights of the sentences after this share of the year, (5,)."""
    across = TOWARDS - (TOWARDS @ FIRST) / (FIRST @ FIRST) * FIRST
    across *= np.linalg.norm(FIRST) / np.linalg.norm(across)
    return SCALE * (np.cos(TURN * year) * FIRST + np.sin(TURN * year) * across)


def draw_pairs(count: int, week: int, rng: np.random.Generator) -> tuple[pl.DataFrame, np.ndarray]:
    """Return new pairs (prompt, response_a, response_b) and their contrasts of sentences (n, 5)."""
    bits = rng.integers(2, size=(2, count, len(SENTENCES)))
    texts = [
        [" ".join(["Well.", *(SENTENCES[n] for n in np.flatnonzero(row))]) for row in side]
        for side in bits
    ]
    prompts = [f"Question {n} of week {week}, {rng.integers(1 << 40)}" for n in range(count)]
    columns = {"prompt": prompts, "response_a": texts[0], "response_b": texts[1]}
    unlike = (bits[0] != bits[1]).any(axis=1)
    return pl.DataFrame(columns).filter(pl.Series(unlike)), (bits[0] - bits[1])[unlike]


def accuracy(model: Path, pairs: pl.DataFrame, gap: np.ndarray) -> float:
    """Return the expected share of labels of pairs that a model predicts; `gap` is the utility."""
    scores = lg.score(model, pairs.rename({"response_a": "chosen", "response_b": "rejected"}))
    better = dict(scores.select("prompt", "chosen").iter_rows())
    first = [better[prompt] == one for prompt, one, _ in pairs.iter_rows()]
    return float(np.mean(1 / (1 + np.exp(np.where(first, -gap, gap)))))


def simulate_year(home: Path, weeks: int = 52, confidence: float = 0.5) -> pl.DataFrame:
    """Run all weeks in a new project; return accuracies by week: at best, in use, of half-time."""
    rng, half, joined = np.random.default_rng(0), weeks // 2, LABELERS
    tastes = {who: DEVIATION * rng.standard_normal(5) for who in range(LABELERS)}
    project, rows = lg.init(home), []
    (home / "job.yaml").write_text(JOB.replace("CONFIDENCE", repr(confidence)))
    for week in range(weeks):
        if week in (0, half):
            name, uses = ("second", weeks - half) if week else ("first", half)
            allow = [f"statistic:releases={uses}"]
            lg.policies.new(name, epsilon=2, delta=1e-5, allow=allow, project=project)
            lg.policies.activate(name, project)
        for who in [who for who in tastes if rng.random() < LEAVING]:
            del tastes[who]
        while len(tastes) < LABELERS:
            tastes[joined], joined = DEVIATION * rng.standard_normal(5), joined + 1
        shared = weights(week / max(weeks - 1, 1))
        pairs, contrast = draw_pairs(ITEMS, week, rng)
        item = np.concatenate([rng.choice(len(pairs), LABELS, replace=False) for _ in tastes])
        own = np.repeat(np.stack([*tastes.values()]), LABELS, axis=0)
        gap = np.einsum("rq,rq->r", contrast[item], shared + SCALE * own)
        label = (rng.random(len(gap)) < 1 / (1 + np.exp(-gap))).astype(float)
        ids = np.repeat([f"labeler-{who:04d}" for who in tastes], LABELS)
        labels = pairs[item].with_columns(pl.Series("labeler_id", ids), pl.Series("label", label))
        labels.write_parquet(home / "incoming.parquet")
        probes, contrast = draw_pairs(100, week, rng)
        first = pl.Series(contrast @ shared > 0)
        probes.select(
            "prompt",
            chosen=pl.when(first).then("response_a").otherwise("response_b"),
            rejected=pl.when(first).then("response_b").otherwise("response_a"),
        ).write_parquet(home / "probes.parquet")
        job = ["retrain", str(home / "job.yaml"), "--project", str(home)]
        subprocess.run([sys.executable, "-m", "labelguard", *job], check=True, capture_output=True)
        if week == half - 1:
            shutil.copytree(home / "models" / "current", home / "half-time")
        exam, contrast = draw_pairs(1000, week, rng)
        gap, current = contrast @ shared, home / "models" / "current"
        models = (current, home / "half-time" if week >= half else current)
        best = float(np.mean(1 / (1 + np.exp(-np.abs(gap)))))
        rows.append((week + 1, best, *(accuracy(model, exam, gap) for model in models)))
        print("week {}: at best {:.2f}, in use {:.2f}, of half-time {:.2f}".format(*rows[-1]))
    return pl.DataFrame(rows, ["week", "at best", "in use", "of half-time"], orient="row")


def main() -> None:
    """Simulate the year and draw its curves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    home = parser.parse_args().directory
    curves = simulate_year(home)
    figure = Figure(figsize=(7.5, 3.2), dpi=120, layout="constrained")
    axes = figure.subplots()
    for name, style in (("at best", "k:"), ("in use", "C0-"), ("of half-time", "C3--")):
        axes.plot(curves["week"], curves[name], style, label=name)
    axes.set(xlabel="week", ylabel="accuracy", ylim=(0.48, 0.84))
    axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    figure.savefig(home / "year.png", metadata={"Software": None})


if __name__ == "__main__":
    main()
