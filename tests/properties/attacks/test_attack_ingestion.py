"""What goes on in a tool decides nothing that is seen of ingestion, and stops it for nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.tools import Desk, connected, hear

import labelguard as lg
from labelguard.project import ingestion
from labelguard.project.project import CONFIG, Project, find

OPEN: dict[str, Any] = {
    "mechanism": "rr",
    "epsilon": 2000.0,
    "delta": 0.0,
    "max_labels_per_labeler": 16,
    "accept_delta": True,
    "workers": 1,
}
KEEP = '\n[ingest]\nkeep = "0d"\n'
NAMED = 'question = "helpful"\ncolumns = { response_a = "answer1", response_b = "answer2" }\n'


def made(directory: Path, patch: pytest.MonkeyPatch, more: str = "") -> tuple[Project, Desk]:
    project = lg.init(directory / "p", max_epsilon=10_000.0, max_delta=0.5)
    return connected(project, directory, patch, more)


def configured(project: Project, old: str, new: str) -> Project:
    """The project with its labelguard.toml changed."""
    path = project.state / CONFIG
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return find(project.state.parent)


@pytest.mark.parametrize("side", ["left", "right", None])
def test_whether_an_answer_is_a_private_skip_does_not_stop_its_forgetting(
    side: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, desk = made(tmp_path, monkeypatch, NAMED + KEEP)
    hear(project, desk.answer("maria", 1, side))
    ingestion.ingest(project)
    lg.privatize(project=project, skips="tie", **OPEN)
    assert ingestion.ingest(project) == ingestion.Ingested(0, 0, 0, 0, 1)


def test_what_was_only_skipped_does_not_stop_ingestion_once_the_rest_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, desk = made(tmp_path, monkeypatch, KEEP)
    hear(project, desk.answer("maria", 1, "left", harmless="left"), desk.answer("otto", 1, None))
    ingestion.ingest(project)
    for question in ("helpful", "harmless"):
        lg.privatize(project=project, question=question, **OPEN)
    assert ingestion.ingest(project).forgotten == 1
    assert ingestion.ingest(project).forgotten == 0
    # Nor does an answer to one question alone, where two were asked.
    hear(project, desk.answer("zoe", 1, "left"))
    assert ingestion.ingest(project).answers == 1
    assert ingestion.ingest(project).forgotten == 0
