"""`labelguard align` from a recipe to models: what comes out, is refused, is resumed."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from labelguard_trainer import train
from labelguard_trainer.alignment.align import align
from labelguard_trainer.training.training_card import publish_model
from support import preferred_words, tiny_models, train_runs
from support.commands import run
from support.copies import write_sums
from support.releases import make_release
from transformers import AutoModelForCausalLM, GPT2ForSequenceClassification

import labelguard as lg
from labelguard.errors import LabelguardError, ProjectError
from labelguard.release.model_card import RAW, LearnedRelease, find_learned_releases, front_matter

STEPS = {"max_steps": 4, "per_device_train_batch_size": 4, "learning_rate": 1e-3}
RL = {**STEPS, "max_completion_length": 6, "num_generations": 2, "save_steps": 2}
RECIPE = {
    "release": "teacher",
    "model": "base",
    "sft": {"config": {**STEPS, "max_length": 64}},
    "rl": {"config": RL, "holdout": 0.3},
}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A directory with a base model, and releases by a head and of labels, as copies."""
    home = tmp_path_factory.mktemp("study")
    tiny_models.saved(home / "base")
    tiny_models.saved(home / "chat", chat=True)
    options = {"epsilon": 8.0, "delta": 1e-5}
    features = {"mechanism": "statistic", "features": "length+style+text"}
    project = lg.init(home / "project", max_epsilon=20)
    head = make_release(train_runs.labels(), project=project, **options, **features)
    shutil.copytree(head.path, home / "teacher")
    chats = tiny_models.planted(120, chat=True).append_column(
        "labeler_id", pa.array([f"w{row % 40}" for row in range(120)])
    )
    for name, table, more in (("chats", chats, features), ("rr", train_runs.labels(), {})):
        other = lg.init(home / f"project-{name}", max_epsilon=20)
        shutil.copytree(make_release(table, project=other, **options, **more).path, home / name)
    return home


@pytest.fixture
def follow(study):
    """Follow `RECIPE` with tables of it replaced, in this test's directory."""
    for name in ("base", "chat", "teacher", "chats", "rr"):
        Path(name).symlink_to(study / name)

    def run(output="out", stage=None, progress=None, **tables):
        Path("recipe.yaml").write_text(yaml.safe_dump({**RECIPE, **tables}))
        more = {"progress": progress} if progress else {}
        return align("recipe.yaml", output=output, stage=stage, **more)

    return run


@pytest.fixture(scope="module")
def aligned(study, tmp_path_factory):
    """The models of `RECIPE`, made once."""
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(study)
        Path("recipe.yaml").write_text(yaml.safe_dump(RECIPE))
        align("recipe.yaml", output=tmp_path_factory.mktemp("aligned") / "out")
    return study / "recipe.yaml", next(tmp_path_factory.getbasetemp().glob("aligned*/out"))


def test_models_and_what_was_measured_come_out(aligned):
    _, output = aligned
    assert sorted(path.name for path in output.iterdir()) == ["rl", "sft"]
    names = {path.name for path in (output / "rl").iterdir()}
    assert {"TRAINING_CARD.md", "metrics.jsonl", "curves.svg", "SHA256SUMS"} <= names
    AutoModelForCausalLM.from_pretrained(output / "rl")
    assert not train_runs.same(output / "sft", output / "rl")
    lines = list(map(json.loads, (output / "rl" / "metrics.jsonl").read_text().splitlines()))
    assert {"reward", "kl", "distance"} <= lines[1].keys()
    result = json.loads((output / "rl" / "stage.json").read_text())["result"]
    assert result["steps"] == 4 and result["after"].keys() == {"reward", "kl", "distance", "length"}


def test_the_models_carry_the_guarantee_of_the_release_once(aligned, study):
    _, output = aligned
    [of_sft], [of_rl] = (
        find_learned_releases(str(output / name), private=True) for name in ("sft", "rl")
    )
    assert of_sft == of_rl and of_rl.epsilon == 8.0
    card = (output / "rl" / "TRAINING_CARD.md").read_text()
    assert "ε = 8" in card and str(study) not in card


def test_an_aligned_model_can_be_published(aligned, hub, tmp_path):
    _, output = aligned
    copy = shutil.copytree(output / "rl", tmp_path / "rl")
    publish_model(copy, "hf:org/public")
    card = (copy / "TRAINING_CARD.md").read_bytes()
    assert hub.published("org/public", "model")["README.md"] == card


def test_what_is_done_is_not_done_again(aligned, study, monkeypatch):
    recipe, output = aligned
    monkeypatch.chdir(study)
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    again = align(recipe, output=output)
    assert [stage.name for stage in again.stages] == ["sft", "rl"]
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*")} == before


def test_another_recipe_is_refused_where_models_are(aligned, follow):
    _, output = aligned
    shutil.copytree(output, "out")
    with pytest.raises(LabelguardError, match=r"another recipe \(other: holdout\)"):
        follow(rl={**RECIPE["rl"], "holdout": 0.2})
    for other in ({"model": "chat"}, {"sft": {"config": {**STEPS, "max_steps": 5}}}):
        with pytest.raises(LabelguardError, match="out/sft is of another recipe"):
            follow(stage="rl", **other)
    with pytest.raises(LabelguardError, match=r"another recipe \(other: reward\)"):
        follow(reward={"mix": {"length": -1.0}})


@pytest.mark.slow
def test_an_interrupted_policy_ends_as_an_uninterrupted_one(aligned, follow):
    _, output = aligned
    Path("out").mkdir()
    shutil.copytree(output / "sft", "out/sft")

    def interrupt(text, share):
        if "step 3" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow(progress=interrupt)
    assert Path("out/rl.partial").is_dir() and not Path("out/rl").exists()
    follow()
    assert train_runs.same(Path("out/rl"), output / "rl")
    one, other = (Path(path) / "rl" / "metrics.jsonl" for path in ("out", output))
    assert one.read_text() == other.read_text()


@pytest.mark.slow
def test_a_reward_model_is_trained_where_a_release_has_labels_only(follow):
    tables = {"release": "rr", "sft": None}
    with pytest.raises(LabelguardError, match="reward: base"):
        follow(**tables)
    reward = {"base": "base", "config": {**STEPS, "max_length": 64}}
    with pytest.raises(LabelguardError, match="stage reward first"):
        follow(stage="rl", **tables, reward=reward)
    result = follow(**tables, reward=reward)
    assert [stage.name for stage in result.stages] == ["rl"]
    assert {"kl", "distance"} <= result.stages[0].after.keys()
    with pytest.raises(LabelguardError, match="another recipe"):
        follow(**tables, reward={**reward, "loss": "robust"})


@pytest.mark.slow
def test_chats_are_answered_by_grpo(follow):
    result = follow(release="chats", model="chat", sft=None, rl={**RECIPE["rl"], "method": "grpo"})
    assert result.stages[0].after["length"] > 0


@pytest.mark.slow
def test_it_stops_at_a_bound_on_kl(follow):
    fast = {**RL, "learning_rate": 0.05, "max_steps": 40, "logging_steps": 1}
    [stage] = follow(sft=None, rl={"config": fast, "max_kl": 0.01, "holdout": 0}).stages
    assert stage.stopped and 0 < stage.steps < 40


@pytest.mark.slow
def test_prompts_without_room_for_a_response_are_left_out(follow):
    prompts = [*(f"{topic}?" for topic in tiny_models.TOPICS), "tea " * 80]
    pq.write_table(pa.table({"prompt": prompts * 2}), "prompts.parquet")
    tables = {"sft": None, "prompts": "prompts.parquet"}
    [stage] = follow(**tables, rl={"config": RL, "holdout": 0}).stages
    assert (stage.rows, stage.left_out) == (len(tiny_models.TOPICS), 1)
    with pytest.raises(LabelguardError, match="no prompt leaves room"):
        follow("other", **tables, rl={"config": {**RL, "max_completion_length": 256}})


@pytest.mark.slow
def test_public_demonstrations_leave_no_mark_of_the_release(follow, hub):
    answers = pa.table({"prompt": ["tea?", "rain?"] * 8, "response": ["yes good", "sure"] * 8})
    pq.write_table(answers, "answers.parquet")
    sft = {**RECIPE["sft"], "demonstrations": "answers.parquet"}
    follow(stage="sft", sft=sft)
    card = Path("out/sft/TRAINING_CARD.md").read_text()
    assert "learned_from: []" in card and "public demonstrations" in card
    assert find_learned_releases("out/sft", private=True) == ()
    assert not Path("out/rl").exists()
    publish_model("out/sft", "hf:org/public")
    follow(sft=sft)
    assert len(find_learned_releases("out/rl", private=True)) == 1


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ({"reward": {"mix": {"minilm": 1.0}}}, "one number"),
        ({"rl": {"config": {"reward_weights": [1.0]}}}, "reward_weights"),
        ({"rl": {"config": {"push_to_hub": True}}}, "push_to_hub"),
        ({"rl": {"config": {"learning_rat": 1.0}}}, "learning_rate"),
        ({"rl": {"max_kl": 0}}, "max_kl"),
        ({"rl": {"max_kl": 1, "config": {"beta": 0.0}}}, "max_kl needs"),
        ({"modell": "base"}, "modell"),
        ({"prompts": "missing.parquet"}, "missing"),
        ({"release": "base"}, "SHA256SUMS|card"),
    ],
)
def test_a_recipe_that_cannot_be_followed_is_refused(follow, tables, why):
    with pytest.raises(LabelguardError, match=why):
        follow(**{"sft": None, **tables})
    assert not Path("out/rl").exists()


def test_a_directory_that_no_recipe_made_is_refused_before_anything_is_trained(follow):
    shutil.copytree("base", "out/rl")
    with pytest.raises(LabelguardError, match="no stage of a recipe"):
        follow(sft=None)
    assert not Path("out/rl.partial").exists()


def test_a_base_model_that_changes_while_it_is_loaded_is_refused(follow, study):
    def swap(text, share):
        if text == "loading the model":
            Path("base").unlink()
            Path("base").symlink_to(study / "chat")

    with pytest.raises(LabelguardError, match="has changed"):
        follow(stage="sft", progress=swap)
    assert not Path("out/sft").exists()


@pytest.mark.slow
def test_a_model_has_the_price_of_the_release_that_its_base_learned_from_too(follow):
    (config := Path("quick.yaml")).write_text(train_runs.QUICK)
    train("dpo", "rr", "base", output="earlier", config=config)
    result = follow(model="earlier", stage="sft")
    [before] = find_learned_releases("earlier", private=True)
    learned = find_learned_releases("out/sft", private=True)
    assert learned == (before, *lg.reward("teacher").learned_from)
    assert any(before.release in note for note in result.notes)
    card = Path("out/sft/TRAINING_CARD.md").read_text()
    assert "**The prices add**" in card and "**Not protected:**" in card


@pytest.mark.slow
def test_a_reward_model_without_its_card_is_no_reward_of_the_release(follow):
    reward = {"base": "base", "config": {**STEPS, "max_length": 64}}
    follow(stage="reward", sft=None, reward=reward)
    Path("out/reward/TRAINING_CARD.md").unlink()
    with pytest.raises(LabelguardError, match="does not name"):
        follow(sft=None, reward=reward)


def test_a_base_model_of_raw_labels_is_refused(follow):
    raw = Path(shutil.copytree("base", "raw"))
    (raw / "TRAINING_CARD.md").write_text(
        f"---\ntags: [non-private]\n{front_matter((), 'base')}---\n"
    )
    assert RAW in (raw / "TRAINING_CARD.md").read_text()
    with pytest.raises(LabelguardError, match="raw labels"):
        follow(model="raw")


@pytest.mark.slow
def test_the_command_takes_a_stage_and_a_recipe(follow):
    follow(stage="sft")
    assert "ε = 8" in run("align", "rl", "recipe.yaml", "-o", "out").output
    assert Path("out/rl/TRAINING_CARD.md").is_file()
    for wrong in (["dpo", "recipe.yaml"], ["sft", "rl", "recipe.yaml"]):
        run("align", *wrong, "-o", "out", code=2)


# Attacks on what a reward and an aligned model say that they learned from.

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
    write_sums(Path(copy))
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
