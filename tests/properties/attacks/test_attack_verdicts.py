"""A verdict of both sides together is turned with them: nothing of it tells where they stood.

In some exports A is the side that was chosen. The same verdicts then stand beside the sides in one
order or the other, with the sign that goes with it; what is read, and how reading ends, must be the
same in both, whatever type the column has.
"""

import itertools

import numpy as np
import polars as pl
import pytest

from labelguard.errors import InvalidLabels, LabelguardError
from labelguard.inputs.pairs import read_public_pairs

TEXTS = (("a", "b"), ("c", "d"), ("e", "f"))
NAN = float("nan")


def write(values, turned, kind):
    """A file in which the sides of some pairs, and the sign of their verdicts, are turned."""
    rows = [
        {
            "prompt": f"p{number}",
            "response_a": texts[turn],
            "response_b": texts[1 - turn],
            "judge": -value if turn and value is not None else value,
            "labeler_id": "u",
        }
        for number, (texts, value, turn) in enumerate(zip(TEXTS, values, turned, strict=True))
    ]
    return pl.DataFrame(rows, strict=False).with_columns(pl.col("judge").cast(kind))


def outcome(table):
    try:
        options = {
            "features": "verdict:judge",
            "public_columns": ["judge"],
            "bad_rows": "quarantine",
        }
        read = read_public_pairs(table, **options)
    except LabelguardError as error:
        return error.exit_code, str(error)
    values = read.table["feature_judge"].to_numpy()
    return read.table["prompt"].to_pylist(), values.tobytes(), read.skipped


@pytest.mark.quick("values1", "values3", "values4", "values7")
@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ((0.1, -2.5, 0.0), pl.Float64),
        ((0.1, -2.5, -0.0), pl.Float32),
        ((3, -128, 0), pl.Int16),
        ((3, -(2**63) + 1, 2**53 + 1), pl.Int64),
        ((0.1, NAN, 0.2), pl.Float64),
        ((0.1, float("inf"), None), pl.Float32),
        ((0.25, -1.5, 0.5), pl.Decimal(6, 2)),
        ((0.1, -2.5, 0.0), pl.String),
    ],
)
def test_a_signed_verdict_does_not_tell_where_the_sides_stood(values, kind):
    worlds = [write(values, turned, kind) for turned in itertools.product((0, 1), repeat=3)]
    first, *others = map(outcome, worlds)
    assert others == [first] * len(others)


def test_the_sign_is_that_of_the_first_side():
    table = write((0.5, -2.0, 1.0), (0, 1, 0), pl.Float64)
    read = read_public_pairs(table, features="verdict:judge", public_columns=["judge"]).table
    values = {row["prompt"]: row["feature_judge"] for row in read.to_pylist()}
    assert values == {"p0": 0.5, "p1": -2.0, "p2": 1.0}


@pytest.mark.parametrize("kind", [pl.String, pl.Boolean])
def test_a_signed_verdict_is_a_number(kind):
    table = write((1, 1, 1), (0, 0, 0), pl.Int8).with_columns(pl.col("judge").cast(kind))
    with pytest.raises(InvalidLabels, match="expected numbers"):
        read_public_pairs(table, features="verdict:judge", public_columns=["judge"])


def test_a_signed_verdict_does_not_stand_beside_the_chosen_side():
    """There its sign would have been made with the answer at hand."""
    table = write((0.5, -2.0, 1.0), (0, 0, 0), pl.Float64)
    table = table.rename({"response_a": "chosen", "response_b": "rejected"})
    with pytest.raises(InvalidLabels, match="no column judge_chosen and judge_rejected"):
        read_public_pairs(table, features="verdict:judge", public_columns=["judge"])


@pytest.mark.parametrize("ends", [("_a", "_b"), ("_chosen", "_rejected")])
def test_scores_of_both_sides_do_not_tell_where_they_stood(ends):
    sides = ("response_a", "response_b") if ends[0] == "_a" else ("chosen", "rejected")
    worlds = []
    for texts, values in ((("x", "y"), (0.1, NAN)), (("y", "x"), (NAN, 0.1))):
        row = {"prompt": "p", "labeler_id": "u", **dict(zip(sides, texts, strict=True))}
        good = row | {"prompt": "q", "judge" + ends[0]: -0.0, "judge" + ends[1]: -0.0}
        bad = row | {"judge" + ends[0]: values[0], "judge" + ends[1]: values[1]}
        worlds.append(outcome(pl.DataFrame([bad, good])))
    assert worlds[0] == worlds[1]
    assert worlds[0][0] == ["q"] and worlds[0][1] == np.zeros(1).tobytes()
