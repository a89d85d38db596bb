"""The wheel of `make dist`: what is in it, and that it works where nothing else of ours is.

Run by `make test-dist`: the wheel is installed in an empty environment outside the clone.
"""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

from labelguard import __version__

pytestmark = pytest.mark.dist

ROOT = Path(__file__).parents[2]
SDIST = ROOT / "dist" / f"labelguard-{__version__}.tar.gz"
WHEEL = ROOT / "dist" / f"labelguard-{__version__}-py3-none-any.whl"
PACKAGES = ("labelguard", "connectors/labelguard_connectors", "trainer/labelguard_trainer")
ABOUT = f"labelguard-{__version__}.dist-info"
# Extras that are installed for real: small ones. The features of texts need no extra.
CHEAP = "jobs,label-studio"


def list_packages():
    """The files of the three packages, by their names in a wheel."""
    return {
        path.relative_to((ROOT / package).parent).as_posix(): path.read_bytes()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def metadata():
    """Raises for what an index would refuse."""
    with zipfile.ZipFile(WHEEL) as wheel:
        return Metadata.from_email(wheel.read(f"{ABOUT}/METADATA"), validate=True)


def test_the_wheel_holds_the_three_packages_as_they_are_here_and_nothing_else():
    """It was built from the sdist, so that one suffices to build it."""
    with zipfile.ZipFile(WHEEL) as wheel:
        found = {name: wheel.read(name) for name in wheel.namelist()}
    about = {name.partition("/")[2] for name in found if name.startswith(f"{ABOUT}/")}
    assert about == {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    assert {k: v for k, v in found.items() if not k.startswith(f"{ABOUT}/")} == list_packages()
    assert {name for name in found if name.endswith("py.typed")} == {
        f"{Path(package).name}/py.typed" for package in PACKAGES
    }


def test_the_sdist_is_the_repository():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    with tarfile.open(SDIST) as sdist:
        found = {name.partition("/")[2] for name in sdist.getnames()}
    assert found == {*listed.stdout.splitlines(), "PKG-INFO"}


def test_an_index_takes_the_metadata_and_shows_no_link_that_leads_nowhere():
    found = metadata()
    assert (str(found.version), found.license_expression) == (__version__, "Apache-2.0")
    page = found.description or ""
    assert page.startswith("# labelguard") and len(page) > 2000
    targets = [piece.partition(")")[0] for piece in page.split("](")[1:]]
    assert [target for target in targets if not target.startswith("https://")] == []


@pytest.fixture(scope="module")
def outside():
    """A directory outside the clone, and on a disk: an environment has a gigabyte."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def installed(outside):
    """The programs of an environment that holds the wheel and what it asks for."""
    venv.create(outside / "venv")
    programs = outside / "venv" / "bin"
    wheel = f"labelguard[{CHEAP}] @ {WHEEL.as_uri()}"
    # Files are compiled as they are used: half of them never are.
    pip(programs, "install", "--no-compile", wheel)
    return programs


def pip(programs, *arguments):
    constraints = ("-c", str(ROOT / "constraints.txt"))
    pip_for = (sys.executable, "-m", "pip", "--python", programs / "python")
    run(*pip_for, arguments[0], "--quiet", *constraints, *arguments[1:])


def run(*command, cwd=None):
    """What a command prints, of an environment that has nothing of this one."""
    ours = ("PYTHONPATH", "VIRTUAL_ENV")
    env = {k: v for k, v in os.environ.items() if k not in ours and "LABELGUARD" not in k}
    done = subprocess.run(command, cwd=cwd or "/", env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_command_line_works(installed, tmp_path):
    labelguard = installed / "labelguard"
    assert run(labelguard, "--version") == f"labelguard, version {__version__}\n"
    findings = json.loads(run(labelguard, "doctor", "--json", cwd=tmp_path))
    assert [finding for finding in findings if not finding["ok"]] == []
    run(labelguard, "init", cwd=tmp_path)
    some = ("--labelers", "20", "--labels", "400", "--items", "100")
    run(labelguard, "simulate", "-o", "labels.parquet", *some, cwd=tmp_path)
    price = (
        "--epsilon",
        "3",
        "--delta",
        "1e-5",
        "--mechanism",
        "rr",
        "--once",
        "--yes",
        "--accept-little-use",
        "--label-values",
        "1-0",
    )
    run(labelguard, "privatize", "labels.parquet", *price, cwd=tmp_path)
    run(labelguard, "release", "verify", cwd=tmp_path)
    run(labelguard, "report", "-o", "report.html", cwd=tmp_path)  # its template is no Python
    assert (tmp_path / "report.html").stat().st_size > 10_000


USE = """
import importlib.metadata, sys
import labelguard as lg, labelguard_connectors, labelguard_trainer
assert not {"duckdb", "numpy", "polars", "torch"} & {*sys.modules}
for name in lg.__all__:
    getattr(lg, name)
own = importlib.metadata.distribution("labelguard").entry_points
doors = [door for door in own if door.group.startswith("labelguard.")]
for door in doors:
    door.load()
assert len(doors) > 20 and "torch" not in sys.modules
print(lg.__file__)
"""


def test_every_name_and_every_entry_point_is_there_without_torch(installed, tmp_path):
    (tmp_path / "use.py").write_text(USE)
    found = run(installed / "python", "use.py", cwd=tmp_path)
    assert Path(found.strip()).is_relative_to(installed.parent)


TYPED = """
import labelguard as lg
from labelguard_connectors.label_studio import LabelStudio
from labelguard_trainer import VectorCache

release: lg.Release = lg.privatize("labels.parquet", mechanism="rr", epsilon=3, delta=1e-5)
lg.privatize("labels.parquet", mechanism="rr", epsilom=3)
LabelStudio(3)
VectorCache(no_such_option=True)
"""


def test_type_checkers_see_all_three_packages(installed, tmp_path):
    (tmp_path / "use.py").write_text(TYPED)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run(
        [*mypy, "--python-executable", installed / "python", "use.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    lines = {line.partition(":")[2].partition(":")[0] for line in errors}
    assert lines == {"7", "8", "9"}, errors


def test_all_extras_resolve_together(installed):
    """Then each does alone: `all` asks for what each of them does, but for stores and engines."""
    asked: dict[str, set[tuple[str, str]]] = {}
    for requirement in metadata().requires_dist or []:
        for extra in metadata().provides_extra or []:
            if requirement.marker and requirement.marker.evaluate({"extra": extra}):
                one = (requirement.name, str(requirement.specifier))
                asked.setdefault(extra, set()).add(one)
    apart = asked.pop("cloud") | asked.pop("ray")  # which hold back what others need
    assert len(asked) > 5 and set.union(*asked.values()) == asked["all"]
    names = {name.replace("_", "-") for name, _ in apart}
    assert names == {"fsspec", "gcsfs", "huggingface-hub", "ray", "s3fs"}
    pip(installed, "install", "--dry-run", f"labelguard[all] @ {WHEEL.as_uri()}")
