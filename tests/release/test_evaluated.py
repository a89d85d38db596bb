"""Evaluations: one charged statistic of held-out labelers, and heads that are judged by it."""

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pytest
from labelguard_trainer.training.request import open_release
from numpy.typing import NDArray
from scipy.special import ndtri
from support.commands import run
from support.deaths import killed_in
from support.held_out import EVALUATION, SHAPE, TEACHER, copy_release, hold_out, of_part
from support.preferences import spent
from support.releases import make_release
from support.surveys import survey

import labelguard as lg
from labelguard.errors import (
    BudgetExceeded,
    LabelguardError,
    NobodyOfPart,
    PolicyError,
    ProjectError,
)
from labelguard.keys import keyring
from labelguard.ledger.ledger import Ledger
from labelguard.mechanisms import statistic
from labelguard.mechanisms.geometry import Basis, Shape
from labelguard.mechanisms.noise import NONCE_BYTES, Noise, ReleasedNoise
from labelguard.mechanisms.statistic import Bounds, Rows
from labelguard.project import policies
from labelguard.release.drawn import DrawnRelease
from labelguard.release.evaluation import FILE, Evaluation
from labelguard.release.head import Coordinates, Head, Window
from labelguard.report import overview
from labelguard.storage import portions
from labelguard.text import LABEL_A

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
    return made, make_release(RAW, project=made, **TEACHER)


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
    evaluation = make_release(RAW, project=project, head=teacher.path, **EVALUATION)
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
    teacher = make_release(RAW, project=project, **TEACHER)
    made = make_release(RAW, project=project, head=teacher.path, **EVALUATION)
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
    teacher = make_release(RAW, project=project, **TEACHER)
    first = make_release(RAW, project=project, head=teacher.path, **EVALUATION)
    later = survey(labelers=80, seed=7)
    second = make_release(pl.concat([RAW, later]), project=project, **EVALUATION)
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
    again = make_release(pl.concat([later, RAW]), project=project, **EVALUATION)
    assert again.reused and again.id == second.id


@pytest.mark.slow
def test_training_goes_on_as_if_evaluations_were_not_there(project, teacher):
    make_release(RAW, project=project, head=teacher.id, **EVALUATION)
    assert make_release(RAW, project=project, **SHAPE).id == teacher.id  # auto never evaluates
    more = survey(labelers=80, seed=7)
    second = make_release(more, project=project, **TEACHER)
    assert second.card["statistic"]["windows"] == 2
    np.testing.assert_array_equal(
        Head.load(second.path).basis.projection, Head.load(teacher.path).basis.projection
    )


@pytest.mark.slow
def test_a_head_is_a_release_or_any_directory_that_holds_one(project, teacher, tmp_path):
    model = tmp_path / "models" / "0001"
    model.mkdir(parents=True)
    shutil.copy(teacher.path / "head.npz", model)
    first = make_release(RAW, project=project, head=str(model), **EVALUATION)
    shutil.rmtree(model)  # the evaluation knows its coordinates by itself
    for head in (teacher.id, teacher.id[:5], teacher.path, first.path, first.id, None):
        assert make_release(RAW, project=project, head=head, **EVALUATION).id == first.id
    with pytest.raises(LabelguardError, match="no committed release"):
        make_release(RAW, project=project, head="r9", **EVALUATION)
    with pytest.raises(ProjectError, match="holds no head"):
        make_release(RAW, project=project, head=tmp_path, **EVALUATION)


def test_the_first_one_needs_a_head(project):
    with pytest.raises(PolicyError, match=r"first evaluation needs a head.*--head RELEASE"):
        make_release(RAW, project=project, **EVALUATION)


@pytest.mark.slow
def test_other_coordinates_begin_anew(project, teacher, tmp_path):
    first = make_release(RAW, project=project, head=teacher.path, **EVALUATION)
    head = Head.load(teacher.path)
    turned = Basis(head.basis.projection[:, :1], head.basis.metric[:1])
    flat = np.asarray(turned.projection @ np.ones(1))
    other = replace(head, basis=turned, coefficients=flat, statistic=None)
    (tmp_path / "head.npz").write_bytes(other.to_bytes())
    with pytest.raises(PolicyError, match=f"than evaluation {first.id}.*leave --head out.*--again"):
        make_release(survey(labelers=60, seed=2), project=project, head=tmp_path, **EVALUATION)
    before = spent(project)
    anew = make_release(RAW, project=project, head=tmp_path, again=True, **EVALUATION)
    assert spent(project) == before + anew.card["counts"]["labelers"]
    found = Evaluation.load(anew.path)
    assert found.statistic.shape == (1,) and len(found.sampling) == 1
    assert np.isfinite(found.likelihood(other)).all()
    with pytest.raises(LabelguardError, match="other principal axes"):
        found.likelihood(head)
    with pytest.raises(LabelguardError, match="other features"):
        found.likelihood(replace(head, identity="another"))


def test_nobody_is_charged_twice_for_one_label_nor_beyond_the_allowance(project, teacher):
    make_release(RAW, project=project, head=teacher.path, **EVALUATION)
    for seed in (1, 2):
        make_release(survey(labelers=60, seed=seed), project=project, **EVALUATION)
    with pytest.raises(BudgetExceeded, match="labelers have no statistic releases left"):
        make_release(survey(labelers=60, seed=3), project=project, **EVALUATION)
    dropped = make_release(
        survey(labelers=60, seed=3), project=project, exhausted="drop", **EVALUATION
    )
    assert dropped.card["counts"]["charged"] == 0


@pytest.mark.slow
def test_it_is_refused_where_nobody_is_held_out_or_nothing_pays(tmp_path):
    home = lg.init(tmp_path / "p", max_epsilon=1e6)
    with pytest.raises(PolicyError, match="before the first release: labelguard policy new"):
        make_release(RAW, project=home, **EVALUATION)
    teacher = make_release(RAW, project=home, epsilon=1.0, delta=1e-5, **TEACHER)
    assert teacher.card["privacy"]["held_out"] == 0
    assert teacher.card["counts"]["of_other_part"] == {"units": 0, "labels": 0}
    with pytest.raises(PolicyError, match=r"policy holds nobody out.*use another project"):
        make_release(RAW, project=home, head=teacher.path, **EVALUATION)
    coins = lg.init(tmp_path / "coins")
    hold_out(coins, "rr:uses=24,block=1")
    with pytest.raises(PolicyError, match=r"pays for rr, not for statistic.*policy new"):
        make_release(RAW, project=coins, head=teacher.path, **EVALUATION)


@pytest.mark.slow
def test_an_input_with_nobody_of_the_part_is_refused(project):
    training, held_out = (of_part(project, RAW, part) for part in ("training", "held-out"))
    with pytest.raises(NobodyOfPart, match=r"all of the \d+ labelers in this input are held out"):
        make_release(held_out, project=project, **TEACHER)
    teacher = make_release(training, project=project, **TEACHER)
    with pytest.raises(NobodyOfPart, match=r"none of the \d+ labelers in this input is held out"):
        make_release(training, project=project, head=teacher.path, **EVALUATION)
    assert spent(project) == training["labeler_id"].n_unique()


def test_there_is_nothing_to_load_train_on_or_score_by(project, teacher, tmp_path):
    output = tmp_path / "out"
    made = make_release(RAW, project=project, head=teacher.path, output=output, **EVALUATION)
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
        make_release(RAW, project=project, head=tmp_path, **EVALUATION)
    assert spent(project) == before


def test_a_release_that_was_killed_is_finished(project, teacher):
    before = spent(project)

    def evaluate(raw=RAW):
        return make_release(raw, project=project, head=teacher.path, **EVALUATION)

    for owner, step, state in (
        (Ledger, "mark_drawn", "computing"),
        (DrawnRelease, "finish_and_write", "drawn"),
    ):
        with killed_in(owner, step):
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
    shown = run("policy", "show", "held", project=project)
    assert re.search("held out +50% of labelers, by a keyed hash", shown.stdout)


# The difference of two heads by an evaluation: unbiased, and its standard error is large enough.
#
# Labels are simulated, the statistic is drawn by the code of a release. A coverage is that of 95%
# intervals over DRAWS draws; SLACK is five standard errors of it, so that a test fails falsely less
# than once in 10^6, and a standard error that is a fifth too small fails.

DRAWS, QUANTILE, NOMINAL = 3000, 1.959964, 0.95
SLACK = 5 * np.sqrt(NOMINAL * (1 - NOMINAL) / DRAWS)
D = 3
COORDINATES = Coordinates("length", "length", {}, Shape(D), Basis(np.eye(D), np.ones(D)))

Floats = NDArray[np.float64]
Labels = NDArray[np.uint8]


def head(*coefficients):
    return Head(**vars(COORDINATES), coefficients=np.array(coefficients))


NEW, OLD = head(0.9, -0.4, 0.2), head(0.1, 0.3, 0.0)
STEP = NEW.coefficients - OLD.coefficients
BALL = ReleasedNoise("ball", 300.0)


@dataclass(frozen=True)
class World:
    """Public pairs of 40 labelers, ten each, and how they are labeled."""

    z: NDArray[np.float32]
    rows: Rows
    draw: Callable[[np.random.Generator], Labels]
    # probability of the first side, a row
    mean: Floats

    def bounds(self):
        """Nobody is clipped, so that nothing is biased."""
        return Bounds(1e4, np.ones(self.rows.units), 1e4)

    def evaluation(self, rng, noise):
        """What would be released; `noise` is its standard deviation."""
        bounds = self.bounds()
        grid = statistic.Grid(2.0**-20, round(noise * 2**20), "gaussian", D)
        total = statistic.clip_and_sum_labels(self.z, self.rows, self.draw(rng), bounds, grid.step)
        noisy = statistic.add_noise(total, grid, keyring.random_bytes(NONCE_BYTES)) * grid.step
        weight = statistic.sum_pair_weights(self.rows, bounds, len(self.z))
        bound = statistic.bound_sampling_covariance(self.z, self.rows, bounds)
        window = Window(noisy, noise, self.z, weight, bounds.clip, bounds.sensitivity, bound)
        return Evaluation.of_windows(COORDINATES, [window])

    def truth(self):
        """The expected difference per label."""
        likelihood = [self._likelihood(one.coefficients) for one in (NEW, OLD)]
        return (likelihood[0] - likelihood[1]) / len(self.rows)

    def _likelihood(self, theta):
        margin = self.z[self.rows.pair].astype(np.float64) @ theta
        return float(((self.mean - 0.5) * margin - np.log(2 * np.cosh(margin / 2))).sum())


def _public(rng):
    z = rng.normal(size=(150, D)).astype(np.float32)
    pair = np.concatenate([rng.choice(len(z), 10, replace=False) for _ in range(40)])
    return z, Rows(pair, np.repeat(np.arange(40), 10), 40)


def independent():
    """Every label is a coin of its own."""
    z, rows = _public(np.random.default_rng(0))
    mean = 1 / (1 + np.exp(-z[rows.pair] @ np.array([1.0, -0.5, 0.0])))
    return World(z, rows, lambda rng: (rng.random(len(rows)) < mean).astype(np.uint8), mean)


def tastes():
    """Labelers differ in what they like, so that the labels of one hang together; some tie."""
    z, rows = _public(np.random.default_rng(0))
    margin = z[rows.pair]

    def draw(rng):
        taste = rng.normal(size=(rows.units, D)) * 3
        sure = 1 / (1 + np.exp(-np.einsum("ij,ij->i", margin, taste[rows.unit])))
        labels = (rng.random(len(rows)) < sure).astype(np.uint8)
        return np.where(rng.random(len(rows)) < 0.1, 2, labels).astype(np.uint8)

    return World(z, rows, draw, np.full(len(rows), 0.5))


def worst():
    """A labeler says with one voice what the new head would, or always the reverse."""
    z, rows = _public(np.random.default_rng(0))
    along = z.astype(np.float64) @ STEP
    z = (np.sign(along)[:, None] * STEP / (STEP @ STEP)).astype(np.float32)  # all of one length
    own = np.sign(along[rows.pair]) > 0

    def draw(rng):
        voice = rng.random(rows.units) < 0.5
        return (own == voice[rows.unit]).astype(np.uint8)

    return World(z, rows, draw, np.full(len(rows), 0.5))


def judge(world, noise, claimed=1.0):
    """Differences from many draws, and their standard errors as if the noise were `claimed` of
    what it is.
    """
    rng = np.random.default_rng(1)
    found = []
    for _ in range(DRAWS):
        evaluation = world.evaluation(rng, noise)
        found.append(
            replace(evaluation, noises=(ReleasedNoise("gaussian", claimed * noise),)).difference(
                NEW, OLD
            )
        )
    values, errors = np.array(found).T
    return values, errors


def coverage(values, errors, truth):
    return float((np.abs(values - truth) <= QUANTILE * errors).mean())


@pytest.mark.quick("own")
@pytest.mark.parametrize("world", [independent(), tastes(), worst()], ids=["own", "taste", "worst"])
def test_the_difference_is_unbiased_and_covered(world):
    values, errors = judge(world, noise=6.0)
    truth = world.truth()
    assert abs(values.mean() - truth) < 5 * values.std() / np.sqrt(DRAWS)
    assert coverage(values, errors, truth) > NOMINAL - SLACK
    assert (errors == errors[0]).all()  # no label moves it


@pytest.mark.slow
def test_the_worst_labelers_reach_the_bound_so_that_less_would_not_do():
    """Without noise: the clustered bound is the true standard error."""
    world = worst()
    values, errors = judge(world, noise=1e-3)
    assert values.std() == pytest.approx(errors[0], rel=0.08)
    assert coverage(values, 0.8 * errors, world.truth()) < NOMINAL - SLACK


@pytest.mark.quick("0.7")
@pytest.mark.parametrize("claimed", [0.7, 0.85])
def test_claiming_too_little_noise_is_found_out(claimed):
    world = independent()
    values, errors = judge(world, noise=200.0, claimed=claimed)
    assert coverage(values, errors, world.truth()) < NOMINAL - SLACK


@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_what_a_gate_subtracts_is_exceeded_as_often_as_it_says(confidence):
    """Ball noise, far above what labels scatter by; five standard errors of 200,000 draws. A normal
    quantile, the negative control, is exceeded 1.5 times as often at .99.
    """
    made = replace(worst().evaluation(np.random.default_rng(0), 1.0), noises=(BALL,))
    drawn = BALL.draws(D, np.random.default_rng(1), 200_000) @ STEP / made.label_weight
    allowed = 5 * np.sqrt(confidence * (1 - confidence) / len(drawn))
    reach, error = made.compute_error_margin(NEW, OLD, confidence), made.difference(NEW, OLD)[1]
    assert abs((drawn > reach).mean() - (1 - confidence)) < allowed
    normal = (drawn > ndtri(confidence) * error).mean()
    assert confidence < 0.99 or normal > 1.3 * (1 - confidence) + allowed


def test_the_bound_is_that_of_its_definition():
    """Σ_u (m_u/4) Σ_j w² z zᵀ, and above the clustered variance in every direction."""
    z, rows = _public(np.random.default_rng(3))
    bounds = statistic.compute_bounds(z, rows, 0.5)
    found = statistic.bound_sampling_covariance(z, rows, bounds)
    own = z[rows.pair].astype(np.float64)
    weight = bounds.weight[rows.unit]
    expected = np.einsum("n,ni,nj->ij", 10 / 4 * weight**2, own, own)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    for d in np.random.default_rng(4).normal(size=(20, D)):
        spread = np.bincount(rows.unit, weight * np.abs(own @ d)) / 2
        assert (spread**2).sum() <= d @ found @ d


def _agreeing(bounds):
    """Labelers of one mind, 5 to 80 labels each: the head that they go by, less a timid one.

    Estimates of many draws, their standard error, and the truth under the same weights.
    """
    rng = np.random.default_rng(6)
    z = rng.normal(size=(200, D)).astype(np.float32)
    counts = rng.integers(5, 80, 60)
    rows = Rows(rng.integers(0, 200, counts.sum()), np.repeat(np.arange(60), counts), 60)
    right, timid = head(1.5, -0.8, 0.4), head(0.3, -0.16, 0.08)
    mean = 1 / (1 + np.exp(-z[rows.pair].astype(np.float64) @ right.coefficients))
    found = bounds(z, rows)
    grid = statistic.choose_grid(found, D, Noise("gaussian", 0.5))
    weight = statistic.sum_pair_weights(rows, found, len(z))
    bound, estimates, error = statistic.bound_sampling_covariance(z, rows, found), [], 0.0
    for _ in range(300):
        labels = np.where(rng.random(len(rows)) < mean, LABEL_A, 1 - LABEL_A).astype(np.uint8)
        total = statistic.clip_and_sum_labels(z, rows, labels, found, grid.step)
        noisy = statistic.add_noise(total, grid, keyring.random_bytes(NONCE_BYTES)) * grid.step
        noise = grid.scale * grid.step
        window = Window(noisy, noise, z, weight, found.clip, found.sensitivity, bound)
        estimate, error = Evaluation.of_windows(COORDINATES, [window]).difference(right, timid)
        estimates.append(estimate)
    own = found.weight[rows.unit] / found.weight[rows.unit].sum()
    truth = 0.0
    for one, sign in ((right, 1), (timid, -1)):
        margin = z[rows.pair].astype(np.float64) @ one.coefficients
        truth += sign * float(own @ ((mean - 0.5) * margin - np.logaddexp(margin / 2, -margin / 2)))
    return np.array(estimates), error, truth


def test_a_head_that_is_rightly_sure_is_not_taken_for_worse_than_a_timid_one():
    estimates, error, truth = _agreeing(statistic.compute_unclipped_bounds)
    assert truth > 0.03
    assert abs(estimates.mean() - truth) < 5 * estimates.std() / np.sqrt(len(estimates))
    assert coverage(estimates, np.full(300, error), truth) > NOMINAL - 5 * np.sqrt(0.05 / 300)


def test_clipping_those_who_agree_would_take_it_for_worse():
    """The bounds of a teacher, which may be biased: the timid head wins, surely and wrongly."""
    estimates, error, truth = _agreeing(lambda z, rows: statistic.compute_bounds(z, rows, 0.5))
    assert truth > 0.03 and (estimates < truth - 1.96 * error).all()


def test_no_labels_at_all_are_clipped():
    """Not even those that lie along the direction in which a labeler's pairs lie most."""
    rng = np.random.default_rng(8)
    z = (rng.normal(size=(80, D)) * [3, 1, 0.2]).astype(np.float32)
    rows = Rows(rng.integers(0, 80, 900), rng.integers(0, 30, 900), 30)
    found = statistic.compute_unclipped_bounds(z, rows)
    for half in (np.sign(z[rows.pair] @ rng.normal(size=D)) / 2 for _ in range(50)):
        for units, part in statistic.sum_by_labeler(z, rows, half):
            norm = np.linalg.norm(part * found.weight[units, None], axis=1)
            assert (norm <= found.clip).all()
    assert found.sensitivity == 2 * found.clip
