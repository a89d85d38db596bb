"""PROPS from start to end: charged like randomized response, better labels, no further look."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from support import world
from support.deaths import killed_in
from support.preferences import spent
from support.surveys import label_error, survey

import labelguard as lg
from labelguard.errors import LabelguardError
from labelguard.mechanisms import props_stages as relabelling
from labelguard.mechanisms.randomized_response import compute_largest_eigenvalue
from labelguard.report import overview

CEILING = 20

PRICE: dict[str, Any] = {
    "mechanism": "rr",
    "epsilon": 4.0,
    "delta": 1e-5,
    "public_columns": ["score", "length"],
}
PROPS: dict[str, Any] = PRICE | {"mechanism": "props", "features": "columns:score,length"}


@pytest.mark.slow
@pytest.mark.quick("hard")
@pytest.mark.parametrize("combine", ["hard", "soft"])
def test_it_betters_randomized_labels_at_their_price(combine, project):
    raw = survey(labelers=300)
    randomized = lg.privatize(raw, project=project, **PRICE)
    before = spent(project)
    release = lg.privatize(raw, project=project, combine=combine, **PROPS)
    assert spent(project) == before  # the same permanent coins, free
    released = lg.load(release)
    assert released.height == raw.height
    # One label of each item is compared: labels of an item may differ between its labelers.
    error = label_error(released.sample(fraction=1, shuffle=True, seed=0), raw)
    assert error < label_error(lg.load(randomized).sample(fraction=1, shuffle=True, seed=0), raw)
    first, second = release.card["props"]["stages"]
    assert first["rows"] + second["rows"] == raw.height
    assert 0.1 < second["estimated_error"] < 0.35 and not second["uninformative"]
    assert released["flip_probability"].null_count() == raw.height
    soft = combine == "soft"
    assert released["label_probability"].null_count() == (0 if soft else raw.height)
    assert released["residual_flip_estimate"].null_count() == (raw.height if soft else 0)
    assert release.card["train_with"] == ("soft" if soft else "plain")


@pytest.mark.slow
def test_an_interrupted_run_takes_finished_stages_from_disk(project, tmp_path, monkeypatch):
    raw = survey(labelers=60)
    options = PROPS | {"stages": 4}
    trained = world.note_calls(monkeypatch, relabelling, "_run_stage", lambda *given: given[4])
    with killed_in(relabelling, "_run_stage", call=3):
        lg.privatize(raw, project=project, **options)
    release = lg.privatize(raw, project=project, **options)
    assert trained == [0, 1, 2, 3]
    assert not release.reused and overview.verify(project.state).ok


def test_noise_that_drowns_the_model_is_reported(project):
    release = lg.privatize(
        survey(labelers=12), project=project, **PROPS | {"epsilon": 0.5, "combine": "hard"}
    )
    [_, second] = release.card["props"]["stages"]
    assert second["uninformative"] and second["standard_error"] > 0.25, second
    text = (release.path / "CARD.md").read_text()
    assert "| model's error, stage 2 | no usable estimate |" in text


def test_a_labelers_labels_lie_in_one_stage(project, monkeypatch):
    seen, run_stages = [], relabelling.run_stages

    def watch(x, labels, *arguments, **options):
        seen.append(labels)
        return run_stages(x, labels, *arguments, **options)

    monkeypatch.setattr(relabelling, "run_stages", watch)
    release = lg.privatize(survey(labelers=30), project=project, **PROPS)
    [labels] = seen
    units, counts = np.unique(labels.unit, return_counts=True)
    assert len(units) == 30 and set(counts) == {20}
    assert all(len(set(labels.stage[labels.unit == unit])) == 1 for unit in units)
    # Labels that are flipped together say less of a model than as many coins.
    [law] = release.card["flip_probability"]["blocks"]
    assert law["labels"] == 20 and law["rows"] == 600
    factor = compute_largest_eigenvalue(1 - 2 * law["flip_probability"], law["second_moment"], 20)
    assert labels.noise == pytest.approx(np.full(600, factor))


def test_one_labeler_leaves_a_stage_without_rows_and_without_an_estimate(project):
    release = lg.privatize(survey(labelers=1), project=project, **PROPS)
    first, second = release.card["props"]["stages"]
    assert {first["rows"], second["rows"]} == {0, 20}
    assert ("estimated_error" in second) == (second["rows"] == 20)
    assert "Infinity" not in (release.path / "card.json").read_text()


def test_nothing_is_charged_where_it_has_nothing_to_relabel(project):
    raw = survey(labelers=20)
    lg.privatize(raw, project=project, **PRICE, max_labels_per_labeler=20, block=1)
    used = spent(project)
    other = survey(labelers=20, seed=3).with_columns(prompt=pl.col("prompt") + "?")
    with pytest.raises(LabelguardError, match="no label is left to release"):
        lg.privatize(other, project=project, exhausted="drop", **PROPS)
    assert spent(project) == used


@pytest.mark.quick("options0", "options3", "options6")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": 1}, "stages must be at least 2"),
        ({"combine": "both"}, "combine must be one of hard, soft"),
        ({"learner": "oracle"}, r"unknown learner 'oracle'; this installation has: .*head"),
        ({"model": "gpt2"}, "model goes with another learner than head only"),
        ({"train_config": "a.yaml"}, "--train-config goes with another learner than head only"),
        ({"learner": "oracle", "ridge": 2.0}, "--ridge goes with --learner head only"),
        ({"learner": "oracle", "train_config": "a.yaml"}, "a.yaml cannot be read: No such file"),
        ({"whitening": 0.5}, "--whitening does not go with --mechanism props"),
    ],
)
def test_what_cannot_be_asked_is_said(options, message, project):
    with pytest.raises(LabelguardError, match=message):
        lg.privatize(survey(labelers=20), project=project, **PROPS | options)
    assert spent(project) == 0
