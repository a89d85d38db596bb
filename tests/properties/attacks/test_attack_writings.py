"""One chat can be written in several ways that are one content: an empty object or null, 0 or -0.

A release publishes chats as they were written. Of several writings by one labeler, the one that
came last in the file, or that had the higher label, was published: a label in plain sight.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.preferences import STATISTIC

import labelguard as lg

ITEMS = 8
WRITINGS: dict[str, tuple[Any, Any]] = {
    "zeros": (0.0, -0.0),
    "objects": (None, {"k": None}),
}


def chat(text: str, more: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text, "more": more}]


def rows(kind: str, labels: tuple[int, int], *, layout: str, labelers: bool) -> list[Any]:
    """Every content twice, in its two writings; the export is sorted by its labels."""
    other = 0.5 if kind == "zeros" else {"k": 1}
    found: list[tuple[int, dict[str, Any]]] = []
    for item in range(ITEMS):
        for writing, label in zip(WRITINGS[kind], labels, strict=True):
            row: dict[str, Any] = {"labeler_id": f"x{item % 2}"} if labelers else {}
            row["prompt"] = chat(f"question {item}", writing)
            if layout == "pairs":
                sides = {"response_a": chat("yes", other), "response_b": chat("no", writing)}
                row |= sides | {"label": label}
            else:
                names = ("rejected", "chosen") if label else ("chosen", "rejected")
                row |= {names[0]: chat("no", writing), names[1]: chat("yes", other)}
            found.append((label, row))
    return [row for _, row in sorted(found, key=lambda one: one[0])]


@pytest.mark.parametrize(
    ("unit", "mechanism"),
    [
        ("labeler", "rr"),
        ("item", "statistic"),
        pytest.param("item", "rr", marks=pytest.mark.slow),
        pytest.param("labeler", "statistic", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("layout", ["pairs", pytest.param("chosen", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", WRITINGS)
def test_which_writing_of_a_chat_is_published_tells_no_label(
    kind: str, layout: str, unit: Any, mechanism: str, tmp_path: Path
) -> None:
    published = set()
    lg.init(tmp_path / "made")
    for labels in ((0, 0), (0, 1), (1, 0), (1, 1)):
        for step in (1, -1):
            here = tmp_path / "here"
            shutil.rmtree(here, ignore_errors=True)
            shutil.copytree(tmp_path / "made", here)
            export = rows(kind, labels, layout=layout, labelers=unit == "labeler")[::step]
            source = here / "labels.jsonl"
            source.write_text("".join(json.dumps(row) + "\n" for row in export))
            options: dict[str, Any] = {"unit": unit, "max_labels_per_labeler": 8}
            if mechanism == "statistic":
                options = STATISTIC | {"features": "length", "unit": unit, "components": 1}
            made = lg.privatize(source, project=here, epsilon=3, delta=1e-5, **options)
            told = [
                (row["prompt"], *sorted((row["chosen"], row["rejected"]), key=repr))
                for row in lg.load(made).to_dicts()
            ]
            published.add(repr(told))
    assert len(published) == 1
