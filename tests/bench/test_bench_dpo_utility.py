"""The benchmark bench/dpo_utility.py from texts to table and figure, with a handful of pairs."""

import json

import numpy as np
import pytest

from labelguard.accounting import randomized_response as rr

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("trl")]
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


def test_differences_have_students_interval(bench):
    assert bench.tables.interval([0.1, 0.2, 0.3]) == "+0.200 [-0.048, +0.448]"
    assert bench.tables.interval([0.1]) == "+0.100"


def test_the_signal_of_many_labels_of_each_labeler_is_lost(bench):
    few, _, many = (budget for budget, _ in bench.tables.BUDGETS)
    assert few.signal(2_000) > 10
    assert many.signal(2_000) < 2.5


def test_no_single_word_decides_the_planted_preference(bench):
    from dpo import grammar

    pairs, words = grammar.pairs(400, 5), grammar.vocabulary()

    def counts(texts):
        return np.array([[text.split().count(word) for word in words] for text in texts])

    votes = np.sign(counts(pairs.first) - counts(pairs.second))
    agreement = (votes * np.sign(pairs.advantage)[:, None] + 1).mean(axis=0) / 2
    assert np.abs(agreement - 0.5).max() < 0.2


def test_the_figure_is_drawn_as_svg_and_png(bench, finished, tmp_path):
    pytest.importorskip("matplotlib")
    lines = (finished / "tiny" / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    found = bench.tables.accuracies(json.loads(line) for line in lines)
    bench.tables.draw(found, tmp_path / "figure")
    assert "held-out accuracy" in (tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
