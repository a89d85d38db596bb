"""Fixtures that several test files share."""

import gc
import itertools
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from support import compiled, databases, engines, world
from support.gated import Gates
from support.lives import first_release

import labelguard
from labelguard.keys.keyring import KeyRing
from labelguard.project.project import find

MEMORY = Path("/dev/shm")
ROOM = 4 << 30
WITH_TRL = ("tests/trainer/", "tests/bench/")

# The same examples in every run: what a change breaks is what it changed.
settings.register_profile("gate", derandomize=True, database=None, deadline=None)
# Other examples in every run, and more; a patch in `.hypothesis/patches` adds what failed.
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile("gate")
# How many times the examples of `make test` a search looks at.
MORE = 5


def pytest_configure(config):
    """What makes thousands of tests fast, and changes no result."""
    compiled.share()
    engines.share()
    _keep_projects_in_memory()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test waits for a hub that is not there
    os.environ["LABELGUARD_PROGRESS"] = "off"  # what is printed must not depend on how long it took
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        _stay_on_one_core(int(worker.removeprefix("gw")))
    if config.getoption("numprocesses", None):
        _let_products_be_on_one_thread()


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem():
    """Mark as slow the cases of a test but those whose ids begin with what `quick` names."""
    made = yield
    cases = made if isinstance(made, list) else []
    if cases and (mark := cases[0].get_closest_marker("quick")):
        names = {case: case.name.partition("[")[2].removesuffix("]") for case in cases}
        found = {
            case: {n for n in mark.args if f"{names[case]}-".startswith(f"{n}-")} for case in cases
        }
        unknown = set(mark.args).difference(*found.values())
        if unknown or not mark.args:
            raise pytest.Collector.CollectError(f"{cases[0].originalname} has no {unknown}")
        for case in (case for case in cases if not found[case]):
            case.add_marker(pytest.mark.slow)
    return made


def pytest_collection_modifyitems(items):
    """Look at more examples where hypothesis searches."""
    if settings.get_current_profile_name() != "search":
        return
    for test in {getattr(item, "function", None) for item in items}:
        if usual := getattr(test, "_hypothesis_internal_use_settings", None):
            more = settings(usual, max_examples=MORE * usual.max_examples)
            vars(test)["_hypothesis_internal_use_settings"] = more


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Stop with one reason when a PostgreSQL server that tests use has gone away."""
    report = yield
    if report.failed and (reason := databases.lost()):
        report.longrepr = reason
        item.session.shouldstop = reason
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give a file, and all tests that load TRL, to one process: what they share is made once."""
    from xdist.scheduler import LoadScopeScheduling

    class OneProcess(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return "trl" if nodeid.startswith(WITH_TRL) else str(nodeid).partition("::")[0]

    return OneProcess(config, log)


def pytest_collection_finish():
    """What is loaded by now stays: to look through it for garbage again and again takes a tenth."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # tests make few cycles, and many objects


def pytest_unconfigure():
    """At the end all of it is garbage."""
    gc.unfreeze()
    gc.collect()


def _stay_on_one_core(number):
    """Where tests run side by side, threads that take turns on another's core take a tenth."""
    if sys.platform == "linux":
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)]})


def _let_products_be_on_one_thread():
    """Of matrices: where tests run side by side, threads of one would wait for another's core."""
    for library in ("OPENBLAS", "OMP"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")  # workers inherit it


def _keep_projects_in_memory():
    """Where there is room: a third of a release is flushing."""
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK):
        return
    if shutil.disk_usage(MEMORY).free >= ROOM:
        os.environ["TMPDIR"] = str(MEMORY)  # for this process, its workers and its children
        tempfile.tempdir = None  # it is looked up anew


def _nothing_of_yours(patch, state):
    """The list of projects that you made is not for tests, nor are your ledger and your keys."""
    patch.setenv("XDG_STATE_HOME", str(state))
    for name in ("LABELGUARD_LEDGER_URL", "LABELGUARD_KEY_FILE", "LABELGUARD_KEY_COMMAND"):
        patch.delenv(name, raising=False)


@pytest.fixture(scope="session", autouse=True)
def _nothing_of_yours_between_tests(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        _nothing_of_yours(patch, tmp_path_factory.mktemp("state"))
        patch.setenv("LABELGUARD_CACHE", str(tmp_path_factory.getbasetemp().parent / "cache"))
        yield


@pytest.fixture(scope="session")
def _states(tmp_path_factory):
    """Directories that nobody has made yet, in one: to look for a free name beside thousands
    takes longer than most tests.
    """
    return map(str, map(tmp_path_factory.mktemp("states").joinpath, map(str, itertools.count())))


@pytest.fixture(autouse=True)
def _nothing_of_yours_in_a_test(_states, monkeypatch):
    _nothing_of_yours(monkeypatch, next(_states))


@pytest.fixture
def project(tmp_path, request):
    """A fresh project; the CEILING that a file of tests names is that of ε."""
    ceiling = getattr(request.module, "CEILING", 10.0)
    return labelguard.init(tmp_path / "project", max_epsilon=ceiling)


@pytest.fixture
def same_in_every_process(monkeypatch):
    """Time and randomness are those of every process that fixes them."""
    world.fix(monkeypatch)


@pytest.fixture
def gates(tmp_path, monkeypatch):
    """A learner that waits until a test lets it go on."""
    return Gates.install(tmp_path, monkeypatch)


@pytest.fixture(scope="session")
def keys():
    return KeyRing.public()


@pytest.fixture
def places(tmp_path):
    """Directories that are not there yet."""
    return (tmp_path / f"staged-{number}" for number in itertools.count())


@pytest.fixture(scope="session")
def _used_project(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:  # a module's fixture may have named a ledger
        patch.delenv("LABELGUARD_LEDGER_URL", raising=False)
        return first_release(tmp_path_factory.mktemp("lived"))


@pytest.fixture
def used_project(_used_project, tmp_path):
    """A project with one release of 50 labels: a copy of one that is made once."""
    shutil.copytree(_used_project.state, tmp_path / "project" / _used_project.state.name)
    return find(tmp_path / "project")


@pytest.fixture(scope="session")
def _hub_server():
    from support import hub as hubs

    with hubs.running() as server:
        yield server


@pytest.fixture
def hub(_hub_server, monkeypatch, tmp_path):
    """A Hugging Face Hub without repositories."""
    from support import hub as hubs

    hubs.point_to(_hub_server, monkeypatch, tmp_path)
    _hub_server.forget()
    return _hub_server


@pytest.fixture(params=databases.EACH)
def ledger_url(request, tmp_path):
    """The URL of an empty database for a ledger, on SQLite and, slow, on PostgreSQL."""
    with databases.fresh(request.param, tmp_path) as url:
        yield url


@pytest.fixture
def postgres(tmp_path):
    """The URL of an empty PostgreSQL database."""
    with databases.fresh("postgresql", tmp_path) as url:
        yield url


@pytest.fixture
def project_on_each(ledger_url, tmp_path, monkeypatch):
    """A fresh project with its ledger on SQLite, and one with its ledger on PostgreSQL."""
    # By the test's own monkeypatch, so that what a test sets on top is undone before this.
    monkeypatch.setenv("LABELGUARD_LEDGER_URL", ledger_url)
    return labelguard.init(tmp_path / "project")
