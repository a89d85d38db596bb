"""Plant each fault of `faults.toml` in a copy of the sources; does the short suite notice it?

    python tests/faults/run.py [--jobs N] [NAME…]

Prints for every fault the test that caught it, or that it no longer applies: what it changes is not
there, or not only once. Fails if one is not caught or no longer applies.
"""

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("faults.toml")
SOURCES = ("bench", "connectors", "docs", "examples", "labelguard", "tests", "trainer")
# Where Python looks for the packages of the repository.
PACKAGES = (".", "connectors", "trainer")
QUICK = "not (slow or docs or shared_data or integration or browser or clusters or dist or site)"
# How long the tests of one fault may take.
SECONDS = 600
CAUGHT, MISSED, GONE = "caught", "NOT CAUGHT", "no longer applies"
_Nodes = list[ast.expr] | list[ast.stmt]


class NotThere(ValueError):
    """The place of a fault is not there, or not only once."""


@dataclass(frozen=True)
class Fault:
    """A small mistake: with `new` in place of `old`, which is once in `at`, `tests` fail.

    `at` is `module:function`, `module:Class.method`, a module, or a file that is not Python. `old`
    is an expression or statements in a row, compared as code; with `text` it is a piece of a string
    there, and in a file a piece of that. Blanks and line breaks never matter.
    """

    name: str
    at: str
    old: str
    new: str
    tests: tuple[str, ...]
    text: bool = False

    @property
    def module(self) -> str:
        """The module by its name, or the file."""
        return self.at.partition(":")[0]

    def path(self) -> Path:
        """Return the file of its module; raises `NotThere`."""
        stem = self.module.replace(".", "/")
        names = (self.module,) if "/" in self.module else (f"{stem}.py", f"{stem}/__init__.py")
        for path in (ROOT / package / name for package in PACKAGES for name in names):
            if path.is_file():
                return path
        raise NotThere(f"there is no {self.module}")

    def plant(self, source: str) -> str:
        """Return the source of its module with the mistake; raises `NotThere`."""
        data, new = source.encode(), textwrap.dedent(self.new).strip("\n")
        places, in_text = [(0, len(data))], self.text or "/" in self.at
        if "/" not in self.at:
            scope = _enter(ast.parse(data), self.at)
            each = _list_strings(scope) if self.text else _match(scope, _parse(self.old))
            places = [_locate(nodes, data) for nodes in each]
        if in_text:
            piece = re.compile(r"\s+".join(map(re.escape, self.old.split())).encode())
            places = [match.span() for place in places for match in piece.finditer(data, *place)]
        elif all(isinstance(_parse(code)[0], ast.expr) for code in (self.old, new)):
            new = f"({new})"
        if len(places) != 1:
            count = f"{len(places)} such expressions" if places else "no such expression"
            raise NotThere(f"{self.at.rpartition(':')[2]} has {count}")
        start, end = places[0]
        indent = 0 if in_text else start - data.rfind(b"\n", 0, start) - 1
        new = new.replace("\n", "\n" + " " * indent)
        return (data[:start] + new.encode() + data[end:]).decode()


def _parse(code: str) -> _Nodes:
    """Return the code as an expression, or as statements."""
    body = ast.parse(textwrap.dedent(code)).body
    return [body[0].value] if len(body) == 1 and isinstance(body[0], ast.Expr) else body


def _enter(node: ast.AST, at: str) -> ast.AST:
    """Return the function or class of `module:function` in the tree of its module."""
    module, _, function = at.partition(":")
    for name in filter(None, function.split(".")):
        inner = [one for one in getattr(node, "body", []) if getattr(one, "name", None) == name]
        if not inner:
            raise NotThere(f"module {module} has no function {function}")
        node = inner[-1]  # after its overloads
    return node


def _list_rows(node: ast.AST) -> Iterator[_Nodes]:
    """Yield each body, and each expression alone; Python 3.11 misplaces those in an f-string."""
    if isinstance(node, ast.expr):
        yield [node]
    if not isinstance(node, ast.JoinedStr):
        for value in vars(node).values():
            if isinstance(value, list):
                yield [one for one in value if isinstance(one, ast.stmt)]
        for child in ast.iter_child_nodes(node):
            yield from _list_rows(child)


def _list_strings(scope: ast.AST) -> Iterator[_Nodes]:
    for row in _list_rows(scope):
        match row:
            case [ast.JoinedStr()] | [ast.Constant(value=str())]:
                yield row


def _match(scope: ast.AST, nodes: _Nodes) -> Iterator[_Nodes]:
    texts = [ast.dump(one) for one in nodes]
    for row in _list_rows(scope):
        for i in range(len(row) - len(nodes) + 1):
            run = row[i : i + len(nodes)]
            if type(run[0]) is type(nodes[0]) and [ast.dump(one) for one in run] == texts:
                yield run


def _locate(nodes: _Nodes, data: bytes) -> tuple[int, int]:
    first, last = nodes[0], nodes[-1]
    starts = [0, *accumulate(map(len, data.splitlines(keepends=True)))]
    end = starts[(last.end_lineno or 0) - 1] + (last.end_col_offset or 0)
    return starts[first.lineno - 1] + first.col_offset, end


def faults() -> list[Fault]:
    """Return all faults, in the order of the file."""
    each = tomllib.loads(LIST.read_text(encoding="utf-8"))["fault"]
    return [Fault(**one | {"tests": tuple(one["tests"])}) for one in each]


def try_fault(fault: Fault) -> tuple[str, str]:
    """Return what becomes of a fault, and the test that caught it, or why none could."""
    try:
        path = fault.path()
        source = fault.plant(path.read_text(encoding="utf-8"))
    except NotThere as error:
        return GONE, str(error)
    with tempfile.TemporaryDirectory(prefix="labelguard-fault-") as directory:
        copy = Path(directory)
        for name in SOURCES:  # with compiled modules: all but one are as they were
            shutil.copytree(ROOT / name, copy / name)
        for file in ROOT.iterdir():
            if file.is_file() and not file.name.startswith(".coverage"):
                shutil.copy2(file, copy)
        planted = copy / path.relative_to(ROOT)
        planted.write_text(source, encoding="utf-8")
        own = {"PYTHONPATH": os.pathsep.join(str(copy / one) for one in PACKAGES), "COLUMNS": "400"}
        environment = os.environ | own
        if planted.suffix == ".py":
            find = f"import importlib.util as u; print(u.find_spec({fault.module!r}).origin)"
            imported = _run(copy, environment, "-c", find).stdout.strip()
            if imported != str(planted):
                return MISSED, f"the copy is not what is imported, but {imported}"
        options = ("-x", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-m", QUICK)
        try:
            done = _run(copy, environment, "-m", "pytest", *options, *fault.tests)
        except subprocess.TimeoutExpired:
            return MISSED, f"its tests take longer than {SECONDS} seconds"
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if done.returncode == 1 and failed:  # 2 to 5: it could not be imported, or no test is quick
        return CAUGHT, failed[1]
    return MISSED, (done.stdout + done.stderr).strip().rpartition("\n")[2]


def _run(
    directory: Path, environment: dict[str, str], *words: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=SECONDS
    )


def main(words: Sequence[str] | None = None) -> int:
    """Print what becomes of every fault; return 1 if one is not caught or no longer applies."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="faults by name (default: all)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time")
    options = parser.parse_args(words)
    chosen = [one for one in faults() if not options.names or one.name in options.names]
    if missing := set(options.names) - {one.name for one in chosen}:
        parser.error(f"no such fault: {', '.join(sorted(missing))}")
    outcomes: dict[str, list[str]] = {CAUGHT: [], MISSED: [], GONE: []}
    with ThreadPoolExecutor(options.jobs) as workers:
        for fault, (outcome, how) in zip(chosen, workers.map(try_fault, chosen), strict=True):
            outcomes[outcome].append(fault.name)
            print(f"{outcome}: {fault.name} ({how})", flush=True)
    print(f"{len(outcomes[CAUGHT])} of {len(chosen)} faults caught")
    for outcome in (MISSED, GONE):
        print("".join(f"{outcome}: {name}\n" for name in outcomes[outcome]), end="")
    return int(len(outcomes[CAUGHT]) < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
