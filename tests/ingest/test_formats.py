"""Published shapes of preference data are read as what they are, whatever their labels say."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.published import (
    SHAPES,
    Outcome,
    Preference,
    Rows,
    as_jsonl,
    as_table,
    question,
    read,
    sides,
)

from labelguard.ingest.layouts import Reading
from labelguard.keys.keyring import KeyRing

NUMBER = 6
FLIP = {"a": "b", "b": "a", "tie": "tie", None: None}


@pytest.fixture(scope="module")
def keys() -> KeyRing:
    return KeyRing.unkeyed()


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Path]:
    return (tmp_path / f"staged-{number}" for number in itertools.count())


def reading(shape: str, **choices: Any) -> Reading:
    labeler = SHAPES[shape].labeler
    columns = {} if labeler in ("judge", "judge_hash") else {"labeler_id": labeler}
    return Reading(columns, **choices)


def preferences(shape: str) -> list[Preference]:
    found: list[Preference] = ["a", "b", "tie", "b", "a", "b"]
    return [*found, None] if SHAPES[shape].blank else found


def rows(shape: str, wanted: list[Preference]) -> Rows:
    return SHAPES[shape].rows(wanted)


def meant(wanted: list[Preference]) -> set[tuple[str, str]]:
    """What was asked, and the response that is preferred."""
    return {
        (question(n), "a tie" if p == "tie" else sides(n)[0 if p == "a" else 1])
        for n, p in enumerate(wanted)
        if p is not None
    }


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_recognised_and_says_who_prefers_what(
    shape: str, keys: KeyRing, places: Iterator[Path]
) -> None:
    wanted = preferences(shape)
    found = read(as_table(rows(shape, wanted)), next(places), keys, reading(shape))
    assert found.public[1] == {SHAPES[shape].format}
    assert found.told == meant(wanted)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["table", "jsonl"])
def test_other_labels_change_nothing_but_the_labels(
    shape: str, kind: str, keys: KeyRing, places: Iterator[Path], tmp_path: Path
) -> None:
    """Strengths, scores and reasons change along with the labels."""
    wanted = preferences(shape)

    def outcome(changed: list[Preference]) -> Outcome:
        made = rows(shape, changed)
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        source = as_table(made) if kind == "table" else as_jsonl(made, path, sparse=True)
        found = read(source, next(places), keys, reading(shape))
        hidden = str(found.public).replace(path.name, "input")
        return Outcome(hidden, found.labels)

    first = outcome(wanted)
    flipped = outcome([FLIP[p] for p in wanted])
    assert flipped.public == first.public
    assert {key: (label ^ 1 if label < 2 else label) for key, label in first.labels.items()} == (
        flipped.labels
    )
    ties = outcome([p and "tie" for p in wanted])
    assert ties.public == first.public
    assert set(ties.labels.values()) == {2}
    assert outcome([p and "b" for p in wanted]).public == first.public
