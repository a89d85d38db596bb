"""Choices of the best of several responses: staged as pairs, and summed by `statistic`.

Adversaries change all choices of one labeler, between two files, at will.
"""

import itertools
import math
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from support import world
from support.exports import write
from support.preferences import STATISTIC

import labelguard as lg
from labelguard.budget.label_values import LabelValues
from labelguard.errors import InvalidLabels, PolicyError
from labelguard.inputs.columns import Reading
from labelguard.inputs.pairs import find_distinct_pairs, read_comparisons
from labelguard.inputs.staging import StagingOptions, stage
from labelguard.keys.keyring import KeyRing
from labelguard.learning.columns import FeatureColumn
from labelguard.mechanisms import statistic
from labelguard.release import privatize
from labelguard.storage import buckets

SIZES = (2, 3, 4)
LABELERS = 5
PRICE: dict[str, Any] = {"epsilon": 3, "delta": 1e-5}
ROUNDING = 1 + 1e-6


def asked():
    """Everybody is asked about sets of 2 to 4 responses, two of which are equal in one set."""
    rng = np.random.default_rng(7)
    sets = []
    for number, size in enumerate(SIZES):
        texts = [f"answer {place} to {number}" + "!" * place * number for place in range(size)]
        if number == 1:
            texts[2] = texts[0]
        numbers = rng.normal(size=(size, 2)).round(2)
        numbers[2:] = numbers[0] if number == 1 else numbers[2:]
        sets.append((f"question {number}", texts, numbers))
    return [
        {
            "labeler_id": f"worker {labeler}",
            "prompt": prompt,
            "responses": texts,
            "quality": numbers[:, 0].tolist(),
            "brevity": numbers[:, 1].tolist(),
        }
        for labeler in range(LABELERS)
        for prompt, texts, numbers in sets[: 2 + labeler % 2]
    ]


ASKED = asked()


def table(chosen):
    """The layout of choices, with these answers."""
    return pa.Table.from_pylist(
        [row | {"choice": choice} for row, choice in zip(ASKED, chosen, strict=True)]
    )


def random_choices(seed):
    rng = np.random.default_rng(seed)
    return [int(rng.integers(len(row["responses"]))) for row in ASKED]


class World:
    """A staged input: its pairs' coordinates, who chose among what, and the labels."""

    def __init__(self, source, directory, **reading):
        names = ("quality", "brevity")
        features = tuple(map(FeatureColumn, names))
        asked = Reading({}, features=features, public_columns=names, **reading)
        options = StagingOptions(asked, "", quarantine=False)
        staged = stage(source, directory, KeyRing.public(), options)
        staged.refuse_labels_outside_domain()
        pairs = find_distinct_pairs(staged)
        self.rows = read_comparisons(staged, pairs.of_row)
        names = ("feature_quality", "feature_brevity")
        self.z = np.column_stack([pairs.table[n].to_numpy() for n in names]).astype(np.float32)
        self.pairs = pairs
        tables = [buckets.read_bucket(staged.rows_directory, b) for b in range(buckets.BUCKETS)]
        labels = [buckets.read_column(t, "label") for t in tables if t is not None]
        self.labels = np.concatenate(labels).astype(np.uint8)

    def total(self, bounds, step=1e-9):
        """What is summed before noise."""
        return step * statistic.clip_and_sum_labels(self.z, self.rows, self.labels, bounds, step)


def direct(chosen, quantile):
    """The same by its definition: Σ_u clip_C(w_u Σ_j ½ K/(K − 1) (φ(chosen) − mean φ))."""
    names = sorted({row["labeler_id"] for row in ASKED})
    squares, parts = np.zeros(len(names)), np.zeros((len(names), 2))
    for row, best in zip(ASKED, chosen, strict=True):
        phi = np.column_stack([row["quality"], row["brevity"]])
        size, phi = len(phi), phi - phi.mean(axis=0)
        own = names.index(row["labeler_id"])
        squares[own] += (0.5 * size / (size - 1)) ** 2 * np.square(phi).sum() / size
        parts[own] += 0.5 * size / (size - 1) * phi[best]
    clip, weight = statistic.choose_clip_and_weights(np.sqrt(squares), quantile)
    parts *= weight[:, None]
    norms = np.linalg.norm(parts, axis=1, keepdims=True)
    return clip, weight, (parts * (clip / np.maximum(norms, clip))).sum(axis=0)


@pytest.mark.quick("0.3")
@pytest.mark.parametrize("quantile", [0.3, 0.8, 1.0])
def test_pairs_of_choices_sum_to_the_statistic_of_choices(quantile, tmp_path):
    chosen = random_choices(1)
    here = World(table(chosen), tmp_path / "input")
    found = statistic.compute_bounds(here.z, here.rows, quantile)
    clip, weight, total = direct(chosen, quantile)
    assert found.clip == pytest.approx(clip, rel=1e-5)
    np.testing.assert_allclose(np.sort(found.weight), np.sort(weight), rtol=1e-5)
    np.testing.assert_allclose(here.total(found), total, rtol=1e-4, atol=1e-5)


QUANTILES = (0.25, 0.6, 1.0)


@pytest.fixture(scope="module")
def neighbours(tmp_path_factory):
    """Inputs that differ in the choices of one labeler, all of them; for two labelers."""
    start, directory = random_choices(2), tmp_path_factory.mktemp("neighbours")
    found = []
    for labeler in ("worker 0", "worker 1"):
        mine = [n for n, row in enumerate(ASKED) if row["labeler_id"] == labeler]
        answers = itertools.product(*(range(len(ASKED[n]["responses"])) for n in mine))
        worlds = []
        for number, answer in enumerate(answers):
            chosen = np.array(start)
            chosen[mine] = answer
            worlds.append(World(table(chosen.tolist()), directory / f"{labeler} {number}"))
        found.append(worlds)
    return found


def movement(neighbours, quantile):
    """How far the sums of two of them are apart, and what is claimed."""
    bounds = statistic.compute_bounds(neighbours[0][0].z, neighbours[0][0].rows, quantile)
    worst = 0.0
    for worlds in neighbours:
        totals = np.array([there.total(bounds) for there in worlds])
        worst = max(worst, float(np.linalg.norm(totals[:, None] - totals[None], axis=2).max()))
    return worst, bounds.sensitivity


def test_no_change_of_all_choices_of_a_labeler_moves_the_sum_further_than_claimed(neighbours):
    for worlds in neighbours:
        assert all(np.array_equal(there.z, worlds[0].z) for there in worlds)
        assert len({there.labels.tobytes() for there in worlds}) > len(worlds) // 2
    for quantile in QUANTILES:
        worst, claimed = movement(neighbours, quantile)
        assert worst <= claimed * ROUNDING


def test_a_bound_that_is_a_third_too_small_is_caught(neighbours):
    movements = [movement(neighbours, quantile) for quantile in QUANTILES]
    assert any(worst > claimed * 2 / 3 for worst, claimed in movements)


def test_choices_and_rankings_add_up_in_one_sum(project):
    rows = table(random_choices(1))
    lg.privatize(rows, project=project, uses=4, **PRICE, **STATISTIC)
    ranked = [
        {k: v for k, v in row.items() if k != "choice"}
        | {"prompt": "other", "ranks": [*range(len(row["responses"]))]}
        for row in rows.to_pylist()
    ]
    made = lg.privatize(pa.Table.from_pylist(ranked), project=project, **PRICE, **STATISTIC)
    assert made.card["statistic"]["windows"] == 2


def released_pairs(tmp_path, **options):
    """The pairs that are released of two files whose choices differ."""
    for seed in (1, 2):
        made = lg.privatize(
            table(random_choices(seed)),
            mechanism="rr",
            project=lg.init(tmp_path / f"world {seed}"),
            **PRICE,
            **options,
        )
        sides = pl.concat_list("chosen", "rejected").list.sort()
        yield sorted(lg.load(made).select("prompt", sides=sides).rows())


def test_all_pairs_of_a_choice_are_released_whatever_was_chosen(tmp_path):
    one, other = released_pairs(tmp_path)
    assert one == other
    # Two responses of one set are equal, so its three pairs are two.
    sets = {row["prompt"]: len(row["responses"]) for row in ASKED}
    pairs_of = {prompt: math.comb(size, 2) for prompt, size in sets.items()} | {"question 1": 2}
    assert len(one) == sum(pairs_of[row["prompt"]] for row in ASKED)


def test_without_their_ties_choices_would_show_in_which_pairs_there_are(tmp_path, monkeypatch):
    dropped: dict[str, Any] = {"ties": "drop", "tie_status_public": True}
    with pytest.raises(PolicyError, match="the pairs without the chosen response are ties"):
        next(released_pairs(tmp_path, **dropped))
    monkeypatch.setattr(privatize, "check_ties_and_label_codes", lambda *_: None)
    one, other = released_pairs(tmp_path / "unguarded", **dropped)
    assert one != other


def test_counting_from_one_is_said_beforehand(tmp_path):
    zero, one = random_choices(1), [choice + 1 for choice in random_choices(1)]
    first = LabelValues.parse(" FIRST = 1 ")
    assert str(first) == "first=1" and LabelValues.parse(str(first)) == first
    assert LabelValues.parse("first=0") == LabelValues()
    here = World(table(zero), tmp_path / "zero")
    there = World(table(one), tmp_path / "one", values=first)
    assert np.array_equal(here.labels, there.labels)
    with pytest.raises(InvalidLabels, match="expected the number of a response, counted from 0"):
        World(table(one), tmp_path / "unsaid")
    ranks = table(one).drop_columns(["choice"]).append_column("ranks", [[[1.0]] * len(ASKED)])
    with pytest.raises(InvalidLabels, match="--label-values first=1 goes with choices"):
        World(ranks, tmp_path / "ranks", values=first)


@pytest.mark.quick("-1", "0.5")
@pytest.mark.parametrize("bad", [-1, 7, 0.5, "best", [0]])
def test_a_choice_that_is_no_number_of_a_response_is_a_bad_label(bad, tmp_path):
    rows = [row | {"choice": 0} for row in ASKED[:3]]
    good = write(tmp_path / "good.jsonl", rows)
    rows[1]["choice"] = bad
    path = write(tmp_path / "bad.jsonl", rows)
    keys, reading = KeyRing.public(), Reading({})
    one = stage(good, tmp_path / "one", keys, StagingOptions(reading, ""))
    other = stage(path, tmp_path / "other", keys, StagingOptions(reading, ""))
    assert one.public_digest == other.public_digest
    with pytest.raises(InvalidLabels, match=r"row 2: column choice: expected the number of a resp"):
        other.refuse_labels_outside_domain()


def test_labels_decide_nothing_but_the_sum(tmp_path, monkeypatch):
    world.fix(monkeypatch, world.repeatable_bytes())
    released: list[NDArray[np.int64]] = []
    draw = statistic.add_noise

    def same(total, grid, nonce):
        if not released:
            released.append(draw(total, grid, nonce))
        return released[0]

    monkeypatch.setattr(statistic, "add_noise", same)
    seen = []
    for seed in (1, 2):
        world.fix_randomness(monkeypatch, world.repeatable_bytes())
        rows = table(random_choices(seed))
        shuffled = rows.take(pa.array(np.random.default_rng(seed).permutation(len(rows))))
        project = lg.init(tmp_path / f"world {seed}")
        made = lg.privatize(shuffled, project=project, **PRICE, **STATISTIC)
        files = {path.name: path.read_bytes() for path in sorted(made.path.iterdir())}
        seen.append((made.id, files, dict(made.card)))
    assert seen[0] == seen[1]
