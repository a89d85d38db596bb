"""The benchmark bench/preference_attack.py from texts to table, with a handful of pairs."""

import json
import math

import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("trl")]
SCRIPT = "preference_attack"
LABELS = {"raw labels", "rr", "statistic"}


def test_every_model_is_attacked_on_every_kind_of_labels(bench, tmp_path):
    bench.main(["--tiny", "--work", str(tmp_path)])
    text = (tmp_path / "tiny" / "runs.jsonl").read_text(encoding="utf-8")
    records = [json.loads(line) for line in text.splitlines() if line]
    attacks = {(record["model"], record["labels"]) for record in records}
    assert attacks >= {(model, name) for model in ("DPO", "reward model") for name in LABELS}
    for record in records:
        answers = np.array(record["answers"])
        assert np.shape(record["margins"]) == np.shape(record["known"]) == answers.shape == (2, 12)
        assert (answers[0] != answers[1]).any()
        if record["labels"] == "raw labels":
            assert (answers == record["known"]).all()


def test_margins_that_labels_moved_give_them_away_and_others_do_not(bench):
    draw = np.random.default_rng(0)
    answers = draw.choice([-1.0, 1.0], (2, 400))
    texts = 5 * draw.normal(size=400)  # what both models say of a pair, whatever its label
    scores = bench.calibrate(texts + answers, answers)
    assert (np.sign(scores) == answers).all()
    assert bench.compute_rates(scores.ravel(), answers.ravel() > 0) == (1.0, 1.0)
    # Without a trace of labels 800 guesses are coins; 0.2 are 5.6 standard errors.
    scores = bench.calibrate(texts + draw.normal(size=(2, 400)), answers)
    assert abs(np.mean(np.sign(scores) * answers)) < 0.2


def test_the_bound_is_that_of_randomized_response(bench):
    flip = 1 / (1 + math.exp(1))
    assert bench.bound(1.0) == pytest.approx(1 - 2 * flip, abs=2e-5)
    assert bench.bound(None) == 1
    area, true_positives = bench.compute_rates(np.array([1, 1, 1, 0]), np.array([1, 1, 0, 0], bool))
    assert (area, true_positives) == (0.75, pytest.approx(0.02))
