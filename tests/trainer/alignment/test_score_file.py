"""`labelguard reward score`: a file of responses gets rewards and distances."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from labelguard.cli.main import main

TEXTS = {"prompt": ["tea?", "rain?", "tea?"], "response": ["yes good", "no", ""]}


def chats(texts, role):
    return [[{"role": role, "content": text, "name": "of no use"}] for text in texts]


def score(release, file, *options):
    command = ["reward", "score", str(release.path), str(file), "-o", "rewards.parquet", *options]
    return CliRunner().invoke(main, command)


@pytest.mark.parametrize("chat", [(), ("prompt",), ("response",), ("prompt", "response")])
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_texts_and_chats_get_rewards_and_distances(release, reward, kind, chat):
    rows = {
        name: chats(texts, "user") if name in chat else texts for name, texts in TEXTS.items()
    } | {"id": [1, 2, 3]}
    file = Path(f"responses.{kind}")
    frame = pl.DataFrame(rows)
    frame.write_parquet(file) if kind == "parquet" else frame.write_ndjson(file)
    result = score(release, file)
    assert result.exit_code == 0, result.output
    scored = pl.read_parquet("rewards.parquet")
    assert scored.columns == ["prompt", "response", "reward", "distance"]
    expected = reward.score(*TEXTS.values()), reward.distances(*TEXTS.values())
    np.testing.assert_allclose(scored["reward"], expected[0], rtol=1e-5)
    np.testing.assert_allclose(scored["distance"], expected[1], rtol=1e-5)
    assert f"Mean reward {expected[0].mean():.3f}, mean distance" in result.output


def test_rows_of_many_portions_keep_their_order(release, reward):
    texts = [f"yes {'no ' * (row % 9)}" for row in range(5000)]
    pl.DataFrame({"response": texts, "prompt": [""] * 5000}).write_parquet("responses.parquet")
    result = score(release, "responses.parquet", "--json")
    assert json.loads(result.stdout)["responses"] == 5000
    scored = pl.read_parquet("rewards.parquet")
    assert scored["response"].to_list() == texts
    np.testing.assert_allclose(scored["reward"], reward.score([""] * 5000, texts), rtol=1e-5)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"prompt": "tea?"}\n', "has no column response"),
        ('{"prompt": "tea?", "response": 3}\n', "column response must hold texts"),
        ('{"prompt": "tea?", "response": ["x"]}\n', "column response need role and content"),
        ('{"prompt": "a", "response": "b"}\n{"prompt": "secret"}\n', "row 2 has no response"),
        ('{"prompt": "secret\n', "cannot be read as Parquet or JSON lines"),
        ("", "cannot be read as Parquet or JSON lines"),
    ],
)
def test_a_file_without_responses_is_told_in_one_line(release, content, problem):
    Path("responses.jsonl").write_text(content)
    result = score(release, "responses.jsonl")
    assert result.exit_code == 1 and problem in result.output and "secret" not in result.output
    assert not Path("rewards.parquet").exists() and result.output.count("\n") == 1


def test_no_file_is_overwritten_and_no_reward_is_infinite(release):
    rows = {**TEXTS, "response": ["yes", "long " * 99, ""]}
    pl.DataFrame(rows).write_ndjson("responses.jsonl")
    result = score(release, "responses.jsonl", "--mix", "length=5e307")
    assert result.exit_code == 1 and "row 2: its reward is no finite number" in result.output
    Path("rewards.parquet").write_text("mine")
    assert "exists; choose another -o" in score(release, "responses.jsonl").output
    assert Path("rewards.parquet").read_text() == "mine"
