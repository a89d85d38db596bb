"""What `import labelguard as lg` gives: its names, and each of them as its example says."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest

import labelguard as lg

NAMES = (
    *("Policy", "Project", "Release", "__version__", "account", "errors", "find", "init"),
    *("inspect", "load", "plan", "policies", "privatize", "score", "simulate", "waiting"),
)
MODULES = ("account", "policies")
EXAMPLES = [
    *(name for name in NAMES if name not in (*MODULES, "errors", "__version__")),
    *(f"{module}.{name}" for module in MODULES for name in dir(getattr(lg, module))),
]


def test_the_public_names_are_these_and_completion_shows_no_others() -> None:
    assert sorted(lg.__all__) == sorted(NAMES)
    assert [name for name in dir(lg) if not name.startswith("__")] == sorted(
        name for name in NAMES if name != "__version__"
    )
    assert all(isinstance(getattr(lg, name), ModuleType) for name in (*MODULES, "errors"))


def test_a_name_is_loaded_when_it_is_asked_for() -> None:
    command = (
        "import sys, labelguard as lg\n"
        "dir(lg), lg.errors.BudgetExceeded\n"
        "heavy = {'numpy', 'duckdb', 'polars', 'pyarrow', 'pandas', 'torch', 'matplotlib'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "try:\n"
        "    lg.simulation_config\n"
        "except AttributeError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "module 'labelguard' has no attribute 'simulation_config'\n"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> lg.Release:
    """A release with a head, of which the examples speak."""
    project = lg.init(tmp_path_factory.mktemp("released"))
    table = lg.simulate(labelers=30, labels=900, items=200)
    return lg.privatize(table, mechanism="statistic", features="length", project=project)


def _found(name: str) -> Any:
    found = lg
    for part in name.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_public_name_runs_as_it_is_printed(
    name: str, release: lg.Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(lg.simulate(labelers=30, labels=900, items=200), "labels.parquet")
    known = {"lg": lg, "release": release, "Path": Path}
    text = _found(name).__doc__ or ""
    test = doctest.DocTestParser().get_doctest(text, known, name, None, None)
    said: list[str] = []
    assert test.examples, f"{name} has no example"
    doctest.DocTestRunner().run(test, out=said.append)
    assert not said, "".join(said)
