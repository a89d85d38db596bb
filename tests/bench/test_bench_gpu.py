"""The parts of bench/gpu.sh on a CPU, with a handful of made-up dialogues."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

pytestmark = pytest.mark.slow
BENCH = Path(__file__).resolve().parents[2] / "bench"
WORDS = ("tea", "rain", "bread", "gardening", "understanding", "sunlight")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What all parts leave, run after each other."""
    data, out = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("out")
    _dialogues().write_parquet(data / "hh_rlhf_test.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABELGUARD_SHARED_DATA", str(data))
        patch.syspath_prepend(str(BENCH))
        from gpu import alignment, compare, lora_utility, pretrain, throughput

        for part in (pretrain, compare, throughput, alignment, lora_utility):
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


def test_finished_runs_are_not_repeated_and_no_text_is_printed(results, capsys):
    from gpu import compare

    before = (results / "compare.json").read_bytes()
    compare.main(["--tiny", "--out", str(results)])
    said = capsys.readouterr()
    assert (results / "compare.json").read_bytes() == before
    assert "secretword" not in before.decode() + said.out + said.err


def test_both_trainers_are_timed(results):
    told = _read(results, "throughput")["shapes"]["tiny"]
    assert told["steps"] == 2
    assert all(told["tokens_per_second"][name] > 0 for name in ("ours", "TRL"))


def test_gradients_and_labels_of_a_head_are_compared_on_both_preferences(results):
    told = _read(results, "lora-utility")["runs"]
    assert len(told) == 2 * 3  # two preferences, three ways, one number of labelers
    assert len({(one["preference"], one["way"]) for one in told.values()}) == 6
    assert all(0 <= one["accuracy"] <= 1 and one["seconds_a_step"] > 0 for one in told.values())
    assert "secretword" not in json.dumps(told)


def test_stages_of_an_alignment_say_what_they_took(results):
    told = _read(results, "alignment")
    assert told["sft"]["seconds"] > 0 and told["rl"]["rows"] > 0
    assert told["rl"]["after"].keys() == {"reward", "kl", "distance", "length"}


def test_no_text_is_written_outside_models_and_releases(results):
    assert "secretword" not in (results / "alignment.json").read_text()
