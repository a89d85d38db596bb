"""The benchmark bench/dpo_utility.py from texts to table and figure, with a handful of pairs."""

import json

import pytest

from labelguard.accounting import randomized_response as rr

pytestmark = pytest.mark.slow
SCRIPT = "dpo_utility"
LABELS = {"clean", *(f"RR, {loss}" for loss in ("forward", "robust", "plain"))}
LABELS |= {"PROPS, hard", "PROPS, soft", "teacher"}


@pytest.fixture(scope="module")
def finished(bench, tmp_path_factory):
    """The directory of a tiny run."""
    work = tmp_path_factory.mktemp("dpo")
    bench.main(_arguments(work))
    return work


def _arguments(work):
    return ["--tiny", "--workers", "1", "--work", str(work)]


def test_every_kind_of_labels_is_trained_on_and_scored(finished):
    lines = (finished / "tiny" / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    assert {record["labels"] for record in records} == LABELS
    assert all(0 <= record["accuracy"] <= 1 for record in records)
    assert {record["steps"] for record in records if "steps" in record} == {3}


def test_what_is_finished_is_not_run_again_and_the_table_has_all_of_it(bench, finished, capsys):
    bench.main([*_arguments(finished), "--markdown"])
    said = capsys.readouterr()
    assert not said.err
    rows = [line.split(" | ")[0].removeprefix("| ") for line in said.out.splitlines()]
    assert set(rows) >= LABELS
    assert f"{rr.flip_probability(rr.calibrate(1, 1e-5, 2)):.3f}" in said.out
