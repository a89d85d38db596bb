"""The tutorial runs as it stands: block after block, in one directory, and prints what it shows."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner
from support.commands import FIRST

import labelguard as lg
from labelguard.cli.main import main

pytestmark = pytest.mark.docs
PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
FULL = "labelers=120, labels=6_000, items=1_500"
SMALLER = "labelers=60, labels=900, items=250"
LONG = re.compile(r"import GPT2Config|labelguard train|labelguard plan|lg\.plan")
"""Blocks that need torch, or many simulated worlds."""


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LABELGUARD_PROJECT", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    yield from re.findall(r"```(python|console|text|yaml)\n(.*?)```", text, re.DOTALL)


def _commands(block: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a console block, and the lines of its output that are shown."""
    for one in block.split("$ ")[1:]:
        command, *shown = one.splitlines()
        yield command, [line for line in shown if line != "…"]


def _command(line: str) -> list[str]:
    """Run it; return what it prints, line by line."""
    program, *arguments = shlex.split(line)
    assert program == "labelguard", line
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, f"{line}\n{result.output}"
    return result.output.splitlines()


def _code(block: str, names: dict[str, Any]) -> list[str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, PAGE.name, "exec"), names)
    return printed.getvalue().splitlines()


def test_the_tutorial_runs_without_its_plan_and_without_a_trainer() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert FULL in text
    names: dict[str, Any] = {}
    for kind, block in _blocks(text.replace(FULL, SMALLER)):
        if LONG.search(block):
            continue
        if kind == "python":
            _code(block, names)
        elif kind == "console":
            for command, _ in _commands(block):
                _command(command)
    assert names["release"].reused  # the commands before had made it
    assert names["agreement"] > 0.5


@pytest.mark.xdist_group("trl")
def test_its_language_model_takes_conversations_too() -> None:
    made = pl.DataFrame(lg.simulate(labelers=10, labels=80, items=20))
    said = {"prompt": "user", "response_a": "assistant", "response_b": "assistant"}
    chats = (
        pl.concat_list(pl.struct(role=pl.lit(role), content=name)).alias(name)
        for name, role in said.items()
    )
    made.with_columns(chats).write_parquet("chats.parquet")
    _command("labelguard init")
    first = " ".join(FIRST)
    _command(f"labelguard privatize chats.parquet --features length {first} -o release")
    names: dict[str, Any] = {"pl": pl, "rows": lg.load("release")}
    for kind, block in _blocks(PAGE.read_text(encoding="utf-8")):
        if "import GPT2Config" in block:
            _code(block, names)
        elif kind == "yaml":
            once = re.sub(r"max_steps: \d+", "max_steps: 1", block)
            Path("train.yaml").write_text(once, encoding="utf-8")
    assert "assistant" in names["tokenizer"].get_vocab()
    train = "labelguard train dpo release --model base --train-config train.yaml -o aligned"
    assert any("trained on" in line for line in _command(train))


@pytest.mark.xdist_group("trl")
def test_the_tutorial_prints_what_it_shows() -> None:
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
