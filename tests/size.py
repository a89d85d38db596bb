"""Print the code lines and files of each package; fail where lines exceed pyproject.toml's limit.

Blank lines, comments and docstrings are not counted. Templates and other texts that ship beside the
code are rows of their own, with all their lines. `[tool.labelguard.size]` holds the limits; a
change that needs more raises the limit in its own commit, with the reason.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
COUNTED = ("labelguard", "connectors", "trainer", "tests")
# Counted as a whole; the packages of labelguard are counted one by one.
OUTER = ("connectors", "trainer", "tests")
TEMPLATES = (".css", ".j2", ".sql", ".toml", ".yaml", ".yml")
_NO_CODE = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
)


def code_lines(source: str) -> int:
    """Return how many lines of a module hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if ast.get_docstring(node, clean=False) is not None and first is not None:
                lines.difference_update(range(first.lineno, (first.end_lineno or 0) + 1))
    return len(lines)


def sizes(root: Path) -> dict[str, list[int]]:
    """Return the lines of each file below `root`, by package, or by `OUTER templates`."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for outer in COUNTED:
        for path in sorted((root / outer).rglob("*")):
            parts = path.relative_to(root).parts[:-1]
            if path.suffix == ".py":
                package = outer if outer in OUTER else "/".join(parts[:2])
                found[package].append(code_lines(path.read_text(encoding="utf-8")))
            elif path.suffix in TEMPLATES and outer != "tests":
                lines = path.read_text(encoding="utf-8").splitlines()
                found[f"{outer} templates"].append(len(lines))
    return dict(found)


def exceeded(found: Mapping[str, int], limits: Mapping[str, int]) -> list[str]:
    """Return a line for each row that is larger than its limit, or has none."""
    without = [f"{name} has no limit" for name in found if name not in limits]
    above = [
        f"{name}: {lines:,} lines, at most {limits[name]:,}"
        for name, lines in found.items()
        if lines > limits.get(name, lines)
    ]
    return without + above


def main() -> int:
    """Print the sizes; return 1 if one exceeds its limit."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    limits = settings["tool"]["labelguard"]["size"]
    found = sizes(ROOT)
    for name, files in sorted(found.items()):
        limit = limits.get(name, 0)
        print(f"{sum(files):7,} of {limit:7,}  {len(files):4} files  {name}")
    print(f"{sum(map(sum, found.values())):7,}                        together")
    lines_of = {name: sum(files) for name, files in found.items()}
    for line in (problems := exceeded(lines_of, limits)):
        print(f"pyproject.toml, tool.labelguard.size: {line}", file=sys.stderr)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
