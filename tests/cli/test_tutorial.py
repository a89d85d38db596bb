"""The tutorial runs as it stands: block after block, in one directory, and prints what it shows."""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from labelguard.cli.main import main

pytestmark = pytest.mark.docs
PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path, monkeypatch):
    monkeypatch.delenv("LABELGUARD_PROJECT", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


def _blocks(text):
    yield from re.findall(r"```(python|console|text|yaml)\n(.*?)```", text, re.DOTALL)


def _commands(block):
    """Each command of a console block, and the lines of its output that are shown."""
    for one in block.split("$ ")[1:]:
        command, *shown = one.splitlines()
        yield command, [line for line in shown if line != "…"]


def _command(line):
    """Run it; return what it prints, line by line."""
    program, *arguments = shlex.split(line)
    assert program == "labelguard", line
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, f"{line}\n{result.output}"
    return result.output.splitlines()


def _code(block, names):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, PAGE.name, "exec"), names)
    return printed.getvalue().splitlines()


@pytest.mark.xdist_group("trl")
def test_the_tutorial_prints_what_it_shows():
    names: dict[str, Any] = {}
    printed: list[str] = []
    for kind, block in _blocks(PAGE.read_text(encoding="utf-8")):
        if kind == "python":
            printed = _code(block, names)
        elif kind == "yaml":
            Path("train.yaml").write_text(block, encoding="utf-8")
        elif kind == "text":  # noise is new in every run
            (told,), (found,) = (re.findall(r"\d\.\d+", one) for one in (block, printed[0]))
            assert float(told) == pytest.approx(float(found), abs=0.1)
            assert block.strip().replace(told, found) == printed[0]
        else:
            for command, shown in _commands(block):
                lines = iter(_command(command))
                for line in shown:
                    assert line in lines, f"{command} does not print, after the line before: {line}"
    evaluation = json.loads(Path("aligned/evaluation.json").read_text(encoding="utf-8"))
    assert evaluation["teacher"]["agreement"] > 0.8
    assert evaluation["probes"]["accuracy"] > 0.6
