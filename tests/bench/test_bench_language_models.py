"""Language models trained on each kind of labels, on texts of the language and on dialogues."""

import json

import numpy as np
import polars as pl
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("trl")]
SCRIPT = "language_models"
LABELS = {
    "dpo": {"no privacy", "rr, forward", "rr, robust", "rr, plain", "statistic"}
    | {"props, hard", "props, soft"},
    "lora": {"no privacy", "statistic", "uls"},
}
WORDS = ("tea", "rain", "bread", "gardening", "understanding", "sunlight")


def _records(path):
    lines = (path / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line]


@pytest.mark.parametrize("table", LABELS)
def test_every_kind_is_trained_and_what_is_finished_is_not_run_again(
    table, bench, tmp_path, capsys
):
    asked = [table, "--tiny", "--work", str(tmp_path)]
    bench.main(asked)
    records = _records(tmp_path / f"{table}-tiny")
    assert {record["labels"] for record in records} == LABELS[table]
    assert all(0 <= record["accuracy"] <= 1 for record in records)
    capsys.readouterr()
    bench.main(asked)
    printed = capsys.readouterr()
    assert '"key"' not in printed.err
    assert all(labels in printed.out for labels in LABELS[table])


def test_models_of_dialogues_learn_from_every_kind_and_print_no_text(
    bench, tmp_path, monkeypatch, capsys
):
    _write_dialogues(tmp_path / "hh_rlhf_test.parquet")
    monkeypatch.setenv("LABELGUARD_SHARED_DATA", str(tmp_path))
    from gpu import pretrain

    pretrain.main(["--tiny", "--out", str(tmp_path)])
    for table in LABELS:
        bench.main([table, "--tiny", "--dialogues", "--work", str(tmp_path)])
        found = {record["labels"] for record in _records(tmp_path / f"{table}-tiny")}
        assert found == LABELS[table]
    printed = capsys.readouterr()
    assert "secretword" not in printed.out + printed.err


def _write_dialogues(path):
    draw = np.random.default_rng(0)

    def answer():
        return " " + " ".join(draw.choice(WORDS, draw.integers(2, 7))) + "."

    rows = [
        {
            "prompt": f"\n\nHuman: {draw.choice(WORDS)} secretword {row}?\n\nAssistant:",
            "response_a": answer(),
            "response_b": answer(),
            "label": int(draw.integers(2)),
        }
        for row in range(90)
    ]
    pl.DataFrame(rows, schema_overrides={"label": pl.Int8}).write_parquet(path)
