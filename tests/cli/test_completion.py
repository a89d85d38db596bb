"""What a shell completes: asked as shells ask, of the program that is installed."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import run, run_without
from support.releases import make_release

import labelguard as lg
from labelguard.errors import LabelguardError

PROGRAM = Path(sys.executable).with_name("labelguard")
ENGINES = {"torch", "transformers", "numpy", "duckdb", "polars", "pyarrow", "scipy", "sqlalchemy"}


def ask(line, *python):
    """What the program answers bash about a line whose last word is typed halfway."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    return subprocess.run(
        [sys.executable, *python, PROGRAM],
        env=os.environ | words | {"_LABELGUARD_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
        check=True,
    )


def complete_words(line):
    """The same, as the words that it offers; nothing may be said beside them."""
    answer = ask(line)
    assert answer.stderr == ""
    return answer.stdout.split()


@pytest.fixture
def study(tmp_path):
    """A project with a release, outside the working directory."""
    project = lg.init(tmp_path / "study")
    (project.releases / "r0001").mkdir(parents=True)
    (project.releases / "r0002.partial").mkdir()
    return tmp_path / "study"


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("labelguard priv", ["plain,privatize"]),
        ("labelguard budget ver", ["plain,verify"]),
        ("labelguard privatize --mech", ["plain,--mechanism"]),
        ("labelguard privatize --mechanism st", ["plain,statistic"]),
        ("labelguard privatize pref", ["file,pref"]),
    ],
)
def test_commands_options_values_and_files_are_completed(line, offered):
    assert complete_words(line) == offered


def test_bash_completes_by_the_script_that_it_is_given():
    name = shlex.quote(str(PROGRAM.parent))
    script = f"""
    PATH={name}:$PATH
    eval "$(_LABELGUARD_COMPLETE=bash_source labelguard)"
    complete -p labelguard
    COMP_WORDS=(labelguard priv) COMP_CWORD=1
    _labelguard_completion labelguard
    echo "${{COMPREPLY[@]}}"
    """
    answer = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "privatize"


def test_what_cannot_be_completed_says_nothing(tmp_path):
    assert complete_words(f"labelguard report --project {tmp_path / 'none'} x") == []


def test_completing_loads_no_engine():
    loaded = ask("labelguard privatize --mechanism s", "-X", "importtime").stderr
    names = set(re.findall(r"\| +([\w.]+)$", loaded, re.MULTILINE))
    assert "labelguard.cli.main" in names
    assert not names & ENGINES


@pytest.mark.slow
def test_nothing_is_offered_that_a_shell_would_run_or_a_terminal_obey(study):
    """Names on disk are whoever's who made the project; bash types them unquoted."""
    for name in ("r1$(reboot)", "r1;reboot", "r1`reboot`", "r1\nplain,reboot", "r1\x1b[2J", "r1 x"):
        (study / ".labelguard" / "releases" / name).mkdir()
    assert complete_words(f"labelguard report --project {study} r") == ["plain,r0001"]


# A path that names nothing is told at once, with the file that was probably meant.


@pytest.mark.parametrize("command", ["inspect", "privatize"])
def test_a_path_that_names_nothing_is_told_before_anything_is_loaded(command, tmp_path):
    (tmp_path / "arena.parquet").touch()
    done = run_without(ENGINES, command, "arean.parquet", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        "labelguard: arean.parquet: no such file (did you mean 'arena.parquet'?)\n"
    )


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (("simulate", "-o", "d"), "expected a file, as in -o labels.parquet"),
        (("report", "-o", "d"), "expected a file, as in -o report.html"),
        (("plan", "-o", "f"), "expected a directory, as in -o plan"),
        (("privatize", "-o", "release.parquet"), "expected a directory, as in -o release"),
    ],
)
def test_a_file_for_a_directory_is_refused_and_the_reverse(typed, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    (tmp_path / "f").touch()
    assert expected in run(*typed, code=1).stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["d", "f"]
    with pytest.raises(LabelguardError, match="expected a directory"):
        make_release([], output="release.parquet", project=lg.init(tmp_path))
