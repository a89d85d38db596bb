"""The simulator keeps its promises: readable, deterministic, and calibrated to its configuration.

Statistical tests run at fixed seeds. Their tolerances are at least 3.6 standard errors over seeds
(agreement up to .0055, tie rate up to .003), so an innocent change of the random streams fails a
given one with probability below 1e-3.
"""

from typing import Any

import numpy as np
import polars as pl
import pytest

from labelguard.simulation import simulate

ITEM = ["prompt", "response_a", "response_b"]
SMALL: dict[str, Any] = {"labelers": 20, "labels": 600, "items": 100}


def frame(**options):
    labels = pl.from_arrow(simulate(**options))
    assert isinstance(labels, pl.DataFrame)
    return labels


@pytest.fixture(scope="module")
def labels():
    return frame()


def mean(values):
    return float(np.mean(values.drop_nulls().to_numpy()))


def agreement(labels):
    """Share of equal labels among all pairs of strict labels on one item."""
    per_item = (
        labels.drop_nulls("label")
        .group_by(ITEM)
        .agg(n=pl.len().cast(pl.Int64), a=pl.col("label").sum().cast(pl.Int64))
    )
    n, a = per_item["n"].to_numpy(), per_item["a"].to_numpy()
    equal = a * (a - 1) + (n - a) * (n - a - 1)
    return float(equal.sum() / (n * (n - 1)).sum())


def test_the_same_seed_gives_the_same_table_and_another_seed_another():
    table = simulate(**SMALL)
    other = simulate(**SMALL, seed=1)
    assert simulate(**SMALL).equals(table)
    assert not any(table[column].equals(other[column]) for column in table.column_names)


def test_all_but_label_and_tie_is_independent_of_how_labels_are_drawn():
    table = simulate(**SMALL)
    other = simulate(**SMALL, agreement=0.9, tie_rate=0.5)
    public = "labeler_id", *ITEM, "submitted_at"
    assert table.select(public).equals(other.select(public))
    assert not table["tie"].equals(other["tie"])


def test_label_counts_are_heavy_tailed_and_sum_to_the_total(labels):
    counts = labels["labeler_id"].value_counts()["count"].to_numpy()
    assert counts.sum() == 20_000
    assert len(counts) == 200
    assert counts.max() > 8 * np.median(counts)


@pytest.mark.parametrize(("labelers", "items"), [(1, 1), (1, 5), (3, 1), (2, 3), (5, 7)])
def test_totals_from_one_label_each_to_all_items_each_are_met(labelers, items):
    fewest, most = labelers, labelers * items
    for total in {fewest, (fewest + most) // 2, max(fewest, most - 1), most}:
        labels = frame(labelers=labelers, labels=total, items=items)
        assert labels.height == total
        assert labels["labeler_id"].n_unique() == labelers
        assert not labels.select("labeler_id", *ITEM).is_duplicated().any()


@pytest.mark.parametrize(
    ("wanted", "tie_rate"), [(0.5, 0.08), (0.6, 0.0), (0.65, 0.2), (0.8, 0.15), (0.9, 0.02)]
)
def test_agreement_and_tie_rate_follow_the_configuration(wanted, tie_rate):
    labels = frame(agreement=wanted, tie_rate=tie_rate, seed=3)
    assert agreement(labels) == pytest.approx(wanted, abs=0.02)
    assert mean(labels["tie"]) == pytest.approx(tie_rate, abs=0.02)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"labelers": 0}, "labelers must be at least 1, got 0"),
        ({"labelers": 2.5}, "labelers must be an integer, got 2.5"),
        ({"items": 10**12}, "items must be between 1 and"),
        ({"labels": 1_000_001}, "labels .* must be between 200 and 1000000, got 1000001"),
        ({"tie_rate": 1.0}, "tie_rate must be between 0.0 and 0.9, got 1.0"),
        ({"tie_rate": "8%"}, "tie_rate must be a number, got '8%'"),
        ({"agreement": float("nan")}, "agreement must be between 0.5 and 0.9, got nan"),
        ({"seed": True}, "seed must be an integer, got True"),
    ],
)
def test_a_value_out_of_range_is_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        simulate(**changed)
