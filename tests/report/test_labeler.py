"""`labeler show`: what was spent of one labeler, by which releases, what is left, who left."""

import json

import pytest
from support.commands import run
from support.leaving import BAD, PRICE, SET_ASIDE, WHO, labels_table, pseudonym
from support.lives import put_into_force
from support.releases import make_release

from labelguard.errors import LedgerError
from labelguard.project import erasure, linking
from labelguard.report.overview import read_labeler


@pytest.fixture
def released(project):
    make_release(labels_table(), project=project, **PRICE)
    return project


def test_one_labeler_is_shown_with_what_was_spent_taken_and_left(released):
    shown = read_labeler(WHO, released)
    [own], [release] = shown.allowances, shown.releases
    assert (own.allowed, own.used, own.left, own.state) == (3, 1, 2, "active")
    assert (release.mechanism, release.used, release.state) == ("rr", 1, "committed")
    assert (shown.epsilon, shown.delta, shown.rows_remembered) == (3.0, 1e-5, 12)
    assert shown.pseudonym == pseudonym(released) and shown.departure is None
    assert read_labeler(shown.pseudonym, released) == shown
    text = run("labeler", "show", WHO, project=released).stdout
    assert "spent         ε = 3, δ = 1e-5 (all policies, at their full price)" in text
    assert release.id in text and "12 rows of theirs" in text
    assert (
        json.loads(run("labeler", "show", WHO, "--json", project=released).stdout)["epsilon"] == 3
    )


def test_a_sum_and_randomized_labels_are_listed_each(project):
    put_into_force(project, "both", "rr:uses=1", "statistic:releases=2")
    make_release(labels_table(), mechanism="statistic", features="length", project=project)
    make_release(labels_table(), mechanism="rr", project=project)
    shown = read_labeler(WHO, project)
    assert [(one.event, one.left) for one in shown.allowances] == [("rr", 0), ("statistic", 1)]
    assert [one.event for one in shown.releases] == ["statistic", "rr"]
    assert shown.rows_remembered == erasure.preview_removal(WHO, "erased", project).rows_remembered


def test_raw_rows_that_the_project_keeps_are_counted(project):
    make_release(labels_table(bad=BAD), project=project, **SET_ASIDE)
    assert read_labeler(WHO, project).rows_set_aside == 2
    assert (
        "2 rows of theirs set aside or ingested"
        in run("labeler", "show", WHO, project=project).stdout
    )


@pytest.mark.parametrize("unknown", ["Weatherwax", WHO.upper(), f" {WHO}", "0" * 32])
def test_an_unknown_id_or_another_spelling_is_refused_and_not_repeated(unknown, released):
    with pytest.raises(LedgerError, match="was ever seen in this project") as error:
        read_labeler(unknown, released)
    assert unknown not in str(error.value)
    assert (pseudonym(released) in str(error.value)) == (unknown.strip().lower() == WHO.lower())


def test_where_contents_are_the_unit_nothing_is_said_of_persons_budgets(project):
    price = {name: PRICE[name] for name in ("epsilon", "delta", "mechanism")}
    make_release(labels_table(), project=project, unit="item", **price)
    shown = read_labeler(WHO, project)
    assert not shown.allowances and not shown.releases and shown.epsilon == 3.0
    text = run("labeler", "show", WHO, project=project).stdout
    assert "of each content ε = 3, δ = 1e-5" in text and "theirs is not known" in text


# ---------------------------------------------------------------- what all policies cost


def add_policy(project, name="later"):
    put_into_force(project, name, "rr:uses=1", epsilon=2)


def spent_by(who, project):
    """ε of a person, as both places that tell it have it."""
    spent = read_labeler(who, project).epsilon
    assert spent == erasure.preview_removal(who, "erased", project).epsilon
    return spent


@pytest.mark.parametrize("kind", ["retired", "erased"])
def test_policies_that_came_after_they_left_cost_nobody_anything(kind, released):
    erasure.remove_labeler(WHO, kind, released)
    add_policy(released)
    make_release(labels_table(seed=2), project=released, exhausted="drop")
    erasure.remove_labeler(WHO, "erased", released)  # who was retired left then, not now
    assert spent_by(WHO, released) == 3.0
    assert spent_by("worker 1", released) == 5.0


def test_policies_that_were_in_force_before_they_left_cost_them_used_or_not(released):
    add_policy(released)
    erasure.remove_labeler(WHO, "retired", released)
    assert spent_by(WHO, released) == 5.0


def test_who_left_under_one_of_two_ids_loses_to_later_policies_as_before(released):
    linking.add_source("tool", "known", released)
    linking.link_two_ids(WHO, "tool:7", released)
    [other] = erasure.remove_labeler(WHO, "erased", released).linked
    assert read_labeler(WHO, released).linked == [other]
    add_policy(released)
    assert spent_by(WHO, released) == 5.0
    erasure.remove_labeler("tool:7", "erased", released)
    assert spent_by(WHO, released) == 5.0  # it was in force while they could label
    add_policy(released, "last")
    assert spent_by(WHO, released) == spent_by("tool:7", released) == 5.0
