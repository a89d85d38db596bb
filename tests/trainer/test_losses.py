"""Losses against an independent reference in float64, and what each of them promises."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from labelguard_trainer import losses
from numpy.typing import NDArray
from scipy.special import expit, xlog1py, xlogy

Floats = NDArray[np.float64]


def cross_entropy(z, target):
    """By probabilities, where `losses` goes by logarithms."""
    p = expit(z)
    return np.asarray(-xlogy(target, p) - xlog1py(1 - target, -p))


def forward(z, target, flip):
    """The chance of the label that is seen is that of the true one, through the flip."""
    seen = (1 - flip) * expit(z) + flip * (1 - expit(z))
    return np.asarray(-xlogy(target, seen) - xlogy(1 - target, 1 - seen))


def robust(z, target, flip):
    wrong = flip * cross_entropy(z, 1 - target)
    return ((1 - flip) * cross_entropy(z, target) - wrong) / (1 - 2 * flip)


REFERENCES: dict[str, Callable[..., Floats]] = {
    "plain": lambda z, target, flip: -np.log(expit(z)),
    "soft": lambda z, target, flip: cross_entropy(z, target),
    "forward": forward,
    "robust": robust,
}


def rows(seed=0, count=200):
    """Margins, targets that are labels or probabilities, and a γ for every row, some of them 0."""
    draw = np.random.default_rng(seed)
    z = 4 * draw.standard_normal(count)
    target = np.where(draw.random(count) < 0.5, draw.integers(2, size=count), draw.random(count))
    flip = np.where(draw.random(count) < 0.2, 0.0, draw.uniform(0, 0.499, count))
    return z, target, flip


def tensors(*values):
    return [torch.tensor(value, dtype=torch.float64) for value in values]


@pytest.mark.parametrize("name", losses.LOSSES)
def test_a_loss_equals_its_reference_with_a_flip_probability_for_every_row(name):
    z, target, flip = rows(count=600)
    found = losses.LOSSES[name](*tensors(z, target, flip)).numpy()
    np.testing.assert_allclose(found, REFERENCES[name](z, target, flip), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", REFERENCES)
def test_gradients_are_those_of_finite_differences(name):
    z, target, flip = tensors(*rows(4, 12))
    z.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: losses.LOSSES[name](z, target, flip), (z,))


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("size", [80.0, 1e4])
def test_losses_and_gradients_are_finite_far_from_zero(name, size):
    z = torch.tensor([size, -size, size, -size], requires_grad=True)
    flip = torch.tensor([0.0, 0.0, 0.3, 0.3])
    loss = losses.LOSSES[name](z, torch.tensor([1.0, 1.0, 1.0, 0.0]), flip)
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert torch.isfinite(z.grad).all()


def test_the_mean_of_robust_over_flips_is_the_loss_of_the_true_label():
    z, _, flip = rows(5)
    truth = np.random.default_rng(6).integers(2, size=len(z)).astype(float)
    kept = losses.robust(*tensors(z, truth, flip))
    flipped = losses.robust(*tensors(z, 1 - truth, flip))
    gamma = torch.tensor(flip)
    mean = (1 - gamma) * kept + gamma * flipped
    np.testing.assert_allclose(mean.numpy(), cross_entropy(z, truth), rtol=1e-9, atol=1e-12)


def test_forward_is_smallest_in_the_mean_at_the_true_probability():
    truth, gamma = 0.8, 0.3
    z = torch.linspace(-3, 3, 6001, dtype=torch.float64)
    seen = truth * (1 - gamma) + (1 - truth) * gamma
    ones, flip = torch.ones_like(z), torch.full_like(z, gamma)
    mean = seen * losses.forward(z, ones, flip) + (1 - seen) * losses.forward(z, 0 * ones, flip)
    assert float(torch.sigmoid(z[mean.argmin()])) == pytest.approx(truth, abs=1e-3)


def test_auto_is_forward():
    assert losses.loss_of("auto") is losses.forward
    assert losses.loss_of("robust") is losses.robust


@pytest.mark.parametrize("name", REFERENCES)
def test_margins_in_bfloat16_have_losses_in_float32(name):
    z, target, flip = (value.float() for value in tensors(*rows(8)))
    assert losses.LOSSES[name](z.bfloat16(), target, flip).dtype == torch.float32
