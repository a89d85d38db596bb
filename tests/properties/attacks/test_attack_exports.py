"""What was answered in a tool decided how its export was read, or was published beside the labels.

Every export is staged as it would be for a release; messages count as published.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest
from support.published import Outcome, read

from labelguard.ingest.layouts import Reading
from labelguard.keys.keyring import KeyRing

Row = dict[str, Any]
Reader = Callable[..., Outcome]
TIMES = "2024-01-01T00:00:00Z"


@pytest.fixture
def staged(tmp_path: Path) -> Reader:
    """Everything that is public of an input, labels apart."""
    places = (tmp_path / f"staged-{number}" for number in itertools.count())

    def outcome(source: Any, **reading: Any) -> Outcome:
        given = Reading(**{"columns": {}, **reading})
        return read(source, next(places), KeyRing.unkeyed(), given, quarantine=True)

    return outcome


def as_csv(rows: list[Row], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.csv.write_csv(pa.Table.from_pylist(rows), path)
    return path


def as_json(rows: list[Row], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def texts(number: int) -> Row:
    return {
        "prompt": f"p{number}",
        "response_a": f"a{number}",
        "response_b": f"b{number}",
    }


def rated(number: int, labeler: str) -> Row:
    """A row of Label Studio's CSV, but for its control tags."""
    return texts(number) | {"annotator": labeler, "annotation_id": number, "lead_time": 1}


def judged(number: int, labeler: str) -> Row:
    """A row of Potato's CSV, but for its schemas."""
    return texts(number) | {"instance_id": number, "user_id": labeler}


@pytest.mark.parametrize(
    ("key", "row", "beside"),
    [
        ("pref", rated, {}),
        ("quality", rated, {"pref": "left"}),
        ("Pref", rated, {}),
        ("pref.selection", judged, {}),
        ("conf.likert", judged, {"pref.selection": "A"}),
    ],
)
def test_directories_named_by_answers_of_an_export_are_refused_without_saying_one(
    key: str, row: Callable[[int, str], Row], beside: Row, staged: Reader, tmp_path: Path
) -> None:
    blank = row(2, "") | beside  # A bad row: its message would name the file.
    as_csv([row(1, "u") | beside, blank], tmp_path / f"in/{key}=left/x.csv")
    as_csv([row(3, "u") | beside], tmp_path / f"in/{key}=right/x.csv")
    message = str(staged(tmp_path / "in").public)
    assert f"directories are named by {key.lower()}, so that" in message
    assert f"{key}=" not in message


@pytest.mark.parametrize("key", ["label", "mine", "winner"])
def test_directories_named_by_labels_are_refused_before_a_file_is_opened(
    key: str, staged: Reader, tmp_path: Path
) -> None:
    as_csv([texts(1)], tmp_path / f"in/{key}=1/x.csv").write_text('prompt,label\n"a,b\n')
    reading: Row = {"mine": {"columns": {"label": "mine"}}, "winner": {"question": "winner"}}.get(
        key, {}
    )
    message = str(staged(tmp_path / "in", **reading).public)
    assert f"directories are named by {key}, so that" in message


@pytest.mark.parametrize("key", ["split", "date"])
def test_directories_named_by_what_nobody_was_asked_are_read(
    key: str, staged: Reader, tmp_path: Path
) -> None:
    as_csv([judged(1, "u") | {"pref.selection": "A"}], tmp_path / f"in/{key}=x/x.csv")
    assert len(staged(tmp_path / "in", split=None).labels) == 1
