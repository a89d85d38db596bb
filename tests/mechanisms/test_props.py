"""PROPS estimates what it says from released labels alone, and betters labels in stages.

Statistical tests run on fixed seeds and accept what is within FIVE standard errors, which a right
implementation leaves with a probability below 6e-7.
"""

from dataclasses import replace

import numpy as np
import pytest

from labelguard.accounting import randomized_response as rr
from labelguard.accounting.blocks import find_block
from labelguard.learning import heads
from labelguard.learning.learners import HeadLearner
from labelguard.mechanisms import props
from labelguard.mechanisms.props_stages import ReleasedLabels, join_stages, run_stages
from labelguard.mechanisms.randomized_response import compute_largest_eigenvalue

FIVE = 5.0
SIMULATIONS = 1_400
ROWS = 500


def relabel(*arguments, **options):
    """All rows after the last stage: targets, residual flips; and the report of each stage."""
    results = list(run_stages(*arguments, **options))
    return *join_stages(results), [result.report for result in results]


def digests(items, seed=0):
    return np.random.default_rng(seed).integers(0, 2**64, (items, 2), np.uint64)


# ---- error rate ------------------------------------------------------------------------------


class Votes:
    """SIMULATIONS draws of true labels, released labels and predictions at unequal γ_r.

    The error of the model grows with γ_r, so that only the right weights give the right mean.
    """

    def __init__(self):
        rng = np.random.default_rng(1)
        self.flip = rng.uniform(0.05, 0.5, ROWS)
        error = 0.1 + 0.6 * self.flip
        signal = (1 - 2 * self.flip) ** 2
        self.weighted_error = float(signal @ error / signal.sum())
        truth = rng.integers(0, 2, (SIMULATIONS, ROWS))
        self.released = truth ^ (rng.random(truth.shape) < self.flip)
        self.predicted = truth ^ (rng.random(truth.shape) < error)
        self.estimates = [
            props.estimate_error(released, predicted, self.flip)
            for released, predicted in zip(self.released, self.predicted, strict=True)
        ]
        self.rates = np.array([estimate.rate for estimate in self.estimates])

    def off(self, rates):
        """Standard errors between the mean of estimates and the truth."""
        error = rates.std() / np.sqrt(SIMULATIONS)
        return float(abs(rates.mean() - self.weighted_error) / error)


@pytest.fixture(scope="module")
def votes():
    return Votes()


def test_the_estimated_error_is_unbiased_for_unequal_flip_probabilities(votes):
    assert votes.off(votes.rates) < FIVE


def test_the_estimate_for_equal_flip_probabilities_would_be_rejected(votes):
    """Equation 8 at the mean γ is not it."""
    disagree, mean = (votes.released ^ votes.predicted).mean(axis=1), votes.flip.mean()
    assert votes.off((disagree - mean) / (1 - 2 * mean)) > FIVE


def test_the_reported_standard_error_is_the_spread_of_estimates(votes):
    """The spread of 1,400 estimates is known to 1.9%: 10% off has a probability below 2e-7."""
    reported = np.mean([estimate.standard_error for estimate in votes.estimates])
    ratio = reported / votes.rates.std()
    assert ratio == pytest.approx(1, abs=0.1)
    assert ratio * 1.25 != pytest.approx(1, abs=0.1)


def test_equal_flip_probabilities_give_equation_8():
    released, predicted = np.array([1, 1, 0, 0, 1]), np.array([1, 0, 0, 1, 0])
    estimate = props.estimate_error(released, predicted, np.full(5, 0.2))
    assert estimate.rate == pytest.approx((0.6 - 0.2) / 0.6)
    assert estimate.rows == 5


def test_a_rate_is_reported_as_it_is_and_clamped_for_use():
    ones, flip = np.ones(100), np.full(100, 0.4)
    agrees = props.estimate_error(ones, ones, flip)
    assert agrees.rate == pytest.approx(-2) and agrees.clamped == props.SMALLEST_ERROR_RATE
    disagrees = props.estimate_error(ones, 0 * ones, flip)
    assert disagrees.rate == pytest.approx(3) and disagrees.clamped == 0.5


def test_a_stage_that_cannot_tell_a_model_from_a_coin_is_uninformative():
    """One labeler with 50 labels at ε = 1, δ = 1e-5: 30,000 rows tell nothing."""
    rng = np.random.default_rng(2)
    released, predicted = rng.integers(0, 2, (2, 30_000))
    estimate = props.estimate_error(released, predicted, np.full(30_000, 0.490297))
    assert estimate.standard_error == pytest.approx(0.149, abs=0.0005)
    assert estimate.uninformative
    assert not props.estimate_error(released, predicted, np.full(30_000, 0.3)).uninformative


def test_rows_of_pure_noise_and_no_rows_say_nothing_of_a_model():
    for rows in (0, 9):
        estimate = props.estimate_error(np.ones(rows), np.ones(rows), np.full(rows, 0.5))
        assert estimate == props.ErrorEstimate(0.5, np.inf, 0.5, True, rows)
    flip = np.array([0.1, 0.2, 0.5, 0.5])
    with_noise = props.estimate_error([1, 0, 1, 0], [1, 1, 0, 0], flip)
    without = props.estimate_error([1, 0], [1, 1], flip[:2])
    assert with_noise.rate == pytest.approx(without.rate)
    assert with_noise.standard_error == pytest.approx(without.standard_error)


def test_a_model_without_votes_errs_half_the_time():
    released = np.random.default_rng(3).integers(0, 2, 50)
    estimate = props.estimate_error(released, np.full(50, 0.5), np.full(50, 0.1))
    assert estimate.rate == pytest.approx(0.5)


def test_a_margin_of_zero_is_no_vote():
    assert props.vote([-2.0, -1e-300, 0.0, -0.0, 1e-300, np.inf]).tolist() == [0, 0, 0.5, 0.5, 1, 1]


@pytest.mark.parametrize("labels", [2, 3, 8, 50])
@pytest.mark.parametrize("epsilon", [1.0, 3.0, 8.0])
def test_the_standard_error_covers_labels_that_were_flipped_together(labels, epsilon):
    """The worst case: a model that is right of every label, or of none, and blocks alone.

    Of 40 blocks the count of flips has the exact variance m(1 − c1² + (m − 1)(c2 − c1²))/4 each.
    """
    law = find_block(rr.threshold(rr.calibrate(epsilon, 0.0, 1)), labels)
    flip = np.full(40 * labels, law.flip_probability)
    noise = compute_largest_eigenvalue(law.mean_sign, law.mean_sign_product, labels)
    votes = np.ones(len(flip))
    said = props.estimate_error(votes, votes, flip, np.full(len(flip), noise))
    coins = props.estimate_error(votes, votes, flip)
    signal = law.mean_sign
    count = labels * (1 - signal**2 + (labels - 1) * (law.mean_sign_product - signal**2)) / 4
    actual = np.sqrt(40 * count) / (len(flip) * signal)
    assert said.standard_error >= actual * (1 - 1e-9) and said.rate == coins.rate
    if law.mean_sign_product > signal**2:
        assert said.standard_error == pytest.approx(actual) and coins.standard_error < actual


# ---- combination -----------------------------------------------------------------------------


def estimated(rate):
    return props.ErrorEstimate(rate, 0.01, rate, False, 100)


def test_the_vote_with_the_smaller_rate_decides_and_a_draw_keeps_the_released_label():
    released = np.array([1, 0, 1, 0, 1, 0])
    predicted = np.array([0, 1, 0, 1, 0.5, 0])
    flip = np.array([0.2, 0.3, 0.3001, 0.49, 0.49, 0.49])
    labels, residual = props.combine_hard(released, predicted, flip, estimated(0.3))
    assert labels.tolist() == [1, 0, 0, 1, 1, 0]
    assert residual.tolist() == [0.2, 0.3, 0.3, 0.3, 0.49, 0.3]


def test_soft_labels_are_the_posterior_of_both_votes():
    released, flip = np.array([1, 0, 1, 0]), np.array([0.2, 0.2, 0.4, 0.5])
    margin = np.array([0.0, 0, -3, 2])
    odds = np.array([4, 1 / 4, 1.5, 1]) * np.exp(0.5 * margin)
    probability = props.combine_soft(released, margin, flip, 0.5)
    np.testing.assert_allclose(probability, odds / (1 + odds), rtol=1e-12)


def test_soft_labels_at_scale_zero_are_what_randomized_response_says():
    released, flip = np.array([1, 0, 1, 0]), np.array([0.2, 0.3, 0.5, 0.0])
    probability = props.combine_soft(released, np.array([9.0, 9, 9, 9]), flip, 0.0)
    np.testing.assert_allclose(probability, [0.8, 0.3, 0.5, 0], atol=1e-15)


def test_a_certain_label_stays_and_an_empty_one_is_the_models():
    extreme = np.array([-900.0, 900, -900, 900])
    certain = props.combine_soft([1, 0, 1, 0], extreme, np.zeros(4), 2.0)
    assert certain.tolist() == [1, 0, 1, 0]
    empty = props.combine_soft([1, 0, 1, 0], extreme, np.full(4, 0.5), 2.0)
    assert empty.tolist() == [0, 1, 0, 1]


# ---- scale -----------------------------------------------------------------------------------


def draw_labels(log_odds, flip, seed):
    """True labels of these log-odds, and what randomized response makes of them."""
    rng = np.random.default_rng(seed)
    truth = (rng.random(len(log_odds)) < 1 / (1 + np.exp(-log_odds))).astype(np.int64)
    return truth, truth ^ (rng.random(len(log_odds)) < flip)


def test_the_scale_makes_margins_log_odds():
    """The scale's standard error is 0.02 (of 40,000 rows); the truth is 1 and 2."""
    rng = np.random.default_rng(4)
    log_odds, flip = rng.standard_normal(40_000) * 2, rng.uniform(0, 0.3, 40_000)
    folds = np.arange(40_000) % 4
    _, released = draw_labels(log_odds, flip, 5)
    for factor in (1.0, 2.0):
        scale = props.fit_scale(released, log_odds / factor, flip, folds)
        assert np.abs(scale - factor).max() < 0.1 * factor


def test_a_useless_models_margins_count_for_nearly_nothing():
    rng = np.random.default_rng(6)
    flip, folds = np.full(20_000, 0.3), rng.integers(0, 5, 20_000)
    _, released = draw_labels(rng.standard_normal(20_000), flip, 7)
    useless = rng.standard_normal(20_000) * 3
    assert props.fit_scale(released, useless, flip, folds).max() < 0.1
    assert (props.fit_scale(released, useless, np.full(20_000, 0.5), folds) == 0).all()


def test_few_noisy_rows_leave_the_scale_at_the_mode_of_its_prior():
    rng = np.random.default_rng(8)
    margin = rng.standard_normal(200)
    _, released = draw_labels(margin, np.full(200, 0.49), 9)
    scale = props.fit_scale(released, margin, np.full(200, 0.49), np.arange(200) % 5)
    assert (scale == 0).all()


def test_the_scale_of_a_row_does_not_read_the_labels_of_its_fold():
    rng = np.random.default_rng(10)
    margin, flip = rng.standard_normal(400) * 2, np.full(400, 0.1)
    folds = np.arange(400) % 4
    _, released = draw_labels(margin, flip, 11)
    scale = props.fit_scale(released, margin, flip, folds)
    changed = np.where(folds == 2, 1 - released, released)
    other = props.fit_scale(changed, margin, flip, folds)
    assert (scale[folds == 2] == other[folds == 2]).all()
    assert (scale[folds != 2] != other[folds != 2]).all()
    assert (props.fit_scale(released, margin, flip, np.zeros(400, int)) == 0).all()


# ---- stages ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stages", [3, 5])
def test_stages_and_folds_are_even_and_independent_of_each_other_and_of_buckets(stages):
    """Each of 64 · stages · 5 cells holds 200 ± 14 units; 8 standard errors are allowed."""
    cells = 64 * stages * 5
    units = digests(200 * cells)
    bucket = (units[:, 0] >> np.uint64(58)).astype(np.intp)
    cell = (bucket * stages + props.assign_stages(units, stages)) * 5 + props.assign_folds(
        units, stages, 5
    )
    counts = np.bincount(cell, minlength=cells)
    assert len(counts) == cells and np.abs(counts - 200).max() < 8 * np.sqrt(200)


class Simulated:
    """Two labels a pair, four a labeler, unequal flip probabilities, labels from a noisy head."""

    def __init__(self, pairs=4_000, seed=13):
        rng = np.random.default_rng(seed)
        self.x = rng.standard_normal((pairs, 8)).astype(np.float32)
        labelers = pairs // 2
        unit, keys = rng.permutation(2 * pairs) % labelers, digests(labelers, seed)
        pair = np.repeat(np.arange(pairs), 2)
        flip = rng.uniform(0.3, 0.45, 2 * pairs)
        log_odds = self.x[pair] @ np.linspace(-2, 2, 8)
        self.truth, released = draw_labels(log_odds, flip, seed + 1)
        self.labels = ReleasedLabels(
            pair,
            unit,
            props.assign_stages(keys, 2)[unit],
            props.assign_folds(keys, 2, 5)[unit],
            released.astype(np.uint8),
            flip,
        )

    def error(self, target, rows=slice(None)):
        return float(np.mean((target[rows] > 0.5) != self.truth[rows]))


@pytest.fixture(scope="module")
def simulated():
    return Simulated()


@pytest.mark.parametrize("combine", ["hard", "soft"])
def test_two_stages_better_the_labels(combine, simulated):
    """Of about 4,000 rows .375 are flipped ± .008; five standard errors and more are gained."""
    labels = simulated.labels
    target, _, (first, second) = relabel(simulated.x, labels, HeadLearner(), combine=combine)
    released, later = labels.released.astype(np.float64), labels.stage == 1
    assert simulated.error(target, later) < simulated.error(released, later) - 0.08
    assert simulated.error(target, ~later) == simulated.error(released, ~later)
    assert first.error is None and second.error is not None
    assert first.rows + second.rows == len(released)
    assert not second.error.uninformative


def test_the_report_tells_how_good_the_first_model_is(simulated):
    """The estimate agrees with the true labels, which it did not see, within five of its errors."""
    labels = simulated.labels
    first, second = run_stages(simulated.x, labels, HeadLearner())
    later = labels.stage == 1
    predicted = props.vote(first.scorer(simulated.x[labels.pair[later]]))
    weight = (1 - 2 * labels.flip_probability[later]) ** 2
    actual = float(weight @ (predicted != simulated.truth[later]) / weight.sum())
    assert second.report.error is not None
    assert abs(second.report.error.rate - actual) < FIVE * second.report.error.standard_error


def test_residual_rates_are_of_whoever_decided(simulated):
    _, residual, (_, second) = relabel(simulated.x, simulated.labels, HeadLearner())
    by_model = residual != simulated.labels.flip_probability
    assert by_model.sum() == second.model_rows > 1_000
    assert set(residual[by_model]) == {second.error.clamped}
    assert (simulated.labels.stage[by_model] == 1).all()
    _, residual, _ = relabel(simulated.x, simulated.labels, HeadLearner(), combine="soft")
    assert np.isnan(residual).all()


@pytest.mark.parametrize("combine", ["hard", "soft"])
def test_a_stage_reads_no_labels_of_later_stages(combine, simulated):
    labels = simulated.labels
    turned = np.where(labels.stage == 1, 1 - labels.released, labels.released).astype(np.uint8)
    first, second = run_stages(simulated.x, labels, HeadLearner(), combine=combine)
    labels = replace(labels, released=turned)
    same, other = run_stages(simulated.x, labels, HeadLearner(), combine=combine)
    assert_equal_states(first, same)
    assert (second.target != other.target).any()


@pytest.mark.parametrize("combine", ["hard", "soft"])
def test_nothing_is_random_and_a_resumed_run_ends_like_one_that_was_not_interrupted(
    combine, simulated
):
    def run(**finished):
        options = {"combine": combine, "stages": 2, **finished}
        return list(run_stages(simulated.x, simulated.labels, HeadLearner(), **options))

    whole = run()
    for count in (0, 1, 2):
        resumed = run(finished=[result.state() for result in whole[:count]])
        for one, other in zip(whole, resumed, strict=True):
            assert_equal_states(one, other)
            assert repr(one.report) == repr(other.report)  # NaN is unequal to itself
    with pytest.raises(ValueError, match="not of these rows"):
        run(finished=[whole[1].state()])


def assert_equal_states(one, other):
    mine, theirs = one.state(), other.state()
    assert mine.keys() == theirs.keys()
    for name, values in mine.items():
        np.testing.assert_array_equal(values, theirs[name])


def test_a_soft_stage_trains_on_released_labels_and_keeps_what_the_first_learned(simulated):
    """The last head is nearly the one head of all released labels; of posteriors it is not."""
    labels, ridge = simulated.labels, 20.0
    x = simulated.x[labels.pair]
    together = heads.fit_flipped(x, labels.released, labels.flip_probability, ridge)
    *_, last = run_stages(simulated.x, labels, HeadLearner(ridge), combine="soft")
    theta = last.scorer.state()["theta"]
    assert np.linalg.norm(theta - together) < 0.1 * np.linalg.norm(together)
    posterior = props.combine_soft(labels.released, np.zeros(len(x)), labels.flip_probability, 0.0)
    on_posteriors = heads.fit_flipped(x, posterior, 0.0, ridge)
    assert np.linalg.norm(on_posteriors - together) > 0.5 * np.linalg.norm(together)


def test_later_models_continue_from_the_one_before():
    """An empty last stage leaves the model where it was."""
    simulated = Simulated(500)
    results = list(run_stages(simulated.x, simulated.labels, HeadLearner(), stages=3))
    before, last = (result.scorer.state()["theta"] for result in results[1:])
    np.testing.assert_allclose(last, before, rtol=1e-6)
    assert results[2].report.rows == 0


# ---- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: props.estimate_error([1, 0.5], [1, 0], [0.1, 0.1]), "labels 0 and 1"),
        (lambda: props.estimate_error([1, 0], [1], [0.1, 0.1]), "one shape"),
        (lambda: props.combine_hard([1], [1], [np.nan], estimated(0.1)), "flip_probability"),
        (lambda: props.combine_soft([1], [np.nan], [0.1], 1.0), "finite"),
    ],
)
def test_unusable_columns_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_unusable_stages_are_refused(simulated):
    labels = simulated.labels
    with pytest.raises(ValueError, match="one shape"):
        replace(labels, fold=labels.fold[1:])
    with pytest.raises(ValueError, match="one stage"):
        replace(labels, stage=labels.pair % 2)
    with pytest.raises(ValueError, match="one shape"):
        replace(labels, noise=np.ones(3))
    with pytest.raises(ValueError, match=">= 0"):
        replace(labels, stage=labels.stage - 1)
    with pytest.raises(ValueError, match="must be"):
        relabel(simulated.x, labels, HeadLearner(), stages=1)
