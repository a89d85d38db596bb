"""Conventions of the code: packages are where CONTRIBUTING.md says, and names are plain words."""

import importlib
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import size
import words
from support import databases

import labelguard

ROOT = Path(labelguard.__file__).parents[1]
OUTER = ("connectors/labelguard_connectors", "trainer/labelguard_trainer")


def _packages():
    """Every package of labelguard, after all modules were imported."""
    names = [found.name for found in pkgutil.walk_packages(labelguard.__path__, "labelguard.")]
    modules = [importlib.import_module(name) for name in names if not name.endswith("__main__")]
    return [labelguard, *(module for module in modules if hasattr(module, "__path__"))]


def test_no_public_name_becomes_a_module_once_that_is_imported():
    """A function may not have the name of a module beside it, which would hide it."""
    before = {name: getattr(labelguard, name) for name in labelguard.__all__}
    for package in _packages():
        for module in pkgutil.iter_modules(package.__path__):
            assert isinstance(getattr(package, module.name, package), ModuleType), module.name
    assert {name: getattr(labelguard, name) for name in labelguard.__all__} == before
    modules = {name for name, value in before.items() if isinstance(value, ModuleType)}
    assert modules == {"account", "errors", "policies"}


def _rooms():
    """The table of rooms: folder → what is put there."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| `(\S+)/` \|.*\|(.*)\|$", text, re.MULTILINE)
    assert len(rows) == len(dict(rows))
    return dict(rows)


def test_the_rooms_of_contributing_are_the_folders():
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


def test_tests_have_the_folders_of_the_house():
    rooms = {path.name for path in (ROOT / "labelguard").iterdir() if path.is_dir()}
    rooms |= {"bench", "connectors", "trainer"}
    besides = {"faults", "golden", "integration", "properties", "support", "typing", "wheel"}
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} <= rooms | besides


def test_the_way_of_a_label_takes_no_more_than_twenty_files():
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## The way of a label")[2]
    files = re.findall(r"^\d+\. `(\S+\.py)`: ", text.partition("\n## ")[0], re.MULTILINE)
    assert 10 < len(files) <= 20
    assert not [file for file in files if not (ROOT / file).is_file()]


def test_no_test_module_imports_another():
    """What two of them share is in tests/support/."""
    for path in (ROOT / "tests").rglob("*.py"):
        found = re.findall(r"^\s*(?:from|import) test_\w+", path.read_text(), re.MULTILINE)
        assert not found, path


def test_code_lines_are_neither_blank_nor_comments_nor_docstrings():
    source = '"""A module."""\n\nname = """not\na docstring"""  # a comment\n# another\n'
    source += 'def act() -> None:\n    """Do it.\n\n    All of it.\n    """\n    print(name)\n'
    assert size.code_lines(source) == 4


def test_templates_beside_the_code_are_a_row_of_their_own(tmp_path):
    package = tmp_path / "labelguard" / "report"
    package.mkdir(parents=True)
    (package / "page.py").write_text('"""A page."""\n\nNAME = "page"\n')
    (package / "page.html.j2").write_text("<p>\n\n</p>\n")
    (package / "page.css").write_text("p {}\n")
    (package / "py.typed").write_text("\n")
    assert size.sizes(tmp_path) == {"labelguard/report": [1], "labelguard templates": [1, 3]}


def test_a_package_beyond_its_limit_or_without_one_is_named():
    limits = {"labelguard/keys": 10, "trainer": 10}
    assert not size.exceeded({"labelguard/keys": 10, "trainer": 9}, limits)
    (problem,) = size.exceeded({"labelguard/keys": 11, "trainer": 9}, limits)
    assert "labelguard/keys" in problem
    (problem,) = size.exceeded({"labelguard/keys": 10, "connectors": 1}, limits)
    assert "connectors" in problem


def test_a_database_server_that_went_away_is_named(monkeypatch):
    monkeypatch.setattr(databases, "_in_use", set())
    assert databases.lost() is None
    monkeypatch.setattr(databases, "_in_use", {"postgresql+psycopg://nobody@127.0.0.1:1"})
    assert "127.0.0.1:1" in str(databases.lost())


def test_no_file_has_more_than_450_lines():
    lengths = {path: path.read_text().count("\n") for path in words.sources()}
    assert {path: lines for path, lines in lengths.items() if lines > 450} == {}


def test_names_and_docstrings_are_plain_words():
    assert words.problems(words.sources()) == []


def test_verbs_and_nouns_of_the_field_are_plain_words(tmp_path):
    path = tmp_path / "module.py"
    path.write_text('def feed(seed, records):\n    """Return the records."""\n    matches = 1\n')
    assert not [*words.problems_of(path)]
