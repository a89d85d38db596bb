"""Parts of DP-SGD: noise, clipping, optimizers, shared backward passes, which records are used."""

import math

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from labelguard_trainer.gradient.model import Adam, Sgd
from labelguard_trainer.gradient.records import Records, Sides
from labelguard_trainer.gradient.sums import ClippedSum, add_normals, bound_norm, uniforms
from scipy import stats

from labelguard.accounting import gaussian
from labelguard.keys import keyring

CPU = torch.device("cpu")
SAMPLES = 200_001
# A right sampler fails one of the six checks below less than once in a million runs.
LEAST_P = 1e-7


def _noise(count, deviation, seed):
    return add_normals(torch.zeros(count, dtype=torch.float64), deviation, seed)


def _drawn(deviation=2.5):
    noise = _noise(SAMPLES, deviation, keyring.random_bytes(32))
    return noise.double().numpy()


def _variance_p(noise, deviation):
    """Two-sided, of Σ x²/σ² ~ χ²(n)."""
    below = stats.chi2.cdf(float((noise**2).sum()) / deviation**2, len(noise))
    return 2 * min(below, 1 - below)


def test_noise_has_the_deviation_asked_for_and_a_smaller_one_is_noticed():
    noise = _drawn(2.5)
    assert _variance_p(noise, 2.5) > LEAST_P
    assert _variance_p(0.97 * noise, 2.5) < LEAST_P, "3 % too little"
    assert _variance_p(0.7 * noise, 2.5) < LEAST_P, "30 % too little"


def test_noise_is_normal_and_neighbours_and_pairs_are_independent():
    noise = _drawn(1.0)
    assert stats.kstest(noise, "norm").pvalue > LEAST_P
    half = (SAMPLES + 1) // 2
    for one, other in ((noise[:-1], noise[1:]), (noise[: half - 1], noise[half:])):
        assert stats.pearsonr(one, other).pvalue > LEAST_P
        assert stats.pearsonr(one**2, other**2).pvalue > LEAST_P


def test_noise_is_that_of_its_seed_and_of_no_other():
    seed = keyring.random_bytes(32)
    other = bytes([seed[0], *seed[1:31], seed[31] ^ 1])
    one, again, changed = (_noise(1_001, 1.0, s) for s in (seed, seed, other))
    assert torch.equal(one, again)
    assert not (one == changed).any()
    with pytest.raises(ValueError, match="32 bytes"):
        _noise(1, 1.0, seed[:8])


def test_noise_of_many_coordinates_repeats_nothing():
    noise = _noise(2**21 + 3, 1.0, keyring.random_bytes(32))
    assert len(noise[: 2**20].unique()) > 0.9 * 2**20  # float32 has few values near zero
    assert not torch.equal(noise[:3], noise[-3:])


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3),
    st.sampled_from([1e-44, 1e-40, 1e-30, 1e-20, 1e-10, 1.0, 1e10, 1e20, 1e30]),
)
def test_a_vector_is_never_longer_than_the_clip_norm(values, clip):
    found = ClippedSum(3, clip, CPU)
    found.add(torch.tensor(values))
    exact = np.array(values)
    length = float(np.linalg.norm(found.total.numpy() / clip))
    assert length <= 1
    if np.linalg.norm(exact) <= 0.99 * clip:
        np.testing.assert_allclose(found.total, exact, atol=clip * 2.0**-29)


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_without_a_finite_norm_counts_as_zero(broken):
    found = ClippedSum(2, 1.0, CPU)
    found.add(torch.tensor([0.375, 0.5]))
    found.add(torch.tensor([broken, 0.5]))
    assert found.total.tolist() == [0.375, 0.5]


@pytest.mark.parametrize("scale", [1e-44, 1e-40, 1e-30, 2e-23, 1.0, 1e19, 1e30, 3e38])
@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_a_norm_neither_vanishes_nor_overflows(scale, size):
    """Those of torch are 0 below 2.6e-23, and infinite from 1.8e19 on."""
    gradient = torch.full((size,), scale)
    exact = math.sqrt(size) * float(gradient[0])
    assert exact <= float(bound_norm(gradient)) <= exact * (1 + 2 * (size + 4) * 2.0**-52)


def test_uniform_numbers_reach_as_far_as_is_charged():
    """Those of 53 bits ended at 2^-54: 5.9e-5 of δ for a billion parameters and 100 steps."""
    words = np.array([0, 5, 2**32 - 1, 2**32, 2**64 - 1], np.uint64)
    asked = []

    def further(count):
        asked.append(count)
        return np.zeros(count, np.uint64)

    found = uniforms(words, further)
    assert asked == [6], "128 bits for each word below 2^32"
    assert found[0] == 2.0**-gaussian.BITS
    assert found[1:].tolist() == [
        5 * 2.0**-64,
        (2**32 - 1) * 2.0**-64,
        2.0**-32 * (1 + 2.0**-33),
        1,
    ]
    assert (-2 * math.log(found[0])) ** 0.5 > 16 > 9 > (-2 * math.log(2.0**-54)) ** 0.5


def test_noise_is_added_in_double_precision():
    """Rounded once: 2^30 + y, and not the sum of two numbers that were rounded before."""
    seed = bytes(32)
    exact = add_normals(torch.full((9,), 2.0**-30, dtype=torch.float64), 1.0, seed)
    assert not torch.equal(exact, _noise(9, 1.0, seed) + 1)
    far = add_normals(torch.full((9,), 2.0**40, dtype=torch.float64), 1.0, seed)
    assert (far == 2.0**40).all()


@pytest.mark.parametrize("clip", [0.0, -1.0, float("inf"), float("nan")])
def test_a_clip_norm_that_bounds_nothing_is_refused(clip):
    with pytest.raises(ValueError, match="clip"):
        ClippedSum(2, clip, CPU)


def test_adam_is_torchs():
    draw = torch.Generator().manual_seed(0)
    parameter = torch.nn.Parameter(torch.zeros(5))
    theirs, ours, value = torch.optim.Adam([parameter], lr=0.1), Adam(5, CPU), torch.zeros(5)
    for step in range(1, 6):
        gradient = torch.randn(5, generator=draw)
        parameter.grad = gradient.clone()
        theirs.step()
        value -= ours.update(gradient, 0.1, step)
    torch.testing.assert_close(value, parameter.detach())
    torch.testing.assert_close(Sgd(5, CPU).update(value, 0.1, 1), 0.1 * value)


def test_all_records_of_a_labeler_have_their_turn_and_weigh_the_same():
    units = np.array([1, 0, 1, 1, 1, 1, 2])
    held = Records(np.arange(7), units, 4, 2, "mean")
    seen = np.zeros(7)
    for step in range(5):
        drawn = held.select(step, np.array([1, 3, 0]))
        assert drawn.owners.tolist() == [0, 0, 2]
        assert drawn.weights.tolist() == [0.5, 0.5, 1.0]
        seen += np.bincount(drawn.rows, minlength=7)
    assert seen.tolist() == [2, 5, 2, 2, 2, 2, 0]
    root = Records(np.arange(7), units, 4, 2, "root").select(0, np.array([1]))
    assert root.weights == pytest.approx(2**-0.5)


@pytest.mark.parametrize("limit", [None, 3])
def test_texts_are_padded_to_the_longest_of_their_batch_and_cut(limit):
    rows = [
        {"prompt_ids": [1, 2], "chosen_ids": [3], "rejected_ids": [4, 5]},
        {"prompt_ids": [6], "chosen_ids": [], "rejected_ids": [7]},
    ]
    sides = Sides(pa.Table.from_pylist(rows), limit, 0)
    found = sides.pad(np.array([1, 0]))
    assert found.ids.tolist() == [
        row[:limit] for row in ([6, 0, 0, 0], [1, 2, 3, 0], [6, 7, 0, 0], [1, 2, 4, 5])
    ]
    assert found.real.sum(1).tolist() == [1, 3, 2, min(4, limit or 4)]
    assert found.response.sum(1).tolist() == [0, 1, 1, min(2, (limit or 4) - 2)]
    assert sides.pad(np.array([1])).ids.tolist() == [[6, 0], [6, 7]]


@pytest.mark.quick("1.0003")
@pytest.mark.parametrize("clip", [1.0, 1.0003, 1.0151])
def test_one_of_very_many_who_agree_moves_their_sum_by_two_clip_norms_at_most(clip):
    """In float32 rounding alone moved it further: by 2e-4 of that, of 5000."""
    sums = []
    for own in (5.0, -5.0):
        found = ClippedSum(1, clip, CPU)
        gradients = torch.full((5000, 1), 5.0)
        gradients[2500] = own
        for one in gradients:
            found.add(one)
        sums.append(float(found.total))
    assert 1.99 * clip < abs(sums[0] - sums[1]) <= 2 * clip
