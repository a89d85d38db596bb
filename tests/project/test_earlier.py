"""A project that 0.2.0 left is opened, checked and gone on with by the code of today."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support import earlier

import labelguard as lg
from labelguard.project import ingestion
from labelguard.project.opening import OpenProject
from labelguard.project.project import Project
from labelguard.report import doctor, overview

RR: dict[str, Any] = {"mechanism": "rr"}
STATISTIC: dict[str, Any] = {"mechanism": "statistic", "features": "length"}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return earlier.left(tmp_path / "home")


def values(project: Project, release: str) -> dict[bytes, dict[str, Any]]:
    """The private map of a release, by row keys."""
    files = (project.released / release).glob("*.parquet")
    rows = [row for path in files for row in pq.read_table(path, partitioning=None).to_pylist()]
    return {row["row_key"]: row for row in rows}


def used(project: Project, event: str) -> int:
    """How many uses of all labelers are charged."""
    return sum(row[1] * row[2] for row in OpenProject.open(project).ledger.usage()[event])


def test_everything_in_it_holds(project: Project) -> None:
    assert [finding for finding in doctor.examine(project) if not finding.ok] == []
    assert overview.verify(project, (earlier.LEFT / "anchor.txt").read_text()).ok
    releases = overview.releases(project)
    assert [release.state for release in releases] == ["committed"] * 2


def test_answers_that_it_ingested_or_heard_can_be_read(project: Project, tmp_path: Path) -> None:
    ingestion.ingest(project)
    opened = OpenProject.open(project)
    [source] = ingestion.sources(opened)
    [path] = ingestion.write_out(opened, source, tmp_path / "answers")
    prompts = [json.loads(line)["data"]["prompt"] for line in path.read_text().splitlines()]
    assert sorted(prompts) == [f"prompt {number}" for number in range(1, 8)]


@pytest.mark.parametrize(("number", "options"), [(0, RR), (1, STATISTIC)])
def test_the_same_request_gives_the_release_that_is_there(
    number: int, options: dict[str, Any], project: Project
) -> None:
    released = overview.releases(project)[number]
    labels = earlier.labels().head(earlier.FIRST)
    assert lg.privatize(labels, project=project, **options).id == released.id
    assert len(overview.releases(project)) == 2


def test_labels_that_it_released_keep_their_values_and_only_new_ones_are_charged(
    project: Project,
) -> None:
    before, charged = values(project, overview.releases(project)[0].id), used(project, "rr")
    labels = earlier.labels()
    release = lg.privatize(labels, project=project, **RR)
    everything = values(project, release.id)
    assert len(before) == charged == earlier.FIRST
    assert used(project, "rr") == charged + len(everything) == len(labels)
    assert not everything.keys() & before.keys()
    old = lg.load(project.releases / overview.releases(project)[0].id)
    assert Counter(old.rows()) <= Counter(lg.load(release).rows())
    assert overview.verify(project).ok


def test_a_statistic_goes_on_from_the_window_that_it_left(project: Project) -> None:
    release = lg.privatize(earlier.labels(), project=project, **STATISTIC)
    pairs = earlier.labels().unique(["prompt", "response_a", "response_b"])
    assert lg.score(release, earlier.labels()).height == pairs.height
    assert used(project, "statistic") > 0 and overview.verify(project).ok
