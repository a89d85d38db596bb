"""A process killed at any step loses nothing, charges nothing twice and releases one answer."""

from typing import Any

import numpy as np
import pytest
from support.copies import copy_project
from support.crashes import assert_sound, crash, killed, steps_of
from support.preferences import (
    STATISTIC,
    Public,
    files,
    notes,
    opinions,
    pairs,
    public,
    rankings,
    spent,
    write,
)
from support.releases import make_release
from support.rounds import some

import labelguard as lg
from labelguard.project.project import find
from labelguard.report import overview

BUDGET: dict[str, Any] = {"mechanism": "rr", "epsilon": 3.0, "delta": 1e-5, "workers": 1}
PRICE = BUDGET | {"uses": 2}
AGAIN = PRICE | {"again": True, "exhausted": "drop"}


pytestmark = pytest.mark.usefixtures("same_in_every_process")


@pytest.fixture
def small(tmp_path):
    """Labels of five labelers."""
    asked = public(labelers=5, per_labeler=6, items=9)
    return write(pairs(asked, opinions(len(asked), 1)), tmp_path / "small.parquet")


@pytest.fixture
def large(tmp_path):
    """Those labels and more of the same labelers."""
    asked = public(labelers=5, per_labeler=9, items=12, seed=5)
    return write(pairs(asked, opinions(len(asked), 2)), tmp_path / "large.parquet")


def test_killed_while_a_project_is_made_it_can_be_made_again(small, tmp_path):
    total = steps_of({"do": "init"}, tmp_path / "base")
    steps = some(range(1, total), 15)  # at the last step all is written
    projects = [tmp_path / f"killed at {step}" for step in steps]
    moments = zip(projects, steps, strict=True)
    killed(*({"do": "init", "project": str(p), "kill_at": step} for p, step in moments))
    for project in projects:
        if not (project / ".labelguard" / "labelguard.toml").exists():
            lg.init(project)
        assert make_release(small, project=project, **PRICE).card["counts"]["charged"] == 5
        assert_sound(project)


def charges(project):
    return {r.id: (r.state, r.charged) for r in overview.list_releases(project)}


def places(project):
    return spent(find(project))


def test_a_charge_that_no_label_was_read_for_is_given_back_to_a_different_command(
    small, large, tmp_path
):
    project = lg.init(tmp_path / "p").state.parent
    job = {"do": "privatize", "source": str(small), "project": str(project), "options": PRICE}
    killed(job | {"kill_after": "charge"})
    [(first, state)] = charges(project).items()
    assert state == ("reserved", 5) and places(project) == 5
    release = make_release(large, project=project, **PRICE)
    [note] = notes(release)
    assert first in note and "given back" in note
    assert charges(project) == {first: ("refunded", 0), release.id: ("committed", 5)}
    assert places(project) == 5
    assert_sound(project)
    # The refunded command is a new one now.
    assert make_release(small, project=project, **PRICE).id not in (first, release.id)


@pytest.mark.parametrize(
    ("moment", "state"), [("start", "computing"), ("draw", "drawn"), ("publish", "drawn")]
)
@pytest.mark.parametrize(
    "options",
    [pytest.param(PRICE, id="first time"), pytest.param(AGAIN, id="again", marks=pytest.mark.slow)],
)
def test_a_release_that_read_labels_stays_charged_until_its_command_finishes_it(
    moment, state, options, small, large, tmp_path
):
    project = lg.init(tmp_path / "p").state.parent
    roomy = {"uses": 3}
    before = 0
    if "again" in options:
        make_release(small, project=project, **PRICE | roomy)
        before = 5
    job = {"do": "privatize", "source": str(small), "options": options | roomy}
    killed(job | {"project": str(project), "kill_after": moment})
    first = overview.list_releases(project)[-1].id
    assert charges(project)[first] == (state, 5)
    assert places(project) == before + 5

    other = make_release(large, project=project, **PRICE | roomy)
    [note] = notes(other)
    assert first in note and "stays charged" in note
    finished = make_release(small, project=project, **options | roomy)
    assert finished.id == first and not finished.reused
    assert charges(project)[first] == ("committed", 5)
    assert finished.card["counts"]["charged"] == 5
    assert_sound(project)
    assert not notes(make_release(large, project=project, **PRICE | roomy))


@pytest.mark.quick("first time-complete")
@pytest.mark.parametrize("moment", ["complete", pytest.param("draw", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "options", [PRICE, AGAIN, BUDGET | STATISTIC], ids=["first time", "again", "statistic"]
)
def test_a_map_is_drawn_afresh_until_it_is_marked_and_from_then_on_published_as_it_is(
    moment, options, small, tmp_path
):
    """Processes that draw fresh bytes: all labels come out alike with a probability below 1e-5."""
    project = lg.init(tmp_path / "p").state.parent
    if "again" in options:
        make_release(small, project=project, **options | {"again": False})
    job = {"do": "privatize", "source": str(small), "options": options, "fresh_randomness": True}
    killed(job | {"project": str(project), "kill_after": moment})
    begun = overview.list_releases(project)[-1]
    marked = moment == "draw"
    assert begun.state == ("drawn" if marked else "computing")
    drawn = files(project / ".labelguard" / "released" / begun.id)
    other = copy_project(project, tmp_path / "other")
    worlds = []
    for number, home in enumerate((project, other)):  # in the second one the labels have changed
        asked = public(labelers=5, per_labeler=6, items=9)
        write(pairs(asked, opinions(len(asked), 1 + number)), small)
        [end] = crash(job | {"project": str(home)})
        assert not end["error"], end
        assert charges(home)[begun.id] == ("committed", begun.charged)
        assert_sound(home)
        published = files(home / ".labelguard" / "releases" / begun.id)
        worlds.append((files(home / ".labelguard" / "released" / begun.id), published))
    assert worlds[0][0].keys() == worlds[1][0].keys() == drawn.keys()
    if marked:
        assert worlds[0] == worlds[1] and worlds[0][0] == drawn
    else:
        assert drawn not in (worlds[0][0], worlds[1][0]) and worlds[0][0] != worlds[1][0]


def test_a_release_that_was_committed_before_the_crash_is_answered_without_reading_labels(
    small, tmp_path
):
    project = lg.init(tmp_path / "p").state.parent
    job = {"do": "privatize", "source": str(small), "project": str(project), "options": PRICE}
    killed(job | {"kill_after": "commit"})
    assert make_release(small, project=project, output=tmp_path / "out", **PRICE).reused
    assert (tmp_path / "out" / "SHA256SUMS").exists()
    assert places(project) == 5


@pytest.mark.slow
def test_a_release_that_was_charged_is_finished_although_its_labelers_are_exhausted_by_now(
    tmp_path,
):
    """Rankings are kept whole, so a place may be left that a later command takes."""
    options = BUDGET | {"max_labels_per_labeler": 10, "block": 1}
    project = lg.init(tmp_path / "p").state.parent
    asked = Public(np.zeros(4, np.int64), np.arange(4))
    table = rankings(asked, opinions(4, 1))  # 3 pairs each, for 10 places
    source = str(write(table, tmp_path / "rankings.parquet"))
    job = {"do": "privatize", "source": source, "project": str(project), "options": options}
    killed(job | {"kill_after": "start"})
    single = Public(np.zeros(1, np.int64), np.array([9]))
    other = make_release(pairs(single, opinions(1, 1)), project=project, **options)
    assert other.card["counts"]["charged"] == 1 and places(project) == 10
    finished = make_release(job["source"], project=project, **options)
    assert finished.card["counts"]["rows"] == 9
    assert_sound(project)
