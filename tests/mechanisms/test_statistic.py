"""The statistic says of the labels what a linear head needs, and is released with its noise.

Statistical tests accept what happens unless it has a probability below FALSE_FAILURE under the
claim; their nonces are fixed.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.linear_model import LogisticRegression
from support.label_changes import ROUNDING, comparisons, coordinates, on_grid, parts

from labelguard.errors import PolicyError
from labelguard.learning import heads
from labelguard.mechanisms import geometry, statistic
from labelguard.mechanisms.geometry import Shape
from labelguard.mechanisms.noise import Noise
from labelguard.mechanisms.statistic import Bounds, Rows
from labelguard.text import LABEL_A, LABEL_TIE

FALSE_FAILURE = 1e-6
# As many coordinates as it takes to tell a scale from one 10% off: then a wrong scale passes with a
# probability < 1e-6 (of squares 6,000 were enough, of radii it takes 10,000).
SQUARES = 12_000
GAUSSIAN = Noise("gaussian", 1.0)


@given(
    clip=st.floats(1e-6, 1e6),
    relative=st.floats(1e-3, 2),
    components=st.integers(1, 400),
    scale=st.floats(0.1, 1e3),
    kind=st.sampled_from(["gaussian", "ball"]),
)
@settings(max_examples=200, deadline=None)
def test_the_noise_is_at_least_that_of_the_sensitivity_on_the_grid(
    clip, relative, components, scale, kind
):
    bounds = Bounds(clip, np.ones(1), relative * clip)
    grid = statistic.choose_grid(bounds, components, Noise(kind, scale, 4))
    assert grid.step == bounds.sensitivity / 2**30
    wanted = scale * on_grid(bounds, components, grid.step) / grid.step
    assert wanted <= grid.scale <= wanted * ROUNDING + 1
    assert (grid.kind, grid.components, grid.least) == (kind, components, 4)
    deviation = Noise(kind, grid.scale * grid.step, 4).deviation(components)
    assert grid.deviation == deviation >= (1 - 1e-12) * scale * bounds.sensitivity


def test_noise_that_is_not_drawn_is_refused_before_anything_is():
    bounds = Bounds(1.0, np.ones(1), 2.0)
    with pytest.raises(PolicyError, match="at most 1,073,741,824 sensitivities, found 2e\\+09"):
        statistic.choose_grid(bounds, 1, Noise("gaussian", 2e9))
    with pytest.raises(PolicyError, match="at most 65,536 components, found 70,000"):
        statistic.choose_grid(bounds, 70_000, Noise("gaussian", 1.0))
    assert (
        statistic.choose_grid(bounds, 1, Noise("gaussian", 1e-12)).scale == 1
    )  # never without noise


def test_a_million_labelers_add_up_without_overflow():
    """A part is at most C/h = 2^29 steps in any coordinate, so 2^34 labelers fit into an int64."""
    labelers = 10**6
    rows = Rows(np.zeros(labelers, np.intp), np.arange(labelers), labelers)
    z = np.ones((1, 1), np.float32)
    bounds = statistic.compute_bounds(z, rows, 0.5)
    step = statistic.choose_grid(bounds, 1, GAUSSIAN).step
    assert bounds.clip / step == 2**29
    labels = np.full(labelers, LABEL_A, np.uint8)
    of_one = 2**29 - 1  # exactly C long: norms are rounded up, which takes it below the next step
    assert statistic.clip_and_sum_labels(z, rows, labels, bounds, step).tolist() == [
        labelers * of_one
    ]


@given(
    unit=st.lists(st.integers(0, 6), min_size=1, max_size=40),
    chunk=st.integers(1, 12),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=100, deadline=None)
def test_the_sum_depends_on_neither_the_order_of_rows_nor_the_size_of_chunks(unit, chunk, seed):
    """Coordinates are multiples of 1/8, so that sums in floating point are exact in any order."""
    rng = np.random.default_rng(seed)
    rows = Rows(rng.integers(0, 9, len(unit)), np.array(unit, np.intp), 7)
    z = (rng.integers(-40, 41, (9, 3)) / 8).astype(np.float32)
    z[:, 0] += 6
    labels = rng.integers(0, 3, len(unit)).astype(np.uint8)
    bounds = statistic.compute_bounds(z, rows, 0.5)
    step = statistic.choose_grid(bounds, 3, GAUSSIAN).step
    expected = statistic.clip_and_sum_labels(z, rows, labels, bounds, step)
    plain = np.trunc(parts(z, rows, labels, bounds) / step).astype(np.int64).sum(axis=0)
    assert np.abs(expected - plain).max() <= 7  # a rounding may fall otherwise, once a labeler
    order, name = rng.permutation(len(unit)), rng.permutation(7)
    shuffled = Rows(rows.pair[order], name[rows.unit[order]], 7)
    renamed = Bounds(bounds.clip, bounds.weight[np.argsort(name)], bounds.sensitivity)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistic, "_CHUNK", chunk)
        again = statistic.clip_and_sum_labels(z, shuffled, labels[order], renamed, step)
    assert again.tolist() == expected.tolist()


@pytest.mark.parametrize("before", [0, 1, 333, 1500])
def test_the_sum_of_a_labeler_is_the_same_to_the_last_bit_whoever_else_is_there(before):
    rng = np.random.default_rng(before)
    z, count = rng.standard_normal((40, 7)).astype(np.float32), 2700
    pair, half = rng.integers(0, 40, before + count), rng.choice([-0.5, 0, 0.5], before + count)
    unit = np.repeat([0, 1], [before, count])
    sums = [
        dict(zip(units.tolist(), parts, strict=True))
        for rows in (slice(None), slice(before, None))
        for units, parts in statistic.sum_by_labeler(z, Rows(pair[rows], unit[rows], 2), half[rows])
        if 1 in units
    ]
    assert len(sums) == 2 and sums[0][1].tobytes() == sums[1][1].tobytes()


def test_the_likelihood_is_an_even_part_less_a_linear_one():
    """−Σ w [y log σ(z) + (1−y) log σ(−z)] = Σ w log(2 cosh(z/2)) − θ·S, ties being y = ½."""
    rng = np.random.default_rng(2)
    rows = Rows(rng.integers(0, 30, 90), rng.integers(0, 8, 90), 8)
    z = coordinates("normal", 30, 4, rng)
    labels, theta = rng.integers(0, 3, 90).astype(np.uint8), rng.standard_normal(4)
    bounds = Bounds(1e3, rng.uniform(0.1, 1, 8), 2e3)
    step = 1e-9
    released = statistic.clip_and_sum_labels(z, rows, labels, bounds, step) * step
    margin = z[rows.pair].astype(np.float64) @ theta
    y, weight = np.choose(labels, [0, 1, 0.5]), bounds.weight[rows.unit]
    loss = weight @ (y * np.logaddexp(0, -margin) + (1 - y) * np.logaddexp(0, margin))
    pair_weight = statistic.sum_pair_weights(rows, bounds, 30)
    even = pair_weight @ np.log(2 * np.cosh(z.astype(np.float64) @ theta / 2))
    # eight labelers are each rounded by less than a step in each coordinate
    assert abs(even - theta @ released - loss) < 8 * step * np.abs(theta).sum() + 1e-10


def draw_labels(pairs, components, seed):
    """Labels of a logistic model and ties, of 20 labelers who each saw some of the pairs."""
    rng = np.random.default_rng(seed)
    x = coordinates("normal", pairs, components, rng)
    x *= np.arange(1, components + 1)
    rows = Rows(rng.integers(0, pairs, 4 * pairs), rng.integers(0, 20, 4 * pairs), 20)
    margin = x[rows.pair] @ rng.standard_normal(components) / components
    labels = (rng.random(len(rows)) < 1 / (1 + np.exp(-margin))).astype(np.uint8)
    return x, rows, np.where(rng.random(len(rows)) < 0.2, LABEL_TIE, labels).astype(np.uint8)


def fitted(z, rows, labels, ridge):
    """A head from the statistic without noise, clip and (to twelve digits) grid."""
    step = 1e-10
    bounds = Bounds(1e5, np.ones(rows.units), 1.0)
    exact = statistic.clip_and_sum_labels(z, rows, labels, bounds, step) * step
    return heads.fit_statistic(z, statistic.sum_pair_weights(rows, bounds, len(z)), exact, ridge)


def test_without_noise_and_clip_the_head_is_that_of_logistic_regression():
    x, rows, labels = draw_labels(200, 5, 3)
    twice = np.concatenate([x[rows.pair].astype(np.float64)] * 2)
    y = np.repeat([1, 0], len(rows))
    weight = np.choose(labels, [0, 1, 0.5])
    reference = LogisticRegression(C=1 / 3, fit_intercept=False, tol=1e-10, max_iter=1000)
    reference.fit(twice, y, sample_weight=np.concatenate([weight, 1 - weight]))
    theta = fitted(x, rows, labels, np.full(5, 3.0))
    assert theta == pytest.approx(reference.coef_[0], rel=1e-4, abs=1e-6)


def rotate(x, shape):
    """The basis of x, and the principal axes it stands on."""
    spectrum = geometry.compute_spectrum(x)
    basis = geometry.choose_basis(spectrum, shape)
    return basis, spectrum.axes[:, : len(basis.metric)]


@pytest.mark.parametrize("whitening", [0, 0.25, 0.5])
@pytest.mark.parametrize("components", [3, 6])
def test_a_metric_changes_neither_the_head_nor_its_ridge(whitening, components):
    """A ridge λ·metric² on coordinates is λ on principal axes; on all of them, λ on features."""
    x, rows, labels = draw_labels(150, 6, 4)
    basis, axes = rotate(x, Shape(components=components, whitening=whitening))
    z = basis.coordinates(x)
    theta = basis.projection @ fitted(z, rows, labels, 2 * basis.metric**2)
    principal = axes @ fitted((x @ axes).astype(np.float32), rows, labels, np.full(components, 2.0))
    assert x @ theta == pytest.approx(x @ principal, rel=1e-3, abs=1e-4)
    if components == 6:
        direct = fitted(x, rows, labels, np.full(6, 2.0))
        assert x @ theta == pytest.approx(x @ direct, rel=1e-3, abs=1e-4)


def test_a_noise_aware_ridge_gives_the_posterior_mean():
    """S = hβ + e with Var e = h + ν² and β ~ N(0, 1/λ), for one component h = ¼ Σ W z²."""
    z, weight = coordinates("normal", 50, 1, np.random.default_rng(5)), np.linspace(0.1, 2, 50)
    h, released, noise, penalty = weight @ z[:, 0].astype(np.float64) ** 2 / 4, 7.0, 3.0, 0.7
    [ridge] = statistic.compute_noise_aware_ridge(z, weight, np.array([penalty]), noise)
    precision = h**2 / (h + noise**2)
    posterior = precision / (precision + penalty) * released / h
    assert released / (h + ridge) == pytest.approx(posterior)


def nonce(number):
    return number.to_bytes(32, "big")


def noise(grid, nonces, components):
    """Released less exact statistics in units of the claimed scale, shape (nonces, components)."""
    exact = np.arange(components) * 1_000_003 - 7
    released = [statistic.add_noise(exact, grid, nonce(number)) - exact for number in range(nonces)]
    return np.stack(released).astype(np.float64) / grid.scale


def has_scale(kind, draws):
    """Whether squares, which are chi-square, or radii, which are Gamma, add up as they may."""
    radii = np.linalg.norm(draws, axis=1)
    size = float((radii**2).sum() if kind == "gaussian" else 2 * radii.sum())
    law = stats.chi2(draws.size if kind == "gaussian" else 2 * draws.size)
    return bool(law.ppf(FALSE_FAILURE / 2) < size < law.isf(FALSE_FAILURE / 2))


def are_unrelated(first, second):
    """Whether the products of independent draws add up to what they may (5 standard errors).

    Their sum over a thousand and more is normal far enough: P(beyond 5) < 1e-6.
    """
    return bool(abs(float((first * second).sum())) < 5 * math.sqrt(first.size))


def release_grid(kind="gaussian", least=1):
    z = coordinates("normal", 60, 50, np.random.default_rng(6))
    bounds = statistic.compute_bounds(z, comparisons([3] * 20), 0.5)
    return statistic.choose_grid(bounds, 50, Noise(kind, 2.5, least))


@pytest.mark.parametrize("kind", ["gaussian", "ball"])
def test_the_released_statistic_has_the_claimed_noise(kind):
    draws = noise(release_grid(kind), SQUARES // 50, 50)
    assert draws.size == SQUARES
    assert has_scale(kind, draws)
    assert not has_scale(kind, 0.9 * draws) and not has_scale(kind, 1.1 * draws)
    if kind == "gaussian":
        assert stats.kstest(draws.ravel(), "norm").pvalue > FALSE_FAILURE


def test_noise_is_independent_over_coordinates_and_nonces():
    draws = noise(release_grid(), 60, 50)
    for lag in (1, 2, 25):
        assert are_unrelated(draws[:, lag:], draws[:, :-lag])
        assert are_unrelated(draws[lag:], draws[:-lag])
    assert not are_unrelated(draws, draws)
    half = (draws[:, 1:] + draws[:, :-1]) / math.sqrt(2)  # a correlation of ½ between neighbours
    assert not are_unrelated(half[:, 1:], half[:, :-1])


def test_few_components_get_the_first_ones_of_the_noise_that_was_priced():
    few = noise(replace(release_grid("ball", 8), components=3), SQUARES // 8, 3)
    priced = noise(replace(release_grid("ball"), components=8), SQUARES // 8, 8)
    assert few.tolist() == priced[:, :3].tolist()
    assert has_scale("ball", priced) and not has_scale("ball", few)


@pytest.mark.parametrize("kind", ["gaussian", "ball"])
def test_the_noise_is_that_of_the_nonce_whatever_the_sum_is(kind):
    """Whole numbers pass through rounding as they are, even where they exceed 64 bits."""
    grid = release_grid(kind)
    first, second = np.zeros(20, np.int64), np.arange(20) * 10**12
    noise_of_first = statistic.add_noise(first, grid, nonce(1)) - first
    assert (
        statistic.add_noise(second, grid, nonce(1)) - second
    ).tolist() == noise_of_first.tolist()
    assert not (statistic.add_noise(first, grid, nonce(2)) == noise_of_first).any()
    largest = np.full(20, np.iinfo(np.int64).max)
    huge = replace(grid, scale=2**56)
    beyond = statistic.add_noise(largest, huge, nonce(1))
    assert max(beyond) > np.iinfo(np.int64).max
    exact = [int(n) for n in statistic.add_noise(first, huge, nonce(1))]
    assert beyond.tolist() == [n + 2**63 - 1 for n in exact]
