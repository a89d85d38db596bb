"""Leaderboards and coefficients of released heads, from the release alone."""

import json
import shutil

import numpy as np
import polars as pl
import pytest
from support.arenas import SOURCES, STRENGTHS, arena
from support.commands import run

import labelguard as lg
from labelguard.analysis.leaderboard import find_significant_leads, leaderboard
from labelguard.errors import LabelguardError, ProjectError
from labelguard.release.coefficients import load_summarized_head, summarize_coefficients
from labelguard.release.head import FILE
from labelguard.storage import arrays


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return lg.init(tmp_path_factory.mktemp("arena"), max_epsilon=1e6)


@pytest.fixture(scope="module")
def released(project):
    return lg.privatize(arena(), project=project, **SOURCES)


# ---------------------------------------------------------------- ranks


def test_who_is_surely_ahead_follows_from_errors_that_are_shared():
    rng = np.random.default_rng(0)
    shared, own = rng.normal(size=(5_000, 1)), rng.normal(size=(5_000, 3))
    score = np.array([10.0, 0.0, -1.0])
    # What moves all scores alike moves no difference.
    ahead = find_significant_leads(score, 50 * shared + own)
    assert ahead.tolist() == [[False, True, True], [False] * 3, [False] * 3]
    assert not find_significant_leads(score, 50 * own).any()


# ---------------------------------------------------------------- of a release


def test_scores_and_ranks_are_those_of_the_judges(released):
    [board] = leaderboard(released.path).boards
    of = {one.source: one for one in board.standings}
    assert set(of) == set(STRENGTHS)
    assert np.mean([one.score for one in board.standings]) == pytest.approx(1000)
    # A judge who met a pair twice was heard once.
    assert 0.9 < sum(one.comparisons for one in board.standings) / (2 * arena().height) <= 1
    assert of["alpha"].low > 1000 > of["epsilon"].high
    assert of["alpha"].rank < of["delta"].rank
    for one in board.standings:
        assert one.low < one.score < one.high
        assert one.clustered > one.high - one.score  # the bound takes nothing for granted
        assert 1 <= one.rank <= one.worst_rank <= 5


def test_a_copy_of_the_release_is_enough(released, tmp_path):
    shutil.copytree(released.path, tmp_path / "copy")
    assert leaderboard(tmp_path / "copy") == leaderboard(released.path)


def test_the_release_tells_nothing_of_who_compared_what(released):
    found = arrays.load_arrays(released.path / FILE)
    components, rows = 4, arena().height
    assert all(rows not in values.shape for values in found.values())
    assert found["described/standings/gain"].shape == (components, components)


@pytest.mark.slow
def test_strata_have_boards_of_their_own(tmp_path):
    project = lg.init(tmp_path / "strata", max_epsilon=1e6)
    asked = SOURCES | {"features": "source:model,by=language+length", "components": 6}
    release = lg.privatize(arena(30), project=project, **asked)
    found = leaderboard(release.path)
    assert [board.stratum for board in found.boards] == ["de", "en"]
    notes = " ".join(found.notes)
    assert "net of length" in notes and "only 6 components were released" in notes
    assert leaderboard(release.path, "en").boards == found.boards[1:]
    with pytest.raises(LabelguardError, match="no stratum 'fr'; found: de, en"):
        leaderboard(release.path, "fr")
    told = summarize_coefficients(load_summarized_head(release.path))
    assert sum(group.share for group in told.groups) == pytest.approx(1)
    assert [group.group for group in told.groups] == ["source:model,by=language", "length"]
    output = tmp_path / "board.png"
    result = run("leaderboard", release.path, "-o", output, code=1)
    assert "name one with --stratum" in result.output
    run("leaderboard", str(release.path), "--stratum", "de", "-o", str(output))
    assert output.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_names_with_colons_are_theirs(tmp_path):
    frame = arena(30).with_columns(
        pl.col("language").replace_strict({"de": "eu: de", "en": "eu: en"}),
        pl.col("model_a", "model_b").replace("alpha", "lab: alpha"),
    )
    # A stratum in which one system meets nobody but itself has no board, and its own name.
    lonely = frame.head(1).with_columns(
        language=pl.lit("fr"), model_a=pl.lit("x: y"), model_b=pl.lit("x: y"), prompt=pl.lit("q")
    )
    project = lg.init(tmp_path / "strata", max_epsilon=1e6)
    asked = SOURCES | {"features": "source:model,by=language", "components": 8}
    release = lg.privatize(pl.concat([frame, lonely]), project=project, **asked)
    found = leaderboard(release.path)
    assert [board.stratum for board in found.boards] == ["eu: de", "eu: en"]
    expected = set(STRENGTHS) - {"alpha"} | {"lab: alpha"}
    assert {one.source for one in found.boards[0].standings} == expected
    assert found.alone == ("fr: x: y",)
    assert leaderboard(release.path, "eu: en").alone == ()
    assert leaderboard(release.path, "fr").alone == found.alone


@pytest.mark.slow
def test_comparisons_with_systems_of_later_are_counted(tmp_path):
    project = lg.init(tmp_path / "windows", max_epsilon=1e6)
    asked = SOURCES | {"project": project, "uses": 2}
    first = lg.privatize(arena(15), **asked)
    assert "did not know" not in " ".join(leaderboard(first.path).notes)
    newer = arena(15, seed=1, first=15).with_columns(
        pl.col("model_a", "model_b").replace("epsilon", "newest"),
        pl.col("response_a", "response_b").str.replace("epsilon", "newest"),
    )
    second = lg.privatize(pl.concat([arena(15), newer]), **asked)
    head = load_summarized_head(second.path)
    met = newer.filter((pl.col("model_a") == "newest") | (pl.col("model_b") == "newest")).height
    assert head.summary is not None and 0.9 * met < head.summary.unknown <= met
    said = f"{head.summary.unknown:,} comparisons of this sum were with sources"
    assert said in " ".join(leaderboard(second.path).notes)
    assert said in " ".join(second.card["head"]["notes"]) and "--again" in said + str(second.card)


@pytest.mark.slow
def test_what_nothing_connects_is_not_compared(tmp_path):
    both = {"alpha", "beta"}
    apart = arena(20).filter(pl.col("model_a").is_in(both) == pl.col("model_b").is_in(both))
    release = lg.privatize(apart, project=lg.init(tmp_path, max_epsilon=1e6), **SOURCES)
    one, two = leaderboard(release.path).boards
    assert {s.source for s in one.standings} == set(STRENGTHS) - both
    assert {s.source for s in two.standings} == both


# ---------------------------------------------------------------- commands


def test_the_command_prints_and_writes_it(released, tmp_path):
    text = run("leaderboard", str(released.path)).output
    assert "alpha" in text and "share rank" in text and "Elo points" in text
    found = json.loads(run("leaderboard", str(released.path), "--json").output)
    order = [(one["rank"], one["source"]) for one in found["boards"][0]["standings"]]
    assert order == sorted(order) and order[0] == (1, "alpha")
    for kind in ("html", "md", "json", "svg"):
        run("leaderboard", str(released.path), "-o", str(tmp_path / f"board.{kind}"))
        assert "alpha" in (tmp_path / f"board.{kind}").read_text()
    page = (tmp_path / "board.html").read_text()
    assert "default-src" in page and "<script" not in page
    assert "<title>Leaderboard of release" in page and "labelguard report" not in page


# ---------------------------------------------------------------- what is refused


def test_heads_without_a_summary_are_refused(released, tmp_path):
    found = arrays.load_arrays(released.path / FILE)
    old = {name: values for name, values in found.items() if not name.startswith("described/")}
    (tmp_path / FILE).write_bytes(arrays.pack_arrays(old))
    with pytest.raises(ProjectError, match="does not say what its columns are"):
        leaderboard(tmp_path)


def groups(*found):
    return np.frombuffer(json.dumps(found).encode(), np.uint8)


GROUP = {"name": "source:model", "start": 0, "stop": 5, "names": None, "strata": None}
DAMAGES: dict[str, tuple[str, np.ndarray | None]] = {
    "no group": ("described/groups", groups()),
    "deep": ("described/groups", np.frombuffer(b"[" * 100_000, np.uint8)),
    "a gap": ("described/groups", groups(GROUP | {"start": 1})),
    "a group of text": ("described/groups", groups("source:model")),
    "spread": ("described/spread", np.zeros(1)),
    "unknown": ("described/unknown", np.array(-1)),
    "theta": ("described/standings/theta", np.zeros(3)),
    "gain": ("described/standings/gain", np.zeros(1)),
    "a large least": ("described/standings/least", np.array([10**9])),
    "kinds": ("described/standings/kinds", np.array(["zz"])),
    "edges of fractions": ("described/standings/edges", np.array([[0.5, 1.5, 2.5]])),
    "no scale": ("scale", None),
    "a scale that is no number": ("scale", np.array(np.nan)),
    "no groups": ("described/groups", None),
    "groups without strata": ("described/groups", groups({k: GROUP[k] for k in list(GROUP)[:4]})),
    "a start in words": ("described/groups", groups(GROUP | {"start": "0"})),
    "too few names": ("described/groups", groups(GROUP | {"names": ["a"]})),
}


@pytest.mark.quick("no group", "a group of text", "unknown", "kinds")
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_heads_are_refused(released, tmp_path, damage):
    name, values = DAMAGES[damage]
    changed = arrays.load_arrays(released.path / FILE) | {name: values}
    present = {key: array for key, array in changed.items() if array is not None}
    (tmp_path / FILE).write_bytes(arrays.pack_arrays(present))
    with pytest.raises(ProjectError, match="damaged"):
        leaderboard(tmp_path)
