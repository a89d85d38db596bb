"""A labeler leaves while a release learns: no row of theirs stays in what it keeps on disk."""

from __future__ import annotations

from unittest.mock import Mock

import polars as pl
import pytest
from support.gated import BUDGET, PATIENCE, Gates, labels
from support.surveys import survey

import labelguard as lg
from labelguard.errors import LabelguardError, LedgerError
from labelguard.ledger.ledger import Ledger
from labelguard.project import erasure, policies
from labelguard.project.opening import OpenProject
from labelguard.release.mechanisms.props import Relabelling
from labelguard.report import overview
from labelguard.storage import blocks, buckets

WHO = "3"


@pytest.fixture
def gates(tmp_path, monkeypatch):
    return Gates.install(tmp_path, monkeypatch)


@pytest.fixture
def project(tmp_path):
    return lg.init(tmp_path / "project", max_epsilon=60)


def without(labeler):
    return labels().filter(pl.col("labeler_id") != int(labeler))


def row_keys(project):
    """The keys of rows of theirs that are in private maps."""
    opened = OpenProject.open(project)
    key = opened.keys.labeler_keys(project.namespace, [WHO])
    maps = [record.id for record in opened.ledger.releases.all() if record.map]
    return {row for one in maps for row in opened.private_map.keys_of(one, key)}


def kept_row_keys(project):
    """The keys of rows that releases keep which are under way."""
    tables = [buckets.read_parts(path) for path in project.stages.glob("*/kept/outcomes")]
    return {
        key
        for table in tables
        if table is not None
        for key in blocks.to_list(buckets.blocks(table, "key"))
    }


def assert_given_up(project, learning):
    """The release ended with an error, and nothing that it kept is left."""
    begun = overview.releases(project.state)[-1]
    with pytest.raises(LedgerError, match=f"{begun.id} was given up while it learned"):
        learning.result(PATIENCE)
    assert begun.state == "abandoned" and not list(project.stages.iterdir())


def broken(raw, project, gates):
    """A release whose learner ends with an error in its second stage; its id."""
    gates.break_at(1)
    with pytest.raises(LabelguardError, match="the learner broke"):
        lg.privatize(raw, project=project, **gates.options)
    return overview.releases(project.state)[-1].id


@pytest.mark.quick("erased")
@pytest.mark.parametrize("kind", ["retired", "erased"])
def test_rows_that_a_learning_release_repeats_are_gone_when_it_ends(kind, project, gates):
    lg.privatize(labels(), project=project, mechanism="rr", **BUDGET)
    theirs = row_keys(project)
    with gates.learning(labels(), project) as learning:
        assert theirs & kept_row_keys(project) == theirs
        begun = overview.releases(project.state)[-1].id
        assert erasure.preview(WHO, kind, project).given_up == [begun]
        left = erasure.remove_labeler(WHO, kind, project)
        assert left.given_up == [begun]
        [said] = [text for text in left.remains if begun in text]
        assert str(project.stages / begun) in said
    assert_given_up(project, learning)
    again = erasure.remove_labeler(WHO, kind, project)
    assert not [text for text in again.remains if begun in text]


def test_a_release_that_finds_itself_given_up_leaves_nothing(project, gates):
    with gates.learning(labels(), project) as learning:
        erasure.remove_labeler(WHO, "erased", project)
    assert_given_up(project, learning)


def test_who_had_begun_to_leave_when_it_crashed_is_in_no_release(project, gates, monkeypatch):
    """Their tombstone stands, and the release was not given up yet."""

    with gates.learning(labels(), project) as learning, monkeypatch.context() as patch:
        patch.setattr(Ledger, "abandon", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            erasure.remove_labeler(WHO, "erased", project)
    assert_given_up(project, learning)


@pytest.mark.slow
def test_rows_that_a_broken_release_repeats_go_at_once(project, gates):
    lg.privatize(labels(), project=project, mechanism="rr", **BUDGET)
    begun = broken(labels(), project, gates)
    assert row_keys(project) <= kept_row_keys(project)
    assert erasure.remove_labeler(WHO, "erased", project).given_up == [begun]
    assert not list(project.stages.iterdir())


@pytest.mark.slow
def test_a_release_without_rows_of_theirs_goes_on(project, gates):
    lg.privatize(labels(), project=project, mechanism="rr", **BUDGET)
    begun = broken(without(WHO), project, gates)
    assert not erasure.remove_labeler(WHO, "erased", project).given_up
    (gates.directory / "broken-1").unlink()
    assert lg.privatize(without(WHO), project=project, **gates.options).id == begun


@pytest.mark.slow
def test_stages_that_do_not_tell_whose_labels_they_learned_go_with_their_release(
    project, monkeypatch
):
    lg.privatize(survey(labelers=30), project=project, mechanism="rr", **BUDGET)
    monkeypatch.setattr(Relabelling, "finish", Mock(side_effect=KeyboardInterrupt))
    asked = BUDGET | {"mechanism": "props", "features": "length"}
    with pytest.raises(KeyboardInterrupt):
        lg.privatize(survey(labelers=30), project=project, **asked)
    begun = overview.releases(project.state)[-1].id
    assert list((project.stages / begun).glob("stage=*.npz"))
    assert not erasure.remove_labeler("somebody else", "erased", project, never_seen=True).given_up
    assert erasure.remove_labeler(WHO, "erased", project).given_up == [begun]
    assert not list(project.stages.iterdir())


@pytest.mark.slow
def test_where_contents_are_the_unit_it_is_given_up_too(project, gates):
    with gates.learning(labels(), project, unit="item") as learning:
        begun = overview.releases(project.state)[-1].id
        assert erasure.remove_labeler(WHO, "erased", project).given_up == [begun]
    assert_given_up(project, learning)
    assert policies.close(project).name == "first"
