"""What the rows of every kind of release say to a loss."""

import datasets
import numpy as np
import pyarrow as pa
import pytest
from labelguard_trainer.training.rows import (
    COLUMNS,
    NoisyRows,
    RawLabels,
    columns_of,
    with_noise,
)

from labelguard.errors import LabelguardError

NAMES = ("label_probability", "flip_probability", "residual_flip_estimate")


def release(label=None, flip=None, residual=None):
    """A data set of rows with these columns, and with no others of noise."""
    given = dict(zip(NAMES, (label, flip, residual), strict=True))
    columns = {name: pa.array(v, pa.float64()) for name, v in given.items() if v is not None}
    rows = len(next(iter(columns.values()), [1, 2]))
    return datasets.Dataset(pa.table({"item_id": [str(k) for k in range(rows)], **columns}))


def read(dataset, loss="auto", **options):
    return NoisyRows.read(columns_of(dataset), loss, **options)


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
    prepared = with_noise(part)
    wanted = [int(item) / 100 for item in part["item_id"]]
    assert prepared["flip_probability"][:] == pytest.approx(wanted)
    assert prepared["item_id"][:] == part["item_id"][:]


def test_weights_are_over_the_rows_that_are_trained_on():
    part = release(flip=[0.0, 0.1, 0.4, 0.45]).select([1, 2])
    assert np.mean(with_noise(part, "robust")["row_weight"]) == pytest.approx(1)


def test_a_prepared_data_set_is_taken_as_it_is_and_flips_are_zero_unless_it_says_them():
    table = {"target_probability": [0.25], "row_weight": [2.0], "flip_probability": [0.1]}
    assert with_noise(datasets.Dataset.from_dict(table), "robust").to_dict() == table
    del table["flip_probability"]
    prepared = with_noise(datasets.Dataset.from_dict(table))
    assert [prepared[name][0] for name in COLUMNS] == [0.25, 0.0, 2.0]
