"""`--config FILE`: the command's options from a file; what is typed comes first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from support.pages import blocks, commands

import labelguard as lg
from labelguard.cli.main import main
from labelguard.report import overview
from labelguard.simulation import SimulationConfig, simulate

LABELS = "labels.parquet"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def study(here: Path) -> Path:
    """Labels, and a project beside them."""
    pq.write_table(
        simulate(SimulationConfig(labelers=20, labels=300, items=80, seed=1)), here / LABELS
    )
    lg.init(here)
    return here


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def done(*words: str) -> dict[str, Any]:
    """The JSON of a command that succeeded."""
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_request_is_the_same_one_wherever_its_options_stand(study: Path) -> None:
    typed = "--mechanism statistic --epsilon 3 --delta 1e-5 --features length --whitening 0"
    made = done("privatize", LABELS, *typed.split(), "--ridge", "2", "--yes")
    (study / "a.yaml").write_text(
        "mechanism: statistic\nepsilon: 3\ndelta: 1e-5\nfeatures: length\nwhitening: 0\nridge: 2\n"
    )
    (study / "b.toml").write_text(
        'mechanism = "statistic"\nepsilon = 3.0\ndelta = 0.00001\nwhitening = 0.0\nridge = 2\n'
    )
    for again in (
        done("privatize", LABELS, "--config", "a.yaml"),
        done("privatize", LABELS, "--config", "b.toml", "--features", "length"),
    ):
        assert again["reused"] and again["id"] == made["id"]
    assert [one.id for one in overview.releases(study)] == [made["id"]]


def test_what_is_typed_comes_before_the_file(study: Path) -> None:
    (study / "own.yaml").write_text("mechanism: rr\nepsilon: 3\nunit: labeler\nexhausted: drop\n")
    found = done("privatize", LABELS, "--config", "own.yaml", "--dry-run")
    assert (found["mechanism"], found["epsilon"]) == ("rr", 3.0)
    found = done("privatize", LABELS, "--epsilon", "2", "--config", "own.yaml", "--dry-run")
    assert (found["mechanism"], found["epsilon"]) == ("rr", 2.0)


def test_columns_are_taken_role_by_role(study: Path) -> None:
    table = pq.read_table(LABELS).rename_columns({"labeler_id": "worker", "prompt": "a,b=c"})
    pq.write_table(table.append_column("other", table["worker"]), LABELS)
    (study / "own.yaml").write_text("columns: {labeler_id: nobody, prompt: 'a,b=c'}\n")
    refused = run("inspect", LABELS, "--config", "own.yaml")
    assert refused.exit_code == 1 and "nobody" in refused.stderr
    for typed in (("--columns", "labeler_id=worker"), ("--labeler-column", "other")):
        found = done("inspect", LABELS, "--config", "own.yaml", *typed)
        roles = {role["role"]: role["column"] for role in found["roles"]}
        assert (roles["labeler_id"], roles["prompt"]) == (typed[1].rpartition("=")[2], "a,b=c")


def test_a_plan_takes_its_options_from_a_file_too(study: Path) -> None:
    (study / "plan.toml").write_text('epsilons = [3]\nfeatures = "length"\noutput = "plan"\n')
    found = done("plan", LABELS, "--config", "plan.toml")
    typed = done("plan", LABELS, "--epsilons", "3", "--features", "length")
    assert found == typed and (study / "plan" / "plan.html").exists()


def test_a_required_option_may_stand_in_the_file(study: Path) -> None:
    words = "--mechanism statistic --epsilon 3 --delta 1e-5 --features length --yes"
    typed = tuple(words.split())
    made = done("privatize", LABELS, *typed)
    (study / "score.yaml").write_text("output: scored.parquet\n")
    done("score", made["id"], LABELS, "--config", "score.yaml")
    assert (study / "scored.parquet").exists()
    assert run("score", made["id"], LABELS).exit_code == 2


def test_a_first_release_is_asked_for_whatever_the_file_says(study: Path) -> None:
    (study / "own.yaml").write_text("mechanism: rr\nepsilon: 3\ndelta: 1e-5\n")
    assert run("privatize", LABELS, "--config", "own.yaml").exit_code == 2
    (study / "own.yaml").write_text('mechanism: rr\n"yes": true\n')
    refused = run("privatize", LABELS, "--config", "own.yaml")
    assert refused.exit_code == 1 and "yes: no file says this: it answers" in refused.stderr


def test_the_examples_of_the_page_run(study: Path) -> None:
    table = pq.read_table(LABELS).rename_columns({"labeler_id": "worker", "prompt": "question"})
    pc.write_csv(table, "answers.csv")
    files = [block for _, block in blocks("configuration.md", "yaml", "toml")]
    named = [block for block in files if block.startswith("# ")]
    assert [block.split()[1] for block in named] == ["privatize.yaml", "plan.toml"]
    for block in named:
        (study / block.split()[1]).write_text(block)
    [script] = [block for _, block in blocks("configuration.md", "sh")]
    for line in commands(script):
        result = run(*line.split()[1:])
        assert result.exit_code == 0, f"{line}\n{result.output}"
