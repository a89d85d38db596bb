"""What docs/training.md and the example say, done."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from support import tiny_models, train_runs

import labelguard as lg
from labelguard.cli.main import main

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
def test_the_commands_of_the_page_run_with_its_configuration(here):
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
