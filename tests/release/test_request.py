"""The options of `privatize` are declared once: what is made of them has each."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import labelguard as lg
from labelguard.budget.request import PolicyRequest
from labelguard.errors import PolicyError
from labelguard.options import ReadingOptions, RunOptions, option_declarations
from labelguard.release.mechanisms import AUTO, list_mechanisms, of_mechanisms
from labelguard.release.request import Keywords, Ours, request_release

ROOT = Path(__file__).parents[2]
ADDED = """
    colour: str | None = option("Which colour.", choices=("red", "blue"), in_jobs=True)
"""
EVERYWHERE = """
import runpy
from click.testing import CliRunner
import labelguard as lg
from labelguard.cli.main import main
from labelguard.jobs import settings

assert lg.__file__.startswith({copy!r}), lg.__file__
shown = CliRunner().invoke(main, ["privatize", "--help"]).stdout
print("help", "--colour [red|blue]" in shown)
options = settings.job_schema()["$defs"]["ReleaseSettings"]["properties"]["options"]["properties"]
print("job.yaml", "red" in str(options["colour"]))
for colour in ("red", "green"):
    try:
        lg.privatize([], mechanism="rr", colour=colour, project={project!r})
    except lg.errors.PolicyError as error:
        print("Python refuses", colour, "--colour" in str(error))
    except lg.errors.InvalidLabels:
        print("Python takes", colour)
runpy.run_path({docs!r}, run_name="__main__")
"""


def test_an_option_added_to_one_class_is_everywhere(tmp_path):
    for package in ("labelguard", "docs"):
        leave = shutil.ignore_patterns("__pycache__", "*.png", "*.svg")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=leave)
    source = tmp_path / "labelguard/options.py"
    text = source.read_text(encoding="utf-8")
    head = '    """Options for reading an input."""\n'
    assert text.count(head) == 1
    source.write_text(text.replace(head, head + ADDED), encoding="utf-8")
    lg.init(tmp_path / "study")
    script = EVERYWHERE.format(
        copy=str(tmp_path),
        project=str(tmp_path / "study"),
        docs=str(tmp_path / "docs/generate_cli.py"),
    )
    path = [str(tmp_path), str(ROOT / "connectors"), str(ROOT / "trainer")]
    begun = f"import sys; sys.path[:0] = {path!r}\n"
    run = [sys.executable, "-c", begun + script]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:4] == [
        *("help True", "job.yaml True", "Python takes red", "Python refuses green True")
    ]
    assert "--colour" in (tmp_path / "docs/cli.md").read_text(encoding="utf-8")


def test_type_checkers_know_all_that_is_declared():
    kinds = (PolicyRequest, ReadingOptions, RunOptions)
    expected = {name for kind in kinds for name in option_declarations(kind)} | set(of_mechanisms())
    assert set(Keywords.__annotations__) == expected
    assert set(get_args(Ours)) == {AUTO, *list_mechanisms()}


@pytest.mark.parametrize("option", ["ball", "sampling", "event"])
def test_what_the_planner_decides_cannot_be_asked_for(option, tmp_path):
    with pytest.raises(PolicyError, match=option):
        request_release(lg.init(tmp_path), "statistic", {option: 4})


@pytest.mark.parametrize(
    "wrong",
    [
        {"workers": 0},
        {"uses": 0},
        {"bad_rows": "keep"},
        {"exhausted": "ask"},
        *({"once": True, "uses": 2}, {"workers": "3"}, {"uses": True}, {"ridge": "1"}),
    ],
)
def test_a_value_out_of_range_is_refused_before_anything_is_read(wrong, tmp_path):
    with pytest.raises(PolicyError, match=next(iter(wrong)).replace("_", "-")):
        request_release(lg.init(tmp_path), "auto", wrong)
