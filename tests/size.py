"""Print the code lines of each package; fail where one has more than pyproject.toml allows.

Blank lines, comments and docstrings are not counted. `[tool.labelguard.size]` holds the limits; a
change that needs more raises the limit in its own commit, with the reason.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
COUNTED = ("labelguard", "connectors", "trainer", "tests")
OUTER = ("connectors", "trainer", "tests")
"""Counted as a whole; the packages of labelguard are counted one by one."""
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


def sizes(root: Path) -> dict[str, int]:
    """Return the code lines of each package below `root`, by its path."""
    found: Counter[str] = Counter()
    for outer in COUNTED:
        for path in sorted((root / outer).rglob("*.py")):
            parts = path.relative_to(root).parts[:-1]
            package = outer if outer in OUTER else "/".join(parts[:2])
            found[package] += code_lines(path.read_text(encoding="utf-8"))
    return dict(found)


def exceeded(found: Mapping[str, int], limits: Mapping[str, int]) -> list[str]:
    """Return a line for each package that is larger than its limit, or has none."""
    without = [f"{name} has no limit" for name in found if name not in limits]
    above = [
        f"{name}: {lines:,} code lines, at most {limits[name]:,}"
        for name, lines in found.items()
        if lines > limits.get(name, lines)
    ]
    return without + above


def main() -> int:
    """Print the sizes; return 1 if one exceeds its limit."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    limits = settings["tool"]["labelguard"]["size"]
    found = sizes(ROOT)
    for name, lines in sorted(found.items()):
        print(f"{lines:7,} of {limits.get(name, 0):7,}  {name}")
    print(f"{sum(found.values()):7,}             together")
    for line in (problems := exceeded(found, limits)):
        print(f"pyproject.toml, tool.labelguard.size: {line}", file=sys.stderr)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
