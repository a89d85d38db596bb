"""The first release of a project: what it fixes is said, and asked, before anything is charged."""

import tempfile
from dataclasses import asdict
from typing import Any

import polars as pl
import pytest
from support import world
from support.installed import without
from support.preferences import dump, files
from support.surveys import survey

import labelguard as lg
from labelguard.budget.policy import choose_usual_delta
from labelguard.errors import NoProject, NotAgreed
from labelguard.extras import MissingExtra
from labelguard.project import policies
from labelguard.release.plan import Preview
from labelguard.release.privatize import plan

SMALL = survey(labelers=24, per_labeler=6, items=40)
COLUMNS: dict[str, Any] = {
    "mechanism": "auto",
    "features": "columns:score,length",
    "public_columns": ["score", "length"],
}
RR: dict[str, Any] = {"mechanism": "rr"}


def flip(table):
    """The same rows with other labels, in another order."""
    return table.with_columns(label=1 - pl.col("label")).sort("label", "labeler_id")


def preview_release(project, source=SMALL, **options):
    """What a release shows before it is charged, where nobody agrees to it."""
    shown: list[Preview] = []

    def decline(found):
        shown.append(found)
        raise NotAgreed("no")

    with pytest.raises(NotAgreed):
        lg.privatize(source, project=project, review=decline, **options)
    [found] = shown
    return found


@pytest.mark.quick("rr")
@pytest.mark.parametrize("options", [RR, COLUMNS], ids=["rr", "auto"])
def test_who_declines_is_charged_nothing_and_fixes_nothing(options, project):
    before = dump(project.state)
    preview_release(project, **options)
    after = dump(project.state)
    assert {name: rows for name, rows in after.items() if name != "meta"} == {
        name: rows for name, rows in before.items() if name != "meta"
    }
    assert not list(project.releases.iterdir()) and not list(project.private_maps.iterdir())
    release = lg.privatize(SMALL, project=project, epsilon=0.5, **options)
    assert release.card["privacy"]["epsilon"] == 0.5


@pytest.mark.quick("rr")
@pytest.mark.parametrize("options", [RR, COLUMNS], ids=["rr", "auto"])
def test_what_was_shown_is_what_is_released(options, project):
    planned = plan(SMALL, project=project, **options)
    shown = planned.preview
    assert repr(planned) == f"Plan(preview={shown!r})", "neither rows nor prices"
    assert shown == preview_release(project, **options)
    assert shown.first and shown.usual == ["epsilon", "delta"]
    release = lg.privatize(SMALL, project=project, **options)
    card = release.card
    assert card["mechanism"] == shown.mechanism
    assert card["privacy"]["epsilon"] == shown.epsilon == 3
    assert card["privacy"]["delta"] == shown.delta == choose_usual_delta(24)
    assert card["counts"]["rows"] == shown.labels
    assert card["counts"]["charged"] == shown.charged
    assert card["budget"]["left"] == shown.left
    if shown.mechanism == "rr":
        flips = lg.load(release)["flip_probability"]
        assert shown.label_error == pytest.approx(flips.mean(), rel=1e-12)


def test_a_preview_writes_nothing_into_a_project(project):
    for _ in range(2):
        before = files(project.state)
        plan(SMALL, project=project, **RR)
        after = files(project.state)
        assert {**after, "lock": b""} == {**before, "lock": b""}
        lg.privatize(SMALL, project=project, **RR)


def test_a_preview_needs_no_project_and_leaves_none(tmp_path, monkeypatch):
    room = tmp_path / "tmp"
    room.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(room))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    assert plan(SMALL, **RR).preview.first
    assert not list(room.iterdir()) and not (tmp_path / "state").exists()
    with pytest.raises(NoProject):
        plan(SMALL, project=tmp_path / "elsewhere", **RR)


@pytest.mark.parametrize("name", ["LABELGUARD_KEYS", "LABELGUARD_LEDGER_URL"])
def test_keys_and_a_ledger_of_a_project_are_not_taken_for_a_preview_without_one(
    name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, str(tmp_path / "given"))
    with pytest.raises(NoProject):
        plan(SMALL, **RR)
    assert not (tmp_path / "given").exists()


@pytest.mark.quick("rr")
@pytest.mark.parametrize("options", [RR, COLUMNS], ids=["rr", "auto"])
def test_a_preview_does_not_depend_on_labels(options, project):
    one, other = (plan(table, project=project, **options) for table in (SMALL, flip(SMALL)))
    assert one.preview == other.preview


def test_what_was_released_is_said_to_be_free(project):
    made = lg.privatize(SMALL, project=project, uses=2, **RR)
    again = plan(SMALL, project=project, **RR).preview
    assert again.reused == made.id and not again.first
    other = plan(SMALL.head(100), project=project, **RR).preview
    assert other.reused is None and other.charged == 0 and other.labels == 100
    anew = plan(SMALL.head(60), project=project, again=True, exhausted="drop", **RR).preview
    assert 0 < anew.charged <= 60


@pytest.mark.slow
def test_a_project_keeps_the_features_of_its_first_release(project, monkeypatch):
    shape = {"mechanism": "statistic", "components": 2, "ridge": 1.0, "uses": 3}
    with monkeypatch.context() as light:
        without(light, "torch")
        first = lg.privatize(SMALL, project=project, epsilon=8, **shape)
    assert first.card["statistic"]["features"] == "length+style+text"
    fresh = SMALL.with_columns(prompt=pl.lit("later: ") + pl.col("prompt"))
    later = lg.privatize(fresh, project=project, mechanism="auto", components=2, ridge=1.0)
    assert later.card["statistic"]["features"] == "length+style+text"


def test_features_that_cannot_be_computed_here_are_refused_before_anything_is_read(
    project, monkeypatch
):
    without(monkeypatch, "transformers")
    with pytest.raises(MissingExtra, match=r"transformers.*pip install '.*\[encoders\]'"):
        lg.privatize(
            "nowhere.parquet", project=project, mechanism="statistic", features="minilm+length"
        )


def test_a_first_release_is_public_in_all_it_fixes(tmp_path, monkeypatch):
    """δ, mechanism and allowances come from public counts: other labels, the same policy."""

    def policy(table, name):
        world.fix(monkeypatch)
        project = lg.init(tmp_path / name)
        lg.privatize(table, project=project, recurring="weekly", duration="8w", **COLUMNS)
        return asdict(policies.show(project=project))

    assert policy(SMALL, "one") == policy(flip(SMALL), "other")
