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


def test_the_statistic_beats_randomized_response_and_not_the_raw_labels(finished):
    error = {
        (r["mechanism"], r["epsilon"]): r["label_error"]
        for r in _records(finished)
        if r["seed"] == 0
    }
    assert error["non-private", None] <= error["statistic", 3.0] < error["rr", 3.0]


def test_a_run_that_was_cut_short_is_the_only_one_repeated(bench, data, finished, tmp_path):
    whole = finished.read_text(encoding="utf-8")
    cut = tmp_path / "runs.jsonl"
    cut.write_text(whole[:-20], encoding="utf-8")
    bench.main(_arguments(data, cut))
    lines = cut.read_text(encoding="utf-8").splitlines()
    assert lines[:-2] == whole.splitlines()[:-1]
    again, before = json.loads(lines[-1]), json.loads(whole.splitlines()[-1])
    for timing in ("seconds", "peak_mb"):
        del again[timing], before[timing]
    assert again == before


def test_tables_and_every_target_are_printed(bench, data, finished, capsys):
    bench.main([*_arguments(data, finished), "--markdown"])
    printed = capsys.readouterr().out
    assert "### wmt15_pairs, systems, ties inside" in printed
    assert "| statistic-planned |" in printed
    targets = bench.checks(bench.Results(_records(finished)))
    assert targets and all(target.target in printed for target in targets)


def test_a_target_passes_or_falls_short_by_its_numbers(bench):
    def verdicts(reached):
        common = {"dataset": "ukpconvarg1", "ties": "inside", "seed": 0}
        common["features"] = "length+style+minilm"
        names = ("mechanism", "epsilon", "accuracy", "label_error")
        runs = ("non-private", None, 0.66, 0.34), ("statistic", 1.0, reached, 1 - reached)
        records = [common | dict(zip(names, run, strict=True)) for run in runs]
        found = bench.checks(bench.Results(records))
        return [check.passed for check in found[:3]]

    assert verdicts(0.656) == [True, True, None]
    assert verdicts(0.640) == [False, False, None]


def test_rankings_run_end_to_end_with_all_their_pairs(bench, data, tmp_path):
    results = tmp_path / "runs.jsonl"
    arguments = _arguments(data, results, "wmt15_rankings")
    names = ("rr", "statistic", "uls", "uls-pairs")
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


def test_a_run_of_adaptive_steps_says_how_many_it_took(bench, data):
    from utility import gradients

    spec = bench.SPECS["wmt15_pairs"]
    problem = bench.split(bench.load(data, spec, "names"), spec, 0)
    configuration = gradients.Configuration(1.0, 9.0, 4)  # τ beyond every distance
    found = gradients.adaptive(problem, 8.0, 1e-5, 0, configuration=configuration)
    assert 0 < found.details["steps_done"] <= 100
    assert len(found.margins) == len(problem.x)


def test_swapping_the_sides_of_the_input_changes_nothing(bench, data, tmp_path):
    frame = pl.read_parquet(data / "wmt15_pairs.parquet")
    swapped = frame.with_columns(
        response_a="response_b", response_b="response_a", label=1 - pl.col("label")
    )
    swapped.write_parquet(tmp_path / "wmt15_pairs.parquet")
    spec = bench.SPECS["wmt15_pairs"]
    one, other = (bench.load(place, spec, "systems+names") for place in (data, tmp_path))
    np.testing.assert_array_equal(one.x, other.x)
    np.testing.assert_array_equal(one.labels, other.labels)
    assert set(one.labels) == {0, 1, 2}


def test_held_out_labelers_do_not_train(bench, data):
    spec = bench.SPECS["wmt15_pairs"]
    dataset = bench.load(data, spec, "systems")
    problem = bench.split(dataset, spec, 0)
    assert problem.rows.units == LABELERS * 0.8
    strict = int((dataset.labels != 2).sum())
    assert len(problem.held_labels) + int((problem.labels != 2).sum()) == strict
    assert np.bincount(problem.rows.unit).tolist() == [3 * RANKINGS] * problem.rows.units


def test_figures_are_small_pictures(bench, finished, tmp_path):
    pytest.importorskip("matplotlib")
    results = bench.Results(_records(finished))
    path = bench.draw(results, results.settings()[0], tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size < 60_000


def test_any_file_with_labelers_is_read_as_a_release_reads_it(bench, tmp_path, capsys):
    generator = np.random.default_rng(3)
    texts = ["an answer", "a somewhat longer answer than that", "the longest answer " * 3]
    rows = [
        {
            "prompt": f"question {number % 30}",
            "response_a": texts[one],
            "response_b": texts[other],
            "label": int(one > other) if generator.random() < 0.8 else int(one < other),
            "labeler_id": f"person {number % 25}",
        }
        for number in range(600)
        for one, other in [generator.choice(3, 2, replace=False)]
    ]
    file, results = tmp_path / "labels.csv", tmp_path / "runs.jsonl"
    pl.DataFrame(rows).write_csv(file)
    arguments = ["--data", str(file), "--features", "length", "--seeds", "2", "--epsilons", "3"]
    arguments += ["--results", str(results)]
    for name in ("non-private", "statistic-planned", "rr", "rr-cap-1"):
        bench.main([*arguments, "--mechanism", name])
    capsys.readouterr()
    bench.main([*arguments, "--mechanism", "rr", "--against", str(results)])
    records = _records(results)
    assert {record["dataset"] for record in records} == {"labels.csv"}
    assert {record["labelers"] for record in records} == {20}
    planned = [r["accuracy"] for r in records if r["mechanism"] == "statistic-planned"]
    assert min(planned) > 0.65
    printed = capsys.readouterr().out
    assert "rr, best bound" in printed and "(+.000 ± .000)" in printed


def test_a_difference_is_as_sure_as_its_labelers_are_many(bench):
    def record(seed, right):
        by_labeler = [[unit, 10, count] for unit, count in enumerate(right)]
        return {"seed": seed, "accuracy": sum(right) / 50, "by_labeler": by_labeler}

    before = {seed: record(seed, [5, 5, 5, 5, 5]) for seed in range(16)}
    now = {seed: record(seed, [10, 5, 5, 5, 5]) for seed in range(16)}
    found = bench.paired.paired(now, before)
    assert found.now - found.before == pytest.approx(0.1)
    assert found.over_splits == pytest.approx(0)  # sixteen times the same
    # One labeler of five made all of it: √(Σ (won − .1 · 10)²)/50 of 5 − 1 and four of −1.
    assert found.error == pytest.approx(20**0.5 / 50)
    assert bench.paired.paired(now, {}) is None


def test_a_reliable_head_has_no_error_beyond_the_floor(bench):
    rng = np.random.default_rng(0)
    margin = rng.normal(size=20_000)
    label = (rng.random(20_000) < 1 / (1 + np.exp(-margin))).astype(np.uint8)
    found, timid = bench.reliability(margin, label), bench.reliability(margin / 2, label)
    assert abs(found["calibration_excess"]) < 0.01 < 0.06 < timid["calibration_excess"]
    assert found["log_loss"] < timid["log_loss"]
    assert len(found["reliability"]) == 10
