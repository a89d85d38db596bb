"""Choices of the best of several responses: staged as pairs, and summed by `statistic`.

Adversaries change all choices of one labeler, between two files, at will.
"""

import itertools
import math
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from support import world
from support.codings import COUNTED, choose_values
from support.exports import write
from support.preferences import STATISTIC, compared
from support.published import SHAPES, as_table
from support.releases import make_release

import labelguard as lg
from labelguard.budget.label_values import LabelValues
from labelguard.errors import InvalidLabels, PolicyError
from labelguard.inputs.columns import Reading
from labelguard.inputs.pairs import find_distinct_pairs, read_comparisons
from labelguard.inputs.staging import StagingOptions, stage
from labelguard.keys.keyring import KeyRing
from labelguard.learning.columns import FeatureColumn
from labelguard.learning.features import PairFeatures, open_provider
from labelguard.mechanisms import statistic
from labelguard.project.erasure import remove_labeler
from labelguard.project.project import find
from labelguard.release import privatize
from labelguard.release.head import Head
from labelguard.release.privatize import plan
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
        reading = {"values": choose_values(source)} | reading
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
    make_release(rows, project=project, uses=4, **PRICE, **STATISTIC)
    ranked = [
        {k: v for k, v in row.items() if k != "choice"}
        | {"prompt": "other", "ranks": [*range(len(row["responses"]))]}
        for row in rows.to_pylist()
    ]
    made = make_release(pa.Table.from_pylist(ranked), project=project, **PRICE, **STATISTIC)
    assert made.card["statistic"]["windows"] == 2


def released_pairs(tmp_path, **options):
    """The pairs that are released of two files whose choices differ."""
    for seed in (1, 2):
        made = make_release(
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
    zeroth = LabelValues.parse("first=0")
    assert str(zeroth) == "first=0" and zeroth not in (LabelValues(), first)
    here = World(table(zero), tmp_path / "zero", values=zeroth)
    there = World(table(one), tmp_path / "one", values=first)
    assert np.array_equal(here.labels, there.labels)
    with pytest.raises(InvalidLabels, match="expected the number of a response, counted from 0"):
        World(table(one), tmp_path / "from 0", values=zeroth)
    for choices in (zero, one):
        with pytest.raises(InvalidLabels, match="nothing says whether the first is 0 or 1"):
            World(table(choices), tmp_path / "unsaid", values=LabelValues())
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
    keys, reading = KeyRing.public(), Reading({}, values=LabelValues.parse(COUNTED))
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
        made = make_release(shuffled, project=project, **PRICE, **STATISTIC)
        files = {path.name: path.read_bytes() for path in sorted(made.path.iterdir())}
        seen.append((made.id, files, dict(made.card)))
    assert seen[0] == seen[1]


# Releases whose head learns which system wrote a response: windows, further pairs, scores.
#
# Releases of published formats: what is said of them, who is charged, what is set aside.

MODELS = ("best", "middle", "worst")
OPTIONS: dict[str, Any] = STATISTIC | {
    "features": "source:model",
    "public_columns": ["model"],
    "components": 2,
    "epsilon": 8,
    "delta": 1e-5,
    "uses": 2,
}


def battles(seed, *, labelers=60, labels=20):
    """Everybody prefers the better model nine times of ten."""
    rng = np.random.default_rng(seed)
    rows = labelers * labels
    first = rng.integers(0, 3, rows)
    second = (first + rng.integers(1, 3, rows)) % 3
    right = rng.random(rows) < 0.9
    columns = compared(
        [f"{seed} {n}" for n in range(rows)],
        labeler_id=[f"worker {n % labelers}" for n in range(rows)],
        label=((first < second) == right).astype(int),
        model_a=[MODELS[n] for n in first],
        model_b=[MODELS[n] for n in second],
    )
    return pl.DataFrame(columns)


def pair(one, other):
    row = {"prompt": "new", "response_a": "a", "response_b": "b"}
    return pl.DataFrame([row | {"model_a": one, "model_b": other}])


@pytest.fixture
def project(tmp_path):
    lg.init(tmp_path / "project")
    return tmp_path / "project"


def test_a_head_on_sources_labels_what_it_has_not_seen(project):
    also = pl.concat(
        [pair("best", "worst"), pair("worst", "best").with_columns(prompt=pl.lit("q"))]
    )
    release = make_release(battles(0), project=project, also=also, **OPTIONS)
    head = Head.load(release.path)
    provider = open_provider(head.features, head.state)
    assert provider.groups()[0].names == MODELS
    rows = lg.load(release)
    chosen = rows.filter(pl.col("prompt").is_in(["new", "q"])).sort("prompt")["chosen"].to_list()
    assert chosen == ["a", "b"]
    known, unknown = (lg.score(release, pair("best", name)) for name in ("worst", "nobody"))
    assert known["chosen"].to_list() == ["a"] and known["label_probability"][0] > 0.6
    assert unknown["label_probability"][0] == 0.5
    neither = lg.score(release, pair("no", "body"))
    assert neither["label_probability"][0] == 0.5
    renamed = pair("worst", "best").rename({"model_a": "left", "model_b": "right"})
    columns = {"model_a": "left", "model_b": "right"}
    named = {"columns": columns, "public_columns": ["left", "right"]}
    assert lg.score(release, renamed, **named)["chosen"].to_list() == ["b"]
    with pytest.raises(InvalidLabels, match="column left becomes the source model only if"):
        lg.score(release, renamed, columns=columns)
    with pytest.raises(InvalidLabels, match="no column model_a and model_b for the source model"):
        lg.score(release, renamed)
    with pytest.raises(InvalidLabels, match="column model_a or model_b: expected the name"):
        lg.score(release, pair("best", " "))


@pytest.mark.slow
def test_a_system_that_the_sum_does_not_know_moves_no_other(project):
    """The newest loses to the worst: a coordinate for that side alone would be a win of it."""
    first = Head.load(make_release(battles(0), project=project, **OPTIONS).path)
    met = [pl.col(f"model_{side}") == "worst" for side in "ba"]
    newest = [pl.when(one).then(pl.lit("newest")) for one in met]
    newer = battles(1).with_columns(
        model_a=newest[0].otherwise("model_a"),
        model_b=newest[1].otherwise("model_b"),
        label=pl.when(met[0]).then(0).when(met[1]).then(1).otherwise("label"),
    )
    head = Head.load(make_release(newer, project=project, **OPTIONS).path)
    before, after = (one.coefficients[0] - one.coefficients[2] for one in (first, head))
    assert after > 0.8 * before


@pytest.mark.quick("other0")
@pytest.mark.parametrize("other", [{"features": "length", "components": 1}, {"components": 1}])
def test_a_dry_run_refuses_what_does_not_fit_the_sum(project, other):
    make_release(battles(0), project=project, **OPTIONS)
    for release in (plan, make_release):
        with pytest.raises(PolicyError, match="the sum that this window joins has"):
            release(battles(1), project=project, **OPTIONS | other)
    assert plan(battles(0), project=project, **OPTIONS).preview.reused
    assert plan(battles(1), project=project, again=True, **OPTIONS | other).preview.charged


def test_a_window_whose_features_changed_joins_no_sum_and_may_begin_one(project, monkeypatch):
    make_release(battles(0), project=project, **OPTIONS)
    monkeypatch.setattr(PairFeatures, "identity", lambda self: "another version")
    with pytest.raises(PolicyError, match=r"found another version; .* anew with --again$"):
        make_release(battles(1), project=project, **OPTIONS)
    assert not make_release(battles(1), project=project, again=True, **OPTIONS).reused


CHOSEN = ("chosen", "rejected")
WANTED = ["a", "b", "tie", "b", "a", "b"]


def release(project, rows, **options):
    return make_release(as_table(rows), project=project, epsilon=3, delta=1e-5, **options)


def arena_rows():
    return SHAPES["arena"].rows(WANTED)


def test_values_of_labels_that_a_format_fixes_cannot_be_named(project):
    with pytest.raises(InvalidLabels, match=r"arena.*--label-values"):
        release(project, arena_rows(), label_values="a=model_a,b=model_b")
    release(project, SHAPES["pairs"].rows(["a", "b"]), label_values="A=1,B=0,tie=0.5")


def test_bad_battles_are_set_aside_and_leave_with_their_judge(project):
    bad = [row | {"tstamp": "yesterday"} if n == 1 else row for n, row in enumerate(arena_rows())]
    rows = [row | {"tstamp": str(row["tstamp"])} for row in bad]
    with pytest.raises(InvalidLabels, match="table row 2: column tstamp: expected a time"):
        release(project, rows)
    made = release(project, rows, bad_rows="quarantine")
    (aside,) = (find(project).quarantine / made.id).iterdir()
    assert pq.read_table(aside)["judge"].to_pylist() == ["w1"]
    remove_labeler("w1", "erased", project)
    assert not aside.exists()


def test_a_flagged_tie_is_a_tie_whatever_fills_the_label(project):
    rows = [row | {"tie": n % 2 == 0} for n, row in enumerate(SHAPES["pairs"].rows(["a"] * 6))]
    flipped = [row | {"label": 0} if row["tie"] else row for row in rows]
    options = {"ties": "drop", "tie_status_public": True}
    made = release(project, rows, **options)
    assert release(project, flipped, **options).reused
    assert made.card["counts"]["rows"] == 3
