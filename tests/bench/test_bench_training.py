"""The benchmarks that train language models, from texts to tables, with a handful of pairs.

The parts of bench/gpu.sh on a CPU, with a handful of made-up dialogues.

The benchmark of ULS and AUP: their ways take the same step as SGD's, and each is timed.
"""

import importlib
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from labelguard.accounting import randomized_response as rr
from labelguard.accounting.blocks import find_block

pytestmark = pytest.mark.slow
BENCH = Path(__file__).resolve().parents[2] / "bench"
LABELS = {"clean", *(f"RR, {loss}" for loss in ("forward", "robust", "plain"))}
LABELS |= {"PROPS, hard", "PROPS, soft", "teacher"}
WAYS = {"no privacy", "statistic, soft", "uls"}
SCRIPTS = {"dpo_utility": ("labels", "--workers", "1"), "lora_utility": ("way",)}


@pytest.fixture(scope="module", params=SCRIPTS)
def tiny(request, tmp_path_factory):
    """What runs one of them, the kind of its runs, and the records of a run."""
    work, (kind, *always) = tmp_path_factory.mktemp("work"), SCRIPTS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        script = importlib.import_module(request.param)

    def run(*more):
        script.main(["--tiny", "--work", str(work), *always, *more])

    run()
    lines = (work / "tiny" / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    return run, kind, [json.loads(line) for line in lines]


def test_every_kind_is_trained_and_scored(tiny):
    _, kind, records = tiny
    assert {record[kind] for record in records} == (LABELS if kind == "labels" else WAYS)
    assert all(0 <= record["accuracy"] <= 1 for record in records)
    if kind == "labels":
        assert {record["steps"] for record in records if "steps" in record} == {3}
        return
    assert len({(record["preference"], record["way"]) for record in records}) == 2 * len(WAYS)
    noise = {record["way"]: record.get("noise_multiplier") for record in records}
    assert noise["uls"] > noise["no privacy"] == 0 and noise["statistic, soft"] is None


def test_what_is_finished_is_not_run_again_and_the_table_has_all_of_it(tiny, capsys):
    run, kind, _ = tiny
    run("--markdown")
    said = capsys.readouterr()
    assert not said.err
    cells = [line.removeprefix("| ").split(" | ") for line in said.out.splitlines()]
    if kind == "labels":
        assert {row[0] for row in cells} >= LABELS
        law = find_block(rr.threshold(rr.calibrate(1, 1e-5, 1)), 2)
        assert f"{law.flip_probability:.3f}" in said.out
    else:
        assert {row[2] for row in cells if len(row) == 4 and "12" in row[1]} >= WAYS


WORDS = ("tea", "rain", "bread", "gardening", "understanding", "sunlight")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What all parts leave, run after each other."""
    data, out = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("out")
    _dialogues().write_parquet(data / "hh_rlhf_test.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABELGUARD_SHARED_DATA", str(data))
        patch.syspath_prepend(str(BENCH))
        from gpu import alignment, alignment_records, compare, lora_utility, pretrain, throughput

        for part in (
            *(pretrain, compare, throughput),
            *(alignment, alignment_records, lora_utility),
        ):
            part.main(["--tiny", "--out", str(out)])
        yield out


def _dialogues():
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
    return pl.DataFrame(rows, schema_overrides={"label": pl.Int8})


def _read(results, name):
    return json.loads((results / f"{name}.json").read_text(encoding="utf-8"))


def test_every_kind_of_labels_is_compared_and_judged_against_randomized_response(results):
    told = _read(results, "compare")
    assert told["labelers"] == "simulated"
    assert set(told["against"]) == set(told["runs"]) - {"RR, forward"}
    assert {sum(counts.values()) for counts in told["against"].values()} == {8}
    assert all(
        0 <= run[kind] <= 1 for run in told["runs"].values() for kind in ("planted", "human")
    )
    stages = [told["runs"][name] for name in ("PROPS, hard", "PROPS, soft")]
    assert all(one["standard_error"] > 0 and 0 <= one["true_error"] <= 1 for one in stages)


def test_stages_of_an_alignment_say_what_they_took(results):
    told = _read(results, "alignment")
    assert told["sft"]["seconds"] > 0 and told["rl"]["rows"] > 0
    assert told["rl"]["after"].keys() == {"reward", "kl", "distance", "length"}


def test_stages_of_whole_records_say_what_one_person_takes(results):
    told = _read(results, "alignment-records")
    assert told["noise_multiplier"] > 0
    for stage in ("sft", "reward", "rl"):
        assert told[stage]["people"] > 0 and told[stage]["seconds_a_person"] > 0
        assert told[stage]["memory_gib"] is None or told[stage]["memory_gib"] > 0


def test_no_text_is_written_outside_models_and_releases(results):
    for name in ("alignment", "alignment-records"):
        assert "secretword" not in (results / f"{name}.json").read_text()


SCRIPT = "uls_time"
RECORDS, TOKENS = 4, 16


@pytest.fixture(scope="module")
def directory(bench, tmp_path_factory):
    found = tmp_path_factory.mktemp("bench")
    bench.save_model(str(found / "base"), "tiny", TOKENS)
    return str(found)


@pytest.mark.parametrize("kind", ["reward", "dpo"])
def test_plain_sgd_takes_the_step_of_uls_without_clipping_and_noise(kind, bench, directory):
    labels = np.array([1.0, 0.0, 0.5, 1.0])
    problem = bench.opened(directory, kind, 1, RECORDS, TOKENS, "cpu")
    mean = problem.clipped_sum(np.arange(RECORDS), labels, 100.0) / RECORDS
    bench.mean_gradient(problem, labels)
    plain = torch.cat([parameter.grad.flatten() for parameter in problem._parameters])
    torch.testing.assert_close(mean.float(), plain, rtol=1e-3, atol=float(1e-4 * plain.abs().max()))
    assert plain.any()


@pytest.mark.parametrize("held", [1, 10])
def test_plain_sgd_of_a_head_takes_the_step_of_uls_without_clipping(held, bench):
    cohort = bench._uls_heads.Cohort(40, 6, held)
    cohort.problem.theta = np.linspace(-1, 1, 6)
    plain = cohort.sgd()
    cohort.problem.theta = np.linspace(-1, 1, 6)
    large = 2.0**10  # nothing is clipped; all labelers have as many records
    clipped = cohort.problem.clipped_sum(cohort.units, cohort.labels, large)
    assert clipped / len(cohort.units) == pytest.approx(plain, rel=1e-4, abs=1e-6)
    assert plain.any()
