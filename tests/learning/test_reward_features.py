"""The feature `reward`: the scalar of a sequence-classification model, made on the spot."""

import json
import shutil
from dataclasses import asdict

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from support.releases import make_release
from support.tiny_models import config, gpt2, tokenizer

import labelguard as lg
from labelguard.errors import LabelguardError
from labelguard.inputs.pairs import read_public_pairs
from labelguard.learning.features import fit_features
from labelguard.release.model_card import LearnedRelease, front_matter, list_learned_releases
from labelguard.text import no_progress

ANSWERS = ("so", "because it is", "no", "a much longer answer than all others", "yes!")
PROMPTS = ("Why?", "How does rain fall?", "Is it?", "And then?", "Well?")
ROUNDING = 1e-5


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LABELGUARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    """A GPT-2 with one label, random weights, and a chat template."""
    directory = tmp_path_factory.mktemp("judge")
    classifier(1).save_pretrained(directory)
    tokenizer(chat=True).save_pretrained(directory)
    return directory


def classifier(labels):
    from transformers import GPT2ForSequenceClassification, set_seed

    set_seed(3)
    settings = config()
    settings.num_labels = labels
    model = GPT2ForSequenceClassification(settings)
    model.score.weight.data *= 100  # scores of order 1
    return model


def pairs():
    return pa.table({"prompt": PROMPTS, "first": ANSWERS, "second": ANSWERS[1:] + ANSWERS[:1]})


def chats():
    """The same as chats."""
    role = {"prompt": "user", "first": "assistant", "second": "assistant"}
    return pa.table(
        {
            name: [[{"role": role[name], "content": text}] for text in column.to_pylist()]
            for name, column in zip(pairs().column_names, pairs().columns, strict=True)
        }
    )


def scores(directory, texts):
    """By the library's own classes, one text after the other, without padding."""
    import torch
    from transformers import GPT2ForSequenceClassification

    model = GPT2ForSequenceClassification.from_pretrained(directory).eval()
    own = tokenizer()
    with torch.inference_mode():
        found = [
            model(input_ids=torch.tensor([own(text, add_special_tokens=False)["input_ids"]])).logits
            for text in texts
        ]
    return np.concatenate([one.numpy() for one in found])[:, 0]


def expected_rewards(directory, *, template=True):
    table = pairs().to_pylist()
    shown = "<|user|>{}<eos><|assistant|>{}<eos>" if template else "{}\n{}"
    sides = [[shown.format(row["prompt"], row[side]) for row in table] for side in SIDES]
    first, second = (scores(directory, side) for side in sides)
    return np.asarray(first - second)


SIDES = ("first", "second")


def compute_rewards(directory, table, options=",dtype=float32"):
    """The unscaled feature of every pair."""
    fitted = fit_features(f"reward:{directory}{options}", table, no_progress)[0]
    found = fitted(table) / np.float32(fitted.state()["scale"][0])
    assert found.shape == (table.num_rows, 1)
    return found[:, 0]


@pytest.mark.parametrize("table", [pairs(), chats()], ids=["texts", "chats"])
def test_it_is_the_models_scalar_in_the_chat_template_of_its_tokenizer(table, judge):
    own = expected_rewards(judge)
    assert np.abs(own).min() > 100 * ROUNDING
    np.testing.assert_allclose(compute_rewards(judge, table), own, atol=10 * ROUNDING)


def test_a_tokenizer_without_template_and_padding_scores_the_same(judge, tmp_path):
    """Padding is needed for batches alone, and must not be taken for the end of a text."""
    bare = tmp_path / "bare"
    shutil.copytree(judge, bare)
    (bare / "chat_template.jinja").unlink()
    own = tokenizer()
    own.pad_token = None
    own.save_pretrained(bare)
    model = classifier(1)
    model.config.pad_token_id = None
    model.save_pretrained(bare)
    found = compute_rewards(bare, pairs())
    np.testing.assert_allclose(found, expected_rewards(judge, template=False), atol=10 * ROUNDING)


def test_models_that_give_no_scalar_are_refused(tmp_path):
    classifier(2).save_pretrained(tmp_path / "two")
    with pytest.raises(LabelguardError, match=r"expected one label.*found 2 labels"):
        fit_features(f"reward:{tmp_path / 'two'}", pairs(), no_progress)
    from transformers import GPT2Model

    GPT2Model(config()).save_pretrained(tmp_path / "none")
    with pytest.raises(LabelguardError, match=r"expected a sequence-cl.*found GPT2Model; an enc"):
        fit_features(f"reward:{tmp_path / 'none'}", pairs(), no_progress)


@pytest.mark.parametrize("spec", ["reward", "hf"])
def test_a_model_that_was_trained_on_raw_labels_is_no_feature(judge, tmp_path, spec):
    raw = shutil.copytree(judge, tmp_path / "raw")
    (raw / "TRAINING_CARD.md").write_text(
        f"---\ntags: [non-private]\n{front_matter((), 'base')}---\n"
    )
    with pytest.raises(LabelguardError, match="raw labels"):
        fit_features(f"{spec}:{raw}", pairs(), no_progress)


def test_the_card_of_a_release_names_the_releases_that_its_features_learned_from(judge, tmp_path):
    first = LearnedRelease("r0001-a", "0" * 64, 1.0, 1e-5, "labeler", "replace_labels")
    learned = shutil.copytree(judge, tmp_path / "learned")
    (learned / "TRAINING_CARD.md").write_text(
        f"---\ntags: []\n{front_matter((first,), 'base')}---\n"
    )
    release = make_release(
        lg.simulate(labelers=12, labels=60, items=20),
        epsilon=3,
        delta=1e-5,
        mechanism="statistic",
        features=f"reward:{learned}+length",
        project=lg.init(tmp_path / "project"),
    )
    assert release.card["learned_from"] == [asdict(first)]
    assert "| also learned from | release r0001-a, ε = 1" in (release.path / "CARD.md").read_text()
    assert list_learned_releases(release.card, "1" * 64)[1:] == (first,)


# The feature `verdict`: a public judge's preference, from columns or from a language model.

PAIRS = {
    "prompt": ["Why?", "How?", "Is it?"],
    "first": ["so", "by hand", "no"],
    "second": ["because it is", "never", "yes, always"],
}


@pytest.fixture(scope="module")
def language_judge(tmp_path_factory):
    """A GPT-2 with random weights and no template."""
    directory = tmp_path_factory.mktemp("judge")
    model = gpt2()
    for weights in model.parameters():
        weights.data *= 8  # log-odds of order 1
    model.save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    return directory


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


def test_a_language_model_is_asked_in_both_orders(language_judge):
    spec = f"verdict:model={language_judge},dtype=float32,max_tokens=256"
    values = verdicts(spec, pa.table(PAIRS))
    expected = [
        (ask(language_judge, *texts) - ask(language_judge, texts[0], texts[2], texts[1])) / 2
        for texts in zip(*PAIRS.values(), strict=True)
    ]
    assert np.abs(values).max() > 0.1
    np.testing.assert_allclose(values, expected, atol=1e-4)
    swapped = dict(zip(PAIRS, [PAIRS["prompt"], PAIRS["second"], PAIRS["first"]], strict=True))
    assert np.array_equal(verdicts(spec, pa.table(swapped)), -values)


def test_long_texts_leave_the_question_whole(language_judge):
    long = {name: [text * 100 for text in column] for name, column in PAIRS.items()}
    spec = f"verdict:model={language_judge},dtype=float32,max_tokens=200"
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
    release = make_release(
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
