"""Public prompts and responses in files: what is read, and what is refused in one line."""

from pathlib import Path

import polars as pl
import pytest
from labelguard_trainer.alignment.contents import read_contents, read_prompts

from labelguard.errors import LabelguardError

CHAT = pl.List(pl.Struct({"role": pl.String, "content": pl.String}))


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_each_distinct_prompt_is_read_once_and_chats_lose_other_members(kind):
    chats = [[{"role": "user", "content": text, "name": "no use"}] for text in ("a", "b", "a")]
    frame = pl.DataFrame({"prompt": chats, "id": [1, 2, 3]})
    file = f"prompts.{kind}"
    frame.write_parquet(file) if kind == "parquet" else frame.write_ndjson(file)
    assert read_prompts(file) == [[{"role": "user", "content": text}] for text in ("a", "b")]


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
def test_a_file_without_responses_is_refused_without_its_texts(content, problem):
    Path("responses.jsonl").write_text(content)
    with pytest.raises(LabelguardError, match=problem) as refused:
        read_contents(Path("responses.jsonl"), "prompt", "response")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("prompts", "problem"),
    [
        (pl.Series([], dtype=pl.String), "holds no prompt"),
        (pl.Series(["tea?", None]), "row 2 has no prompt"),
        (pl.Series([[]], dtype=CHAT), "row 1 has no prompt"),
        (pl.Series([1]), "must hold texts or chats"),
    ],
)
def test_a_file_without_prompts_is_refused(prompts, problem):
    pl.DataFrame({"prompt": prompts}).write_parquet("prompts.parquet")
    with pytest.raises(LabelguardError, match=problem):
        read_prompts("prompts.parquet")
