"""Best of n: what the reward says of its own choice, and what another judge says of it."""

import math

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from labelguard_trainer import best_of
from support.tiny_models import OTHERS, PREFERRED, TOPICS

import labelguard as lg
from labelguard.errors import LabelguardError

PROMPTS, N = 40, 6


@pytest.fixture
def candidates():
    """Candidates of 40 prompts, each of two words of which people prefer some; their path."""
    draw = np.random.default_rng(1)
    words = [*PREFERRED, *OTHERS]
    rows = [
        (f"{TOPICS[k % len(TOPICS)]} {k}?", " ".join(words[w] for w in draw.integers(8, size=2)))
        for k in range(PROMPTS)
        for _ in range(N)
    ]
    prompts, responses = zip(*rows, strict=True)
    pq.write_table(pa.table({"prompt": prompts, "response": responses}), "candidates.parquet")
    return "candidates.parquet"


def test_the_reward_of_the_best_grows_with_n_and_is_that_of_its_response(study, candidates):
    result = best_of(study / "head", candidates, output="best.parquet")
    assert [one.n for one in result.sizes] == [1, 2, 4, 6]
    assert [one.kl_bound for one in result.sizes] == pytest.approx(
        [math.log(n) - (n - 1) / n for n in (1, 2, 4, 6)]
    )
    means = [one.reward for one in result.sizes]
    assert means == sorted(means) and result.sizes[0].wins == 0.5 < result.sizes[-1].wins
    best, every = pl.read_parquet("best.parquet"), pl.read_parquet(candidates)
    reward = lg.reward(study / "head")
    scores = reward.score(every["prompt"].to_list(), every["response"].to_list()).reshape(-1, N)
    assert best["reward"].to_list() == scores.max(axis=1).tolist()
    assert best["candidate"].to_list() == scores.argmax(axis=1).tolist()
    assert best["reward"].mean() == pytest.approx(means[-1])
    near = reward.distances(best["prompt"].to_list(), best["response"].to_list())
    assert best["distance"].to_list() == pytest.approx(near.tolist())


def test_a_second_release_judges_with_an_interval(study, candidates):
    verdict = best_of(study / "head", candidates, judge=study / "second").verdict
    assert verdict.win + verdict.tie + verdict.loss == PROMPTS
    assert verdict.rate == (verdict.win + verdict.tie / 2) / PROMPTS
    assert 0 < verdict.low < verdict.rate < verdict.high < 1


def test_the_reward_is_no_judge_of_itself(study, candidates):
    with pytest.raises(LabelguardError, match="learned from the same release"):
        best_of(study / "head", candidates, judge=study / "head")


def test_labels_alone_are_no_judge(study, candidates):
    with pytest.raises(LabelguardError, match="train reward"):
        best_of(study / "head", candidates, judge=study / "flips")


def test_equal_candidates_are_ties(study):
    rows = {"prompt": ["tea?", "tea?", "rain?", "rain?"], "response": ["yes"] * 4}
    pq.write_table(pa.table(rows), "equal.parquet")
    result = best_of(study / "head", "equal.parquet", judge=study / "second")
    assert [one.wins for one in result.sizes] == [0.5, 0.5]
    assert (result.verdict.win, result.verdict.tie, result.verdict.loss) == (0, 2, 0)


def test_one_candidate_leaves_no_choice_and_says_so(study):
    pq.write_table(
        pa.table({"prompt": ["tea?", "rain?", "rain?"], "response": list("abc")}), "one.parquet"
    )
    result = best_of(study / "head", "one.parquet")
    assert [one.n for one in result.sizes] == [1] and len(result.notes) == 2


def test_a_price_on_length_changes_the_choice(study, candidates):
    plain = best_of(study / "head", candidates).sizes[-1]
    short = best_of(study / "head", candidates, mix={"length": -100.0}).sizes[-1]
    assert short.length < plain.length
