"""Which of two chats was chosen must not decide what types the columns are read as.

In the chosen layout the label is the column a side stands in, and types are guessed per column.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import labelguard
from labelguard.errors import LabelguardError

ODD = [{}, {"k": None}, {"k": {}}, {"k": []}, {"k": 1}, {"k": "text"}, None]


def chat(args: Any) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": "calls", "tool": {"args": args}}]


def world(path: Path, odd: Any, swapped: tuple[bool, ...], kind: str) -> tuple[Any, ...]:
    """What comes out if the labelers with True preferred the other side."""
    rows = []
    for number, swap in enumerate(swapped):
        sides = [chat(odd), chat({"city": "Rome"})]
        chosen, rejected = sides[::-1] if swap else sides
        prompt = [{"role": "user", "content": f"p{number}"}]
        rows.append(
            {"labeler_id": f"x{number}", "prompt": prompt, "chosen": chosen, "rejected": rejected}
        )
    source: Any = path / "labels.jsonl"
    if kind == "jsonl":
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        source = pa.Table.from_pylist(rows)
    try:
        release = labelguard.privatize(source, mechanism="rr", epsilon=3, delta=1e-5, project=path)
    except LabelguardError as error:
        return type(error), str(error).replace(str(path), "")
    frame = labelguard.load(release)
    return str(frame.schema), sorted(frame["item_id"]), release.card["counts"]


@pytest.mark.parametrize(
    ("odd", "kind"),
    [
        *(pytest.param(odd, "jsonl", id=f"{odd}-jsonl") for odd in ODD),
        pytest.param({"k": None}, "table"),
        *(
            pytest.param(odd, "table", id=f"{odd}-table", marks=pytest.mark.slow)
            for odd in ODD
            if odd != {"k": None}
        ),
    ],
)
def test_no_swap_of_sides_changes_ids_types_or_the_outcome(
    odd: Any, kind: str, tmp_path: Path
) -> None:
    outcomes = []
    for number, swapped in enumerate(((False, False), (False, True), (True, True))):
        directory = tmp_path / str(number)
        labelguard.init(directory)
        outcomes.append(world(directory, odd, swapped, kind))
    assert outcomes == outcomes[:1] * len(outcomes)
