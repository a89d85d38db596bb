"""A trained model at the Hub: what training wrote, with its card.

What docs/training.md and the example say, done.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from huggingface_hub import ModelCard
from labelguard_trainer.training.rows import RawLabels
from labelguard_trainer.training.run import train
from labelguard_trainer.training.training_card import publish_model
from support import tiny_models, train_runs
from transformers import AutoModelForCausalLM, AutoTokenizer

import labelguard as lg
from labelguard.cli.main import main
from labelguard.errors import LabelguardError
from labelguard.storage.files import SUMS, format_sums, hash_files

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
    hashes = hash_files(model)
    del hashes[SUMS]
    (model / SUMS).write_text(format_sums(hashes))
    command = ["train", "publish", str(model), "--to", f"hf:{NAME}"]
    refused = CliRunner().invoke(main, command)
    assert refused.exit_code == 1 and "--non-private" in refused.output
    assert not hub.repositories
    done = CliRunner().invoke(main, [*command, "--non-private", "--json"])
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
        result = CliRunner().invoke(main, shlex.split(line))
        assert result.exit_code == 0, f"{line}\n{result.output}"
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
