"""Releases whose head learns which system wrote a response: windows, further pairs, scores.

Releases of published formats: what is said of them, who is charged, what is set aside.
"""

from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from support.preferences import STATISTIC, compared
from support.published import SHAPES, as_table

import labelguard
import labelguard as lg
from labelguard.errors import InvalidLabels, PolicyError
from labelguard.learning.features import PairFeatures, open_provider
from labelguard.project.erasure import remove_labeler
from labelguard.project.project import find
from labelguard.release.head import Head
from labelguard.release.privatize import plan

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
    release = lg.privatize(battles(0), project=project, also=also, **OPTIONS)
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
    first = Head.load(lg.privatize(battles(0), project=project, **OPTIONS).path)
    met = [pl.col(f"model_{side}") == "worst" for side in "ba"]
    newest = [pl.when(one).then(pl.lit("newest")) for one in met]
    newer = battles(1).with_columns(
        model_a=newest[0].otherwise("model_a"),
        model_b=newest[1].otherwise("model_b"),
        label=pl.when(met[0]).then(0).when(met[1]).then(1).otherwise("label"),
    )
    head = Head.load(lg.privatize(newer, project=project, **OPTIONS).path)
    before, after = (one.coefficients[0] - one.coefficients[2] for one in (first, head))
    assert after > 0.8 * before


@pytest.mark.quick("other0")
@pytest.mark.parametrize("other", [{"features": "length", "components": 1}, {"components": 1}])
def test_a_dry_run_refuses_what_does_not_fit_the_sum(project, other):
    lg.privatize(battles(0), project=project, **OPTIONS)
    for release in (plan, lg.privatize):
        with pytest.raises(PolicyError, match="the sum that this window joins has"):
            release(battles(1), project=project, **OPTIONS | other)
    assert plan(battles(0), project=project, **OPTIONS).preview.reused
    assert plan(battles(1), project=project, again=True, **OPTIONS | other).preview.charged


def test_a_window_whose_features_changed_joins_no_sum_and_may_begin_one(project, monkeypatch):
    lg.privatize(battles(0), project=project, **OPTIONS)
    monkeypatch.setattr(PairFeatures, "identity", lambda self: "another version")
    with pytest.raises(PolicyError, match=r"found another version; .* anew with --again$"):
        lg.privatize(battles(1), project=project, **OPTIONS)
    assert not lg.privatize(battles(1), project=project, again=True, **OPTIONS).reused


CHOSEN = ("chosen", "rejected")
WANTED = ["a", "b", "tie", "b", "a", "b"]


def release(project, rows, **options):
    return labelguard.privatize(as_table(rows), project=project, epsilon=3, delta=1e-5, **options)


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
