"""The teacher release: one charge, one noisy statistic, labels by the head fitted from it."""

import re
from typing import Any

import numpy as np
import polars as pl
import pytest
from support import held_out, world
from support.commands import run
from support.deaths import killed_in
from support.held_out import SHAPE, copy_release
from support.lives import put_into_force
from support.preferences import notes, spent
from support.releases import make_release
from support.surveys import label_error, survey

import labelguard as lg
from labelguard.errors import (
    InvalidLabels,
    LabelguardError,
    LedgerError,
    PolicyError,
    ProjectError,
)
from labelguard.mechanisms import props_stages as relabelling
from labelguard.mechanisms import statistic
from labelguard.mechanisms.randomized_response import compute_largest_eigenvalue
from labelguard.release.head import FILE, WINDOW, Head, Window
from labelguard.release.mechanisms import statistic as releasing
from labelguard.report import overview
from labelguard.storage import portions

CEILING = 1e6

TEACHER = held_out.TEACHER | {"epsilon": 1.0, "delta": 1e-5}


@pytest.fixture(scope="module")
def _taught(tmp_path_factory):
    made = lg.init(tmp_path_factory.mktemp("taught"), max_epsilon=1e6)
    return made, make_release(survey(), project=made, **TEACHER)


@pytest.fixture
def release(_taught, project):
    """The first release of `project`: a copy of one that is made once."""
    return copy_release(*_taught, project)


def test_every_row_of_the_input_comes_out_with_the_teachers_probability(release):
    raw = survey()
    released = lg.load(release)
    assert released.height == raw.height
    assert released["label_probability"].null_count() == 0
    assert released["label_probability"].min() >= 0.5
    assert released["flip_probability"].null_count() == raw.height
    assert released["residual_flip_estimate"].null_count() == raw.height
    assert "labeler_id" not in released.columns
    assert released["item_id"].is_sorted()
    assert released.unique(["prompt", "chosen", "label_probability"]).height == 200
    assert release.card["kind"] == "teacher" and release.card["train_with"] == "soft"
    assert release.card["statistic"]["components"] == 2
    card = (release.path / "CARD.md").read_text()
    assert card.count("statistic release") >= 1
    # Its labels are nobody's, noised or not: the words of randomized labels do not fit it.
    assert "labeled by a linear model, the teacher" in card and "Labels are\nthe teacher's" in card
    assert "privatized" not in card and "labels were" not in card


def test_the_card_lists_the_weights_of_named_features_largest_first(project, release):
    pairs, weights = survey().unique("prompt"), release.card["head"]["weights"]
    gaps = [pairs[f"{name}_a"] - pairs[f"{name}_b"] for name in ("score", "length")]
    square = np.mean(np.square(gaps), axis=1)
    log_odds = Head.load(release.path).coefficients * np.sqrt(square / square.sum())
    expected = dict(zip(("score", "length"), log_odds.tolist(), strict=True))
    assert {one["feature"]: one["log_odds"] for one in weights} == pytest.approx(expected)
    assert abs(weights[0]["log_odds"]) >= abs(weights[1]["log_odds"])
    shown = run("release", "show", project=project).stdout
    for one in weights:
        assert re.search(rf"(?m)^{one['feature']} +\{one['log_odds']:+.3f}$", shown), shown


@pytest.mark.parametrize(
    "damage", [{"scale": np.array(np.nan)}, {"scale": None}, {"coefficients": np.zeros(1)}]
)
def test_a_damaged_head_is_refused(release, tmp_path, damage):
    changed = portions.load_arrays(release.path / FILE) | damage
    kept = {name: values for name, values in changed.items() if values is not None}
    (tmp_path / FILE).write_bytes(portions.pack_arrays(kept))
    with pytest.raises(ProjectError, match="damaged"):
        Head.load(tmp_path)


def test_a_labeler_pays_one_place_however_many_labels_they_gave(project):
    make_release(survey(), project=project, uses=3, **TEACHER)
    [budget] = overview.read_budget(project.state).allowances
    assert (budget.allowed, budget.used) == (360, 120)
    assert overview.verify(project.state).ok


def test_noise_is_for_as_many_components_as_there_are_directions(project):
    release = make_release(survey(), project=project, **TEACHER | {"components": 64})
    found = release.card["statistic"]
    assert (found["components"], found["noise_least_components"]) == (2, 2)


@pytest.mark.slow
def test_a_policy_of_ball_noise_is_released_with_it(project):
    declared = {"public_columns": SHAPE["public_columns"], "epsilon": 1}
    put_into_force(project, "few", "statistic:releases=1,ball=4", **declared)
    release = make_release(survey(), project=project, **TEACHER)
    said = release.card["statistic"]
    assert (said["noise_kind"], said["noise_least_components"]) == ("ball", 4)
    assert said["noise_scale"] == pytest.approx(0.985245, rel=1e-5)
    # Two components get those of noise in four dimensions, of variance (4 + 1)s² each.
    assert said["noise"] == pytest.approx(0.985245 * said["sensitivity"] * 5**0.5, rel=1e-5)
    window = Window.load(project.private_maps / release.id / WINDOW)
    assert (window.kind, window.least, window.noise) == ("ball", 4, said["noise"])


def test_the_same_command_returns_the_same_release(project, release):
    second = make_release(survey(), project=project, **TEACHER)
    assert second.reused and second.id == release.id


def test_labels_released_before_are_no_increment(project, no_noise):
    make_release(survey(), project=project, uses=2, **TEACHER)
    half = survey().head(1000)
    release = make_release(half, project=project, uses=2, **TEACHER)
    assert release.card["counts"]["charged"] == 0
    assert release.card["statistic"]["windows"] == 1


@pytest.mark.slow
def test_windows_add_up_to_one_statistic(project, tmp_path, no_noise):
    # Whoever labels in one window only weighs the same in it as in all of it: the sums must agree.
    raw = survey(labelers=60)
    options = TEACHER | {"clip_quantile": 1.0, "uses": 2}
    whole = make_release(raw, project=lg.init(tmp_path / "whole"), **options)
    first, second = raw.filter(pl.col("labeler_id") < 30), raw
    make_release(first, project=project, **options)
    windows = make_release(second, project=project, **options)
    assert windows.card["statistic"]["windows"] == 2
    one, two = Head.load(whole.path), Head.load(windows.path)
    x = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    assert np.corrcoef(one.predict_log_odds(x), two.predict_log_odds(x))[0, 1] > 0.999
    assert two.noise > one.noise


@pytest.mark.slow
def test_again_begins_a_new_sum_of_the_latest_labels(project, no_noise):
    options = TEACHER | {"uses": 3}
    raw = survey()
    first = Head.load(make_release(raw, project=project, **options).path)
    changed = raw.with_columns(label=1 - pl.col("label"))
    kept = make_release(changed, project=project, **options)
    assert kept.reused  # what was released first stays
    release = make_release(changed, project=project, again=True, **options)
    assert release.card["counts"]["charged"] == 120
    assert release.card["statistic"]["windows"] == 1
    assert Head.load(release.path).coefficients == pytest.approx(-first.coefficients)
    more = make_release(survey(labelers=130, seed=9), project=project, **options)
    assert more.card["statistic"]["windows"] == 2


@pytest.mark.slow
def test_a_release_finished_after_another_keeps_to_its_own_sum(project):
    early, late = survey(labelers=50, seed=1), survey(labelers=60, seed=2)
    options = TEACHER | {"uses": 3}
    with killed_in(*AT_THE_NOISE):
        make_release(early, project=project, **options)
    other = make_release(late, project=project, **options)
    [note] = notes(other)
    assert "stays charged" in note
    finished = make_release(early, project=project, **options)
    assert finished.card["statistic"]["windows"] == other.card["statistic"]["windows"] == 1
    assert overview.verify(project.state).ok


@pytest.mark.slow
def test_further_pairs_are_labeled_too_each_once(project):
    raw = survey(items=200)
    further = survey(labelers=3, per_labeler=100, items=201).drop("label", "labeler_id")
    release = make_release(raw, project=project, also=further, **TEACHER)
    released = lg.load(release)
    distinct = further.unique("prompt")
    both = distinct.filter(~pl.col("prompt").is_in(raw["prompt"].implode()))
    assert both.height <= released.height - raw.height <= distinct.height
    assert released["item_id"].is_sorted()
    assert release.card["counts"]["rows"] == released.height
    fewer = make_release(raw, project=project, **TEACHER)
    assert not fewer.reused and fewer.card["counts"]["charged"] == 0


def test_the_head_scores_new_pairs_as_it_scored_the_input(release):
    raw = survey()
    scored = lg.score(release.path, raw.drop("label"))
    released = lg.load(release).unique("prompt").select("prompt", "chosen", "label_probability")
    both = scored.join(released, on=["prompt", "chosen"])
    assert both.height == scored.height == 200
    assert both["label_probability"].to_numpy() == pytest.approx(
        both["label_probability_right"].to_numpy(), abs=1e-6
    )


AT_THE_NOISE = (statistic, "add_noise")
AFTER_THE_MAP = (releasing, "fit")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ties": "coin"}, "in a sum a tie adds nothing"),
        ({"ties": "drop"}, "declare it with --tie-status-public"),
        ({"uses": 0}, "uses must be at least 1"),
        ({"agreement": 0.4}, "agreement must be in"),
        ({"epsilon": 800.0}, "take a larger delta, or a smaller epsilon"),
        ({"delta": 1e-299}, "noise from 256-bit numbers costs"),
        ({"features": "minilmm"}, "there are no features 'minilmm'"),
    ],
)
def test_what_cannot_be_asked_is_said(options, message, project):
    with pytest.raises(LabelguardError, match=message):
        make_release(survey(labelers=20), project=project, **TEACHER | options)
    assert spent(project) == 0


@pytest.mark.slow
def test_a_window_whose_features_say_nothing_is_refused_before_any_charge(project):
    options = TEACHER | {"uses": 2}
    make_release(survey(), project=project, **options)
    before = spent(project)
    more = survey(items=203, seed=4).with_columns(
        score_a="score_b", length_a="length_b", prompt=pl.col("prompt") + "?"
    )
    with pytest.raises(InvalidLabels, match="no labeled pair differs in its features"):
        make_release(more, project=project, **options)
    assert spent(project) == before


@pytest.mark.slow
def test_labels_of_an_unfinished_release_alone_make_no_release(project):
    raw = survey()
    with killed_in(*AFTER_THE_MAP):
        make_release(raw, project=project, **TEACHER)
    with pytest.raises(PolicyError, match="are in releases that are unfinished"):
        make_release(raw, project=project, **TEACHER | {"ridge": 2.0})
    assert not make_release(raw, project=project, **TEACHER).reused


@pytest.mark.slow
@pytest.mark.parametrize("moment", [AT_THE_NOISE, AFTER_THE_MAP])
def test_a_release_that_was_begun_with_other_features_is_not_finished(moment, project):
    raw = survey()
    with killed_in(*moment):
        make_release(raw, project=project, **TEACHER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("labelguard.learning.columns._Columns.identity", lambda self: "another")
        with pytest.raises(LedgerError, match="was begun with the features columns"):
            make_release(raw, project=project, **TEACHER)


# PROPS from start to end: charged like randomized response, better labels, no further look.

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
    randomized = make_release(raw, project=project, **PRICE)
    before = spent(project)
    release = make_release(raw, project=project, combine=combine, **PROPS)
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
        make_release(raw, project=project, **options)
    release = make_release(raw, project=project, **options)
    assert trained == [0, 1, 2, 3]
    assert not release.reused and overview.verify(project.state).ok


def test_noise_that_drowns_the_model_is_reported(project):
    release = make_release(
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
    release = make_release(survey(labelers=30), project=project, **PROPS)
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
    release = make_release(survey(labelers=1), project=project, **PROPS)
    first, second = release.card["props"]["stages"]
    assert {first["rows"], second["rows"]} == {0, 20}
    assert ("estimated_error" in second) == (second["rows"] == 20)
    assert "Infinity" not in (release.path / "card.json").read_text()


def test_nothing_is_charged_where_it_has_nothing_to_relabel(project):
    raw = survey(labelers=20)
    make_release(raw, project=project, **PRICE, max_labels_per_labeler=20, block=1)
    used = spent(project)
    other = survey(labelers=20, seed=3).with_columns(prompt=pl.col("prompt") + "?")
    with pytest.raises(LabelguardError, match="no label is left to release"):
        make_release(other, project=project, exhausted="drop", **PROPS)
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
def test_what_cannot_be_asked_of_props_is_said(options, message, project):
    with pytest.raises(LabelguardError, match=message):
        make_release(survey(labelers=20), project=project, **PROPS | options)
    assert spent(project) == 0
