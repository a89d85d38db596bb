"""What `import labelguard as lg` gives: its names, and each of them as its example says."""

import doctest
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.releases import make_release

import labelguard as lg
from labelguard.extras import MissingExtra

NAMES = (
    *("Policy", "Project", "Reading", "Release", "__version__", "account", "errors", "export"),
    *("find", "init", "inspect", "load", "plan", "policies", "privatize", "publish"),
    *("reward", "score", "simulate", "waiting"),
)
MODULES = ("account", "policies")
EXAMPLES = [
    *(name for name in NAMES if name not in (*MODULES, "errors", "__version__")),
    *(f"{module}.{name}" for module in MODULES for name in dir(getattr(lg, module))),
]


def test_the_public_names_are_these_and_completion_shows_no_others():
    assert sorted(lg.__all__) == sorted(NAMES)
    assert [name for name in dir(lg) if not name.startswith("__")] == sorted(
        name for name in NAMES if name != "__version__"
    )
    assert all(isinstance(getattr(lg, name), ModuleType) for name in (*MODULES, "errors"))


def test_a_name_is_loaded_when_it_is_asked_for():
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


def test_a_misspelt_name_is_told_with_the_one_that_is_near():
    with pytest.raises(AttributeError, match=r"attribute 'privatise' \(did you mean 'privatize'\?"):
        lg.privatise  # type: ignore[attr-defined]  # noqa: B018


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """A release with a head, of which the examples speak."""
    project = lg.init(tmp_path_factory.mktemp("released"))
    table = lg.simulate(labelers=30, labels=900, items=200)
    return make_release(table, mechanism="statistic", features="length", project=project)


def _found(name):
    found = lg
    for part in name.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.docs
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_public_name_runs_as_it_is_printed(
    name, release, hub, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    pq.write_table(lg.simulate(labelers=30, labels=900, items=200), "labels.parquet")
    known = {"lg": lg, "release": release, "Path": Path}
    text = _found(name).__doc__ or ""
    if "lg.init" not in text:
        Path("study").symlink_to(release.path.parents[2])
    test = doctest.DocTestParser().get_doctest(text, known, name, None, None)
    said: list[str] = []
    assert test.examples, f"{name} has no example"
    doctest.DocTestRunner().run(test, out=said.append)
    assert not said, "".join(said)


def test_a_release_is_loaded_as_whichever_table_is_asked_for(release):
    rows = lg.load(release, "arrow").to_pylist()
    assert lg.load(str(release.path)).to_dicts() == rows
    frame = lg.load(release, "pandas")
    assert pa.Table.from_pandas(frame, preserve_index=False).to_pylist() == rows
    with pytest.raises(ValueError, match="one of polars, arrow, pandas, datasets, found 'numpy'"):
        lg.load(release, "numpy")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match=r"found 'panda' \(did you mean 'pandas'\?\)"):
        lg.load(release, "panda")  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["load", "score"])
def test_what_is_no_release_is_told_what_is_expected(name):
    rest = ("labels.parquet",) if name == "score" else ()
    with pytest.raises(
        TypeError, match=r"^expected a Release, the id of one, or .* found NoneType$"
    ):
        getattr(lg, name)(None, *rest)


@pytest.mark.parametrize("kind", ["pandas", "datasets"])
def test_a_package_that_is_not_installed_is_named_with_its_remedy(kind, release, monkeypatch):
    monkeypatch.setitem(sys.modules, kind, None)
    with pytest.raises(MissingExtra, match=rf"^{kind} is not installed; .* with: pip install "):
        lg.load(release, kind)
