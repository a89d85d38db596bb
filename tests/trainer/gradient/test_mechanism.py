"""`privatize --mechanism uls|els|els-group|aup` with heads: through the protocol, one charge."""

import json
from typing import Any

import numpy as np
import polars as pl
import pytest
from labelguard_trainer.gradient import loop
from labelguard_trainer.gradient.loop import Checkpoints
from labelguard_trainer.gradient.options import ElsOptions
from support import world
from support.deaths import killed_in
from support.lives import put_into_force
from support.preferences import spent
from support.releases import make_release
from support.surveys import label_error, survey

import labelguard as lg
from labelguard.accounting import mixture
from labelguard.errors import BudgetExceeded, PolicyError
from labelguard.mechanisms import statistic
from labelguard.project import policies
from labelguard.release.head import Head

FEATURES = "columns:score,length"
SHORT: dict[str, Any] = {
    "features": FEATURES,
    "public_columns": ["score", "length"],
    "sampling_probability": 0.25,
    "steps": 30,
}
ULS: dict[str, Any] = {"mechanism": "uls", "epsilon": 3.0, "delta": 1e-5, **SHORT}
BY_RECORD = {"sampling_probability": 0.125, "steps": 8, "records": 4}
EVERY = {
    "uls": {},
    "els": BY_RECORD,
    "els-group": BY_RECORD,
    "aup": {"accept_unproven": True, "concentration": 20.0},
}


@pytest.fixture
def project(tmp_path):
    return lg.init(tmp_path / "project", max_epsilon=1e6)


def run_mechanism(project, **options):
    return make_release(survey(), project=project, **ULS | options)


@pytest.mark.quick("uls")
@pytest.mark.parametrize("mechanism", EVERY)
def test_a_run_is_charged_once_to_everybody_and_labels_every_pair(mechanism, project):
    release = run_mechanism(project, mechanism=mechanism, epsilon=8.0, **EVERY[mechanism])
    rows = lg.load(release, "polars")
    assert rows.height == survey().height
    assert rows["label_probability"].is_between(0.5, 1).all()
    assert spent(project) == 120
    said = release.card
    assert (said["kind"], said["train_with"]) == ("teacher", "soft")
    run = said["training"]
    assert run["steps"] == (8 if "els" in mechanism else 30)
    assert run["sampled"] == ("labels" if "els" in mechanism else "labelers")
    assert run["population"] == (480 if "els" in mechanism else 120)
    assert ("NOT PROVEN" in said["privacy"]["accounting"]) == (mechanism == "aup")
    text = (release.path / "CARD.md").read_text()
    assert ("NOT PROVEN" in text) == (mechanism == "aup")
    assert f"| labels | {survey().height:,} read, of which none is released |" in text
    assert "labeled by a model" in text and "released before" not in text
    assert "unless the ceiling is raised" in text
    again = run_mechanism(project, mechanism=mechanism, epsilon=8.0, **EVERY[mechanism])
    assert again.reused and again.id == release.id
    assert not any(project.stages.glob(f"{release.id}*"))


def test_labels_of_a_run_are_as_many_as_can_be_priced_where_labelers_have_more():
    sampling = ElsOptions().sampling(np.array([0, 1180, 1181, 2000]))
    assert sampling.records == 1024
    mixture.check(1.0, sampling.probability, sampling.steps, sampling.records)
    assert ElsOptions().sampling(np.array([0, 3, 5, 9])).records == 5


@pytest.mark.slow
def test_labels_of_a_run_are_far_better_than_randomized_ones(project, tmp_path):
    raw = survey()
    randomized = make_release(
        raw, project=lg.init(tmp_path / "other"), mechanism="rr", epsilon=3.0, delta=1e-5
    )
    own, coins = (
        label_error(lg.load(r, "polars"), raw) for r in (run_mechanism(project), randomized)
    )
    assert own < coins - 0.1


@pytest.mark.slow
def test_its_head_scores_other_pairs_and_labels_those_that_nobody_labeled(project):
    further = survey(labelers=1, items=900, seed=5).drop("labeler_id", "label")
    release = run_mechanism(project, also=further)
    rows = lg.load(release, "polars")
    new = set(further["prompt"]) - set(survey()["prompt"])
    assert len(new) >= 10
    assert rows.height == survey().height + len(new)
    head = Head.load(release.path)
    assert head.features == FEATURES and head.statistic is None
    assert np.isfinite(head.coefficients).all() and head.coefficients.any()
    scored = lg.score(release, further)
    assert scored.height == len(set(further["prompt"]))
    assert scored["label_probability"].max() > 0.55


@pytest.mark.slow
def test_a_second_run_needs_an_allowance_and_learns_from_all_labels_again(project):
    declared = {"public_columns": SHORT["public_columns"]}
    put_into_force(project, "two", "uls:runs=2,q=0.25,steps=30", **declared)
    plain = {
        name: value for name, value in ULS.items() if name not in ("sampling_probability", "steps")
    }
    first = make_release(survey(), project=project, **plain)
    shown = policies.show("two", project)
    assert (shown.allowances[0].sampling.probability, shown.quote.events[0].steps) == (0.25, 30)
    later = pl.concat(
        [survey(), survey(labelers=3, seed=9).with_columns(pl.col("labeler_id") + 500)]
    )
    second = make_release(later, project=project, **plain)
    assert spent(project) == 120 + 123
    assert second.card["training"]["population"] == 123
    assert second.card["training"]["noise_multiplier"] == first.card["training"]["noise_multiplier"]
    with pytest.raises(BudgetExceeded):
        make_release(survey(), project=project, **plain, again=True)


def test_an_unproven_mechanism_is_refused_unless_the_policy_accepts_it(project):
    with pytest.raises(PolicyError, match="--accept-unproven"):
        run_mechanism(project, mechanism="aup")
    assert spent(project) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"learner": "forest"}, "learner must be"),
        ({"model": "gpt2"}, "another learner than head"),
        ({"steps": 0}, "steps must be between 1"),
        ({"sampling_probability": 1.5}, "q must be in"),
        ({"records": 3}, "does not go with --mechanism uls"),
        ({"weighting": "sum"}, "weighting must be one of mean, root"),
        ({"max_labels_per_labeler": 3}, "goes with randomized response"),
        ({"ties": "coin"}, "goes with randomized response"),
    ],
)
def test_what_does_not_go_with_a_run_is_said(options, words, project):
    with pytest.raises(PolicyError, match=words):
        run_mechanism(project, **options)
    assert spent(project) == 0


@pytest.fixture
def noise_drawn(monkeypatch):
    """The secrets by which sums were noised, in order."""
    return world.note_calls(monkeypatch, statistic, "add_noise", lambda total, grid, nonce: nonce)


def test_a_killed_run_goes_on_and_is_charged_once(project, monkeypatch, noise_drawn):
    with killed_in(Checkpoints, "save", late=True, here=lambda _, step, *__, **___: step == 23):
        run_mechanism(project)
    assert len(noise_drawn) == 23
    [waiting] = list(project.stages.rglob("*.npz"))
    release = run_mechanism(project)
    assert not waiting.exists()
    assert len(noise_drawn) == 23 + 10, "twenty steps were kept"
    assert len(set(noise_drawn)) == len(noise_drawn)
    assert spent(project) == 120
    assert release.card["training"]["steps"] == 30


def test_raw_labels_are_on_disk_nowhere_while_it_trains_but_in_scratch_space(project, monkeypatch):
    found: list[str] = []
    train = loop.train

    def looking(*arguments):
        train(*arguments)
        found.extend(path.name for path in project.stages.rglob("*") if path.is_file())

    monkeypatch.setattr(loop, "train", looking)
    run_mechanism(project)
    assert found == ["checkpoint.npz"]


@pytest.mark.slow
def test_rankings_and_choices_are_learned_from(tmp_path):
    rng = np.random.default_rng(0)
    rows = []
    for labeler in range(60):
        for item in range(8):
            number = 8 * labeler + item
            quality = np.random.default_rng(number).normal(size=3)
            order = np.argsort(np.argsort(-(quality * 3 + rng.gumbel(size=3))))
            responses = [f"answer {place} to {number}" for place in range(3)]
            rows.append(
                {
                    "labeler_id": f"labeler {labeler}",
                    "prompt": f"question {number}",
                    "responses": responses,
                    "ranks": (order + 1).tolist(),
                    "choice": int(order.argmin()),
                    "quality": quality.tolist(),
                }
            )
    for name, drop in (("ranks", "choice"), ("choice", "ranks")):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps([{k: v for k, v in row.items() if k != drop} for row in rows]))
        given = {"features": "columns:quality", "public_columns": ["quality"], "epsilon": 8.0}
        given |= {"label_values": "first=0"} if name == "choice" else {}
        options = {"project": lg.init(tmp_path / name), **ULS, **given}
        assert Head.load(make_release(path, **options).path).coefficients[0] > 0.3
