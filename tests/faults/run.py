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
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("faults.toml")
# Where Python looks for the packages of the repository.
PACKAGES = (".", "connectors", "trainer")
QUICK = "not (slow or docs or shared_data or integration or browser or clusters or dist or site)"
# How long the tests of one fault may take.
SECONDS = 600
CAUGHT, MISSED, GONE = "caught", "NOT CAUGHT", "no longer applies"
# Blanks, line breaks and comments.
_BETWEEN = r"(?:\s|#[^\n]*\n)*"


class NotThere(ValueError):
    """The place of a fault is not there, or not only once."""


@dataclass(frozen=True)
class Fault:
    """A small mistake: with `new` in place of `old`, which is once in `at`, `tests` fail.

    `at` is `module:function`, `module:Class.method`, a module, or a file that is not Python. `old`
    is an expression, statements in a row, or a piece of a string. How lines are broken, and
    comments between them, never matter.
    """

    name: str
    at: str
    old: str
    new: str
    tests: tuple[str, ...]

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
        first, last = _find_lines(source, self.at)
        ends = [0, *accumulate(map(len, source.splitlines(keepends=True)))]
        words = re.findall(r"\w+|[^\w\s]", self.old)
        each = (rf",?{_BETWEEN}{re.escape(w)}" if w in ")]}" else re.escape(w) for w in words)
        code = re.compile(rf"(?<!\w){_BETWEEN.join(each)}(?!\w)")
        places = [found.span() for found in code.finditer(source, ends[first], ends[last])]
        if len(places) != 1:
            count = f"{len(places)} such expressions" if places else "no such expression"
            raise NotThere(f"{self.at.rpartition(':')[2]} has {count}")
        ((start, end),) = places
        indent = " " * (start - source.rfind("\n", 0, start) - 1)
        return source[:start] + self.new.rstrip().replace("\n", f"\n{indent}") + source[end:]


def _find_lines(source: str, at: str) -> tuple[int, int]:
    """Return after which line the function or class of `module:function` begins, and its last."""
    module, _, function = at.partition(":")
    if not function:
        return 0, len(source.splitlines())
    node: ast.AST = ast.parse(source)
    for name in function.split("."):
        inner = [one for one in getattr(node, "body", []) if getattr(one, "name", None) == name]
        if not inner:
            raise NotThere(f"module {module} has no function {function}")
        node = inner[-1]  # after its overloads
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    return node.lineno - 1, node.end_lineno or 0


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
        # With compiled modules: all but one are as they were.
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*"), dirs_exist_ok=True)
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
    caught = 0
    with ThreadPoolExecutor(options.jobs) as workers:
        for fault, (outcome, how) in zip(chosen, workers.map(try_fault, chosen), strict=True):
            print(f"{outcome}: {fault.name} ({how})", flush=True)
            caught += outcome == CAUGHT
    print(f"{caught} of {len(chosen)} faults caught")
    return int(caught < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
