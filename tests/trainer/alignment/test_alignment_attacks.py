"""Attacks on what a reward, an aligned model and a judge say that they learned from."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from labelguard_trainer import best_of
from support import tiny_models
from transformers import GPT2ForSequenceClassification

import labelguard as lg
from labelguard.errors import LabelguardError
from labelguard.release.model_card import LearnedRelease, front_matter

OTHER = LearnedRelease("r0009-other", "9" * 64, 3.0, 1e-6, "labeler")


def reward_model(directory, learned, *tags):
    """The path of a reward model that knows nothing, with a card."""
    model = GPT2ForSequenceClassification(tiny_models.config())
    model.config.id2label = {0: "LABEL_0"}
    model.save_pretrained(directory)
    tiny_models.tokenizer().save_pretrained(directory)
    matter = front_matter(learned, "base")
    listed = "".join(f"- {tag}\n" for tag in ("labelguard", *tags))
    Path(directory, "TRAINING_CARD.md").write_text(f"---\ntags:\n{listed}{matter}---\n")
    return str(Path(directory).absolute())


def test_a_reward_model_of_raw_labels_is_not_mixed_in(release):
    raw = reward_model("raw", (), "non-private")
    with pytest.raises(LabelguardError, match="trained on raw labels"):
        lg.reward(release, mix={f"reward:{raw}": 0.5})
    lg.reward(release, mix={f"reward:{raw},max_tokens=8": 0.5}, non_private=True)


def test_the_price_of_what_is_mixed_in_is_named_once(release):
    [own] = lg.reward(release).learned_from
    of_both = reward_model("both", (OTHER, own))
    assert lg.reward(release, mix={f"reward:{of_both}": 0.5}).learned_from == (own, OTHER)


def test_a_judge_is_not_of_the_rewards_own_release_by_another_name(release):
    [own] = lg.reward(release).learned_from
    rows = pa.table({"prompt": ["tea?", "tea?"], "response": ["yes", "no"]})
    pq.write_table(rows, "candidates.parquet")
    judge = f"reward:{reward_model('judge', (own,))}"
    with pytest.raises(LabelguardError, match="same release"):
        best_of(release, "candidates.parquet", judge=judge)
    mix = {f"reward:{reward_model('mixed', (OTHER,))}": 0.5}
    with pytest.raises(LabelguardError, match="same release"):
        best_of(release, "candidates.parquet", judge=judge, mix=mix)
