"""Evaluations: one charged statistic of held-out labelers, and heads that are judged by it."""

import re
import shutil
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from labelguard_trainer.training.request import open_release
from support.held_out import EVALUATION, SHAPE, TEACHER, copy_release, hold_out, of_part
from support.preferences import spent
from support.surveys import survey

import labelguard as lg
from labelguard.cli.main import main
from labelguard.errors import (
    BudgetExceeded,
    LabelguardError,
    NobodyOfPart,
    PolicyError,
    ProjectError,
)
from labelguard.ledger.ledger import Ledger
from labelguard.mechanisms.geometry import Basis
from labelguard.project import policies
from labelguard.release.drawn import DrawnRelease
from labelguard.release.evaluation import FILE, Evaluation
from labelguard.release.head import Head
from labelguard.report import overview
from labelguard.storage import portions

RAW = survey(labelers=60)


@pytest.fixture
def project(tmp_path):
    """A project that holds 50% of labelers out, and pays for three statistics."""
    made = lg.init(tmp_path / "project", max_epsilon=1e6)
    hold_out(made, "statistic:releases=3")
    return made


@pytest.fixture(scope="module")
def _taught(tmp_path_factory):
    made = lg.init(tmp_path_factory.mktemp("taught"), max_epsilon=1e6)
    hold_out(made, "statistic:releases=3")
    return made, lg.privatize(RAW, project=made, **TEACHER)


@pytest.fixture
def teacher(_taught, project):
    """The teacher release of `project`: a copy of one that is made once."""
    return copy_release(*_taught, project)


def without_opinion(head):
    return replace(head, coefficients=np.zeros_like(head.coefficients))


def sum_of(raw, evaluation):
    """Σ_u w_u Σ_j (y − ½) z of some labels by its definition, and what they weigh."""
    columns = [f"{name}_{side}" for side in "ab" for name in ("score", "length")]
    values = raw.select(columns).to_numpy()
    coordinates = evaluation.coordinates
    x = (values[:, :2] - values[:, 2:]) * coordinates.state["scale"]  # one group of two columns
    z = x @ coordinates.basis.projection
    who = raw["labeler_id"].to_numpy()
    own = [who == labeler for labeler in np.unique(who)]
    triangle = np.array([np.linalg.norm(z[rows], axis=1).sum() for rows in own])
    spectral = np.array([np.linalg.norm(z[rows], 2) * np.sqrt(rows.sum()) for rows in own])
    farthest = np.minimum(triangle, spectral)
    weight = np.minimum(1, np.median(farthest) / farthest)
    half = raw["label"].to_numpy() - 0.5
    parts = [w * half[rows] @ z[rows] for rows, w in zip(own, weight, strict=True)]
    return np.sum(parts, axis=0), sum(w * rows.sum() for rows, w in zip(own, weight, strict=True))


def test_a_labeler_either_trains_or_evaluates(project, teacher):
    evaluation = lg.privatize(RAW, project=project, head=teacher.path, **EVALUATION)
    training, held_out = (of_part(project, RAW, part) for part in ("training", "held-out"))
    assert len(training) and len(held_out) and len(training) + len(held_out) == len(RAW)
    counts = teacher.card["counts"]
    assert counts["rows"] == len(training) == lg.load(teacher).height
    people = held_out["labeler_id"].n_unique()
    assert counts["of_other_part"] == {"units": people, "labels": len(held_out)}
    assert f"{len(held_out)} labels of {people} labelers left out: held out" in teacher.notes
    assert teacher.card["privacy"]["held_out"] == 0.5
    counts = evaluation.card["counts"]
    assert (counts["labelers"], counts["charged"], counts["rows"]) == (people, people, 0)
    assert counts["of_other_part"]["labels"] == len(training)
    assert evaluation.card["statistic"]["labels_in_window"] == len(held_out)
    assert spent(project) == 60  # everybody paid once, for one of the two
    assert overview.verify(project.state).ok


def test_it_holds_the_sum_of_held_out_labels_alone(project, no_noise):
    teacher = lg.privatize(RAW, project=project, **TEACHER)
    made = lg.privatize(RAW, project=project, head=teacher.path, **EVALUATION)
    found, head = Evaluation.load(made.path), Head.load(teacher.path)
    expected, labels = sum_of(of_part(project, RAW, "held-out"), found)
    np.testing.assert_allclose(found.statistic, expected, rtol=1e-4)
    assert found.label_weight == pytest.approx(labels, rel=1e-6)
    # By definition: θᵀS − Σ w log 2 cosh(z·θ/2), per label.
    theta = np.linalg.lstsq(found.coordinates.basis.projection, head.coefficients, rcond=None)[0]
    half = found.z @ theta / 2
    total = theta @ expected - found.weight @ np.log(2 * np.cosh(half))
    likelihood, its_error = found.likelihood(head)
    assert likelihood == pytest.approx(total / labels, rel=1e-4)
    assert found.likelihood(without_opinion(head)) == pytest.approx((-np.log(2), 0))
    difference, error = found.difference(head, without_opinion(head))
    assert difference == pytest.approx(likelihood + np.log(2))
    assert difference > 0 and error == pytest.approx(its_error) and error > 0
    assert found.difference(head, head) == (0, 0)


def test_a_later_evaluation_adds_what_is_new(project, no_noise):
    teacher = lg.privatize(RAW, project=project, **TEACHER)
    first = lg.privatize(RAW, project=project, head=teacher.path, **EVALUATION)
    later = survey(labelers=80, seed=7)
    second = lg.privatize(pl.concat([RAW, later]), project=project, **EVALUATION)
    one, both = (Evaluation.load(release.path) for release in (first, second))
    own = of_part(project, later, "held-out")
    # What somebody had labeled before stays what it was.
    new = own.join(of_part(project, RAW, "held-out"), on=["labeler_id", "prompt"], how="anti")
    added, labels = sum_of(new, both)
    np.testing.assert_allclose(both.statistic - one.statistic, added, rtol=1e-3, atol=1e-3)
    assert both.label_weight - one.label_weight == pytest.approx(labels, rel=1e-6)
    assert both.noise > one.noise and both.sampling.shape == (2, 2, 2)
    assert second.card["statistic"]["windows"] == 2
    assert second.card["counts"]["charged"] == new["labeler_id"].n_unique()
    again = lg.privatize(pl.concat([later, RAW]), project=project, **EVALUATION)
    assert again.reused and again.id == second.id


@pytest.mark.slow
def test_training_goes_on_as_if_evaluations_were_not_there(project, teacher):
    lg.privatize(RAW, project=project, head=teacher.id, **EVALUATION)
    assert lg.privatize(RAW, project=project, **SHAPE).id == teacher.id  # auto never evaluates
    more = survey(labelers=80, seed=7)
    second = lg.privatize(more, project=project, **TEACHER)
    assert second.card["statistic"]["windows"] == 2
    np.testing.assert_array_equal(
        Head.load(second.path).basis.projection, Head.load(teacher.path).basis.projection
    )


@pytest.mark.slow
def test_a_head_is_a_release_or_any_directory_that_holds_one(project, teacher, tmp_path):
    model = tmp_path / "models" / "0001"
    model.mkdir(parents=True)
    shutil.copy(teacher.path / "head.npz", model)
    first = lg.privatize(RAW, project=project, head=str(model), **EVALUATION)
    shutil.rmtree(model)  # the evaluation knows its coordinates by itself
    for head in (teacher.id, teacher.id[:5], teacher.path, first.path, first.id, None):
        assert lg.privatize(RAW, project=project, head=head, **EVALUATION).id == first.id
    with pytest.raises(LabelguardError, match="no committed release"):
        lg.privatize(RAW, project=project, head="r9", **EVALUATION)
    with pytest.raises(ProjectError, match="holds no head"):
        lg.privatize(RAW, project=project, head=tmp_path, **EVALUATION)


def test_the_first_one_needs_a_head(project):
    with pytest.raises(PolicyError, match=r"first evaluation needs a head.*--head RELEASE"):
        lg.privatize(RAW, project=project, **EVALUATION)


@pytest.mark.slow
def test_other_coordinates_begin_anew(project, teacher, tmp_path):
    first = lg.privatize(RAW, project=project, head=teacher.path, **EVALUATION)
    head = Head.load(teacher.path)
    turned = Basis(head.basis.projection[:, :1], head.basis.metric[:1])
    flat = np.asarray(turned.projection @ np.ones(1))
    other = replace(head, basis=turned, coefficients=flat, statistic=None)
    (tmp_path / "head.npz").write_bytes(other.to_bytes())
    with pytest.raises(PolicyError, match=f"than evaluation {first.id}.*leave --head out.*--again"):
        lg.privatize(survey(labelers=60, seed=2), project=project, head=tmp_path, **EVALUATION)
    before = spent(project)
    anew = lg.privatize(RAW, project=project, head=tmp_path, again=True, **EVALUATION)
    assert spent(project) == before + anew.card["counts"]["labelers"]
    found = Evaluation.load(anew.path)
    assert found.statistic.shape == (1,) and len(found.sampling) == 1
    assert np.isfinite(found.likelihood(other)).all()
    with pytest.raises(LabelguardError, match="other principal axes"):
        found.likelihood(head)
    with pytest.raises(LabelguardError, match="other features"):
        found.likelihood(replace(head, identity="another"))


def test_nobody_is_charged_twice_for_one_label_nor_beyond_the_allowance(project, teacher):
    lg.privatize(RAW, project=project, head=teacher.path, **EVALUATION)
    for seed in (1, 2):
        lg.privatize(survey(labelers=60, seed=seed), project=project, **EVALUATION)
    with pytest.raises(BudgetExceeded, match="labelers have no statistic releases left"):
        lg.privatize(survey(labelers=60, seed=3), project=project, **EVALUATION)
    dropped = lg.privatize(
        survey(labelers=60, seed=3), project=project, exhausted="drop", **EVALUATION
    )
    assert dropped.card["counts"]["charged"] == 0


@pytest.mark.slow
def test_it_is_refused_where_nobody_is_held_out_or_nothing_pays(tmp_path):
    home = lg.init(tmp_path / "p", max_epsilon=1e6)
    with pytest.raises(PolicyError, match="before the first release: labelguard policy new"):
        lg.privatize(RAW, project=home, **EVALUATION)
    teacher = lg.privatize(RAW, project=home, epsilon=1.0, delta=1e-5, **TEACHER)
    assert teacher.card["privacy"]["held_out"] == 0
    assert teacher.card["counts"]["of_other_part"] == {"units": 0, "labels": 0}
    with pytest.raises(PolicyError, match=r"policy holds nobody out.*use another project"):
        lg.privatize(RAW, project=home, head=teacher.path, **EVALUATION)
    coins = lg.init(tmp_path / "coins")
    hold_out(coins, "rr:uses=24,block=1")
    with pytest.raises(PolicyError, match=r"pays for rr, not for statistic.*policy new"):
        lg.privatize(RAW, project=coins, head=teacher.path, **EVALUATION)


@pytest.mark.slow
def test_an_input_with_nobody_of_the_part_is_refused(project):
    training, held_out = (of_part(project, RAW, part) for part in ("training", "held-out"))
    with pytest.raises(NobodyOfPart, match=r"all of the \d+ labelers in this input are held out"):
        lg.privatize(held_out, project=project, **TEACHER)
    teacher = lg.privatize(training, project=project, **TEACHER)
    with pytest.raises(NobodyOfPart, match=r"none of the \d+ labelers in this input is held out"):
        lg.privatize(training, project=project, head=teacher.path, **EVALUATION)
    assert spent(project) == training["labeler_id"].n_unique()


def test_there_is_nothing_to_load_train_on_or_score_by(project, teacher, tmp_path):
    output = tmp_path / "out"
    made = lg.privatize(RAW, project=project, head=teacher.path, output=output, **EVALUATION)
    assert {path.name for path in output.iterdir()} == {"CARD.md", "SHA256SUMS", "card.json", FILE}
    assert made.card["train_with"] == "nothing"
    text = (output / "CARD.md").read_text()
    assert "data.parquet" not in text and "read, of which none is released |" in text
    for refuses in (
        lambda: lg.load(made),
        lambda: lg.load(output),
        lambda: open_release(str(output), project),
        lambda: open_release(made.id, project),
    ):
        with pytest.raises(ProjectError, match="is an evaluation: it has no labeled pairs"):
            refuses()
    with pytest.raises(ProjectError, match="holds no evaluation"):
        Evaluation.load(teacher.path)
    found = portions.load_arrays(output / FILE)
    wrong = {"kinds": np.array(["laplace"]), "least": np.array([10**9])}
    damages = [portions.pack_arrays({**found, name: wrong[name]}) for name in wrong]
    for damaged in (b"something else", *damages):
        (output / FILE).write_bytes(damaged)
        with pytest.raises(ProjectError, match="is damaged"):
            Evaluation.load(output)
    assert overview.verify_releases(None, project).ok


@pytest.mark.quick("wider than its features")
@pytest.mark.parametrize("what", ["wider than its features", "metric", "coefficients"])
def test_a_head_of_impossible_numbers_is_refused_before_anything_is_charged(
    project, teacher, tmp_path, what
):
    head = Head.load(teacher.path)
    basis, coefficients = head.basis, head.coefficients
    if what == "wider than its features":
        basis = Basis(np.ones((len(coefficients), 3_000)), np.ones(3_000))
    elif what == "metric":
        basis = replace(basis, metric=np.full_like(basis.metric, np.nan))
    else:
        coefficients = np.full_like(coefficients, np.nan)
    made = replace(head, basis=basis, coefficients=coefficients, statistic=None)
    (tmp_path / "head.npz").write_bytes(made.to_bytes())
    before = spent(project)
    with pytest.raises(ProjectError, match="is damaged"):
        lg.privatize(RAW, project=project, head=tmp_path, **EVALUATION)
    assert spent(project) == before


def test_a_release_that_was_killed_is_finished(project, teacher, monkeypatch):
    before = spent(project)

    def die(*arguments):
        raise KeyboardInterrupt

    def evaluate(raw=RAW):
        return lg.privatize(raw, project=project, head=teacher.path, **EVALUATION)

    for owner, step, state in (
        (Ledger, "mark_drawn", "computing"),
        (DrawnRelease, "finish_and_write", "drawn"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, step, die)
            with pytest.raises(KeyboardInterrupt):
                evaluate()
        assert overview.list_releases(project)[-1].state == state
    charged = of_part(project, RAW, "held-out")["labeler_id"].n_unique()
    assert spent(project) == before + charged
    drawn = (
        project.private_maps / overview.list_releases(project)[-1].id / "window.npz"
    ).read_bytes()
    # Labels that changed since are not looked at: the sum was drawn.
    made = evaluate(RAW.with_columns(label=1 - pl.col("label")))
    assert not made.reused and spent(project) == before + charged
    assert (project.private_maps / made.id / "window.npz").read_bytes() == drawn
    window = Evaluation.load(made.path)
    assert np.isfinite(window.statistic).all() and made.card["counts"]["charged"] == charged
    assert overview.verify(project.state).ok


def test_the_share_lasts_as_long_as_the_project(project):
    with pytest.raises(PolicyError, match=r"share of held-out units \(0.2\) than 'held'"):
        hold_out(project, "statistic:releases=1", name="later", share=0.2)
    with pytest.raises(PolicyError, match=r"held-out must be a share between 0 and 0.5"):
        hold_out(project, "statistic:releases=1", name="half", share=0.6)
    assert policies.show("held", project).held_out == 0.5
    assert [line.held_out for line in policies.listing(project)] == [0.5, 0.2]
    shown = CliRunner().invoke(main, ["policy", "show", "held", "--project", str(project.state)])
    assert re.search("held out +50% of labelers, by a keyed hash", shown.stdout)
