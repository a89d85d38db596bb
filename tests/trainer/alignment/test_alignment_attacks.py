"""Attacks on what a reward and an aligned model say that they learned from."""

import shutil
from pathlib import Path

import pytest
import yaml
from labelguard_trainer.alignment.align import align
from support import preferred_words, tiny_models
from transformers import GPT2ForSequenceClassification

import labelguard as lg
from labelguard.errors import LabelguardError, ProjectError
from labelguard.release.model_card import LearnedRelease, find_learned_releases, front_matter
from labelguard.storage.files import SUMS, format_sums, hash_files

OTHER = LearnedRelease("r0009-other", "9" * 64, 3.0, 1e-6, "labeler", "replace_labels")


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """A release with a head."""
    return preferred_words.head(tmp_path_factory.mktemp("liked"))


def reward_model(directory, learned, *tags):
    """The path of a reward model that knows nothing, with a card."""
    config = tiny_models.config()
    config.num_labels = 1
    GPT2ForSequenceClassification(config).save_pretrained(directory)
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


def test_a_model_in_a_release_is_known_by_any_path_and_only_unaltered(release, monkeypatch):
    copy = shutil.copytree(release.path, "copy")
    model = Path(reward_model(f"{copy}/model", ()))
    with pytest.raises(ProjectError, match="was added"):
        find_learned_releases(str(model), private=True)
    (model / "TRAINING_CARD.md").unlink()
    Path(copy, SUMS).unlink()
    Path(copy, SUMS).write_text(format_sums(hash_files(Path(copy))))
    learned = find_learned_releases(str(model), private=True)
    assert [one.release for one in learned] == [release.id]
    Path("link").symlink_to(model)
    assert find_learned_releases("link", private=True) == learned
    monkeypatch.chdir(model)
    assert find_learned_releases(".", private=True) == learned


@pytest.mark.slow
def test_paths_of_here_do_not_leave_with_a_policy(release):
    tiny_models.saved(Path("base"))
    judge = reward_model("judge", (OTHER,))
    rl = {"max_steps": 1, "per_device_train_batch_size": 2, "num_generations": 2}
    config = {**rl, "max_completion_length": 2, "run_name": "of-a-person"}
    recipe = {
        "release": str(release.path),
        "model": str(Path("base").absolute()),
        "reward": {"mix": {f"reward:{judge},max_tokens=8": 0.5}},
        "rl": {"config": config, "holdout": 0},
    }
    Path("recipe.yaml").write_text(yaml.safe_dump(recipe))
    align("recipe.yaml", output="out")
    for file in ("TRAINING_CARD.md", "stage.json", "metrics.jsonl"):
        text = Path("out/rl", file).read_text()
        assert str(Path.cwd()) not in text and "of-a-person" not in text
    assert "+0.5 × reward:judge,max_tokens=8" in Path("out/rl/TRAINING_CARD.md").read_text()
    align("recipe.yaml", output="out")
    Path(judge, "chat_template.jinja").write_text("{{ messages[-1].content }}")
    with pytest.raises(LabelguardError, match="another recipe"):
        align("recipe.yaml", output="out")
