"""A labeler leaves while a release learns: no row of theirs stays in what it keeps on disk.

Attacks by copies: whoever has two of one project, or made it, or keeps one of every moment.

Randomness that lasts answers twice alike where the label is the same: the difference of two answers
then tells who changed their mind, at any ε. Fresh randomness makes each answer cost its price.
"""

import shutil
from typing import Any
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
from support import world
from support.copies import copy_project
from support.crashes import crash, steps_of
from support.gated import BUDGET, PATIENCE, labels
from support.preferences import STATISTIC, files, write
from support.releases import make_release
from support.rounds import some
from support.surveys import survey

import labelguard as lg
from labelguard.errors import LabelguardError, LedgerError
from labelguard.ledger.ledger import Ledger
from labelguard.project import erasure, policies
from labelguard.project.opening import OpenProject
from labelguard.release.head import Head
from labelguard.release.mechanisms.props import Relabelling
from labelguard.report import overview
from labelguard.storage import blocks, buckets

CEILING = 60

WHO = "3"


def without(labeler):
    return labels().filter(pl.col("labeler_id") != int(labeler))


def row_keys(project):
    """The keys of rows of theirs that are in private maps."""
    opened = OpenProject.open(project)
    key = opened.keys.hash_labelers(project.namespace, [WHO])
    maps = [record.id for record in opened.ledger.releases.all() if record.map]
    return {row for one in maps for row in opened.private_map.find_row_keys(one, key)}


def kept_row_keys(project):
    """The keys of rows that releases keep which are under way."""
    tables = [buckets.read_parts(path) for path in project.stages.glob("*/kept/outcomes")]
    return {
        key
        for table in tables
        if table is not None
        for key in blocks.to_list(buckets.read_blocks(table, "key"))
    }


def assert_given_up(project, learning):
    """The release ended with an error, and nothing that it kept is left."""
    begun = overview.list_releases(project.state)[-1]
    with pytest.raises(LedgerError, match=f"{begun.id} was given up while it learned"):
        learning.result(PATIENCE)
    assert begun.state == "abandoned" and not list(project.stages.iterdir())


def break_release(raw, project, gates):
    """A release whose learner ends with an error in its second stage; its id."""
    gates.break_at(1)
    with pytest.raises(LabelguardError, match="the learner broke"):
        make_release(raw, project=project, **gates.options)
    return overview.list_releases(project.state)[-1].id


@pytest.mark.quick("erased")
@pytest.mark.parametrize("kind", ["retired", "erased"])
def test_rows_that_a_learning_release_repeats_are_gone_when_it_ends(kind, project, gates):
    make_release(labels(), project=project, mechanism="rr", **BUDGET)
    theirs = row_keys(project)
    with gates.learning(labels(), project) as learning:
        assert theirs & kept_row_keys(project) == theirs
        begun = overview.list_releases(project.state)[-1].id
        assert erasure.preview_removal(WHO, kind, project).given_up == [begun]
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
    make_release(labels(), project=project, mechanism="rr", **BUDGET)
    begun = break_release(labels(), project, gates)
    assert row_keys(project) <= kept_row_keys(project)
    assert erasure.remove_labeler(WHO, "erased", project).given_up == [begun]
    assert not list(project.stages.iterdir())


@pytest.mark.slow
def test_a_release_without_rows_of_theirs_goes_on(project, gates):
    make_release(labels(), project=project, mechanism="rr", **BUDGET)
    begun = break_release(without(WHO), project, gates)
    assert not erasure.remove_labeler(WHO, "erased", project).given_up
    (gates.directory / "broken-1").unlink()
    assert make_release(without(WHO), project=project, **gates.options).id == begun


@pytest.mark.slow
def test_stages_that_do_not_tell_whose_labels_they_learned_go_with_their_release(
    project, monkeypatch
):
    make_release(survey(labelers=30), project=project, mechanism="rr", **BUDGET)
    monkeypatch.setattr(Relabelling, "finish", Mock(side_effect=KeyboardInterrupt))
    asked = BUDGET | {"mechanism": "props", "features": "length"}
    with pytest.raises(KeyboardInterrupt):
        make_release(survey(labelers=30), project=project, **asked)
    begun = overview.list_releases(project.state)[-1].id
    assert list((project.stages / begun).glob("stage=*.npz"))
    assert not erasure.remove_labeler("somebody else", "erased", project, never_seen=True).given_up
    assert erasure.remove_labeler(WHO, "erased", project).given_up == [begun]
    assert not list(project.stages.iterdir())


@pytest.mark.slow
def test_where_contents_are_the_unit_it_is_given_up_too(project, gates):
    with gates.learning(labels(), project, unit="item") as learning:
        begun = overview.list_releases(project.state)[-1].id
        assert erasure.remove_labeler(WHO, "erased", project).given_up == [begun]
    assert_given_up(project, learning)
    assert policies.close(project=project).name == "first"


LABELERS, ITEMS = 5, 200
PRICE: dict[str, Any] = {"mechanism": "rr", "epsilon": 0.5, "delta": 1e-5, "uses": 2}
# Of 1,000 guesses at random more than 58% are right with a probability below 1e-6; coins at this
# price are hardly better than chance.
CHANCE = 0.58


def table(labels, first=0):
    """Answers to 1,000 questions from number `first` on, each asked of one of five labelers."""
    number = np.arange(first, first + len(labels))
    return pl.DataFrame(
        {
            "labeler_id": [f"worker {n // ITEMS % LABELERS}" for n in number],
            "prompt": [f"question {n}" for n in number],
            "response_a": [f"yes, {'indeed ' * (n % 7)}{n}" for n in number],
            "response_b": [f"no, {n}" for n in number],
            "label": labels,
        }
    )


def opinions(seed):
    return np.random.default_rng(seed).integers(0, 2, LABELERS * ITEMS)


def answers(release):
    """What was released, 1 for yes, in the order of the questions."""
    frame = lg.load(release).with_columns(pl.col("prompt").str.slice(9).cast(pl.Int64))
    return frame.sort("prompt")["chosen"].str.starts_with("yes").to_numpy().astype(np.int64)


def edited(labels):
    """Half of the labels changed, and which."""
    changed = np.random.default_rng(3).random(len(labels)) < 0.5
    return np.where(changed, 1 - labels, labels), changed


def likelier(guess, truth):
    """How often a guess is right, or always wrong, which is as good."""
    right = float((guess == truth).mean())
    return max(right, 1 - right)


def test_two_copies_do_not_tell_which_labels_changed(tmp_path):
    project = lg.init(tmp_path / "one").state.parent
    make_release(table(opinions(9), first=5_000), project=project, **PRICE)  # everybody is known
    copy = copy_project(project, tmp_path / "other")
    labels = opinions(1)
    later, changed = edited(labels)
    one = answers(make_release(table(labels), project=project, **PRICE))
    other = answers(make_release(table(later), project=copy, **PRICE))
    assert likelier(one != other, changed) < CHANCE


def test_a_planted_project_gives_no_label_to_who_planted_it(tmp_path):
    """They have its keys, and everybody in it was charged before."""
    planted = lg.init(tmp_path / "planted").state.parent
    make_release(table(opinions(9), first=5_000), project=planted, **PRICE)
    kept = copy_project(planted, tmp_path / "kept")
    labels = opinions(1)
    released = answers(make_release(table(labels), project=planted, **PRICE))
    # In their own copy they release labels that they know, and so learn the coins.
    known = answers(make_release(table(np.ones_like(labels)), project=kept, **PRICE))
    assert likelier(released ^ (1 - known), labels) < CHANCE


@pytest.mark.slow
def test_two_copies_do_not_tell_the_sum_apart(tmp_path):
    """The same noise over two sums would leave their difference in the clear."""
    project = lg.init(tmp_path / "one").state.parent
    copy = copy_project(project, tmp_path / "other")
    options: dict[str, Any] = STATISTIC | {"epsilon": 0.5, "delta": 1e-5}
    sums = [
        Head.load(make_release(table(opinions(1)), project=place, **options).path).statistic
        for place in (project, copy)
    ]
    assert sums[0] is not None and sums[1] is not None and (sums[0] != sums[1]).all()


@pytest.mark.slow
def test_a_copy_of_any_moment_finished_twice_gives_no_certainty(tmp_path):
    """Either both copies publish one drawing, or each draws for itself; each was charged once."""
    project = lg.init(tmp_path / "base").state.parent
    labels = opinions(1)
    later, changed = edited(labels)
    source = tmp_path / "labels.parquet"
    write(table(labels).to_arrow(), source)
    options = PRICE | {"workers": 1}
    job = {"do": "privatize", "source": str(source), "options": options, "fresh_randomness": True}
    drawn_once = drawn_twice = 0
    for step in some(range(1, steps_of(job, project)), 20):
        moment = copy_project(project, tmp_path / f"step {step}")
        crash(job | {"project": str(moment), "kill_at": step})
        found = []
        for name, given in (("one", labels), ("other", later)):
            copy = copy_project(moment, tmp_path / f"{name} {step}")
            write(table(given).to_arrow(), source)
            found.append(answers(make_release(str(source), project=copy, **options)))
            [used] = overview.read_budget(copy).allowances
            assert used.used == LABELERS
            shutil.rmtree(copy)
        write(table(labels).to_arrow(), source)
        shutil.rmtree(moment)
        if (found[0] == found[1]).all():
            drawn_once += 1  # the labels that were edited meanwhile were not read
        else:
            drawn_twice += 1
            assert likelier(found[0] != found[1], changed) < CHANCE
    assert drawn_once and drawn_twice


def test_nothing_random_is_left_in_a_project(tmp_path, monkeypatch):
    """Of all that was drawn, only what outlives a release by design is anywhere on disk."""
    handed_out = world.note_randomness(monkeypatch)
    project = lg.init(tmp_path / "project").state.parent
    key = len(handed_out)
    make_release(table(opinions(1)), project=project, **PRICE)
    other = lg.init(tmp_path / "statistic").state.parent
    options: dict[str, Any] = STATISTIC | {"epsilon": 0.5, "delta": 1e-5}
    make_release(table(opinions(1)), project=other, **options)
    assert len(handed_out) == 2 * key + 4
    everything = b"".join([*files(project).values(), *files(other).values()])
    kept = [any(s in everything for s in (one, one.hex().encode())) for one in handed_out]
    # What its private map has to itself stays; coins and noise, which come last, are gone.
    assert kept == [*([True] * key), True, False] * 2
