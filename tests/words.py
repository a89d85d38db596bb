"""List names and docstrings that are not plain English; the arguments are folders or files.

A function is a verb, so never a bare participle; a class name is unique; a docstring begins with
an imperative; and a few words of which readers lost count name nothing (`BANNED`).
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("labelguard", "connectors", "trainer")
BANNED = frozenset({"told", "asked", "meant", "kept", "said", "found"})
_IRREGULAR = re.compile(
    "become|begun|bound|broken|brought|built|caught|chosen|come|dealt|done|drawn|driven|fallen|fed|"
    "felt|forgotten|found|frozen|given|gone|grown|heard|held|hidden|kept|known|laid|led|left|lent|"
    "lived|lost|made|meant|met|paid|said|seen|sent|shown|sold|sought|spent|stuck|sunk|swept|taken|"
    "taught|thrown|told|thought|torn|understood|unseen|withdrawn|won|written"
)
_VERBS = frozenset({"embed", "exceed", "feed", "need", "proceed", "seed", "speed", "succeed"})
_NO_IMPERATIVE = re.compile(r"(?:What|Whether|That|How|Where|When|Who|Whose|Which|Why)\b")
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def is_participle(name: str) -> bool:
    """Return True for a name of one word that is a past participle: `counted`, `_told`."""
    word = name.strip("_")
    if "_" in word or word in _VERBS:
        return False
    return bool(_IRREGULAR.fullmatch(word) or re.fullmatch(r"[a-z]{2,}ed", word))


def _names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield each name that the module itself gives to something, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.ClassDef(name=name):
                yield node.lineno, name.lower()


def _docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the strings that stand as statements: docstrings, also those beneath fields."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def problems_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and problem of each name and docstring of a file that is not plain English."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for line, name in _names(tree):
        if name.strip("_") in BANNED:
            yield line, f"the name {name!r}: say what it is"
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS) and is_participle(node.name):
            yield node.lineno, f"the function {node.name!r} is a participle: use a verb"
    for line, text in _docstrings(tree):
        if _NO_IMPERATIVE.match(text):
            yield line, f"a docstring begins with {text.split()[0]!r}: use an imperative"


def classes_used_twice(paths: Iterable[Path]) -> list[str]:
    """Return a line for each name that several classes of the tree have."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places[node.name.strip("_")].append(f"{_relative_path(path)}:{node.lineno}")
    return [f"class {name}: {', '.join(at)}" for name, at in sorted(places.items()) if len(at) > 1]


def _relative_path(path: Path) -> Path:
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def problems(paths: Iterable[Path]) -> list[str]:
    """Return a line for each problem of the files."""
    paths = sorted(paths)
    each = [
        f"{_relative_path(path)}:{line}: {problem}"
        for path in paths
        for line, problem in sorted(problems_of(path))
    ]
    return each + classes_used_twice(paths)


def sources(folders: Iterable[str] = SOURCES) -> list[Path]:
    """Return the Python files of the folders."""
    paths = [ROOT / folder for folder in folders]
    return [file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))]


if __name__ == "__main__":
    lines = problems(sources(sys.argv[1:] or SOURCES))
    print("\n".join(lines))
    raise SystemExit(bool(lines))
