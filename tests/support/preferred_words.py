"""Labels of people who like one word, and a release that knows it: a head without torch."""

import numpy as np
import pyarrow as pa
from support.releases import make_release

import labelguard as lg

WORDS = ("yes", "good", "no", "bad", "tea", "rain")


def table(pairs=120, labelers=40, **columns):
    """Pairs of texts in which the response with more `yes` is preferred."""
    draw = np.random.default_rng(3)
    prompts = [f"{WORDS[4 + row % 2]}?" for row in range(pairs)]
    sides = [
        [" ".join(WORDS[k] for k in draw.integers(4, size=4)) for _ in range(pairs)] for _ in "ab"
    ]
    wins = [a.count("yes") >= b.count("yes") for a, b in zip(*sides, strict=True)]
    chosen, rejected = (
        [pair[win ^ other] for win, *pair in zip(wins, sides[1], sides[0], strict=True)]
        for other in (False, True)
    )
    who = [f"w{row % labelers}" for row in range(pairs)]
    return pa.table(
        {
            "item_id": [f"i{row}" for row in range(pairs)],
            "prompt": prompts,
            "chosen": chosen,
            "rejected": rejected,
            "labeler_id": who,
            **columns,
        }
    )


def head(home, **columns):
    """A statistic release of them in a new project."""
    return make_release(
        table(**columns),
        epsilon=3,
        delta=1e-5,
        mechanism="statistic",
        features="length+style+text",
        project=lg.init(home),
    )
