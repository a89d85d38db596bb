"""Agreement from released labels: unbiased, its interval holds, and what cannot be told is said."""

import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.stats import binom
from support.preferences import STATISTIC
from support.releases import make_release

import labelguard as lg
from labelguard.accounting import randomized_response as rr
from labelguard.analysis.agreement import agreement
from labelguard.errors import LabelguardError
from labelguard.mechanisms.agreement import estimate_between_labelers, estimate_with_gold
from labelguard.project.linking import link_table
from labelguard.simulation import simulate

WORLDS = 500
ITEMS, LABELS = 60, 4
LEAST = 0.93  # of nominal .95; where coverage is .95, 500 worlds fall below it once in 50
FLIPS = np.array([0.05, 0.2, 0.35, 0.4])


def world(rng, common):
    """Items, labels behind a release, flip probabilities and released labels, (n,) each.

    `common` is how often a label is that of its item's own side, the same for all labelers.
    """
    item = np.repeat(np.arange(ITEMS), LABELS)
    own = np.repeat(rng.choice([-1.0, 1.0], ITEMS), LABELS)
    s = np.where(rng.random(len(item)) < common, own, -own)
    gamma = rng.choice(FLIPS, len(item))
    return item, s, gamma, np.where(rng.random(len(item)) < gamma, -s, s)


def require(estimate):
    assert estimate is not None
    return estimate


def truth(item, s, gamma):
    """What is estimated, pair by pair from the labels themselves."""
    a, top, bottom = 1 - 2 * gamma, 0.0, 0.0
    for group in np.split(np.arange(len(item)), np.flatnonzero(np.diff(item)) + 1):
        for r, t in itertools.combinations(group, 2):
            weight = (a[r] * a[t]) ** 2
            top, bottom = top + weight * s[r] * s[t], bottom + weight
    return float(1 + top / bottom) / 2


def measure_coverage(common, seed, *, scale=1.0, corrected=True):
    """How often the interval, made `scale` times as wide, holds the truth."""
    rng, hits = np.random.default_rng(seed), 0
    for _ in range(WORLDS):
        item, s, gamma, x = world(rng, common)
        estimate = require(estimate_between_labelers(item, x, gamma if corrected else 0 * gamma))
        hits += abs(estimate.agreement - truth(item, s, gamma)) <= scale * estimate.reach
    return hits / WORLDS


@pytest.mark.quick("0.5")
@pytest.mark.parametrize("common", [0.5, 0.85, 1.0])
def test_the_interval_holds_the_agreement_of_the_labels_themselves(common):
    assert measure_coverage(common, 1) >= LEAST


def test_half_the_interval_does_not_nor_do_labels_taken_as_they_are():
    assert measure_coverage(0.85, 1, scale=0.5) < 0.9
    # Flips make labels seem to agree less; an interval of items' own spread would not tell.
    assert measure_coverage(1.0, 1, scale=1.0, corrected=False) < 0.5


@pytest.mark.quick("0.5")
@pytest.mark.parametrize("common", [0.5, 0.85, 1.0])
def test_the_interval_with_gold_items_holds(common):
    rng, hits = np.random.default_rng(2), 0
    for _ in range(WORLDS):
        item, s, gamma, x = world(rng, common)
        gold = np.repeat(rng.choice([-1.0, 1.0], ITEMS), LABELS)
        estimate = require(estimate_with_gold(item, x, gold, gamma))
        weight = (1 - 2 * gamma) ** 2
        true = (1 + weight @ (s * gold) / weight.sum()) / 2
        hits += abs(estimate.agreement - true) <= estimate.reach
    assert hits / WORLDS >= LEAST


# Numbers of comparisons, at each of which the interval is to hold.
FEW = (1, 2, 3, 10, 30, 100)
RATES = (0.003, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.45)


def gold_coverage(n, right, gamma, *, step=True):
    """How often the interval holds with n gold labels, `right` of them so before the flips.

    Not simulated: the number of labels that agree is a sum of two binomials. `step=False` is the
    normal interval alone.
    """
    unchanged = binom.pmf(np.arange(right + 1), right, 1 - gamma)
    chances = np.convolve(unchanged, binom.pmf(np.arange(n - right + 1), n - right, gamma))
    sure = 0.0
    for agreeing, chance in enumerate(chances):
        x = np.where(np.arange(n) < agreeing, 1, -1)
        estimate = require(estimate_with_gold(np.arange(n), x, np.ones(n), np.full(n, gamma)))
        reach = estimate.reach if step else 1.959964 * estimate.standard_error
        sure += float(chance) * (abs(estimate.agreement - right / n) <= reach + 1e-12)
    return sure


@pytest.mark.quick("1", "10")
@pytest.mark.parametrize("n", FEW)
def test_the_interval_with_gold_items_holds_with_few(n):
    for gamma in RATES if n < 100 else RATES[::3]:
        assert min(gold_coverage(n, right, gamma) for right in {0, n // 2, n}) >= 0.95


def test_the_normal_interval_alone_would_not():
    assert gold_coverage(1, 1, 0.2, step=False) < 0.81
    assert gold_coverage(3, 3, 0.06, step=False) < 0.84
    assert gold_coverage(10, 5, 0.025, step=False) < 0.8


def pair_coverage(items, labels, gamma, alike, *, step=True):
    """How often the interval holds for labels of items that all agree, or of which half differ."""
    rng = np.random.default_rng(5)
    item = np.repeat(np.arange(items), labels)
    s = np.where(alike | (np.arange(len(item)) % 2 == 0), 1.0, -1.0)
    same = [s[r] * s[t] for r, t in itertools.combinations(range(labels), 2)]
    true, hits, worlds = (1 + float(np.mean(same))) / 2, 0, 400
    for _ in range(worlds):
        x = np.where(rng.random(len(item)) < gamma, -s, s)
        estimate = require(estimate_between_labelers(item, x, np.full(len(item), gamma)))
        hits += abs(estimate.agreement - true) <= 1e-12 + (
            estimate.reach if step else 1.959964 * estimate.standard_error
        )
    return hits / worlds


@pytest.mark.quick("1", "10")
@pytest.mark.parametrize("items", FEW)
def test_the_interval_between_labelers_holds_with_few(items):
    for gamma, alike in itertools.product((0.03, 0.1, 0.2, 0.3), (True, False)):
        assert pair_coverage(items, 2, gamma, alike) >= LEAST


@pytest.mark.quick("3")
@pytest.mark.parametrize("labels", [3, 5, 20])
def test_it_holds_for_one_item_with_many_labels(labels):
    for gamma, alike in itertools.product((0.03, 0.1, 0.3), (True, False)):
        assert pair_coverage(1, labels, gamma, alike) >= LEAST


def test_between_labelers_the_normal_interval_alone_would_not():
    assert pair_coverage(1, 2, 0.1, True, step=False) < 0.87


def test_both_are_unbiased():
    rng = np.random.default_rng(3)
    item, s, gamma, _ = world(rng, 0.85)
    gold = np.ones(len(item))
    between, by_gold = [], []
    for _ in range(2000):
        x = np.where(rng.random(len(item)) < gamma, -s, s)
        between.append(require(estimate_between_labelers(item, x, gamma)))
        by_gold.append(require(estimate_with_gold(item, x, gold, gamma)))
    weight = (1 - 2 * gamma) ** 2
    for estimate, true in (
        (between, truth(item, s, gamma)),
        (by_gold, float(1 + weight @ s / weight.sum()) / 2),
    ):
        values = np.array([one.agreement for one in estimate])
        assert abs(values.mean() - true) < 5 * values.std() / 2000**0.5  # false failure: 6e-7
        # The error is a bound for pairs, and exact with gold.
        assert values.std() < 1.08 * estimate[0].standard_error


def test_power_sums_are_the_sum_over_pairs():
    item, _, gamma, x = world(np.random.default_rng(4), 0.7)
    estimate = require(estimate_between_labelers(item, x, gamma))
    a = 1 - 2 * gamma
    top = bottom = variance = 0.0
    for group in np.split(np.arange(len(item)), np.flatnonzero(np.diff(item)) + 1):
        for r, t in itertools.combinations(group, 2):
            p = a[r] ** 2 * a[t] ** 2
            top, bottom, variance = top + a[r] * x[r] * a[t] * x[t], bottom + p, variance + p - p**2
        for r in group:
            for t, u in itertools.combinations([one for one in group if one != r], 2):
                variance += 2 * a[r] ** 2 * (1 - a[r] ** 2) * a[t] ** 2 * a[u] ** 2
    assert estimate.agreement == pytest.approx((1 + top / bottom) / 2)
    assert estimate.standard_error == pytest.approx(variance**0.5 / bottom / 2)
    step = max(
        a[r] * (1 + a[r]) * sum(a[t] for t in group if t != r)
        for group in np.split(np.arange(len(item)), np.flatnonzero(np.diff(item)) + 1)
        for r in group
    )
    assert estimate.reach - 1.959964 * estimate.standard_error == pytest.approx(step / bottom / 2)


def test_labels_that_were_not_flipped_are_counted_exactly():
    estimate = require(
        estimate_between_labelers([1, 1, 1, 2, 2, 3], [1, 1, -1, 1, 1, 1], [0.0] * 6)
    )
    assert estimate.agreement == pytest.approx(2 / 4)
    assert (estimate.standard_error, estimate.reach) == (0, 0)
    assert (estimate.comparisons, estimate.items) == (4, 2)
    gold = require(estimate_with_gold([1, 1, 2], [1, -1, 1], [1, 1, 1], [0.0] * 3))
    assert (gold.agreement, gold.low, gold.high) == (pytest.approx(2 / 3),) * 3


def test_nothing_is_told_of_coins_or_of_items_with_one_label():
    assert estimate_between_labelers([1, 1], [1, 1], [0.5, 0.5]) is None
    assert estimate_between_labelers([1, 2], [1, 1], [0.1, 0.1]) is None
    assert estimate_with_gold([1], [1], [1], [0.5]) is None
    assert estimate_with_gold([], [], [], []) is None


# ---------------------------------------------------------------- releases


@pytest.fixture(scope="module")
def table():
    table = pl.DataFrame(simulate(labelers=300, labels=3000, items=600, tie_rate=0.0))
    return table.unique(["labeler_id", "prompt", "response_a", "response_b"], maintain_order=True)


def gold_file(table, path):
    """Every other item, answered by its first side; half of the rows name the sides in turn."""
    items = table.unique(["prompt", "response_a", "response_b"], maintain_order=True)[::2]
    items.select("prompt", chosen="response_a", rejected="response_b").write_parquet(path)
    return path


def test_a_release_tells_what_its_labels_would(table, project, tmp_path):
    budget: dict[str, Any] = {"epsilon": 5, "delta": 1e-5, "max_labels_per_labeler": 4}
    release = make_release(table.to_arrow(), project=project, mechanism="rr", **budget)
    gold = gold_file(table, tmp_path / "gold.parquet")
    estimate = agreement(release.path, gold)
    pairs = ["prompt", "response_a", "response_b"]
    by_item = table.group_by(pairs).agg(n=pl.len(), a=(pl.col("label") > 0.5).sum())
    n, a = by_item["n"], by_item["a"]
    raw = float((a * (a - 1) + (n - a) * (n - a - 1)).sum() / (n * (n - 1)).sum())
    between, by_gold = require(estimate.between), require(estimate.gold)
    # What is released is a sample by keyed hash, of which the raw share is the mean.
    assert abs(between.agreement - raw) < 4 * between.standard_error + 0.03
    asked = pl.read_parquet(gold).rename({"chosen": "response_a", "rejected": "response_b"})
    with_answers = table.join(asked, on=pairs)
    share = float((with_answers["label"] > 0.5).mean())  # type: ignore[arg-type]
    assert abs(by_gold.agreement - share) < 4 * by_gold.standard_error + 0.03
    assert between.low < between.agreement < between.high
    # Gold with its sides exchanged says the opposite.
    turned = tmp_path / "turned.jsonl"
    pl.read_parquet(gold).rename({"chosen": "rejected", "rejected": "chosen"}).write_ndjson(turned)
    assert require(agreement(release.path, turned).gold).agreement == pytest.approx(
        1 - by_gold.agreement
    )


def test_an_interval_that_is_too_wide_is_said_to_be_and_a_statistic_tells_nothing(
    project, table, tmp_path
):
    release = make_release(table[:200].to_arrow(), project=project, epsilon=1, mechanism="rr")
    estimate = agreement(release.path)
    assert estimate.plan is None
    assert any("too wide to use" in note for note in estimate.notes)
    other = make_release(table[:200].to_arrow(), project=lg.init(tmp_path / "other"), **STATISTIC)
    nothing = agreement(other.path)
    assert (nothing.between, nothing.gold, len(nothing.notes)) == (None, None, 1)


def test_one_pair_under_two_questions_is_two_items(project, tmp_path):
    rows = [(who, q) for who in range(40) for q in ("helpful", "kind")]
    table = pl.DataFrame(
        {
            "prompt": ["p"] * len(rows),
            "response_a": ["one"] * len(rows),
            "response_b": ["two"] * len(rows),
            "label": [int(q == "kind") for _, q in rows],
            "question": [q for _, q in rows],
            "labeler_id": [f"w{who}" for who, _ in rows],
        }
    )
    options: dict[str, Any] = {"epsilon": 8, "columns": {"question": "question"}}
    release = make_release(table.to_arrow(), project=project, mechanism="rr", **options)
    estimate = require(agreement(release.path).between)
    assert (estimate.items, estimate.comparisons) == (2, 2 * 40 * 39 // 2)
    gold = tmp_path / "gold.jsonl"
    answer = {"prompt": "p", "chosen": "one", "rejected": "two"}
    gold.write_text(json.dumps(answer))
    with pytest.raises(LabelguardError, match=r"gold.jsonl needs a column question"):
        agreement(release.path, gold)
    asked = answer | {"question": "kind"}
    lines = json.dumps(asked), json.dumps(asked | {"chosen": "two", "rejected": "one"})
    gold.write_text("\n".join(lines))
    with pytest.raises(LabelguardError, match="has two answers to one pair"):
        agreement(release.path, gold)


FEW_LABELS: dict[str, Any] = {"mechanism": "rr", "epsilon": 8, "max_labels_per_labeler": 2}


def twice(first, again):
    """An item each for `first` workers with two others; `again` of them answer as somebody else."""
    rows = [(f"{who}{n}", f"q{n}") for n in range(first) for who in "uwx"]
    rows += [(f"v{n}", f"q{n}") for n in range(again)]
    return pl.DataFrame(
        {
            "labeler_id": [who for who, _ in rows],
            "prompt": [prompt for _, prompt in rows],
            "response_a": "one",
            "response_b": "two",
            "label": 1.0,
        }
    )


def link_workers(project, pairs):
    """Link v0 to u0, and so on: the same people under two ids."""
    make_release(twice(2, 0).to_arrow(), project=project, **FEW_LABELS)
    numbers = range(5, 5 + pairs)
    ids = {"labeler_id": [f"u{n}" for n in numbers], "same_as": [f"v{n}" for n in numbers]}
    link_table(pl.DataFrame(ids).to_arrow(), project)


@pytest.mark.parametrize(
    ("pairs", "share", "suggested"), [(100, "10.9%", False), (4, "0.6%", True)]
)
def test_agreement_with_oneself_is_counted_and_suggests_nothing(project, pairs, share, suggested):
    link_workers(project, pairs)
    release = make_release(twice(200, 5 + pairs).to_arrow(), project=project, mechanism="rr")
    assert release.card["counts"]["unit_pairs"] == pairs
    assert f"| {pairs} pairs of labels of one item are" in (release.path / "CARD.md").read_text()
    estimate = agreement(release.path)
    assert any(note.startswith(f"up to {share} of the comparisons") for note in estimate.notes)
    assert bool(estimate.plan) == suggested


def test_labelers_who_are_not_linked_are_compared(project):
    release = make_release(twice(200, 100).to_arrow(), project=project, **FEW_LABELS)
    assert release.card["counts"]["unit_pairs"] == 0
    assert "with oneself" not in (release.path / "CARD.md").read_text()
    estimate = agreement(release.path)
    assert estimate.plan
    assert len(estimate.notes) == 1  # on ties


def test_the_documented_widths_are_so():
    page = Path(__file__).parents[2] / "docs" / "evaluation.md"
    lines = re.findall(r"(?m)^\| ([13] \| \d+ \| \..*) \|$", page.read_text(encoding="utf-8"))
    rows = [line.split("|") for line in lines]
    assert len(rows) == 8
    for epsilon, labels, *told_ in rows:
        gamma = 1 / (1 + math.exp(rr.calibrate(float(epsilon), 1e-5, int(labels))))
        item, one = np.repeat(np.arange(1000), 10), np.ones(10_000)
        gold = (
            estimate_with_gold(one[:n], one[:n], one[:n], gamma * one[:n]) for n in (1000, 10_000)
        )
        estimate = (estimate_between_labelers(item, one, gamma * one), *gold)
        widths = [require(estimate).reach for estimate in estimate]
        assert [*map(float, told_)] == [round(number, 3) for number in (gamma, *widths)]
