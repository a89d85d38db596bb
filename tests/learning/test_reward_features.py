"""The feature `reward`: the scalar of a sequence-classification model, made on the spot."""

import shutil
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pytest
from support.tiny_models import config, tokenizer

import labelguard as lg
from labelguard.errors import LabelguardError
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
    release = lg.privatize(
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
