"""Surveys of labelers whose taste is known, and how far released labels are from theirs."""

import numpy as np
import polars as pl

TASTE = np.array([1.5, -0.7])


def survey(labelers=120, per_labeler=20, items=200, seed=0):
    """Labelers who like high scores and dislike length; the two are numeric columns."""
    rng = np.random.default_rng(seed)
    quality = np.random.default_rng(items).normal(size=(items, 2, 2))
    item = np.concatenate([rng.choice(items, per_labeler, replace=False) for _ in range(labelers)])
    gap = (quality[item, 0] - quality[item, 1]) @ TASTE
    wins = rng.random(len(item)) < 1 / (1 + np.exp(-gap))
    tie = rng.random(len(item)) < 0.1
    return pl.DataFrame(
        {
            "labeler_id": np.repeat(np.arange(labelers), per_labeler),
            "prompt": [f"question {i}" for i in item],
            "response_a": [f"one answer to {i}" for i in item],
            "response_b": [f"other answer to {i}" for i in item],
            "label": np.where(tie, 0.5, wins),
            "score_a": quality[item, 0, 0],
            "score_b": quality[item, 1, 0],
            "length_a": quality[item, 0, 1],
            "length_b": quality[item, 1, 1],
        }
    )


def label_error(released, raw):
    """How often a released row differs from its labeler's own strict label."""
    strict = raw.filter(pl.col("label") != 0.5)
    own = pl.when(pl.col("label") == 1).then("response_a").otherwise("response_b")
    said = strict.select("prompt", own=own)
    both = said.join(released.select("prompt", "chosen").unique("prompt"), on="prompt")
    assert both.height == strict.height
    return float((both["own"] != both["chosen"]).mean())  # type: ignore[arg-type]
