"""The feature `verdict`: a public judge's preference, from columns or from a language model."""

import json

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from support.tiny_models import gpt2, tokenizer

from labelguard.errors import LabelguardError
from labelguard.inputs.pairs import read_public_pairs
from labelguard.learning.features import fit_features
from labelguard.text import no_progress

PAIRS = {
    "prompt": ["Why?", "How?", "Is it?"],
    "first": ["so", "by hand", "no"],
    "second": ["because it is", "never", "yes, always"],
}


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    """A GPT-2 with random weights and no template."""
    directory = tmp_path_factory.mktemp("judge")
    model = gpt2()
    for weights in model.parameters():
        weights.data *= 8  # log-odds of order 1
    model.save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    return directory


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LABELGUARD_CACHE", str(tmp_path / "cache"))


def verdicts(spec, table):
    """The unscaled feature of every pair."""
    fitted = fit_features(spec, table, no_progress)[0]
    return fitted(table)[:, 0] / np.float32(fitted.state()["scale"][0])


def ask(directory, prompt, one, other):
    """The log-odds of A over B, by the library's own class, without batch and cache."""
    import torch
    from labelguard_trainer.features.verdict import QUESTION
    from transformers import GPT2LMHeadModel

    words = tokenizer()
    ids = words(QUESTION.format(prompt, one, other), add_special_tokens=False)["input_ids"]
    a, b = (words(name, add_special_tokens=False)["input_ids"] for name in "AB")
    with torch.inference_mode():
        logits = GPT2LMHeadModel.from_pretrained(directory).eval()(torch.tensor([ids])).logits
    return float(logits[0, -1, a[0]] - logits[0, -1, b[0]])


def test_a_language_model_is_asked_in_both_orders(judge):
    spec = f"verdict:model={judge},dtype=float32,max_tokens=256"
    values = verdicts(spec, pa.table(PAIRS))
    expected = [
        (ask(judge, *texts) - ask(judge, texts[0], texts[2], texts[1])) / 2
        for texts in zip(*PAIRS.values(), strict=True)
    ]
    assert np.abs(values).max() > 0.1
    np.testing.assert_allclose(values, expected, atol=1e-4)
    swapped = dict(zip(PAIRS, [PAIRS["prompt"], PAIRS["second"], PAIRS["first"]], strict=True))
    assert np.array_equal(verdicts(spec, pa.table(swapped)), -values)


def test_long_texts_leave_the_question_whole(judge):
    long = {name: [text * 100 for text in column] for name, column in PAIRS.items()}
    spec = f"verdict:model={judge},dtype=float32,max_tokens=200"
    provider = fit_features(spec, pa.table(long), no_progress)[0]
    [part] = provider._parts
    texts = part._list_distinct_texts(pa.table(long))
    for ids in part._input_tokenizer(texts.prompts, texts.responses):
        shown = tokenizer().decode(ids)
        assert len(ids) <= 200 and shown.endswith("The better response is")
        assert "Response A:\n" in shown and "Response B:\n" in shown


def test_a_column_of_verdicts_needs_a_declaration_of_its_own():
    table = pl.DataFrame(
        {"prompt": "p", "response_a": "x", "response_b": "y", "judge": 0.5, "labeler_id": "u"}
    )
    with pytest.raises(LabelguardError, match="declared public: --public-column judge"):
        read_public_pairs(table, features="verdict:judge")
    read = read_public_pairs(table, features="verdict:judge", public_columns=["judge"])
    assert verdicts("verdict:judge", read.table).tolist() == [0.5]


@pytest.mark.slow
def test_a_card_names_the_judge_and_its_column(tmp_path):
    import labelguard as lg

    made = pl.DataFrame(lg.simulate(labelers=20, labels=300, items=80))
    longer = pl.col("response_a").str.len_chars().cast(pl.Int64) - pl.col(
        "response_b"
    ).str.len_chars().cast(pl.Int64)
    made.with_columns(judge=longer).write_parquet(tmp_path / "judged.parquet")
    lg.init(tmp_path)
    release = lg.privatize(
        tmp_path / "judged.parquet",
        project=tmp_path,
        mechanism="statistic",
        features="length+verdict:judge",
        public_columns=["judge"],
        epsilon=3,
        uses=1,
    )
    text = (release.path / "CARD.md").read_text()
    alone = json.loads((release.path / "card.json").read_text())["judges"]
    assert 0.5 < alone["low"] < alone["mean"] < 0.8
    assert f"agree with about {100 * alone['mean']:.0f} of 100 new labels" in text
    assert "**Public judge.** `verdict:judge`" in text and "`judge`: declared public" in text
