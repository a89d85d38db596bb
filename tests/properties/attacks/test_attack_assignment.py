"""Assignment that reacts to raw labels tells them, whatever noise the labels get.

This cannot be prevented here: the attack succeeds, and the card of a project that declares such
assignment says so.
"""

import json

import numpy as np
import polars as pl
from support.preferences import compared, opinions
from support.releases import make_release

import labelguard

ITEMS = 400


def assign(votes, third):
    """Two annotators for every item, and a third one where `third` says so."""
    item = np.concatenate([np.repeat(np.arange(ITEMS), 2), np.flatnonzero(third)])
    place = np.concatenate([np.tile([0, 1], ITEMS), np.full(third.sum(), 2)])
    who = [f"worker {(3 * i + p) % 50}" for i, p in zip(item, place, strict=True)]
    return pl.DataFrame(compared(item, labeler_id=who, label=votes[item, place]))


def guessed(frame, home):
    """Whether the first two annotators disagreed, guessed from the number of rows of a release."""
    labelguard.init(home)
    made = make_release(
        frame, mechanism="rr", epsilon=0.5, delta=1e-6, assignment_reactive=True, project=home
    )
    assert made.card["privacy"]["assignment"] == "reactive"
    assert "**Condition.**" in (made.path / "CARD.md").read_text()
    assert json.loads((made.path / "card.json").read_text())["counts"]["rows"] == len(frame)
    count = labelguard.load(made)["prompt"].value_counts()
    rows = dict(zip(count["prompt"], count["count"], strict=True))
    return np.array([rows[f"question {i}"] == 3 for i in range(ITEMS)])


def test_a_third_annotator_where_two_disagree_tells_all_disagreements(tmp_path):
    votes = opinions(ITEMS, seed=3) % 2
    disagree = votes[:, 0] != votes[:, 1]
    assert 0.3 < disagree.mean() < 0.7
    reactive = guessed(assign(votes, disagree), tmp_path / "reactive")
    assert (reactive == disagree).all()  # at ε = 0.5 an honest guess is right on about half
    fixed = np.random.default_rng(0).random(ITEMS) < disagree.mean()
    told = guessed(assign(votes, fixed), tmp_path / "fixed")
    # Of 400 independent guesses more than 60% would be right with probability below 1e-4.
    assert (told == disagree).mean() < 0.6
