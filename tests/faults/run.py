"""Plant each fault of `faults.toml` in a copy of the sources; does the short suite notice it?

    python tests/faults/run.py [--jobs N] [NAME…]

Prints for every fault the test that caught it; fails where none did, or where the text to replace
is no longer found exactly once.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("faults.toml")
SOURCES = ("bench", "connectors", "docs", "examples", "labelguard", "tests", "trainer")
# Where Python finds the packages of the repository.
PACKAGES = (".", "connectors", "trainer")
QUICK = "not (slow or docs or shared_data or integration or browser or clusters or dist or site)"
# How long the tests of one fault may take.
SECONDS = 600


@dataclass(frozen=True)
class Fault:
    """A small mistake: `old` stands once in `file`, and with `new` in its place `tests` fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def plant(self, root: Path) -> None:
        """Make the mistake in the sources below `root`; ValueError unless it can be made there."""
        path = root / self.file
        text = path.read_text(encoding="utf-8")
        if (found := text.count(self.old)) != 1:
            raise ValueError(f"its text was found {found} times in {self.file}, expected once")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")

    @property
    def module(self) -> str:
        """The name by which its file is imported."""
        parts = Path(self.file).with_suffix("").parts
        return ".".join(parts[1:] if parts[0] in PACKAGES else parts)


def faults() -> list[Fault]:
    """Return all faults, in the order of the file."""
    found = tomllib.loads(LIST.read_text(encoding="utf-8"))["fault"]
    return [Fault(**one | {"tests": tuple(one["tests"])}) for one in found]


def caught(fault: Fault) -> tuple[bool, str]:
    """Return whether the tests of a fault notice it, and which one did, or why none could."""
    with tempfile.TemporaryDirectory(prefix="labelguard-fault-") as directory:
        copy = Path(directory)
        for name in SOURCES:  # with compiled modules: all but one are as they were
            shutil.copytree(ROOT / name, copy / name)
        for path in ROOT.iterdir():
            if path.is_file() and not path.name.startswith(".coverage"):
                shutil.copy2(path, copy)
        try:
            fault.plant(copy)
        except ValueError as error:
            return False, str(error)
        own = {"PYTHONPATH": os.pathsep.join(str(copy / one) for one in PACKAGES), "COLUMNS": "400"}
        environment = os.environ | own
        find = f"import importlib.util as u; print(u.find_spec({fault.module!r}).origin)"
        imported = _run(copy, environment, "-c", find).stdout.strip()
        if imported != str(copy / fault.file):
            return False, f"the copy is not what is imported, but {imported}"
        options = ("-x", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-m", QUICK)
        try:
            done = _run(copy, environment, "-m", "pytest", *options, *fault.tests)
        except subprocess.TimeoutExpired:
            return False, f"its tests take longer than {SECONDS} seconds"
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if done.returncode == 1 and failed:  # 2 to 5: it could not be imported, or no test is quick
        return True, failed[1]
    return False, (done.stdout + done.stderr).strip().rpartition("\n")[2]


def _run(
    directory: Path, environment: dict[str, str], *words: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=SECONDS
    )


def main(words: Sequence[str] | None = None) -> int:
    """Print what becomes of every fault; return 1 if one is not caught."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="faults by name (default: all)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time")
    asked = parser.parse_args(words)
    chosen = [one for one in faults() if not asked.names or one.name in asked.names]
    if missing := set(asked.names) - {one.name for one in chosen}:
        parser.error(f"no such fault: {', '.join(sorted(missing))}")
    with ThreadPoolExecutor(asked.jobs) as workers:
        return _report(chosen, workers.map(caught, chosen))


def _report(chosen: Sequence[Fault], results: Iterable[tuple[bool, str]]) -> int:
    missed = 0
    for fault, (noticed, how) in zip(chosen, results, strict=True):
        print(f"{'caught' if noticed else 'NOT CAUGHT':<10}  {fault.name}\n    {how}", flush=True)
        missed += not noticed
    print(f"{len(chosen) - missed} of {len(chosen)} faults caught")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
