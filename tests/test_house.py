"""The house: rooms are where CONTRIBUTING.md says, and no name of a room hides a function."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest

import labelguard

ROOT = Path(labelguard.__file__).parents[1]
OUTER = ("connectors/labelguard_connectors", "trainer/labelguard_trainer")
NEEDED = ("mechanism", "connector", "executor", "card fact", "error")


def _packages() -> list[ModuleType]:
    """Every package of labelguard, after all modules were imported."""
    names = [found.name for found in pkgutil.walk_packages(labelguard.__path__, "labelguard.")]
    modules = [importlib.import_module(name) for name in names if not name.endswith("__main__")]
    return [labelguard, *(module for module in modules if hasattr(module, "__path__"))]


def test_no_public_name_becomes_a_module_once_that_is_imported() -> None:
    """A function may not have the name of a module beside it, which would hide it."""
    before = {name: getattr(labelguard, name) for name in labelguard.__all__}
    for package in _packages():
        for module in pkgutil.iter_modules(package.__path__):
            assert isinstance(getattr(package, module.name, package), ModuleType), module.name
    assert {name: getattr(labelguard, name) for name in labelguard.__all__} == before
    modules = {name for name, value in before.items() if isinstance(value, ModuleType)}
    assert modules == {"account", "errors", "policies"}


def _rooms() -> dict[str, str]:
    """The table of rooms: folder → what is put there."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| `(\S+)/` \|.*\|(.*)\|$", text, re.MULTILINE)
    assert len(rows) == len(dict(rows))
    return dict(rows)


def test_the_rooms_of_contributing_are_the_folders() -> None:
    folders = {
        str(path.parent.relative_to(ROOT))
        for path in (ROOT / "labelguard").rglob("__init__.py")
        if path.parent.name != "labelguard"
    }
    assert set(_rooms()) == folders | {*OUTER, "tests", "bench"}
    for room in OUTER:
        outer, _, package = room.partition("/")
        imported = {path.parent.name for path in (ROOT / outer).glob("*/__init__.py")}
        assert imported == {package}


@pytest.mark.parametrize("what", NEEDED)
def test_the_table_says_where_a_new_thing_goes(what: str) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert re.search(rf"^\| `\S+` \|.*\|[^|]*\*\*{what}\*\*[^|]*\|$", text, re.MULTILINE)


def test_tests_have_the_folders_of_the_house() -> None:
    rooms = {path.name for path in (ROOT / "labelguard").iterdir() if path.is_dir()}
    rooms |= {"bench", "connectors", "trainer"}
    besides = {"fixtures", "golden", "integration", "properties", "support", "typing", "wheel"}
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} <= rooms | besides


def test_no_test_module_imports_another() -> None:
    """What two of them share is in tests/support/."""
    for path in (ROOT / "tests").rglob("*.py"):
        found = re.findall(r"^\s*(?:from|import) test_\w+", path.read_text(), re.MULTILINE)
        assert not found, path
