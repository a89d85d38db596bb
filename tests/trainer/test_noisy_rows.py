"""What the rows of every kind of release say to a loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

datasets = pytest.importorskip("datasets")

from labelguard_trainer.training.rows import (  # noqa: E402
    COLUMNS,
    NoisyRows,
    RawLabels,
    columns_of,
    with_noise,
)

from labelguard.errors import LabelguardError  # noqa: E402

pytestmark = pytest.mark.xdist_group("trl")
NAMES = ("label_probability", "flip_probability", "residual_flip_estimate")


def release(
    label: list[Any] | None = None,
    flip: list[Any] | None = None,
    residual: list[Any] | None = None,
) -> Any:
    """A data set of rows with these columns, and with no others of noise."""
    given = dict(zip(NAMES, (label, flip, residual), strict=True))
    columns = {name: pa.array(v, pa.float64()) for name, v in given.items() if v is not None}
    rows = len(next(iter(columns.values()), [1, 2]))
    return datasets.Dataset(pa.table({"item_id": [str(k) for k in range(rows)], **columns}))


def read(dataset: Any, loss: str = "auto", **options: bool) -> NoisyRows:
    return NoisyRows.read(columns_of(dataset), loss, **options)


def columns(rows: NoisyRows) -> list[list[float]]:
    return [rows.target.tolist(), rows.flip_probability.tolist(), rows.weight.tolist()]


def test_flipped_labels_are_taken_with_their_flip_probability() -> None:
    assert columns(read(release(flip=[0.1, 0.4]))) == [[1, 1], [0.1, 0.4], [1, 1]]


def test_probabilities_are_targets() -> None:
    assert columns(read(release(label=[0.3, 0.9]))) == [[0.3, 0.9], [0, 0], [1, 1]]


def test_denoised_labels_are_taken_as_they_are() -> None:
    assert columns(read(release(residual=[0.1, 0.2]))) == [[1, 1], [0, 0], [1, 1]]


def test_a_public_tie_among_flipped_labels_is_a_target_of_one_half() -> None:
    rows = read(release(label=[None, 0.5], flip=[0.2, None]))
    assert columns(rows) == [[1, 0.5], [0.2, 0], [1, 1]]


def test_released_stages_and_denoised_ones_stand_side_by_side() -> None:
    rows = read(release(flip=[0.2, None], residual=[None, 0.05]))
    assert columns(rows) == [[1, 1], [0.2, 0], [1, 1]]


def test_plain_takes_every_label_at_its_word() -> None:
    rows = read(release(label=[0.3, None], flip=[None, 0.4]), "plain")
    assert columns(rows) == [[1, 1], [0, 0], [1, 1]]


def test_robust_weighs_rows_by_their_signal_and_has_mean_one() -> None:
    flip = np.random.default_rng(0).uniform(0, 0.49, 1000)
    rows = read(release(flip=flip.tolist()), "robust")
    assert rows.weight.mean() == pytest.approx(1, abs=1e-12)
    signal = (1 - 2 * flip) ** 2
    np.testing.assert_allclose(rows.weight / rows.weight[0], signal / signal[0], rtol=1e-9)


def test_equal_flip_probabilities_have_weight_one() -> None:
    np.testing.assert_allclose(read(release(flip=[0.3] * 7), "robust").weight, 1, rtol=1e-12)


@pytest.mark.parametrize("dataset", [release(), release(flip=[0.1, None, 0.2])])
def test_raw_labels_are_refused(dataset: Any) -> None:
    with pytest.raises(RawLabels, match="non_private=True"):
        read(dataset)


def test_raw_labels_that_are_nobodys_secret_are_taken_as_they_are() -> None:
    assert columns(read(release(), non_private=True)) == [[1, 1], [0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (release(flip=[0.1, 0.5]), r"flip_probability must be in \[0, ½\), found 1 rows"),
        (release(flip=[-0.1, 0.2]), "flip_probability"),
        (release(label=[0.1, 1.5]), r"label_probability must be in \[0, 1\]"),
    ],
)
def test_probabilities_out_of_range_are_refused(dataset: Any, message: str) -> None:
    with pytest.raises(LabelguardError, match=message):
        read(dataset)


@pytest.mark.parametrize("loss", ["forward", "robust"])
def test_a_loss_that_corrects_flips_needs_rows_that_were_flipped(loss: str) -> None:
    with pytest.raises(LabelguardError, match="use auto"):
        read(release(label=[0.1, 0.9]), loss)


def test_soft_needs_a_probability_in_every_row() -> None:
    with pytest.raises(LabelguardError, match="use auto"):
        read(release(flip=[0.1, 0.2]), "soft")


def test_an_unknown_loss_is_named() -> None:
    with pytest.raises(LabelguardError, match="hinge"):
        read(release(flip=[0.1]), "hinge")


def test_noise_follows_its_rows_through_shuffling_and_selection() -> None:
    whole = release(flip=[k / 100 for k in range(40)])
    part = whole.shuffle(seed=3).select(range(5, 25))
    prepared = with_noise(part)
    wanted = [int(item) / 100 for item in part["item_id"]]
    assert prepared["flip_probability"][:] == pytest.approx(wanted)
    assert prepared["item_id"][:] == part["item_id"][:]


def test_weights_are_over_the_rows_that_are_trained_on() -> None:
    part = release(flip=[0.0, 0.1, 0.4, 0.45]).select([1, 2])
    assert np.mean(with_noise(part, "robust")["row_weight"]) == pytest.approx(1)


def test_a_prepared_data_set_is_taken_as_it_is() -> None:
    table = {"target_probability": [0.25], "row_weight": [2.0], "flip_probability": [0.1]}
    prepared = with_noise(datasets.Dataset.from_dict(table), "robust")
    assert prepared.to_dict() == table


def test_targets_without_flip_probabilities_are_not_flipped() -> None:
    table = {"target_probability": [0.25], "row_weight": [2.0]}
    prepared = with_noise(datasets.Dataset.from_dict(table))
    assert [prepared[name][0] for name in COLUMNS] == [0.25, 0.0, 2.0]


def test_a_column_that_holds_no_numbers_is_named() -> None:
    with pytest.raises(LabelguardError, match="flip_probability must hold numbers"):
        read(datasets.Dataset.from_dict({"flip_probability": ["a lot"]}))
