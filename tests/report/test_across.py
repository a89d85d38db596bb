"""`budget across`: what one person has spent in several projects, and what it must not add up."""

import json
from typing import Any

import pytest
from support.commands import run
from support.leaving import WHO, labels_table

import labelguard as lg
from labelguard.errors import LabelguardError, LedgerError, ProjectError
from labelguard.project import erasure, linking
from labelguard.report import overview
from labelguard.report.person import add_up_spending

COST: dict[str, Any] = {"delta": 1e-5, "mechanism": "rr"}


@pytest.fixture
def two(tmp_path):
    """Projects with a release each, at ε = 3 and 1, of the same people."""
    paths = [tmp_path / "one", tmp_path / "two"]
    for path, epsilon in zip(paths, (3.0, 1.0), strict=True):
        lg.privatize(labels_table(), project=lg.init(path), epsilon=epsilon, **COST)
    return paths


def test_a_person_has_spent_the_sum(two):
    value = add_up_spending([WHO], two)
    assert [one.epsilon for one in value.projects] == [3.0, 1.0]
    assert value.total and (value.total.epsilon, value.total.delta) == (4.0, 2e-5)


def test_it_is_the_full_price_of_all_policies_of_whom_a_project_charged(two):
    lg.policies.new("more", epsilon=2, delta=1e-5, allow=["rr:uses=1"], project=two[0])
    lg.policies.activate("more", two[0])
    total = add_up_spending([WHO], two).total
    assert total and total.epsilon == 6.0


def test_whom_a_project_never_saw_has_spent_nothing_there(two):
    new = lg.init(two[0].parent / "new")
    table = labels_table()
    others = table.filter([name != WHO for name in table["labeler_id"].to_pylist()])
    lg.privatize(others, project=new, epsilon=2.0, **COST)
    value = add_up_spending([WHO], [*two, two[0].parent / "new"])
    assert [one.known for one in value.projects] == [True, True, False]
    assert value.total and value.total.epsilon == 4.0


def test_who_left_has_still_spent_it(two):
    erasure.remove_labeler(WHO, "erased", two[0])
    total = add_up_spending([WHO], two).total
    assert total and total.epsilon == 4.0


def add_policy(project, name="later", unit="labeler"):
    price = {"epsilon": 2, "delta": 1e-5, "allow": ["rr:uses=1"], "unit": unit}
    lg.policies.new(name, **price, project=project)
    lg.policies.activate(name, project)


def spent_by(who, project):
    """ε of a person, as all three places that tell it have it."""
    across = add_up_spending([who], [project]).total
    letter = erasure.preview_removal(who, "erased", project, never_seen=True).epsilon
    assert across and letter == overview.read_labeler_budget(who, project).epsilon == across.epsilon
    return letter


@pytest.mark.parametrize("kind", ["retired", "erased"])
def test_policies_that_came_after_they_left_cost_nobody_anything(kind, two):
    erasure.remove_labeler(WHO, kind, two[0])
    add_policy(two[0])
    lg.privatize(labels_table(seed=2), project=two[0], exhausted="drop")
    erasure.remove_labeler(WHO, "erased", two[0])  # who was retired left then, not now
    assert spent_by(WHO, two[0]) == 3.0
    assert spent_by("worker 1", two[0]) == 5.0


def test_policies_that_were_in_force_before_they_left_cost_them_used_or_not(two):
    add_policy(two[0])
    erasure.remove_labeler(WHO, "retired", two[0])
    assert spent_by(WHO, two[0]) == 5.0


def test_who_left_under_one_of_two_ids_loses_to_later_policies_as_before(tmp_path):
    project = lg.init(tmp_path / "linked")
    lg.privatize(labels_table(), project=project, epsilon=3.0, uses=2, **COST)
    linking.add_source("tool", "known", project)
    linking.link_two_ids(WHO, "tool:7", project)
    erasure.remove_labeler(WHO, "erased", project)
    add_policy(project)
    assert spent_by(WHO, project) == 5.0
    erasure.remove_labeler("tool:7", "erased", project)
    assert spent_by(WHO, project) == 5.0  # it was in force while they could label
    add_policy(project, "last")
    assert spent_by(WHO, project) == 5.0


def test_a_group_whose_members_label_on_loses_to_later_policies(tmp_path):
    project = lg.init(tmp_path / "grouped")
    (tmp_path / "groups.csv").write_text(f"labeler_id,group_id\n{WHO},team\nworker 1,team\n")
    lg.policies.add_groups(tmp_path / "groups.csv", project)
    lg.privatize(labels_table(), project=project, epsilon=3.0, unit="group", **COST)
    erasure.remove_labeler(WHO, "erased", project)
    add_policy(project, unit="group")
    assert erasure.preview_removal(WHO, "erased", project).epsilon == 5.0


@pytest.mark.parametrize("again", ["link", "inside", "same"])
def test_a_project_that_is_named_twice_is_not_counted_twice(again, two):
    link = two[0].parent / "link"
    link.symlink_to(two[0])
    paths = {"link": link, "inside": two[0] / ".labelguard", "same": two[0]}
    with pytest.raises(ProjectError, match="one project"):
        add_up_spending([WHO], [*two, paths[again]])


def test_a_state_directory_that_is_a_link_is_no_project(two, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / ".labelguard").symlink_to(two[0] / ".labelguard")
    with pytest.raises(LabelguardError):
        add_up_spending([WHO], [two[0], other])


def test_another_spelling_of_an_id_is_not_taken_for_nobody(two):
    with pytest.raises(LedgerError, match="another spelling only") as error:
        add_up_spending([WHO.upper()], two)
    assert WHO not in str(error.value) and WHO.upper() not in str(error.value)
    both = add_up_spending([WHO.upper(), WHO], two)
    assert both.total and both.total.epsilon == 4.0


def test_two_ids_that_were_never_linked_have_spent_two_budgets(two):
    twice = add_up_spending([WHO, "worker 1"], two)
    assert [one.budgets for one in twice.projects] == [2, 2]
    assert twice.total and twice.total.epsilon == 8.0


def test_ids_that_are_linked_have_one_budget(tmp_path):
    project = lg.init(tmp_path / "linked")
    lg.privatize(labels_table(), project=project, epsilon=3.0, uses=2, **COST)
    linking.add_source("tool", "known", project)
    linking.link_two_ids(WHO, "tool:7", project)
    total = add_up_spending([WHO, "tool:7"], [tmp_path / "linked"]).total
    assert total and total.epsilon == 3.0


def test_there_is_no_sum_across_units_and_none_of_contents(two, tmp_path):
    for name, unit in (("grouped", "group"), ("contents", "item")):
        made = lg.init(tmp_path / name)
        lg.privatize(labels_table(), project=made, epsilon=1.0, unit=unit, **COST)
        value = add_up_spending([WHO], [two[0], tmp_path / name])
        assert value.total is None
    assert add_up_spending([WHO], [tmp_path / "contents"]).total is None
    shown = run("budget", "across", str(two[0]), str(tmp_path / "grouped"), "--labeler", WHO)
    assert "There is no sum" in shown.stdout and "All of it" not in shown.stdout


def test_an_id_that_nobody_knows_is_refused_and_not_repeated(two):
    with pytest.raises(LedgerError, match="this id was never seen") as error:
        add_up_spending(["some secret"], two)
    assert "secret" not in str(error.value)


def test_its_json_holds_no_id_and_no_pseudonym(two):
    done = run("budget", "across", *map(str, two), "--labeler", WHO, "--json")
    assert set(json.loads(done.stdout)) == {"projects", "total"} and WHO not in done.stdout
