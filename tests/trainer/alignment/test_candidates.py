"""Candidates in files: distinct prompts, numbered responses, pairs for people to label."""

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from labelguard_trainer.alignment.candidates import write_candidates
from support import tiny_models

import labelguard as lg
from labelguard.errors import LabelguardError

SHORT = {"max_new_tokens": 6}
CHAT = pa.list_(pa.struct({"role": pa.string(), "content": pa.string()}))


def write(study, output, *, model=None, n=2, **options):
    """Write candidates of a model of the study for its prompts."""
    prompts = study / "prompts.parquet"
    return write_candidates(model or study / "base", prompts, output, n=n, **SHORT, **options)


def test_each_distinct_prompt_has_its_responses_by_number(study):
    made = write(study, "candidates.parquet", n=3)
    rows = pl.read_parquet("candidates.parquet")
    assert rows["prompt"].to_list() == ["tea?"] * 3 + ["rain?"] * 3 + ["maps?"] * 3
    assert rows["candidate"].to_list() == [0, 1, 2] * 3 and (made.prompts, made.rows) == (3, 9)


def test_pairs_are_read_as_pairs_without_labels(study):
    write(study, "pairs.jsonl", pairs=True)
    assert pl.read_ndjson("pairs.jsonl").columns == ["prompt", "response_a", "response_b"]
    scored = lg.score(study / "head", "pairs.jsonl")
    assert sorted(scored["prompt"].to_list()) == ["maps?", "rain?", "tea?"]


def test_pairs_of_annotated_candidates_are_privatized(study):
    write(study, "pairs.parquet", pairs=True)
    rows = pl.read_parquet("pairs.parquet").with_columns(label=1, labeler_id=pl.lit("w1"))
    again = lg.privatize(rows, project=lg.init("study"), mechanism="rr", epsilon=3, delta=1e-5)
    assert again.card["counts"]["rows"] == 3


def test_equal_responses_make_no_pair(study):
    with pytest.raises(LabelguardError, match="raise the temperature"):
        write(study, "pairs.parquet", pairs=True, temperature=0)


def test_chats_stay_chats(study, tmp_path):
    model = tiny_models.saved(tmp_path / "chatty", chat=True)
    chats = [[{"role": "user", "content": text}] for text in ("tea?", "\x1b[1m\x00rain?")]
    pq.write_table(pa.table({"prompt": chats}), "prompts.parquet")
    for name, pairs in (("candidates.parquet", False), ("pairs.parquet", True)):
        write_candidates(model, "prompts.parquet", name, n=2, pairs=pairs, **SHORT)
    rows = pl.read_parquet("candidates.parquet")
    assert rows["prompt"].to_list()[::2] == chats
    assert {one[0]["role"] for one in rows["response"].to_list()} == {"assistant"}
    scored = lg.score(study / "head", "pairs.parquet")
    assert sorted(scored["prompt"].to_list(), key=str) == sorted(chats, key=str)


def test_the_prompts_of_a_release_are_prompts(study):
    made = write_candidates(study / "base", study / "flips", "own.jsonl", n=1, **SHORT)
    assert made.prompts == pl.read_parquet(study / "flips/data.parquet")["prompt"].n_unique()


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"text": ["tea?"]}, "no column prompt"),
        ({"prompt": pa.array([], pa.string())}, "holds no prompt"),
        ({"prompt": ["tea?", None]}, "row 2 has no prompt"),
        ({"prompt": pa.array([[]], CHAT)}, "row 1 has no prompt"),
        ({"prompt": [1]}, "must hold texts or chats"),
    ],
)
def test_files_without_prompts_are_refused(study, columns, problem):
    pq.write_table(pa.table(columns), "prompts.parquet")
    with pytest.raises(LabelguardError, match=problem):
        write_candidates(study / "base", "prompts.parquet", "c.parquet", n=1, **SHORT)


def test_a_model_of_raw_labels_is_refused(study, raw_model):
    with pytest.raises(LabelguardError, match="raw labels"):
        write(study, "c.parquet", model=raw_model)
