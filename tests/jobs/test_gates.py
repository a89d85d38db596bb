"""Gates: what they measure is unbiased, their errors hold, and their rule is what it says."""

import json
import math
from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest

from labelguard.errors import LabelguardError
from labelguard.jobs import gates
from labelguard.jobs.state import Models
from labelguard.mechanisms.randomized_response import paired_standard_error
from labelguard.release.pairs_file import compute_item_keys, hold_out

WORLDS = 3_000
# At nominal 0.95. The true coverage below is 0.94 and more; 3,000 worlds find less than 0.925 once
# in three thousand seeds, and the seeds are fixed.
COVERAGE = 0.925


@dataclass(frozen=True)
class Gate:
    """A gate of job.yaml."""

    by: str = "probes"
    probes: str | None = "probes.parquet"
    margin: float = 0.0
    confidence: float = 0.5
    at_least: float | None = None


@dataclass(frozen=True)
class Opinions:
    """A step whose models are files of the prompts that they get wrong."""

    name: str = "opinions"
    gates: tuple[str, ...] = ("released", "probes")
    holdout: float = 0.3

    def check(self, mechanism, coordinates): ...

    def identity(self):
        return {}

    def train(self, task):
        raise NotImplementedError

    def margins(self, model, pairs):
        wrong = set(model.read_text().split())
        return np.array(
            [-1.0 if prompt in wrong else 1.0 for prompt in pairs["prompt"].to_pylist()]
        )


def _model(path, wrong):
    path.write_text(" ".join(wrong))
    return path


@pytest.fixture
def base(tmp_path):
    """A hundred probes; `good` errs in 10 of them, `bad` in these and 20 more."""
    prompts = [f"p{number}" for number in range(100)]
    pl.DataFrame({"prompt": prompts, "chosen": "a", "rejected": "b"}).write_parquet(
        tmp_path / "probes.parquet"
    )
    _model(tmp_path / "good", prompts[:10])
    _model(tmp_path / "bad", prompts[:30])
    return tmp_path


def _judge(gate, base, candidate, current, step=None):
    return gates.judge(
        gate,
        step or Opinions(),
        release=base,
        candidate=base / candidate,
        current=base / current if current else None,
        unlearned=Opinions.holdout,
        evaluation=None,
        charged=0,
        base=base,
    )


def test_a_first_model_is_promoted_if_it_reaches_what_is_asked(base):
    found = _judge(Gate(), base, "good", None)
    assert (found.promote, found.candidate, found.current) == (True, 0.9, None)
    assert not _judge(Gate(at_least=0.95), base, "good", None).promote
    assert _judge(Gate(by="none"), base, "bad", "good").promote


def test_a_first_model_needs_more_than_an_estimate_and_a_later_one_does_not(base):
    """Of 100 probes 70 are right: 0.7 ± 0.09."""
    first = _judge(Gate(at_least=0.65), base, "bad", None)
    assert not first.promote and first.interval == pytest.approx((0.61, 0.79), abs=0.02)
    assert _judge(Gate(at_least=0.6), base, "bad", None).promote
    assert not _judge(Gate(at_least=0.6, confidence=0.9999), base, "bad", None).promote
    assert _judge(Gate(at_least=0.65), base, "bad", "bad").promote


def test_a_coin_is_no_first_model(base):
    _model(base / "coin", [f"p{number}" for number in range(42)])
    assert not _judge(Gate(), base, "coin", None).promote
    assert _judge(Gate(at_least=0.4), base, "coin", None).promote


def test_what_is_shown_is_possible_and_what_decides_is_the_estimate(base):
    """Of a model that agrees with all labels, of which 40% are flipped, the estimate is 3."""
    pairs, flips = pl.read_parquet(base / "probes.parquet").to_arrow(), np.full(100, 0.4)
    model = [_model(base / "all", [])]
    found = gates._measure_accuracy(Gate(), Opinions(), model, pairs, flips, np.arange(100))
    assert found.candidate == pytest.approx(3.0)
    judged = gates._build_judgement(Gate(at_least=1.5), found)
    assert judged.promote and (judged.candidate, judged.interval) == (1.0, (1.0, 1.0))


def test_a_worse_model_is_kept_out_unless_the_margin_lets_it_in(base):
    found = _judge(Gate(), base, "bad", "good")
    assert found.difference == pytest.approx(-0.2) and not found.promote
    assert found.rows == 100 and found.cost == "nothing" and "-0.200" in found.why
    assert _judge(Gate(margin=0.21), base, "bad", "good").promote
    assert not _judge(Gate(margin=0.19), base, "bad", "good").promote
    assert _judge(Gate(), base, "good", "bad").promote
    assert _judge(Gate(), base, "good", "good").promote


def test_confidence_asks_for_more_than_an_estimate(base):
    better = _judge(Gate(confidence=0.95), base, "good", "bad")
    assert better.promote and better.standard_error is not None and better.standard_error < 0.06
    assert not _judge(Gate(confidence=0.95), base, "good", "good").promote
    assert _judge(Gate(confidence=0.95, margin=0.05), base, "good", "good").promote


def test_what_cannot_judge_is_refused_before_anything_is_charged(base):
    step, nothing = Opinions(), Models(base / "models", "job", "project")
    gates.check_gate(Gate(), step, "rr", nothing, base)
    for gate, mechanism, said in (
        (Gate(probes="nowhere.parquet"), "rr", "nowhere.parquet cannot be read"),
        (Gate(by="released"), "statistic", "needs labels with known flips"),
        (Gate(by="held-out"), "rr", "cannot judge opinions; use released or probes"),
    ):
        with pytest.raises(LabelguardError, match=said):
            gates.check_gate(gate, step, mechanism, nothing, base)
    with pytest.raises(LabelguardError, match="needs held-out items"):
        gates.check_gate(Gate(by="released"), Opinions(holdout=0.0), "rr", nothing, base)


def _write_release(directory, seed, *, gamma=0.2):
    """A release of rows that say `a` was preferred in truth, each flipped with probability γ."""
    draw = np.random.default_rng(seed)
    prompts = [f"p{number}" for number in range(400)]
    flip = draw.random(400) < gamma
    frame = pl.DataFrame(
        {
            "prompt": prompts,
            "chosen": np.where(flip, "b", "a"),
            "rejected": np.where(flip, "a", "b"),
            "flip_probability": np.full(400, gamma),
        }
    )
    frame.write_parquet(directory / "data.parquet")
    # Flipped in blocks of 8, say: what is wider then is an error, not an estimate.
    law = {"flip_probability": gamma, "labels": 8, "second_moment": (1 - 2 * gamma) ** 2 + 0.05}
    card = {"release": "r1", "flip_probability": {"blocks": [law]}}
    (directory / "card.json").write_text(json.dumps(card), encoding="utf-8")
    return prompts


def test_labels_that_were_flipped_together_widen_what_a_gate_says(tmp_path):
    _write_release(tmp_path, 1)
    _model(tmp_path / "one", [])
    gate, widths = Gate(by="released", probes=None), []
    for _ in range(2):
        low, high = _judge(gate, tmp_path, "one", None, Contents()).interval
        widths.append(high - low)
        (tmp_path / "card.json").write_text('{"release": "r1", "flip_probability": {}}')
    assert widths[0] > 1.2 * widths[1]


@dataclass(frozen=True)
class Contents(Opinions):
    """Prefers `a`, but for the prompts that it gets wrong."""

    def margins(self, model, pairs):
        first = np.where(np.array(pairs["chosen"].to_pylist()) == "a", 1.0, -1.0)
        return first * super().margins(model, pairs)


def test_flips_do_not_count_against_a_model(base):
    """Of two models that disagree with 20 and 35 of 100 labels, of which 20 are flipped."""
    pairs = pl.read_parquet(base / "probes.parquet").to_arrow()
    prompts = pairs["prompt"].to_pylist()
    models = [_model(base / f"{wrong}", prompts[:wrong]) for wrong in (20, 35)]
    flips = np.full(100, 0.2)
    found = gates._measure_accuracy(Gate(), Opinions(), models, pairs, flips, np.arange(100))
    assert (found.candidate, found.current) == pytest.approx((1.0, 1 - 0.15 / 0.6))


@pytest.mark.slow
def test_released_labels_judge_without_bias_and_rows_of_training_do_not(tmp_path):
    estimates, out = [], np.zeros(0, bool)
    for seed in range(40):
        prompts = _write_release(tmp_path, seed)
        out = hold_out(compute_item_keys(tmp_path / "data.parquet"), 0.3)
        wrong = [p for p, o in zip(prompts, out, strict=True) if o][:20]
        learned_by_heart = [p for p, o in zip(prompts, out, strict=True) if not o]
        _model(tmp_path / "one", wrong + learned_by_heart)
        _model(tmp_path / "other", [])
        gate = Gate(by="released", probes=None)
        found = _judge(gate, tmp_path, "one", "other", Contents())
        assert found.rows == out.sum()
        estimates.append((found.candidate, found.difference))
    truth = 20 / out.sum()
    mean = np.array(estimates).mean(axis=0)
    error = np.array(estimates).std(axis=0) / math.sqrt(len(estimates))
    assert abs(mean[0] - (1 - truth)) < 4.5 * error[0]
    assert abs(mean[1] + truth) < 4.5 * error[1]


def test_coins_judge_nobody(tmp_path):
    _write_release(tmp_path, 1, gamma=0.5)
    _model(tmp_path / "one", [])
    with pytest.raises(LabelguardError, match="are pure noise"):
        _judge(Gate(by="released", probes=None), tmp_path, "one", None, Contents())


def _measure_coverage(claimed, gamma):
    """How often a difference ± 1.96 errors holds the truth, four labels an item; errors are scaled
    by `claimed`.
    """
    draw, held = np.random.default_rng(11), 0
    items = np.repeat(np.arange(60), 4)
    for _ in range(WORLDS):
        wrong = draw.random((2, 60))[:, items] < np.array([[0.3], [0.2]])
        flip = draw.random(240) < gamma
        d = (wrong ^ flip).astype(float)
        signal = np.full(240, 1 - 2 * gamma)
        estimate = float(signal @ (d[0] - d[1])) / float(signal @ signal)
        error = claimed * paired_standard_error(d[0] - d[1], np.full(240, gamma), items)
        held += abs(estimate - 0.1) < 1.96 * error
    return held / WORLDS


@pytest.mark.quick("0.0")
@pytest.mark.parametrize("gamma", [0.0, 0.2, 0.4])
def test_the_error_of_a_difference_covers_it_and_less_would_not(gamma):
    assert _measure_coverage(1.0, gamma) > COVERAGE
    assert _measure_coverage(0.7, gamma) < COVERAGE
