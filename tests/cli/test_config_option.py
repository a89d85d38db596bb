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
from labelguard.simulation import simulate

LABELS = "labels.parquet"
TABLE = simulate(labelers=20, labels=300, items=80, seed=1)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def study(here: Path) -> Path:
    """Labels, and a project beside them."""
    pq.write_table(TABLE, here / LABELS)
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


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A study with a release whose options were typed; and its id."""
    path = tmp_path_factory.mktemp("study")
    pq.write_table(TABLE, path / LABELS)
    lg.init(path)
    typed = "--mechanism statistic --epsilon 3 --delta 1e-5 --features length --whitening 0"
    made = done("privatize", str(path / LABELS), *typed.split(), "--project", str(path), "--yes")
    return path, made["id"]


def test_a_request_is_the_same_one_wherever_its_options_stand(
    released: tuple[Path, str], here: Path
) -> None:
    path, made = released
    (here / "a.yaml").write_text(
        f"mechanism: statistic\nepsilon: 3\ndelta: 1e-5\nwhitening: 0\nproject: {path}\n"
    )
    (here / "b.toml").write_text(
        'mechanism = "statistic"\nepsilon = 3.0\ndelta = 0.00001\nwhitening = 0.0\n'
        f'features = "length"\nproject = "{path}"\n'
    )
    for typed in (("--config", "a.yaml", "--features", "length"), ("--config", "b.toml")):
        again = done("privatize", str(path / LABELS), *typed)
        assert again["reused"] and again["id"] == made
    assert [one.id for one in overview.releases(path)] == [made]


def test_a_required_option_may_stand_in_the_file(released: tuple[Path, str], here: Path) -> None:
    path, made = released
    (here / "score.yaml").write_text(f"output: scored.parquet\nproject: {path}\n")
    done("score", made, str(path / LABELS), "--config", "score.yaml")
    assert (here / "scored.parquet").exists()
    assert run("score", made, str(path / LABELS)).exit_code == 2


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
