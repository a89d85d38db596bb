"""An attack by whoever puts one pair into two rankings: which of them it counts in tells its label.

Rankings are kept or dropped whole. With room for three labels, which of the two fits whole depends
on where the pair is counted.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from support import world

import labelguard as lg

LABELERS = 40


def survey(label: int) -> pa.Table:
    """Everybody compares X in two rankings, the second time the other way round."""
    rows = [
        {
            "labeler_id": f"worker {labeler}",
            "ranking_id": f"{ranking} of {labeler}",
            "prompt": f"question {item}",
            "response_a": "yes",
            "response_b": "no",
            "label": said if item == "X" else 1,
        }
        for labeler in range(LABELERS)
        for ranking, items, said in (("one", "XAB", label), ("two", "XCDE", 1 - label))
        for item in items
    ]
    return pa.Table.from_pylist(rows)


def test_which_of_two_rankings_a_pair_counts_in_does_not_depend_on_its_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.fix_randomness(monkeypatch)
    kept = []
    for label in (0, 1):
        release = lg.privatize(
            survey(label),
            epsilon=3,
            delta=1e-5,
            max_labels_per_labeler=3,
            project=lg.init(tmp_path / str(label)),
        )
        kept.append(sorted(lg.load(release)["item_id"]))
    assert kept[0] == kept[1]
