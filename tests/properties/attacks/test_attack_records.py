"""Record ids that number the rows of an export sorted by label: one changed label renumbers them.

Whether the same request came again or a new one told whether a label had changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.preferences import STATISTIC

import labelguard as lg


def numbered(column: str, first: int) -> pa.Table:
    """An export sorted by label, its rows numbered; `first` is one of its labels."""
    rows: list[dict[str, Any]] = [
        {
            "labeler_id": f"x{labeler}",
            "prompt": f"question {item} {'long' * item}",
            "response_a": "yes",
            "response_b": "no answer",
            "label": (labeler + item) % 2 if labeler + item else first,
        }
        for labeler in range(4)
        for item in range(6)
    ]
    rows.sort(key=lambda row: (row["label"], row["labeler_id"], row["prompt"]))
    return pa.Table.from_pylist([row | {column: number} for number, row in enumerate(rows)])


@pytest.mark.quick("record_id-rr")
@pytest.mark.parametrize("mechanism", ["rr", "statistic"])
@pytest.mark.parametrize("column", ["record_id", "submitted_at"])
def test_numbers_of_rows_make_no_new_request(column: str, mechanism: str, tmp_path: Path) -> None:
    lg.init(tmp_path)
    options: dict[str, Any] = {"project": tmp_path, "epsilon": 3, "delta": 1e-5}
    if mechanism == "statistic":
        options |= STATISTIC | {"features": "length", "components": 1}
    made = [lg.privatize(numbered(column, label), **options) for label in (0, 1, 0)]
    assert {release.id for release in made} == {made[0].id}
