"""What the rows of every kind of release say to a loss."""

from collections.abc import Callable

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from labelguard_trainer import losses
from labelguard_trainer.training.rows import (
    COLUMNS,
    NoisyRows,
    RawLabels,
    add_loss_columns,
    read_noise_columns,
)
from numpy.typing import NDArray
from scipy.special import expit, xlog1py, xlogy

from labelguard.errors import LabelguardError

NAMES = ("label_probability", "flip_probability", "residual_flip_estimate")


def release(label=None, flip=None, residual=None):
    """A data set of rows with these columns, and with no others of noise."""
    given = dict(zip(NAMES, (label, flip, residual), strict=True))
    columns = {name: pa.array(v, pa.float64()) for name, v in given.items() if v is not None}
    rows = len(next(iter(columns.values()), [1, 2]))
    return datasets.Dataset(pa.table({"item_id": [str(k) for k in range(rows)], **columns}))


def read(dataset, loss="auto", **options):
    return NoisyRows.from_columns(read_noise_columns(dataset), loss, **options)


def columns(rows):
    return [rows.target.tolist(), rows.flip_probability.tolist(), rows.weight.tolist()]


@pytest.mark.parametrize(
    ("dataset", "options", "expected"),
    [
        (release(flip=[0.1, 0.4]), {}, [[1, 1], [0.1, 0.4]]),
        (release(label=[0.3, 0.9]), {}, [[0.3, 0.9], [0, 0]]),
        (release(residual=[0.1, 0.2]), {}, [[1, 1], [0, 0]]),  # denoised: taken as they are
        (release(label=[None, 0.5], flip=[0.2, None]), {}, [[1, 0.5], [0.2, 0]]),  # a public tie
        (release(flip=[0.2, None], residual=[None, 0.05]), {}, [[1, 1], [0.2, 0]]),
        (release(label=[0.3, None], flip=[None, 0.4]), {"loss": "plain"}, [[1, 1], [0, 0]]),
        (release(), {"non_private": True}, [[1, 1], [0, 0]]),  # nobody's secret
    ],
)
def test_what_rows_say_is_a_target_and_the_probability_of_a_flip(dataset, options, expected):
    assert columns(read(dataset, **options)) == [*expected, [1, 1]]


def test_robust_weighs_rows_by_their_signal_and_has_mean_one():
    flip = np.random.default_rng(0).uniform(0, 0.49, 1000)
    rows = read(release(flip=flip.tolist()), "robust")
    assert rows.weight.mean() == pytest.approx(1, abs=1e-12)
    assert read(release(flip=[0.3] * 7), "robust").weight == pytest.approx(1, rel=1e-12)
    signal = (1 - 2 * flip) ** 2
    np.testing.assert_allclose(rows.weight / rows.weight[0], signal / signal[0], rtol=1e-9)


@pytest.mark.parametrize("dataset", [release(), release(flip=[0.1, None, 0.2])])
def test_raw_labels_are_refused(dataset):
    with pytest.raises(RawLabels, match="non_private=True"):
        read(dataset)


@pytest.mark.parametrize(
    ("dataset", "loss", "message"),
    [
        (release(flip=[0.1, 0.5]), "auto", r"flip_probability must be in \[0, ½\), found 1 rows"),
        (release(flip=[-0.1, 0.2]), "auto", "flip_probability"),
        (release(label=[0.1, 1.5]), "auto", r"label_probability must be in \[0, 1\]"),
        (release(label=[0.1, 0.9]), "forward", "use auto"),
        (release(label=[0.1, 0.9]), "robust", "use auto"),
        (release(flip=[0.1, 0.2]), "soft", "use auto"),
        (release(flip=[0.1]), "hinge", "hinge"),
        (
            datasets.Dataset.from_dict({"flip_probability": ["a lot"]}),
            "auto",
            "flip_probability must hold numbers",
        ),
    ],
)
def test_rows_that_a_loss_cannot_be_given_are_refused(dataset, loss, message):
    with pytest.raises(LabelguardError, match=message):
        read(dataset, loss)


def test_noise_follows_its_rows_through_shuffling_and_selection():
    whole = release(flip=[k / 100 for k in range(40)])
    part = whole.shuffle(seed=3).select(range(5, 25))
    prepared = add_loss_columns(part)
    wanted = [int(item) / 100 for item in part["item_id"]]
    assert prepared["flip_probability"][:] == pytest.approx(wanted)
    assert prepared["item_id"][:] == part["item_id"][:]


def test_weights_are_over_the_rows_that_are_trained_on():
    part = release(flip=[0.0, 0.1, 0.4, 0.45]).select([1, 2])
    assert np.mean(add_loss_columns(part, "robust")["row_weight"]) == pytest.approx(1)


def test_a_prepared_data_set_is_taken_as_it_is_and_flips_are_zero_unless_it_says_them():
    table = {"target_probability": [0.25], "row_weight": [2.0], "flip_probability": [0.1]}
    assert add_loss_columns(datasets.Dataset.from_dict(table), "robust").to_dict() == table
    del table["flip_probability"]
    prepared = add_loss_columns(datasets.Dataset.from_dict(table))
    assert [prepared[name][0] for name in COLUMNS] == [0.25, 0.0, 2.0]


# Losses against an independent reference in float64, and what each of them promises.


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
    assert losses.find_loss("auto") is losses.forward
    assert losses.find_loss("robust") is losses.robust


@pytest.mark.parametrize("name", REFERENCES)
def test_margins_in_bfloat16_have_losses_in_float32(name):
    z, target, flip = (value.float() for value in tensors(*rows(8)))
    assert losses.LOSSES[name](z.bfloat16(), target, flip).dtype == torch.float32
