"""A process killed at any step loses nothing, charges nothing twice and releases one answer."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from preferences import (
    Public,
    dump,
    files,
    fixed_bytes,
    opinions,
    pairs,
    public,
    rankings,
    write,
)

import labelguard as lg
from labelguard import overview

PRICE: dict[str, Any] = {
    "epsilon": 3.0,
    "delta": 1e-5,
    "max_labels_per_labeler": 12,
    "workers": 1,
}
AGAIN = PRICE | {"again": True, "exhausted": "drop"}
STATISTIC: dict[str, Any] = {
    "mechanism": "statistic",
    "epsilon": 3.0,
    "delta": 1e-5,
    "features": "length",
    "components": 1,
    "whitening": 0.5,
    "floor": 1e-3,
    "clip_quantile": 0.5,
    "ridge": 1.0,
    "workers": 1,
}
EVERY, OFTEN = 1, 9
"""How many steps apart processes are killed: in the slow suite, and in the normal one."""


@pytest.fixture(autouse=True)
def same_in_every_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("labelguard.clock.now", lambda: "2026-01-01T00:00:00Z")
    fresh_randomness(monkeypatch)
    yield


def fresh_randomness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labelguard.keys.random_bytes", fixed_bytes)


def crash(*jobs: dict[str, Any]) -> list[dict[str, int]]:
    """How processes ended that did these jobs one after the other."""
    driver = Path(__file__).with_name("crashing.py")
    done = subprocess.run(
        [sys.executable, str(driver)], input=json.dumps(jobs), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    ends: list[dict[str, int]] = json.loads(done.stdout)
    return ends


def killed(*jobs: dict[str, Any]) -> None:
    """Do these jobs; all of them must end by SIGKILL."""
    assert [end["signal"] for end in crash(*jobs)] == [9] * len(jobs)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Labels of five labelers."""
    asked = public(labelers=5, per_labeler=6, items=9)
    return write(pairs(asked, opinions(len(asked), 1)), tmp_path / "small.parquet")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Those labels and more of the same labelers."""
    asked = public(labelers=5, per_labeler=9, items=12, seed=5)
    return write(pairs(asked, opinions(len(asked), 2)), tmp_path / "large.parquet")


def seen(project: Path) -> dict[str, object]:
    """Everything in a project but how often somebody began to work."""
    state = project / ".labelguard"
    contents: dict[str, object] = {
        name: data for name, data in files(state).items() if name != "ledger.sqlite3"
    }
    tables = dump(state)
    tables["meta"] = [row for row in tables["meta"] if row[0] != "epoch"]
    return contents | tables


def steps_of(job: dict[str, Any], base: Path) -> int:
    """How many steps a job takes that nobody kills."""
    trial = base.with_name("trial")
    if base.exists():
        shutil.copytree(base, trial)
    [end] = crash(job | {"project": str(trial)})
    assert end["signal"] == 0 and end["steps"] > 10
    return end["steps"]


def assert_sound(project: Path) -> None:
    verdict = overview.verify(project)
    assert verdict["ok"], verdict["fault"]


@pytest.mark.parametrize(
    "apart", [pytest.param(EVERY, marks=pytest.mark.slow, id="every step"), OFTEN]
)
@pytest.mark.parametrize(
    "options", [PRICE, AGAIN, STATISTIC], ids=["first time", "again", "statistic"]
)
def test_killed_at_a_step_the_same_command_ends_as_if_nothing_had_happened(
    options: dict[str, Any],
    apart: int,
    small: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    again = "again" in options
    base = tmp_path / "base"
    lg.init(base)
    if again:
        lg.privatize(small, project=base, **PRICE)
    expected = tmp_path / "expected"
    shutil.copytree(base, expected)
    fresh_randomness(monkeypatch)
    lg.privatize(small, project=expected, **options)

    job = {"source": str(small), "options": options}
    steps = range(1 + again, steps_of(job, base) + 1, apart)
    projects = [tmp_path / f"killed at {step}" for step in steps]
    for project in projects:
        shutil.copytree(base, project)
    killed(
        *(
            job | {"project": str(project), "kill_at": step}
            for project, step in zip(projects, steps, strict=True)
        )
    )
    committed_by = []
    for step, project in zip(steps, projects, strict=True):
        done = [record["state"] for record in overview.releases(project)].count("committed")
        if again and done == 2:  # the killed process had committed: once more is a new event
            committed_by.append(step)
            shutil.rmtree(project / ".labelguard" / "work", ignore_errors=True)
            assert seen(project) == seen(expected), f"killed at step {step}"
            continue
        fresh_randomness(monkeypatch)
        release = lg.privatize(small, project=project, **options)
        assert release.notes == (), step
        assert seen(project) == seen(expected), f"killed at step {step}"
        assert_sound(project)
    assert len(committed_by) < len(steps) / 4


@pytest.mark.parametrize("apart", [pytest.param(EVERY, marks=pytest.mark.slow, id="every step"), 4])
def test_killed_while_a_project_is_made_it_can_be_made_again(
    apart: int, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = steps_of({}, tmp_path / "base")
    steps = range(1, total, apart)  # at the last step all is written
    projects = [tmp_path / f"killed at {step}" for step in steps]
    killed(
        *(
            {"project": str(project), "kill_at": step}
            for project, step in zip(projects, steps, strict=True)
        )
    )
    for project in projects:
        if not (project / ".labelguard" / "labelguard.toml").exists():
            lg.init(project)
        assert lg.privatize(small, project=project, **PRICE).card["counts"]["charged"] == 30
        assert_sound(project)


def charged(project: Path) -> dict[str, tuple[str, int]]:
    return {r["id"]: (r["state"], r["charged"]) for r in overview.releases(project)}


def used(project: Path) -> int:
    return int(overview.budget(project)["used"])


def test_a_charge_that_no_label_was_read_for_is_given_back_to_a_different_command(
    small: Path, large: Path, tmp_path: Path
) -> None:
    project = lg.init(tmp_path / "p").state.parent
    killed(
        {
            "source": str(small),
            "project": str(project),
            "options": PRICE,
            "kill_after": "charge",
        }
    )
    [(first, state)] = charged(project).items()
    assert state == ("reserved", 30) and used(project) == 30
    release = lg.privatize(large, project=project, **PRICE)
    [note] = release.notes
    assert first in note and "given back" in note
    assert charged(project) == {first: ("refunded", 0), release.id: ("committed", 45)}
    assert used(project) == 45
    assert_sound(project)
    # The refunded command is a new one now.
    assert lg.privatize(small, project=project, **PRICE).id not in (first, release.id)


@pytest.mark.parametrize("moment", ["start", "randomize", "publish"])
@pytest.mark.parametrize("options", [PRICE, AGAIN], ids=["first time", "again"])
def test_a_release_that_read_labels_stays_charged_until_its_command_finishes_it(
    moment: str, options: dict[str, Any], small: Path, large: Path, tmp_path: Path
) -> None:
    project = lg.init(tmp_path / "p").state.parent
    roomy = {"max_labels_per_labeler": 40}
    before = 0
    if "again" in options:
        lg.privatize(small, project=project, **PRICE | roomy)
        before = 30
    job = {"source": str(small), "project": str(project), "options": options | roomy}
    killed(job | {"kill_after": moment})
    first = overview.releases(project)[-1]["id"]
    assert charged(project)[first] == ("computing", 30)
    assert used(project) == before + 30

    other = lg.privatize(large, project=project, **PRICE | roomy)
    [note] = other.notes
    assert first in note and "stays charged" in note
    finished = lg.privatize(small, project=project, **options | roomy)
    assert finished.id == first and not finished.reused
    assert charged(project)[first] == ("committed", 30)
    assert finished.card["counts"]["charged"] == 30
    assert_sound(project)
    assert not lg.privatize(large, project=project, **PRICE | roomy).notes


def test_a_release_that_was_committed_before_the_crash_is_answered_without_reading_labels(
    small: Path, tmp_path: Path
) -> None:
    project = lg.init(tmp_path / "p").state.parent
    job = {"source": str(small), "project": str(project), "options": PRICE}
    killed(job | {"kill_after": "commit"})
    assert lg.privatize(small, project=project, output=tmp_path / "out", **PRICE).reused
    assert (tmp_path / "out" / "SHA256SUMS").exists()
    assert used(project) == 30


def test_a_release_that_was_charged_is_finished_although_its_labelers_are_exhausted_by_now(
    tmp_path: Path,
) -> None:
    """Rankings are kept whole, so a place may be left that a later command takes."""
    project = lg.init(tmp_path / "p").state.parent
    asked = Public(np.zeros(4, np.int64), np.arange(4))
    table = rankings(asked, opinions(4, 1))  # 3 pairs each, for 10 places
    job = {
        "source": str(write(table, tmp_path / "rankings.parquet")),
        "project": str(project),
        "options": PRICE | {"max_labels_per_labeler": 10},
    }
    killed(job | {"kill_after": "start"})
    single = Public(np.zeros(1, np.int64), np.array([9]))
    other = lg.privatize(
        pairs(single, opinions(1, 1)), project=project, **PRICE | {"max_labels_per_labeler": 10}
    )
    assert other.card["counts"]["charged"] == 1 and used(project) == 10
    finished = lg.privatize(job["source"], project=project, **job["options"])  # type: ignore[arg-type]
    assert finished.card["counts"]["rows"] == 9
    assert_sound(project)
