"""The pages for one reader each: their commands run in order, and print what the page shows."""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.pages import DOCS, ROOT, blocks
from support.tools import connected

from labelguard.cli.main import main
from labelguard.project.project import find

ROOMS = ("labelguard", "connectors", "trainer")
ANCHOR = re.compile(r"labelguard-anchor:1:\d+:[0-9a-f]{64}")
SIMULATE = "simulate -o labels.parquet --labelers 20 --labels 400 --items 100"
DRAFT = "policy new clinic --epsilon 3 --delta 1e-5 --allow rr:uses=4"
IN_FORCE = ("policy activate clinic --yes", "privatize labels.parquet --mechanism rr")
PREPARED = {
    "privacy-officer.md": (SIMULATE, "init", DRAFT),
    "budget.md": (SIMULATE, "init"),
    "operations.md": (SIMULATE, "init", DRAFT, *IN_FORCE),
    "adopting-label-studio.md": ("init",),
}
"""What whoever reads the page finds."""


def turns(block):
    """Each command of a console, and the lines that are shown below it."""
    for turn in block.replace("\\\n", "").split("$ ")[1:]:
        command, *shown = turn.splitlines()
        yield command, [line for line in shown if line not in ("", "…")]


def _history(here, patch):
    """A connector `label-studio` to a tool in which people have annotated for long."""
    _, desk = connected(find(here), here, patch, name="label-studio")
    for number in range(60):
        desk.answer(str(12 + number % 20), number, None if number % 9 == 0 else "left")


def plain(line, here):
    """Without what is another each time: ids, digests, sizes, times, the project's directory."""
    line = line.replace(str(here), "/srv/clinic")
    line = re.sub(r"\b[0-9a-f]{8,}\b|[\d,]+(?= bytes)|\d{4}-\d\d-\d\dT[\d:]+Z", "…", line)
    return " ".join(line.split())


@pytest.mark.docs
@pytest.mark.parametrize("page", PREPARED)
def test_the_commands_of_a_page_print_what_it_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    kept = ""

    def run(command):
        result = CliRunner().invoke(main, shlex.split(command), input="y\n")
        assert result.exit_code == 0, f"{command}\n{result.output}"
        return result.stdout

    for line in PREPARED[page]:
        run(line)
    if page == "adopting-label-studio.md":
        _history(tmp_path, monkeypatch)
    consoles = (block for _, block in blocks(page, "console"))
    for command, shown in (turn for block in consoles for turn in turns(block)):
        program, _, words = command.partition(" ")
        assert program == "labelguard"
        # The anchor of the page is of another run: here it is the one that was printed last.
        printed = run(ANCHOR.sub(kept, words))
        kept = [kept, *ANCHOR.findall(printed)][-1]
        told = [ANCHOR.sub("anchor", plain(line, tmp_path)) for line in printed.splitlines()]
        for line in shown:
            assert ANCHOR.sub("anchor", plain(line, tmp_path)) in told, f"{command}\n{printed}"


def test_the_accountant_that_the_page_asks_agrees_with_the_price():
    from labelguard.accounting import subsampled

    [(_, block)] = blocks("privacy-officer.md", "python")
    [found] = _code(block, {})
    assert float(found) == pytest.approx(1.0, rel=0.01)
    assert float(found) == pytest.approx(subsampled.epsilon(14.92, 0.2, 100, 1e-5), rel=0.01)


def test_every_variable_that_is_read_is_in_the_table():
    told = (DOCS / "cli.md").read_text(encoding="utf-8")
    sources = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    names = {
        name
        for path in sources
        for name in re.findall(r"LABELGUARD(?:_[A-Z]+)+", path.read_text(encoding="utf-8"))
    }
    assert len(names) > 8
    assert [name for name in sorted(names) if f"`{name}" not in told] == []


# The tutorial runs as it stands: block after block, in one directory, and prints what it shows.


PAGE = "tutorial.md"


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path, monkeypatch):
    monkeypatch.delenv("LABELGUARD_PROJECT", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


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
        exec(compile(block, PAGE, "exec"), names)
    return printed.getvalue().splitlines()


@pytest.mark.docs
def test_the_tutorial_prints_what_it_shows():
    names: dict[str, Any] = {}
    printed: list[str] = []
    for kind, block in blocks(PAGE, "python", "console", "text", "yaml"):
        if kind == "python":
            printed = _code(block, names)
        elif kind == "yaml":
            Path("train.yaml").write_text(block, encoding="utf-8")
        elif kind == "text":  # noise is new in every run
            (told,), (found,) = (re.findall(r"\d\.\d+", one) for one in (block, printed[0]))
            assert float(told) == pytest.approx(float(found), abs=0.1)
            assert block.strip().replace(told, found) == printed[0]
        else:
            for command, shown in turns(block):
                lines = iter(_command(command))
                for line in shown:
                    assert line in lines, f"{command} does not print, after the line before: {line}"
    evaluation = json.loads(Path("aligned/evaluation.json").read_text(encoding="utf-8"))
    assert evaluation["teacher"]["agreement"] > 0.8
    assert evaluation["probes"]["accuracy"] > 0.6
