"""Choices of the best of several responses, released by randomized response.

Statistical tests accept what happens unless it has a probability below FALSE_FAILURE under the
claim; they run on fixed randomness.
"""

import itertools
import math
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from scipy import stats
from support import world
from support.flips import scale_thresholds

import labelguard as lg
from labelguard.accounting import randomized_response as binary
from labelguard.accounting.blocks import Block
from labelguard.errors import BudgetExceeded, PolicyError
from labelguard.project import policies
from labelguard.release.card import list_facts

FALSE_FAILURE = 1e-6
SIZES = (3, 4, 6)
PER_LABELER = 6
PRICE: dict[str, Any] = {"epsilon": 3, "delta": 1e-5}


@pytest.fixture
def project(tmp_path, monkeypatch):
    world.fix(monkeypatch, world.repeatable_bytes("choices"))
    return lg.init(tmp_path / "project", max_epsilon=500, max_delta=1e-2)


def size(item):
    return SIZES[item % len(SIZES)]


def rows(labelers=4, seed=0, sizes=SIZES):
    """Everybody chooses among the same sets of 3, 4 and 6 responses, or of these `sizes`."""
    rng = np.random.default_rng(seed)
    return [
        {
            "labeler_id": f"worker {labeler}",
            "prompt": f"question {item}",
            "responses": [f"answer {place} to {item}" for place in range(sizes[item % len(sizes)])],
            "choice": int(rng.integers(sizes[item % len(sizes)])),
        }
        for labeler in range(labelers)
        for item in range(PER_LABELER)
    ]


def release_choices(source, project, **options):
    return lg.privatize(
        pa.Table.from_pylist(list(source)), mechanism="rr", project=project, **options
    )


def same_rows(one, other):
    keys = ["item_id", "chosen", "rejected", "flip_probability"]
    return bool(lg.load(one).sort(keys).equals(lg.load(other).sort(keys)))


def map_of(project, release):
    """PRIVATE: what was drawn."""
    return pl.read_parquet(project.private_maps / release.id / "*.parquet")


# --- what a release holds ------------------------------------------------------------------------


def test_a_choice_is_one_answer_with_all_its_pairs_and_one_charge(project):
    made = release_choices(rows(labelers=1), project, **PRICE)
    found = lg.load(made)
    assert made.card["counts"]["charged"] == 1
    assert "choices" in made.card
    assert len(found) == sum(size(item) - 1 for item in range(PER_LABELER))
    for (prompt,), own in found.group_by("prompt"):
        item = int(str(prompt).split()[1])
        every = {f"answer {place} to {item}" for place in range(size(item))}
        assert own["chosen"].n_unique() == 1
        assert {own["chosen"][0], *own["rejected"]} == every
        assert len(own) == size(item) - 1


def block_of_choices(labels=PER_LABELER, uses=1):
    """The block of labelers who choose among 6 at most."""
    return Block(binary.threshold(binary.calibrate(3, 1e-5, uses)), labels, max(SIZES))


def test_flip_probabilities_are_those_of_the_block(project):
    made = release_choices(rows(), project, **PRICE)
    [flip] = lg.load(made)["flip_probability"].unique()
    assert flip == pytest.approx((1 - block_of_choices().mean_sign) / 2, rel=1e-12)


def test_equal_responses_count_once(project):
    one = {"labeler_id": "w", "prompt": "p", "responses": ["b", "a", "b", "c"], "choice": 2}
    alike = {"labeler_id": "w", "prompt": "q", "responses": ["a", "a"], "choice": 0}
    made = release_choices([one, alike], project, epsilon=200, delta=0)
    found = lg.load(made)
    assert made.card["counts"]["charged"] == 1
    assert found["chosen"].to_list() == ["b", "b"]
    assert sorted(found["rejected"]) == ["a", "c"]
    [drawn] = map_of(project, made).to_dicts()
    assert (drawn["block_labels"], drawn["block_letters"]) == (1, 3)


def test_a_blank_among_ties_becomes_any_response(project):
    source = rows(labelers=120, sizes=[4])
    blank = [row | {"choice": None} for row in source]
    made = release_choices([*blank], project, epsilon=400, delta=0, skips="tie")
    chosen = lg.load(made).unique(["item_id", "chosen", "rejected"], maintain_order=True)
    assert made.card["counts"]["charged"] == 120
    assert len(chosen) == PER_LABELER * 4 * 3  # every response was released for every set
    counts = map_of(project, made)["value"].value_counts()["count"].to_numpy()
    assert stats.chisquare(counts).pvalue > FALSE_FAILURE


def test_answers_have_the_law_that_is_charged(project, monkeypatch, tmp_path):
    """Everybody chose the same of a set, so that no answer is to be matched with who gave it."""
    source = [row | {"choice": 1} for row in rows(labelers=200)]
    kept = block_of_choices().mean_sign

    def deviates(home):
        made, unlikely = lg.load(release_choices(source, home, **PRICE)), False
        sizes = made["prompt"].str.extract(r"(\d+)").cast(pl.Int64)
        for options in SIZES:
            own = made.filter(sizes % 3 == SIZES.index(options))
            shown = own["chosen"].str.extract(r"answer (\d)").value_counts()
            counts = dict(zip(shown["chosen"], shown["count"] // (options - 1), strict=True))
            each = np.array([counts.get(str(place), 0) for place in range(options)])
            assert each.sum() == len(source) / len(SIZES)
            expected = np.where(np.arange(options) == 1, kept, 0) + (1 - kept) / options
            law = stats.chisquare(each, each.sum() * expected)
            unlikely |= bool(law.pvalue <= FALSE_FAILURE)
        return unlikely

    assert not deviates(project)
    scale_thresholds(monkeypatch, 1 / 64)
    assert deviates(lg.init(tmp_path / "less noise"))


# --- released values are permanent ---------------------------------------------------------------


def test_order_of_responses_and_rows_and_copies_are_nothing_new(project):
    source = rows()
    made = release_choices(source, project, **PRICE)
    turned = [
        row
        | {"responses": row["responses"][::-1], "choice": len(row["responses"]) - 1 - row["choice"]}
        for row in source
    ]
    again = release_choices([*turned[::-1], *source[:5], *turned[:5]], project)
    assert again.id != made.id and again.card["counts"]["charged"] == 0
    assert again.card["counts"]["released_before"] == len(source)
    assert again.card["counts"]["duplicates"] == 10
    assert same_rows(made, again)


def test_a_release_that_crashed_is_finished_from_its_map_without_labels(project, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("labelguard.release.drawn.DrawnRelease.finish_and_write", stopped)
        with pytest.raises(KeyboardInterrupt):
            release_choices(rows(seed=1), project, **PRICE)
    made = release_choices(rows(seed=2), project, **PRICE)
    assert made.card["counts"]["charged"] == 4
    drawn = map_of(project, made)["value"].value_counts().sort("value")
    number = lg.load(made).unique(["item_id", "chosen"])["chosen"].str.extract(r"answer (\d)")
    assert set(number.cast(pl.UInt8)) == set(drawn["value"])
    assert same_rows(made, release_choices([*rows(seed=3), *rows(labelers=1)], project))


def test_again_draws_every_choice_anew_at_a_new_charge(project):
    made = release_choices(rows(labelers=20), project, uses=2, **PRICE)
    again = release_choices(rows(labelers=20), project, again=True)
    assert again.card["counts"]["charged"] == made.card["counts"]["charged"] == 20
    assert not same_rows(made, again)
    third = release_choices(rows(labelers=20)[::-1] + rows(labelers=1), project)
    assert same_rows(third, again)


def test_a_bound_counts_choices(project):
    made = release_choices(rows(), project, max_labels_per_labeler=4, **PRICE)
    assert made.card["counts"]["charged"] == 4
    assert made.card["counts"]["dropped_by_bound"] == 4 * (PER_LABELER - 4)
    assert made.card["counts"]["beyond_allowance"] == 0
    for (_, _), own in lg.load(made).group_by("item_id", "chosen"):
        item = int(own["prompt"][0].split()[1])
        assert len(own) % (size(item) - 1) == 0
    with pytest.raises(BudgetExceeded):
        release_choices([{**row, "prompt": row["prompt"] + "?"} for row in rows()], project)


def test_labelers_who_are_exhausted_do_not_stop_others(project):
    """A bucket of theirs alone has nothing to release; it ended the run after the charge."""
    release_choices(rows(labelers=3), project, **PRICE)
    everybody = [{**row, "prompt": row["prompt"] + "?"} for row in rows(labelers=4)]
    made = release_choices(everybody, project, exhausted="drop")
    assert made.card["counts"]["charged"] == 1
    shown = dict(list_facts(made.card))
    assert shown["  beyond the allowance"] == f"{3 * PER_LABELER} (left out)"
    assert shown["  dropped by the bound"] == "0"
    whose = f"{3 * PER_LABELER} labels beyond the allowance of their labeler left out"
    assert [note for note in made.notes if "beyond" in note] == [whose]


# --- the price -----------------------------------------------------------------------------------


def test_one_policy_takes_pairs_and_choices_of_any_number(project):
    policies.new("both", **PRICE, allow=["rr:uses=5"], project=project)
    policies.activate("both", project=project)
    for number, sizes in enumerate(([3, 6], [9], [2])):
        asked = [row | {"prompt": row["prompt"] + "?" * number} for row in rows(sizes=sizes)]
        made = release_choices(asked, project)
        assert made.card["counts"]["charged"] == 4
        law = block_of_choices(uses=5)
        drawn = map_of(project, made)
        assert set(drawn["threshold"]) == {law.threshold}
        assert set(drawn["block_letters"]) == {max(sizes)}
    ranked = [
        {k: v for k, v in row.items() if k != "choice"}
        | {"ranks": list(range(len(row["responses"])))}
        for row in rows()[:2]
    ]
    pairs = sum(math.comb(len(row["responses"]), 2) for row in ranked)
    last = release_choices(ranked, project)  # labels of their own
    assert last.card["counts"]["charged"] == 1 and len(map_of(project, last)) == pairs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mechanism": "props", "features": "length"}, "they go with --mechanism statistic or rr"),
        ({"ties": "drop", "tie_status_public": True}, "--ties drop goes with pairs and rankings"),
    ],
)
def test_what_does_not_go_with_choices_is_refused_before_any_charge(options, message, project):
    source = pa.Table.from_pylist(rows())
    with pytest.raises(PolicyError, match=message):
        lg.privatize(source, project=project, **{**PRICE, "mechanism": "rr", **options})


# --- what flip_probability means -----------------------------------------------------------------


def answer_probabilities(options, epsilon0):
    """Row: true choice; column: answer."""
    other = 1 / (math.exp(epsilon0) + options - 1)
    return np.full((options, options), other) + np.eye(options) * (math.exp(epsilon0) - 1) * other


CASES = [(2, 0.4), (3, 0.1), (4, 1.0), (9, 2.5)]


@pytest.mark.quick("2-0.4")
@pytest.mark.parametrize(("options", "epsilon0"), CASES)
def test_the_share_of_turned_pairs_is_the_flip_probability_whatever_is_preferred(options, epsilon0):
    """Under Plackett–Luce: a shown pair's direction, against the preference between its two."""
    gamma = (1 - Block(binary.threshold(epsilon0), 1, options).mean_sign) / 2
    assert gamma == pytest.approx(options / (2 * (math.exp(epsilon0) + options - 1)), rel=1e-9)
    other = answer_probabilities(options, epsilon0)[0, 1]
    for seed in range(3):
        best = np.random.default_rng(seed).dirichlet(np.ones(options))
        answers = best @ answer_probabilities(options, epsilon0)
        turned = shown = 0.0
        for i, j in itertools.combinations(range(options), 2):
            appears, among = answers[i] + answers[j], best[i] + best[j]
            # P[i is shown as chosen | the pair is shown] = (1 − γ_ij) b_i/(b_i + b_j) + γ_ij …
            own = other / appears
            first = (1 - own) * best[i] / among + own * best[j] / among
            assert answers[i] / appears == pytest.approx(first, rel=1e-9)
            shown += appears
            turned += own * appears
        assert turned / shown == pytest.approx(gamma, rel=1e-9)


@pytest.mark.quick("2-0.4")
@pytest.mark.parametrize(("options", "epsilon0"), CASES)
def test_de_biased_pairs_have_the_statistic_of_the_choices_in_expectation(options, epsilon0):
    """Σ over rows of φ(chosen) − φ(rejected), over 1 − 2γ, is unbiased for every true choice."""
    law = Block(binary.threshold(epsilon0), 1, options)
    gamma = (1 - law.mean_sign) / 2
    features = np.random.default_rng(0).normal(size=(options, 3))
    statistic = options * (features - features.mean(axis=0))  # of each choice, over its K−1 pairs
    expected = answer_probabilities(options, epsilon0) @ statistic
    np.testing.assert_allclose(expected / (1 - 2 * gamma), statistic, rtol=1e-9, atol=1e-9)
    changed = law.flip_probability
    if options > 2:  # the probability that a choice changed is no γ of its pairs
        assert np.abs(expected / (1 - 2 * changed) - statistic).max() > 0.1
