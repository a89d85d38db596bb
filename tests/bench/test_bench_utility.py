"""The evaluation bench bench/privacy_utility.py, from files to tables, and its flips."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from labelguard.accounting import randomized_response as rr
from labelguard.accounting.blocks import find_block
from labelguard.mechanisms.statistic import Rows

SCRIPT = "privacy_utility"

LANGUAGES, SYSTEMS, LABELERS, RANKINGS = ("deu-eng", "eng-fin"), 6, 40, 12
# γ and m(1−2γ)² of m labels at ε = 1, 3 and 8, from independent code.
KNOWN = {
    "1": (".2689, .214", ".0474, .819", ".0003, .999"),
    "3": (".3845, .160", ".1477, 1.490", ".0013, 2.984"),
    "8": (".4277, .167", ".2917, 1.388", ".0396, 6.784"),
    "50": (".4718, .159", ".4183, 1.335", ".3076, 7.407"),
    "200": (".4859, .158", ".4590, 1.346", ".4032, 7.491"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Rankings of translation systems by simulated judges."""
    directory = tmp_path_factory.mktemp("data")
    _rankings().write_parquet(directory / "wmt15_rankings.parquet")
    return directory


def _rankings():
    """Three systems a ranking; better systems tend to rank higher, and ranks may be equal."""
    generator = np.random.default_rng(0)
    rows = []
    for number in range(LABELERS * RANKINGS):
        systems = generator.choice(SYSTEMS, 3, replace=False)
        utility = systems / 2 + generator.normal(size=3)
        rows.append(
            {
                "ranking_id": f"r{number}",
                "labeler_id": f"judge-{number % LABELERS}",
                "lang_pair": LANGUAGES[number % 2],
                "systems": [f"system-{system}.{system}" for system in systems],
                "ranks": [int(rank) for rank in 1 + np.round(utility.max() - utility)],
            }
        )
    return pl.DataFrame(rows)


def _run(bench, data, results, *words):
    bench.main(["--data", str(data), "--results", str(results), "--only", "wmt15_rankings", *words])
    lines = results.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line]


@pytest.mark.slow
def test_every_mechanism_is_measured_at_every_budget_and_seed(bench, data, tmp_path):
    records = _run(bench, data, tmp_path / "runs.jsonl", "--quick")
    with_budget = set(bench.MECHANISMS) - {bench.NON_PRIVATE, *bench.HINDSIGHT}
    found = {(r["mechanism"], r["epsilon"], r["seed"]) for r in records}
    assert found == {(bench.NON_PRIVATE, None, seed) for seed in (0, 1)} | {
        (name, epsilon, seed) for name in with_budget for epsilon in (1.0, 3.0) for seed in (0, 1)
    }
    assert all(0 <= r["accuracy"] <= 1 and 0 <= r["label_error"] <= 1 for r in records)
    assert all(r["labelers"] == LABELERS * 0.8 for r in records)
    assert all(r["rows"] == 3 * RANKINGS * LABELERS * 0.8 for r in records)


@pytest.mark.slow
def test_what_is_tuned_in_hindsight_is_tuned_on_the_first_split_alone(
    bench, data, tmp_path, monkeypatch
):
    from utility import gradients

    # Steps of no length leave the head at 0, which is right about half of the labels.
    still, moving = (gradients.Configuration(rate, 1.0, 4) for rate in (1e-9, 1.0))
    name = "uls-hindsight"
    monkeypatch.setitem(gradients.HINDSIGHT, name, (gradients.descend, [still, moving]))
    asked = ("--epsilons", "8", "--seeds", "3", "--mechanism", name)
    records = _run(bench, data, tmp_path / "runs.jsonl", *asked)
    assert [record["seed"] for record in records] == [0, 1, 2]
    assert [record.get("configuration", {}).get("rate") for record in records] == [1.0, None, None]
    assert min(record["accuracy"] for record in records) > 0.55


def test_held_out_labelers_do_not_train(bench, data):
    spec = bench.SPECS["wmt15_rankings"]
    dataset = bench.load(data, spec, "names")
    problem = bench.split(dataset, spec, 0)
    assert problem.rows.units == LABELERS * 0.8
    strict = int((dataset.labels != 2).sum())
    assert len(problem.held_labels) + int((problem.labels != 2).sum()) == strict
    assert np.bincount(problem.rows.unit).tolist() == [3 * RANKINGS] * problem.rows.units


def test_numbers_of_a_file_turn_with_the_sides(bench, tmp_path):
    rows = {
        "prompt": ["p", "p", "q", "q"],
        "response_a": ["a", "b", "a", "b"],
        "response_b": ["b", "a", "b", "a"],
        "label": pl.Series([1, 0, 0, 0], dtype=pl.Int8),
        "tie": [False] * 4,
        "labeler_id": ["u", "v", "u", "v"],
        "judge": [1.0, -1.0, -0.5, 0.5],
    }
    path = tmp_path / "labels.parquet"
    pl.DataFrame(rows).write_parquet(path)
    dataset = bench.load(path, bench.Spec("labels"), "verdict:judge")
    assert dataset.pair.tolist() == [0, 0, 1, 1]
    assert dataset.labels.tolist() == [1, 1, 0, 1]
    assert np.sign(dataset.x[:, 0]).tolist() == [1, -1]


def test_what_labels_tell_is_what_independent_code_says(bench):
    rows = bench.tabulate_information((1.0, 3.0, 8.0), 1e-5)
    found = {labels: tuple(cell.partition(" (")[0] for cell in cells) for labels, *cells in rows}
    assert found == KNOWN


def test_flips_are_drawn_by_the_law_of_their_blocks(bench):
    """20,000 blocks of three and of one: moments within five standard errors."""
    unit = np.concatenate([np.repeat(np.arange(20_000), 3), np.arange(20_000, 40_000)])
    answers = _mechanisms(bench)._answer(_problem(unit), 1.0, 1e-5, 0, None)
    signs = 2 * answers.labels[:60_000].reshape(-1, 3).astype(float) - 1
    threshold = rr.threshold(rr.calibrate(1.0, 1e-5, 1))
    law = find_block(threshold, 3)
    assert np.abs(signs.mean(axis=0) - law.mean_sign).max() < 5 / np.sqrt(20_000)
    products = signs[:, [0, 0, 1]] * signs[:, [1, 2, 2]]
    assert np.abs(products.mean(axis=0) - law.mean_sign_product).max() < 5 / np.sqrt(20_000)
    assert set(answers.flip_probability[:60_000]) == {law.flip_probability}
    alone = find_block(threshold, 1).flip_probability
    assert abs((answers.labels[60_000:] == 0).mean() - alone) < 5 * 0.5 / np.sqrt(20_000)


def test_a_bound_keeps_so_many_rows_of_each_labeler(bench):
    unit = np.array([1, 1, 0, 1, 0, 1])
    answers = _mechanisms(bench)._answer(_problem(unit), 1.0, 1e-5, 0, 2)
    assert np.bincount(unit[answers.rows]).tolist() == [2, 2]


def _mechanisms(bench):
    """The module whose functions `bench` names."""
    return sys.modules[bench.MECHANISMS["rr"].__module__]


def _problem(unit):
    """Labels 1 of one pair, by these labelers."""
    rows = Rows(np.zeros(len(unit), int), unit, unit.max() + 1)
    return SimpleNamespace(rows=rows, labels=np.ones(len(unit), np.uint8))
