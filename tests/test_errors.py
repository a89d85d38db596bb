"""Errors name what was meant, and come whole from other processes."""

import copy
import pickle
import re
from typing import Any

import pytest
from click.testing import CliRunner
from support.releases import make_release

import labelguard as lg
from labelguard.cli.main import main
from labelguard.errors import BudgetExceeded, InvalidLabels, LabelguardError, PolicyError


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ({"epsilom": 3}, "epsilon"),
        ({"mechanism": "rr", "max_label_per_labeler": 3}, "max_labels_per_labeler"),
        ({"mechanism": "rr", "labeler_colum": "who"}, "labeler_column"),
    ],
)
def test_a_misspelled_option_is_refused_before_a_project_is_looked_for(
    asked, meant, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PolicyError, match=f"unknown option .*did you mean '{meant}'"):
        make_release("nowhere.parquet", project=tmp_path / "none", **asked)


def test_the_column_of_labelers_is_named_in_python_as_it_is_typed():
    rows = [{"prompt": "p", "response_a": "a", "response_b": "b", "label": "a", "who": "u"}]
    found = lg.inspect(rows, labeler_column="who")
    assert found.labelers is not None and not found.problems
    with pytest.raises(InvalidLabels, match="and so does --labeler-column"):
        lg.inspect(rows, columns={"labeler_id": "who"}, labeler_column="who")


def test_an_abbreviated_option_is_told_in_full():
    assert "'--epsilon'?" in CliRunner().invoke(main, ["privatize", "--eps", "3"]).stderr


def kinds(one):
    return [one, *(kind for below in one.__subclasses__() for kind in kinds(below))]


@pytest.mark.parametrize("kind", kinds(LabelguardError))
def test_an_error_comes_whole_from_another_process(kind):
    """One that could not be read again broke the pool of whoever ran releases in processes."""
    counts: dict[str, Any] = {"requested": 3, "left": 1} if kind is BudgetExceeded else {}
    error = kind("give --releases 1", **counts)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind and again.args == error.args
        assert vars(again) == vars(error) and str(again) == "give --releases 1"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lg.plan([], epsilon=[1]), "'epsilon' (did you mean 'epsilons'?)"),  # type: ignore[call-arg]
        (lambda: lg.inspect([], colums={}), "'colums' (did you mean 'columns'?)"),  # type: ignore[call-arg]
        (lambda: lg.policies.new("p", eps=3), "'eps' (did you mean 'epsilon'?)"),  # type: ignore[call-arg]
    ],
)
def test_a_misspelt_keyword_is_told_with_the_one_that_is_meant(call, message):
    with pytest.raises(TypeError, match=re.escape(f"unexpected keyword argument {message}")):
        call()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"mechanism": "statistics"}, "'statistics' (did you mean 'statistic'?); available: rr"),
        ({"features": "lenght"}, "'lenght' (did you mean 'length'?); available: "),
    ],
)
def test_a_misspelt_choice_is_told_with_the_one_that_is_meant(asked, message, tmp_path):
    table = lg.simulate(labelers=20, labels=200, items=50)
    asked = {"mechanism": "statistic"} | asked
    with pytest.raises(LabelguardError, match=re.escape(message)):
        make_release(table, **asked, epsilon=3, project=lg.init(tmp_path))
