"""The evaluation bench bench/privacy_utility.py, from files to tables, on a simulated dataset."""

import json

import numpy as np
import polars as pl
import pytest

pytestmark = pytest.mark.slow
SCRIPT = "privacy_utility"

LANGUAGES, SYSTEMS, LABELERS, RANKINGS = ("deu-eng", "eng-fin"), 6, 40, 12
WITHOUT_BUDGET = {"non-private", "non-private-128"}
SWEEP = {f"{kind}-{size}" for kind in ("gaussian", "ball") for size in (2, 4, 8, 16, 32)}
HINDSIGHT = {"uls-best-of-32", "uls-hindsight", "aup-best-of-32", "aup-hindsight"}
OF_RANKINGS = {"uls-pairs"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Rankings of translation systems by simulated judges, whole and broken into pairs."""
    directory = tmp_path_factory.mktemp("data")
    rankings = _rankings()
    rankings.write_parquet(directory / "wmt15_rankings.parquet")
    _pairs(rankings).write_parquet(directory / "wmt15_pairs.parquet")
    return directory


@pytest.fixture(scope="module")
def finished(bench, data, tmp_path_factory):
    """The results of a quick run."""
    results = tmp_path_factory.mktemp("results") / "runs.jsonl"
    bench.main(_arguments(data, results))
    return results


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


def _pairs(rankings):
    rows = [
        {
            "prompt": f"segment {ranking['ranking_id']}",
            "response_a": ranking["systems"][i],
            "response_b": ranking["systems"][j],
            "label": None if tie else int(ranking["ranks"][i] < ranking["ranks"][j]),
            "tie": tie,
            "labeler_id": ranking["labeler_id"],
            "lang_pair": ranking["lang_pair"],
        }
        for ranking in rankings.iter_rows(named=True)
        for i, j in ((0, 1), (0, 2), (1, 2))
        for tie in [ranking["ranks"][i] == ranking["ranks"][j]]
    ]
    return pl.DataFrame(rows, schema_overrides={"label": pl.Int8})


def _arguments(data, results, only="wmt15_pairs"):
    return ["--data", str(data), "--results", str(results), "--only", only, "--quick"]


def _records(results):
    return [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]


def test_every_mechanism_is_measured_at_every_budget_and_seed(bench, finished):
    records = _records(finished)
    with_budget = set(bench.MECHANISMS) - WITHOUT_BUDGET - SWEEP - HINDSIGHT - OF_RANKINGS
    found = {(r["mechanism"], r["epsilon"], r["seed"]) for r in records}
    assert found == {(name, None, seed) for name in WITHOUT_BUDGET for seed in (0, 1)} | {
        (name, epsilon, seed) for name in with_budget for epsilon in (1.0, 3.0) for seed in (0, 1)
    }
    assert all(0 <= r["accuracy"] <= 1 and 0 <= r["label_error"] <= 1 for r in records)
    assert all(r["labelers"] == LABELERS * 0.8 for r in records)


def test_rankings_run_end_to_end_with_all_their_pairs(bench, data, tmp_path):
    results = tmp_path / "runs.jsonl"
    arguments = _arguments(data, results, "wmt15_rankings")
    names = ("rr", "statistic", "uls")
    bench.main([*arguments, *(word for name in names for word in ("--mechanism", name))])
    records = _records(results)
    assert {r["mechanism"] for r in records} == set(names)
    assert all(r["rows"] == 3 * RANKINGS * LABELERS * 0.8 for r in records)


def test_what_is_tuned_in_hindsight_is_tuned_on_the_first_split_alone(
    bench, data, tmp_path, monkeypatch
):
    from utility import gradients

    # Steps of no length leave the head at 0, which is right about half of the labels.
    still, moving = (gradients.Configuration(rate, 1.0, 4) for rate in (1e-9, 1.0))
    best = gradients._Best(gradients.uls_tuned, (still, moving))
    monkeypatch.setitem(bench.MECHANISMS, "uls-best-of-32", best)
    results = tmp_path / "runs.jsonl"
    arguments = ["--data", str(data), "--results", str(results), "--only", "wmt15_pairs"]
    arguments += ["--features", "names", "--epsilons", "8", "--seeds", "3"]
    with pytest.raises(SystemExit, match="run that first"):
        bench.main([*arguments, "--mechanism", "uls-hindsight"])
    bench.main([*arguments, "--mechanism", "uls-best-of-32", "--mechanism", "uls-hindsight"])
    found = {(r["mechanism"], r["seed"]): r for r in _records(results)}
    assert set(found) == {("uls-best-of-32", 0), ("uls-hindsight", 1), ("uls-hindsight", 2)}
    assert found["uls-best-of-32", 0]["configuration"]["rate"] == 1.0
    assert min(record["accuracy"] for record in found.values()) > 0.55


def test_held_out_labelers_do_not_train(bench, data):
    spec = bench.SPECS["wmt15_pairs"]
    dataset = bench.load(data, spec, "systems")
    problem = bench.split(dataset, spec, 0)
    assert problem.rows.units == LABELERS * 0.8
    strict = int((dataset.labels != 2).sum())
    assert len(problem.held_labels) + int((problem.labels != 2).sum()) == strict
    assert np.bincount(problem.rows.unit).tolist() == [3 * RANKINGS] * problem.rows.units
