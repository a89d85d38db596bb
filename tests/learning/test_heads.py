"""Heads minimise what they say: against closed forms, scikit-learn and finite differences.

Statistical tests run on fixed seeds and accept what is within FIVE standard errors, which a right
implementation leaves with a probability below 6e-7.
"""

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from labelguard.learning import heads

FIVE = 5.0


def features(pairs, components, seed=0):
    """Correlated features of unequal size, as principal components of embeddings are."""
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((components, components)) / np.sqrt(components)
    spread = np.arange(1, components + 1) ** -0.5
    drawn = rng.standard_normal((pairs, components)) @ (mixing + np.eye(components))
    return np.asarray(drawn * spread)


def fit_labels(x, label, weight=1.0, ridge=1.0):
    """Ordinary logistic regression without intercept."""
    return heads.fit_statistic(x, weight, heads.label_statistic(x, label, weight), ridge)


def sigmoid(z):
    return np.asarray((1 + np.tanh(z / 2)) / 2)


def labels_of(x, theta, seed=1):
    return (np.random.default_rng(seed).random(len(x)) < sigmoid(x @ theta)).astype(np.float64)


def flipped(labels, flip_probability, seed=2):
    coins = np.random.default_rng(seed).random(len(labels)) < flip_probability
    return np.where(coins, 1 - labels, labels)


def objective(x, weight, statistic, ridge):
    """What `fit_statistic` minimises, written down at once."""

    def value(theta):
        z = x @ theta
        even = weight @ np.logaddexp(z / 2, -z / 2)
        return float(even - theta @ statistic + (ridge * theta**2).sum() / 2)

    return value


def flipped_objective(x, label, flip, ridge, loss):
    """The losses of flipped labels by their definitions, `robust` with weights (1−2γ)²."""

    def value(theta):
        z = x @ theta
        one, zero = -np.log(sigmoid(z)), -np.log(sigmoid(-z))
        if loss == "forward":
            chance = (1 - flip) * sigmoid(z) + flip * sigmoid(-z)
            rows = -label * np.log(chance) - (1 - label) * np.log(1 - chance)
        else:
            stated = label * one + (1 - label) * zero
            opposite = label * zero + (1 - label) * one
            signal = 1 - 2 * flip
            rows = signal * ((1 - flip) * stated - flip * opposite)  # weight signal², over signal
        return float(rows.sum() + ridge * (theta**2).sum() / 2)

    return value


def slope(value, theta, step=1e-5):
    """The gradient by central differences."""
    units = np.eye(len(theta)) * step
    return np.array([(value(theta + unit) - value(theta - unit)) / (2 * step) for unit in units])


def test_the_gradient_vanishes_at_a_fit_with_weights_and_a_ridge_by_component():
    rng = np.random.default_rng(3)
    x, weight, ridge = features(400, 7), rng.uniform(0, 2, 400), rng.uniform(0.1, 9, 7)
    statistic = rng.standard_normal(7) * 20
    theta = heads.fit_statistic(x, weight, statistic, ridge)
    value = objective(x, weight, statistic, ridge)
    assert np.abs(slope(value, np.zeros(7))).max() > 5
    assert np.abs(slope(value, theta)).max() < 1e-5


@pytest.mark.parametrize("ridge", [0.01, 1.0, 100.0])
def test_labels_give_the_head_of_scikit_learn(ridge):
    x = features(800, 12)
    y = labels_of(x, np.linspace(-2, 2, 12))
    weight = np.random.default_rng(4).uniform(0.1, 3, 800)
    model = LogisticRegression(C=1 / ridge, fit_intercept=False, tol=1e-10, max_iter=10_000)
    expected = model.fit(x, y, sample_weight=weight).coef_[0]
    np.testing.assert_allclose(fit_labels(x, y, weight, ridge), expected, atol=1e-5)


def test_a_preconditioner_from_a_share_of_the_rows_does_not_move_the_fit():
    """Of 300,000 rows every fourth is sampled, where the largest feature is always 0."""
    x = np.random.default_rng(6).standard_normal((300_000, 3))
    x[::4, 0] = 0
    statistic = np.array([9e4, 1e3, -2e3])
    theta = heads.fit_statistic(x, 1.0, statistic, 0.5)
    gradient = np.tanh(x @ theta / 2) @ x / 2 + 0.5 * theta - statistic
    assert np.linalg.norm(gradient) < 1e-6 * np.linalg.norm(statistic)


def test_a_given_curvature_changes_nothing_but_the_way():
    x, weight = features(500, 9), np.random.default_rng(7).uniform(0, 1, 500)
    statistic = np.linspace(-30, 30, 9)
    bound = x.T @ (weight[:, None] * x) / 4
    alone = heads.fit_statistic(x, weight, statistic, 1.0)
    for curvature in (bound, 3 * bound, bound.astype(np.float32)):
        given = heads.fit_statistic(x, weight, statistic, 1.0, curvature=curvature)
        np.testing.assert_allclose(given, alone, rtol=1e-6)


@pytest.mark.parametrize("loss", ["forward", "robust"])
def test_the_gradient_of_a_loss_of_flipped_labels_vanishes_at_its_fit(loss):
    x, rng = features(300, 5), np.random.default_rng(10)
    flip = rng.uniform(0, 0.5, 300)
    y = flipped(labels_of(x, np.array([2.0, -2, 1, 0, 1])), flip)
    theta = heads.fit_flipped(x, y, flip, 0.7, loss)
    value = flipped_objective(x, y, flip, 0.7, loss)
    assert np.abs(slope(value, theta)).max() < 1e-5
    assert value(theta) < value(np.zeros(5)) - 1


@pytest.mark.parametrize("loss", ["forward", "robust"])
def test_labels_that_were_not_flipped_give_the_ordinary_head(loss):
    x = features(300, 5)
    y = np.random.default_rng(11).uniform(0, 1, 300)
    ordinary = fit_labels(x, y, 1.0, 0.5)
    np.testing.assert_allclose(heads.fit_flipped(x, y, 0.0, 0.5, loss), ordinary, atol=1e-7)


def test_the_statistic_of_flipped_labels_is_unbiased():
    """Over 4,000 draws of unequal coins, within five standard errors; ignoring γ is rejected."""
    x, rng = features(60, 3), np.random.default_rng(13)
    y, flip = rng.integers(0, 2, 60).astype(np.float64), rng.uniform(0.05, 0.5, 60)
    signal = 1 - 2 * flip
    clean = heads.label_statistic(x, y, signal**2)
    draws = [flipped(y, flip, seed) for seed in range(4_000)]

    def off(weight):
        sums = np.array([heads.label_statistic(x, draw, weight) for draw in draws])
        error = sums.std(axis=0) / np.sqrt(len(sums))
        return float((np.abs(sums.mean(axis=0) - clean) / error).max())

    assert off(signal) < FIVE
    assert off(signal**2) > FIVE


def test_the_forward_loss_is_finite_for_every_margin():
    margin = np.array([-1e6, -800.0, -30, 0, 30, 800, 1e6])
    for flip in (0.0, 1e-300, 0.3, 0.5):
        for label in (0.0, 0.4, 1.0):
            loss = heads.forward_loss(margin, np.full(7, label), np.full(7, flip))
            assert np.isfinite(loss).all() and (loss >= 0).all()
    certain = heads.forward_loss(margin, np.ones(7), np.zeros(7))
    np.testing.assert_allclose(certain, np.logaddexp(0, -margin))


def test_a_head_may_be_drawn_toward_another():
    x, center = features(300, 4), np.array([1.0, -2, 3, 0])
    y, flip = np.random.default_rng(14).integers(0, 2, 300), 0.3
    for loss in ("forward", "robust"):
        strong = heads.fit_flipped(x, y, flip, 1e9, loss, toward=center)
        np.testing.assert_allclose(strong, center, atol=1e-5)
    value = flipped_objective(x, y.astype(np.float64), np.full(300, flip), 0.0, "forward")
    theta = heads.fit_flipped(x, y, flip, 5.0, toward=center)
    np.testing.assert_allclose(slope(value, theta), -5 * (theta - center), atol=1e-4)


def test_more_components_than_pairs_and_repeated_features_have_one_defined_head():
    wide = features(20, 60)
    statistic = np.random.default_rng(15).standard_normal(60)
    theta = heads.fit_statistic(wide, 1.0, statistic, 0.1)
    gradient = np.tanh(wide @ theta / 2) @ wide / 2 + 0.1 * theta - statistic
    assert np.abs(gradient).max() < 1e-6
    column = features(50, 1)
    y = np.random.default_rng(16).integers(0, 2, 50)
    repeated = fit_labels(np.repeat(column, 3, axis=1), y, 1.0, 3.0)
    np.testing.assert_allclose(repeated, np.repeat(fit_labels(column, y) / 3, 3), atol=1e-8)


def test_separable_labels_with_a_tiny_ridge_are_fitted():
    x = features(500, 10)
    y = (x[:, 0] > 0).astype(np.float64)
    theta = fit_labels(x, y, 1.0, 1e-6)
    assert heads.accuracy(x @ theta, y) == 1
    gradient = (sigmoid(x @ theta) - y) @ x + 1e-6 * theta
    assert np.abs(gradient).max() < 1e-5


def test_without_pairs_the_ridge_alone_decides():
    empty = np.zeros((0, 3))
    theta = heads.fit_statistic(empty, 1.0, np.array([1.0, 2, 3]), np.array([1.0, 2, 4]))
    np.testing.assert_allclose(theta, [1, 1, 0.75])
    assert (heads.fit_flipped(empty, [], []) == 0).all()
    assert (fit_labels(np.zeros((5, 3)), np.ones(5)) == 0).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": np.zeros((4, 2), np.int64)}, "float32 or float64"),
        ({"x": np.array([[0, 1], [2, np.nan], [1, 1], [0, 0]])}, "x must be finite"),
        ({"weight": np.ones(3)}, "one value per pair"),
        ({"weight": -1.0}, "weight must be >= 0"),
        ({"ridge": 0.0}, "ridge must be > 0"),
        ({"curvature": np.eye(3)}, "curvature must be finite, of shape"),
        ({"curvature": -9 * np.eye(2)}, "indefinite"),
    ],
)
def test_unusable_arguments_are_refused(changed, message):
    usable: dict[str, Any] = {"x": np.ones((4, 2)), "weight": 1.0}
    usable |= {"statistic": np.ones(2), "ridge": 1.0}
    heads.fit_statistic(**usable)
    with pytest.raises(ValueError, match=message):
        heads.fit_statistic(**(usable | changed))


@pytest.mark.parametrize("label", [np.array([0, 1, 7.25]), np.array([0, 1, -7.25])])
def test_an_unusable_label_is_refused_and_never_named(label):
    for fit in (fit_labels, lambda x, y: heads.fit_flipped(x, y, 0.1)):
        with pytest.raises(ValueError, match=r"label must be in \[0, 1\]") as refusal:
            fit(np.ones((3, 1)), label)
        assert "7.25" not in str(refusal.value)


@pytest.mark.parametrize("flip", [-0.1, 0.6, np.nan])
def test_unusable_flip_probabilities_and_losses_are_refused(flip):
    with pytest.raises(ValueError, match="flip_probability"):
        heads.fit_flipped(np.ones((2, 1)), [0, 1], flip)
    with pytest.raises(ValueError, match="'forward' or 'robust'"):
        heads.fit_flipped(np.ones((2, 1)), [0, 1], 0.1, 1.0, "squared")  # type: ignore[arg-type]


def test_accuracy_counts_strict_labels_and_half_of_undecided_ones():
    assert heads.accuracy([3, -1, 0, 2], [1, 1, 0, 0.5]) == 0.5
    assert heads.accuracy([3, -1], [1, 0]) == 1
    with pytest.raises(ValueError, match="at least one label"):
        heads.accuracy([1.0], [0.5])


@pytest.mark.quick("0.25")
@pytest.mark.parametrize("scale", [0.25, 1.0, 30.0])
def test_labels_that_cancel_fit_a_head_without_opinion(scale):
    x = np.full((600, 1), scale)
    for seed in range(20):
        labels = np.random.default_rng(seed).permutation(np.repeat([0.0, 1.0], 300))
        theta = heads.fit_flipped(x, labels, np.full(600, 0.27), 1.0, "forward")
        assert np.abs(x @ theta).max() < 1e-6
