"""Parts of DP-SGD: noise, clipping, optimizers, shared backward passes, which records are used."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from labelguard_trainer.gradient.backward import SharedBackward
from labelguard_trainer.gradient.clipping import ClippedSum
from labelguard_trainer.gradient.noise import gaussian
from labelguard_trainer.gradient.optimizers import Adam, Sgd
from labelguard_trainer.gradient.records import Records
from labelguard_trainer.gradient.sides import Sides
from scipy import stats
from torch import nn

from labelguard.keys import keyring

pytestmark = pytest.mark.xdist_group("trl")

CPU = torch.device("cpu")
SAMPLES = 200_001
LEAST_P = 1e-7
"""A right sampler fails one of the six checks below less than once in a million runs."""


def _drawn(deviation: float = 2.5) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    noise = gaussian(SAMPLES, deviation, keyring.random_bytes(32), CPU)
    return noise.double().numpy()


def _variance_p(noise: np.ndarray[tuple[int], np.dtype[np.float64]], deviation: float) -> float:
    """Two-sided, of Σ x²/σ² ~ χ²(n)."""
    below = stats.chi2.cdf(float((noise**2).sum()) / deviation**2, len(noise))
    return 2 * min(below, 1 - below)


def test_noise_has_the_deviation_asked_for_and_a_smaller_one_is_noticed() -> None:
    noise = _drawn(2.5)
    assert _variance_p(noise, 2.5) > LEAST_P
    assert _variance_p(0.97 * noise, 2.5) < LEAST_P, "3 % too little"
    assert _variance_p(0.7 * noise, 2.5) < LEAST_P, "30 % too little"


def test_noise_is_normal_and_neighbours_and_pairs_are_independent() -> None:
    noise = _drawn(1.0)
    assert stats.kstest(noise, "norm").pvalue > LEAST_P
    half = (SAMPLES + 1) // 2
    for one, other in ((noise[:-1], noise[1:]), (noise[: half - 1], noise[half:])):
        assert stats.pearsonr(one, other).pvalue > LEAST_P
        assert stats.pearsonr(one**2, other**2).pvalue > LEAST_P


def test_noise_is_that_of_its_seed_and_of_no_other() -> None:
    seed = keyring.random_bytes(32)
    other = bytes([seed[0], *seed[1:31], seed[31] ^ 1])
    one, again, changed = (gaussian(1_001, 1.0, s, CPU) for s in (seed, seed, other))
    assert torch.equal(one, again)
    assert not (one == changed).any()
    with pytest.raises(ValueError, match="32 bytes"):
        gaussian(1, 1.0, seed[:8], CPU)


def test_noise_of_many_coordinates_repeats_nothing() -> None:
    noise = gaussian(2**21 + 3, 1.0, keyring.random_bytes(32), CPU)
    assert len(noise[: 2**20].unique()) > 0.9 * 2**20  # float32 has few values near zero
    assert not torch.equal(noise[:3], noise[-3:])


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False),
        min_size=3,
        max_size=3,
    ),
    st.floats(1e-3, 1e3),
)
def test_a_vector_is_never_longer_than_the_clip_norm(values: list[float], clip: float) -> None:
    found = ClippedSum(3, clip, CPU)
    found.add(torch.tensor([values]))
    exact = np.array(values)
    length = float(found.total.double().norm())
    assert length <= clip
    if 1e-15 < np.linalg.norm(exact) <= 0.99 * clip:
        np.testing.assert_allclose(found.total, exact, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), 3e38])
def test_a_gradient_without_a_finite_norm_counts_as_zero(broken: float) -> None:
    found = ClippedSum(2, 1.0, CPU)
    found.add(torch.tensor([[0.3, 0.4], [broken, broken]]))
    torch.testing.assert_close(found.total, torch.tensor([0.3, 0.4]).double())


@pytest.mark.parametrize("clip", [0.0, -1.0, float("inf"), float("nan")])
def test_a_clip_norm_that_bounds_nothing_is_refused(clip: float) -> None:
    with pytest.raises(ValueError, match="clip"):
        ClippedSum(2, clip, CPU)


def test_adam_is_torchs() -> None:
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


class _Mixing(nn.Module):
    """A model of texts whose rows meet, if `meet`."""

    def __init__(self, *, meet: bool) -> None:
        super().__init__()
        self.first, self.second, self.meet = nn.Linear(3, 4), nn.Linear(4, 1), meet

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        hidden = self.first(texts).tanh()
        if self.meet:
            hidden = hidden * hidden.mean(0)
        sides: torch.Tensor = self.second(hidden).sum((1, 2)).view(2, -1)
        return sides[0] - sides[1]


@pytest.mark.parametrize("meet", [False, True])
def test_a_model_whose_rows_meet_shares_no_backward_pass(meet: bool) -> None:
    torch.manual_seed(0)
    model, texts = _Mixing(meet=meet), torch.randn(4, 5, 3)
    parameters = list(model.parameters())
    found = SharedBackward.of(model, parameters, partial(model, texts), (4, 5))
    assert (found is None) == meet
    assert all(p.requires_grad for p in parameters) == meet


def test_weights_and_biases_of_shared_passes_are_those_of_single_ones() -> None:
    torch.manual_seed(0)
    model, texts = _Mixing(meet=False), torch.randn(6, 5, 3)
    parameters = list(model.parameters())
    single = []
    for owner in ((0, 2), (1,)):
        margins = model(texts)
        loss = (margins[list(owner)] ** 2).sum()
        single.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]))
    shared = SharedBackward.of(model, parameters, partial(model, texts), (6, 5))
    assert shared is not None
    found = torch.zeros(2, len(single[0]))
    owners = torch.tensor([0, 1, 0])
    shared.accumulate(found, owners, partial(model, texts), lambda z: (z**2).sum())
    torch.testing.assert_close(found, torch.stack(single))


def test_all_records_of_a_labeler_have_their_turn_and_weigh_the_same() -> None:
    units = np.array([1, 0, 1, 1, 1, 1, 2])
    held = Records(np.arange(7), units, 4, 2, "mean")
    seen = np.zeros(7)
    for step in range(5):
        drawn = held.drawn(step, np.array([1, 3, 0]))
        assert drawn.owners.tolist() == [0, 0, 2]
        assert drawn.weights.tolist() == [0.5, 0.5, 1.0]
        seen += np.bincount(drawn.rows, minlength=7)
    assert seen.tolist() == [2, 5, 2, 2, 2, 2, 0]
    root = Records(np.arange(7), units, 4, 2, "root").drawn(0, np.array([1]))
    assert root.weights == pytest.approx(2**-0.5)


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"weighting": "sum"}, {"units": np.zeros(1)}])
def test_records_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    right = {"pairs": np.zeros(2, int), "units": np.zeros(2, int), "population": 1}
    with pytest.raises(ValueError, match=r"limit|weighting|units"):
        Records(**{**right, "limit": 1, "weighting": "mean", **wrong})


@pytest.mark.parametrize("limit", [None, 3])
def test_texts_are_padded_to_the_longest_of_their_batch_and_cut(limit: int | None) -> None:
    rows = [
        {"prompt_ids": [1, 2], "chosen_ids": [3], "rejected_ids": [4, 5]},
        {"prompt_ids": [6], "chosen_ids": [], "rejected_ids": [7]},
    ]
    sides = Sides(pa.Table.from_pylist(rows), limit, 0)
    found = sides.padded(np.array([1, 0]))
    assert found.ids.tolist() == [
        row[:limit] for row in ([6, 0, 0, 0], [1, 2, 3, 0], [6, 7, 0, 0], [1, 2, 4, 5])
    ]
    assert found.real.sum(1).tolist() == [1, 3, 2, min(4, limit or 4)]
    assert found.response.sum(1).tolist() == [0, 1, 1, min(2, (limit or 4) - 2)]
    assert sides.padded(np.array([1])).ids.tolist() == [[6, 0], [6, 7]]


@pytest.mark.parametrize("clip", [1.0, 1.0003, 1.0151])
def test_one_of_very_many_who_agree_moves_their_sum_by_two_clip_norms_at_most(clip: float) -> None:
    """In float32 rounding alone moved it further: by 2e-4 of that, of 5000."""
    sums = []
    for own in (5.0, -5.0):
        found = ClippedSum(1, clip, CPU)
        gradients = torch.full((5000, 1), 5.0)
        gradients[2500] = own
        for part in gradients.split(16):
            found.add(part)
        sums.append(float(found.total))
    assert 1.99 * clip < abs(sums[0] - sums[1]) <= 2 * clip
