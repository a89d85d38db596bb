"""Attacks on training, and mishaps like them: secrets in settings, hostile models, full disks."""

import json
import re
import resource
import shlex
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import ModelCard
from labelguard_trainer.training import guard, learners, models, settings
from labelguard_trainer.training.evaluate import TrainingResult, evaluate
from labelguard_trainer.training.request import Source
from labelguard_trainer.training.rows import RawLabels
from labelguard_trainer.training.run import train
from labelguard_trainer.training.stages import StageLearner
from labelguard_trainer.training.training_card import publish_model, to_markdown
from support import tiny_models, train_runs, world
from support import tiny_models as tiny
from support.commands import run
from support.copies import write_sums
from support.releases import make_release
from transformers import AutoModelForCausalLM, AutoTokenizer

import labelguard as lg
from labelguard.errors import LabelguardError
from labelguard.learning.learners import LearnerOptions
from labelguard.storage.files import hash_files
from labelguard.text import no_progress

PAIRS = 12
SETTINGS = "max_length: 64\nmax_steps: 2\nsave_steps: 1\nlearning_rate: 1e-3\n"
HOSTILE = (
    "from pathlib import Path\nPath({mark!r}).write_text('ran')\nraise ImportError('hostile')\n"
)


@pytest.fixture
def base():
    return tiny.saved(Path("base").absolute())


@pytest.fixture
def prepare(base):
    """A learner of `base`, by `SETTINGS` and more."""

    def prepared(more="", lora=None, kind="dpo"):
        config = Path("train.yaml")
        config.write_text(SETTINGS + more)
        pairs = tiny.planted(PAIRS).rename_columns(["item_id", "prompt", "first", "second"])
        made: Any = getattr(learners, kind)
        return made(pairs, LearnerOptions(str(base), lora, str(config)))

    return prepared


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    directory = tmp_path_factory.mktemp("release")
    who = pa.array([f"w{row % 5}" for row in range(40)])
    labels = tiny.planted(40).append_column("labeler_id", who)
    project = lg.init(directory / "project", max_epsilon=20)
    made = make_release(labels, project=project, mechanism="rr", epsilon=20.0, delta=1e-5)
    return Path(shutil.copytree(made.path, directory / "rr"))


def _fitted(prepared, directory, before=None):
    learner: StageLearner = prepared.open(directory, no_progress)
    first = (np.arange(PAIRS) % 2).astype(float)
    return learner.fit(np.arange(PAIRS), first, np.full(PAIRS, 0.1), before)


# Secrets and private places -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"hub_token": "hf_secret"}, "HF_TOKEN"),
        ({"hub_model_id": "a/b"}, "publish"),
        ({"push_to_hub": True}, "publish"),
        ({"model_init_kwargs": {"token": "hf_secret"}}, "HF_TOKEN"),
        ({"model_init_kwargs": {"use_auth_token": "hf_secret"}}, "HF_TOKEN"),
        ({"model_init_kwargs": {"trust_remote_code": True}}, "field of its own"),
        ({"model_init_kwargs": "hf_secret"}, "model_init_kwargs must hold"),
    ],
)
def test_secrets_are_refused_and_not_repeated(given, words):
    with pytest.raises(LabelguardError, match=words) as raised:
        settings.check_fields("dpo", given)
    assert "hf_secret" not in str(raised.value)


PRIVATE = (
    "run_name: fire the union\nlogging_steps: 7\nmodel_init_kwargs: {cache_dir: /home/ada/cache}\n"
    "beta: 0.2\n"
)


@pytest.mark.slow
def test_an_identity_tells_how_a_model_was_trained_and_no_name_or_place(prepare):
    told = json.dumps(dict(prepare(PRIVATE).identity))
    assert not [word for word in ("union", "ada", "cache") if word in told]
    training = prepare(PRIVATE).identity["training"]
    assert training["beta"] == 0.2 and training["learning_rate"] == 1e-3
    assert training["max_length"] == 64 and training["num_train_epochs"] == 3
    assert training == prepare(PRIVATE).identity["training"]
    other = prepare(PRIVATE.replace("7", "8")).identity["training"]
    assert {name for name in training if training[name] != other[name]} == {"digest"}


def test_a_training_card_tells_no_name_or_place(base):
    given = {"run_name": "fire the union", "beta": 0.2, "learning_rate": "/home/ada/rate"}
    source = Source(Path("labels.jsonl"), "0", None)
    request: Any = SimpleNamespace(source=source, base=(), config=given, lora=None)
    nothing = evaluate([], flip_probability=[], label_probability=[], items=[])
    facts = dict.fromkeys((field.name for field in fields(TrainingResult)), 0)
    trained: Any = SimpleNamespace(**{**facts, "model": str(base), "evaluation": nothing})
    asked = {"model": "sha256:0", "versions": {}}
    card = to_markdown(request, trained, asked, adapter=False)
    assert "`beta: 0.2`" in card and "`base` (" in card
    assert not [word for word in ("union", "ada", str(base)) if word in card]


# A model's own code -------------------------------------------------------------------------------


@pytest.fixture
def hostile(base, monkeypatch):
    """The mark that `base` leaves if its own code is run; whoever is asked says yes."""
    mark = Path("ran")
    for name in ("config.json", "tokenizer_config.json"):
        own = json.loads((base / name).read_text())
        own |= {"model_type": "hostile", "tokenizer_class": "HostileTokenizer"}
        own["auto_map"] = {
            "AutoConfig": "code.Config",
            "AutoModelForCausalLM": "code.Model",
            "AutoModelForSequenceClassification": "code.Model",
            "AutoTokenizer": ["code.Tokenizer", None],
        }
        (base / name).write_text(json.dumps(own))
    (base / "code.py").write_text(HOSTILE.format(mark=str(mark)))
    monkeypatch.setattr("builtins.input", lambda *asked: "y")
    return mark


@pytest.mark.quick("dpo")
@pytest.mark.parametrize("kind", ["dpo", "reward"])
def test_a_learner_never_runs_a_models_own_code(kind, prepare, hostile):
    with pytest.raises(LabelguardError, match="custom code") as raised:
        prepare(kind=kind)
    assert "\n" not in str(raised.value) and not hostile.exists()
    with pytest.raises(LabelguardError, match="process that reads raw labels"):
        prepare("trust_remote_code: true\n", kind=kind)
    assert not hostile.exists()


def test_nothing_loads_code_unless_it_is_told_to(base, hostile):
    for load in (models.load_config, models.load_tokenizer):
        with pytest.raises(LabelguardError, match="cannot be loaded"):
            load(str(base))
    with pytest.raises(LabelguardError, match="cannot be loaded"):
        models.load_model("dpo", str(base))
    assert not hostile.exists()


def test_training_on_a_release_runs_code_only_if_that_is_typed(release, base, hostile):
    config = Path("train.yaml")
    config.write_text(SETTINGS)
    with pytest.raises(LabelguardError, match="custom code"):
        train("dpo", release, base, output=Path("out"), config=config)
    assert not hostile.exists()
    config.write_text(f"{SETTINGS}trust_remote_code: true\n")
    with pytest.raises(LabelguardError, match="hostile"):
        train("dpo", release, base, output=Path("out"), config=config)
    assert hostile.read_text() == "ran"


# What an identity covers --------------------------------------------------------------------------


@pytest.mark.quick("code.py")
@pytest.mark.parametrize("name", ["code.py", "weights/part.pt", "additional_chat_templates/a"])
def test_every_file_of_a_model_is_in_its_identity(name, base):
    found = [models.identity(str(base))]
    for content in ("one", "two"):
        (base / name).parent.mkdir(exist_ok=True)
        (base / name).write_text(content)
        found.append(models.identity(str(base)))
    assert len(set(found)) == 3


def test_links_are_their_files_and_what_is_hidden_does_not_count(base):
    linked = Path("linked").absolute()
    linked.mkdir()
    for path in base.iterdir():
        (linked / path.name).symlink_to(path)
    (linked / ".git").mkdir()
    (linked / ".git" / "HEAD").write_text("main")
    assert models.identity(str(linked)) == models.identity(str(base))
    (linked / "again").symlink_to(linked)
    assert models.identity(str(linked)) == models.identity(str(base))
    (linked / "more").symlink_to(Path("elsewhere").absolute())
    Path("elsewhere").mkdir()
    Path("elsewhere", "a.jinja").write_text("")
    assert models.identity(str(linked)) != models.identity(str(base))


# A base model that is exchanged -------------------------------------------------------------------


def test_a_base_model_that_is_exchanged_is_noticed_before_it_is_loaded_again(prepare, base):
    prepared = prepare(lora="r=2,alpha=4")
    stages, public = Path("stages"), Path("public")
    stages.mkdir()
    public.mkdir()
    first = _fitted(prepared, stages)
    tiny.saved(base, seed=9)
    for again in (lambda: _fitted(prepared, stages, first), lambda: prepared.files(first, public)):
        with pytest.raises(LabelguardError, match="has changed since"):
            again()
    assert not any(public.iterdir())


@pytest.mark.slow
def test_a_base_model_that_is_exchanged_while_it_is_published_is_noticed(
    prepare, base, monkeypatch
):
    prepared = prepare(lora="r=2,alpha=4")
    stages, public = Path("stages"), Path("public")
    stages.mkdir()
    public.mkdir()
    trained = _fitted(prepared, stages)
    world.note_calls(monkeypatch, models, "load_model", lambda *_, **__: tiny.saved(base, seed=9))
    with pytest.raises(LabelguardError, match="has changed since"):
        prepared.files(trained, public)
    assert not any(public.iterdir())


def test_a_hubs_model_is_loaded_by_the_commit_of_its_identity(base):
    init = {"dtype": "float32", "revision": "main"}
    assert models.pin_revision("org/name", "org/name@0a1b", init) == {**init, "revision": "0a1b"}
    assert models.pin_revision(str(base), models.identity(str(base)), init) == init


def test_training_on_a_release_notices_that_its_base_was_exchanged(release, base, monkeypatch):
    config = Path("train.yaml")
    config.write_text(SETTINGS)
    world.note_calls(monkeypatch, guard, "load_checked_config", lambda *_: tiny.saved(base, seed=9))
    with pytest.raises(LabelguardError, match="has changed since"):
        train("reward", release, base, output=Path("out"), config=config)
    assert not (Path("out")).exists()


# A full disk --------------------------------------------------------------------------------------


@contextmanager
def _files_of_at_most(size):
    """Writes fail beyond it, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "size"),
    [
        pytest.param("", 100_000, id="weights of a checkpoint"),
        pytest.param("", 200_000, id="optimizer of a checkpoint"),
        pytest.param("save_strategy: 'no'\n", 100_000, id="the model of a stage"),
    ],
)
def test_a_full_disk_in_a_stage_is_told_as_one(more, size, prepare):
    prepared = prepare(more)
    stages = Path("stages")
    stages.mkdir()
    with _files_of_at_most(size), pytest.raises(LabelguardError, match="make room") as raised:
        _fitted(prepared, stages)
    message = str(raised.value)
    assert str(stages) in message and "\n" not in message and "damaged" not in message
    assert _fitted(prepared, stages).path.is_dir(), "the same again, with room"


@pytest.mark.slow
def test_a_full_disk_in_training_on_a_release_is_told_as_one(release, base):
    config, out = Path("train.yaml"), Path("out")
    config.write_text(f"{SETTINGS}save_strategy: 'no'\n")
    with _files_of_at_most(100_000), pytest.raises(LabelguardError, match="make room"):
        train("reward", release, base, output=out, config=config)
    assert not out.exists()
    assert train("reward", release, base, output=out, config=config).steps == 2


@pytest.mark.slow
def test_a_full_disk_leaves_nothing_half_published(prepare):
    prepared = prepare(lora="r=2,alpha=4")
    stages, public = Path("stages"), Path("public")
    stages.mkdir()
    public.mkdir()
    trained = _fitted(prepared, stages)
    with _files_of_at_most(100_000), pytest.raises(LabelguardError, match="make room"):
        prepared.files(trained, public)
    assert not any(public.iterdir())
    [model] = prepared.files(trained, public)
    assert list(public.iterdir()) == [model]


# A tokenizer's file names -------------------------------------------------------------------------


def test_a_tokenizer_that_no_release_may_hold_is_refused_before_anything_is_trained(prepare, base):
    words = tiny.tokenizer()
    words.chat_template = {"default": tiny.CHAT_TEMPLATE, "tool use": tiny.CHAT_TEMPLATE}
    words.save_pretrained(base)
    with pytest.raises(LabelguardError, match=r"tokenizer of .* cannot be published.*tool use"):
        prepare()


# A trained model at the Hub: what training wrote, with its card.
#
# What docs/training.md and the example say, done.

NAME = "org/aligned"


@pytest.fixture(scope="module")
def trained(shop, tmp_path_factory):
    """A language model that was trained on a release."""
    output = tmp_path_factory.mktemp("trained") / "model"
    train("dpo", shop / "rr", shop / "base", output=output, config=shop / "quick.yaml")
    return output


@pytest.fixture(scope="module")
def adapter(shop, tmp_path_factory):
    """An adapter of a model in a directory."""
    output = tmp_path_factory.mktemp("trained") / "adapter"
    more = {"config": shop / "quick.yaml", "lora": "r=2,alpha=4"}
    train("dpo", shop / "rr", shop / "base", output=output, **more)
    return output


@pytest.fixture
def model(trained, tmp_path):
    """A copy of the model, to be tampered with."""
    return shutil.copytree(trained, tmp_path / "trained" / "model")


def public(directory):
    files = {name: (directory / name).read_bytes() for name in hash_files(directory)}
    return {**files, "README.md": files["TRAINING_CARD.md"]}


@pytest.mark.slow
def test_the_hub_gets_a_model_that_loads_and_its_card(model, hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    where = publish_model(model, f"hf:{NAME}").where
    assert where == f"{hub.url}/{NAME}" and hub.repositories["model", NAME].private
    assert hub.published(NAME, "model") == public(model)
    card = ModelCard(hub.published(NAME, "model")["README.md"].decode())
    card.validate(repo_type="model")
    hub.calls.clear()
    publish_model(model, f"hf:{NAME}")
    assert "commit" not in hub.calls
    loaded = AutoModelForCausalLM.from_pretrained(NAME)
    assert loaded.config.vocab_size == len(AutoTokenizer.from_pretrained(NAME))
    [release] = card.data.to_dict()["labelguard"]["learned_from"]
    assert release["epsilon"] == 20 and release["delta"] == 1e-5


def check_paths(directory, shop):
    for path in directory.rglob("*"):
        assert str(shop).encode() not in path.read_bytes(), path


def test_no_path_of_this_machine_is_published(model, shop, hub, tmp_path):
    publish_model(model, f"hf:{NAME}")
    check_paths(hub.download(NAME, tmp_path / "out", "model"), shop)


@pytest.mark.slow
def test_an_adapter_names_the_base_that_others_have(adapter, shop, hub, tmp_path):
    with pytest.raises(LabelguardError, match="--base ORG/NAME"):
        publish_model(adapter, f"hf:{NAME}")
    for bad in ("../base", "org/base\nlicense: mit", str(shop / "base")):
        with pytest.raises(LabelguardError, match="expected the id of a model"):
            publish_model(adapter, f"hf:{NAME}", base=bad)
    publish_model(adapter, f"hf:{NAME}", base="org/base")
    check_paths(hub.download(NAME, tmp_path / "out", "model"), shop)
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "org/base"
    card = ModelCard((tmp_path / "out" / "README.md").read_text())
    assert card.data.base_model == "org/base" and card.data.library_name == "peft"
    before = hub.published(NAME, "model")
    publish_model(tmp_path / "out", "hf:org/again", base="org/base")  # sums hold there too
    assert hub.published("org/again", "model") == before


def test_a_model_of_raw_labels_is_published_only_where_that_is_typed(model, hub, tmp_path):
    card = model / "TRAINING_CARD.md"
    card.write_text(card.read_text().replace("- differential-privacy", "- non-private", 1))
    write_sums(model)
    command = ["train", "publish", str(model), "--to", f"hf:{NAME}"]
    assert "--non-private" in run(*command, code=1).output
    assert not hub.repositories
    done = run(*command, "--non-private", "--json")
    assert json.loads(done.stdout)["where"] == f"{hub.url}/{NAME}"
    with pytest.raises(RawLabels):
        publish_model(hub.download(NAME, tmp_path / "out", "model"), "hf:org/another")


def add_file(model):
    (model / "optimizer.pt").write_bytes(b"")


def add_link(model):
    (model / "data").symlink_to(model.parent)


def alter_weights(model):
    with (model / "model.safetensors").open("ab") as file:
        file.write(b"\0")


def lead_away(model):
    (model / "config.json").rename(model.parent / "config.json")
    (model / "config.json").symlink_to("../config.json")


def claim_a_guarantee(model):
    card = model / "TRAINING_CARD.md"
    card.write_text(card.read_text().replace("epsilon: 20.0", "epsilon: 2.0"))


def drop_sums(model):
    (model / "SHA256SUMS").unlink()


@pytest.mark.parametrize(
    "attack", [add_file, add_link, alter_weights, lead_away, claim_a_guarantee, drop_sums]
)
def test_a_directory_that_is_not_as_training_wrote_it_is_not_published(attack, model, hub):
    attack(model)
    with pytest.raises(LabelguardError, match=r"nothing was published|only what labelguard train"):
        publish_model(model, f"hf:{NAME}")
    assert not hub.repositories


def test_a_release_is_no_model(shop, hub):
    with pytest.raises(LabelguardError, match=r"does not name TRAINING_CARD\.md"):
        publish_model(shop / "rr", f"hf:{NAME}")
    assert not hub.repositories


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory with a project, a base model, and the reader's labels."""
    monkeypatch.chdir(tmp_path)
    lg.init(tmp_path)
    tiny_models.saved(tmp_path / "base")
    labels = train_runs.labels(120, labelers=120)
    names = ["worker" if name == "labeler_id" else name for name in labels.column_names]
    pq.write_table(labels.rename_columns(names), "preferences.parquet")
    return tmp_path


def _blocks(language):
    found = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found


@pytest.mark.docs
def test_the_commands_of_the_page_run_with_its_configuration(here, hub):
    [config] = _blocks("yaml")
    (here / "train.yaml").write_text(config)
    for line in re.findall(r"(?m)^\$ labelguard (.*)$", "".join(_blocks("console"))):
        run(*shlex.split(line))
    written = {path.name for path in (here / "aligned").iterdir()}
    assert set(re.findall(r"`((?:TRAINING|evaluation|metrics|curves)[^`]*)`", PAGE)) <= written


@pytest.mark.docs
def test_the_script_of_the_page_trains(here):
    for block in _blocks("python"):
        exec(compile(block, "training.md", "exec"), {})


@pytest.mark.docs
def test_the_example_goes_from_raw_labels_to_a_model(tmp_path):
    example = ROOT / "examples" / "train_dpo.py"
    command = [sys.executable, example, "--labels", "300", "--steps", "3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "labels released, each flipped with probability 0." in done.stdout
    assert re.search(r"agreement with other labelers: 0\.\d\d", done.stdout)
