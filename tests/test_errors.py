"""An error names options as whoever reads it has them: keywords in Python, flags as typed."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.commands import FIRST

import labelguard as lg
from labelguard.cli.main import main
from labelguard.errors import BudgetExceeded, LabelguardError, PolicyError, as_typed


@pytest.mark.parametrize(
    ("typed", "keyword"),
    [
        ("--ties drop and --releases go together", 'ties="drop" and releases go together'),
        ("take --max-labels-per-labeler K", "take max_labels_per_labeler=K"),
        ("begin anew with --again", "begin anew with again=True"),
        ("policy has --assignment-reactive = False", "policy has assignment_reactive = False"),
        ("say it: --labeler-column NAME.", 'say it: columns={"labeler_id": NAME}.'),
        ("--columns a=NAME,b=left; x", 'columns={"a": NAME, "b": "left"}; x'),
        ("name --label-values a=1,b=0, or", 'name label_values="a=1,b=0", or'),
        ("--label-values a-b or every", 'label_values="a-b" or every'),
        ("--allow uls:runs=2,q=1.0,steps=25", 'allow=["uls:runs=2,q=1.0,steps=25"]'),
        ("goes with --releases 1: one", "goes with releases=1: one"),
        ("pick one: --source", "pick one: namespace"),
        ("--recurring weekly --for 1y", 'recurring="weekly" duration="1y"'),
        ("--recurring and --for, together", "recurring and duration, together"),
        ("name another --format than x", "name another format than x"),
        ("(labelguard policy new --held-out .1), or --again", None),
        ("(labelguard init) or name one (--project)", "(lg.init()) or name one (project)"),
        ("make one: labelguard init study", 'make one: lg.init("study")'),
        ("see: labelguard init --max-epsilon 3", "see: labelguard init --max-epsilon 3"),
        ("a-b -- c --- d r0001--e", "a-b -- c --- d r0001--e"),
    ],
)
def test_a_message_is_read_in_python_with_keywords_and_commands_stay(
    typed: str, keyword: str | None
) -> None:
    error = LabelguardError(typed)
    assert str(error) == (keyword or typed.replace("or --again", "or again=True"))
    with as_typed():
        assert str(error) == typed
    assert str(error) != typed or keyword == typed


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"epsilom": 3}, "epsilom does not go with mechanism=\"auto\" (did you mean 'epsilon'?)"),
        ({"eps": 3}, "eps does not go with mechanism=\"auto\" (did you mean 'epsilon'?)"),
        (
            {"mechanism": "rr", "max_label_per_labeler": 3},
            'max_label_per_labeler does not go with mechanism="rr" '
            "(did you mean 'max_labels_per_labeler'?)",
        ),
        ({"mechanism": "rr", "stages": 3}, 'stages does not go with mechanism="rr"'),
        (
            {"mechanism": "rr", "labeler_column": "who"},
            'labeler_column does not go with mechanism="rr"; say columns={"labeler_id": NAME}',
        ),
    ],
)
def test_a_misspelled_option_is_refused_before_a_project_is_looked_for(
    asked: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PolicyError) as refused:
        lg.privatize("nowhere.parquet", project=tmp_path / "none", **asked)
    assert str(refused.value) == message


def test_the_command_line_shows_the_same_error_as_it_is_typed(tmp_path: Path) -> None:
    lg.init(tmp_path)
    asked = ["--mechanism", "rr", "--stages", "3", "--project", str(tmp_path), *FIRST]
    (tmp_path / "empty.csv").touch()
    done = CliRunner().invoke(main, ["privatize", str(tmp_path / "empty.csv"), *asked])
    assert done.stderr == "labelguard: --stages does not go with --mechanism rr\n"
    with pytest.raises(PolicyError, match=r"^stages does not go"):
        lg.privatize("nowhere.parquet", mechanism="rr", project=tmp_path, stages=3)  # type: ignore[call-overload]


def test_an_abbreviated_option_is_told_in_full() -> None:
    assert "'--epsilon'?" in CliRunner().invoke(main, ["privatize", "--eps", "3"]).stderr


def kinds(one: type[LabelguardError]) -> list[type[LabelguardError]]:
    return [one, *(kind for below in one.__subclasses__() for kind in kinds(below))]


@pytest.mark.parametrize("kind", kinds(LabelguardError))
def test_an_error_comes_whole_from_another_process(kind: type[LabelguardError]) -> None:
    """One that could not be read again broke the pool of whoever ran releases in processes."""
    counts: dict[str, Any] = {"asked": 3, "left": 1} if kind is BudgetExceeded else {}
    error = kind("give --releases 1", **counts)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind and again.args == error.args
        assert vars(again) == vars(error) and str(again) == "give releases=1"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lg.plan([], epsilon=[1]), "'epsilon' (did you mean 'epsilons'?)"),  # type: ignore[call-arg]
        (lambda: lg.inspect([], colums={}), "'colums' (did you mean 'columns'?)"),  # type: ignore[call-arg]
        (lambda: lg.plan([], eps=[1]), "'eps' (did you mean 'epsilons'?)"),  # type: ignore[call-arg]
        (lambda: lg.policies.new("p", eps=3), "'eps' (did you mean 'epsilon'?)"),  # type: ignore[call-arg]
        (lambda: lg.simulate(labeler=2), "'labeler' (did you mean 'labelers'?)"),  # type: ignore[call-arg]
    ],
)
def test_a_misspelt_keyword_is_told_with_the_one_that_is_meant(
    call: Callable[[], Any], message: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(f"unexpected keyword argument {message}")):
        call()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"mechanism": "statistics"}, "'statistics' (did you mean 'statistic'?); available: rr"),
        ({"features": "lenght"}, "'lenght' (did you mean 'length'?); available: "),
    ],
)
def test_a_misspelt_choice_is_told_with_the_one_that_is_meant(
    asked: dict[str, Any], message: str, tmp_path: Path
) -> None:
    table = lg.simulate(labelers=20, labels=200, items=50)
    asked = {"mechanism": "statistic"} | asked
    with pytest.raises(LabelguardError, match=re.escape(message)):
        lg.privatize(table, **asked, epsilon=3, project=lg.init(tmp_path))
