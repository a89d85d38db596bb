"""What people and programs read: the text of every command, its JSON, and its exit code.

The texts are in tests/golden; `UPDATE_GOLDEN=1 pytest tests/cli/test_cli_golden.py` writes them
anew.
Only the clock and the source of random bytes are replaced, so ids and counts are those of real
runs with one fixed key.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import re
import typing
from collections import abc
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from support import world
from support.commands import FIRST
from support.tools import connected

from labelguard.cli.main import main
from labelguard.ledger.ledger import Ledger
from labelguard.project import attempts
from labelguard.project.project import find

GOLDEN = Path(__file__).parents[1] / "golden"
REFERENCE = Path(__file__).parents[2] / "docs" / "generate_cli.py"

Run = Callable[..., Result]
PRIVATIZE = ("privatize", "labels.parquet", "--epsilon", "3", "--delta", "1e-5", *FIRST)
PRIVATIZE += ("--mechanism", "rr")
CLINIC = "policy new clinic --epsilon 3 --allow rr:labels=50 --allow statistic:releases=12"
LABELS = "privatize labels.parquet --mechanism rr"
SMALL_AUDIT = "--epsilon 3 --delta 1e-5 --runs 2000 --pipeline-runs 0"
SIMULATE = (
    "simulate",
    "-o",
    "labels.parquet",
    "--labelers",
    "5",
    "--labels",
    "60",
    "--items",
    "20",
)


def reference() -> ModuleType:
    """docs/generate_cli.py, which documents the JSON of every command."""
    spec = importlib.util.spec_from_file_location("generate_cli", REFERENCE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in an empty directory, at a fixed time, with reproducible keys."""
    count = 0

    def counted(size: int) -> bytes:
        nonlocal count
        count += 1
        return hashlib.shake_256(f"random bytes {count}".encode()).digest(size)

    world.fix_randomness(monkeypatch, counted)
    world.fix_clock(monkeypatch, "2030-01-02T03:04:05Z")
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("LABELGUARD_PROJECT", "LABELGUARD_KEYS", "LABELGUARD_LEDGER_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> Result:
        return CliRunner().invoke(main, list(arguments))

    return command


@pytest.fixture
def project(run: Run) -> Run:
    """The same, in a project with one release of 60 simulated labels."""
    for command in (SIMULATE, ("init",), PRIVATIZE):
        assert run(*command).exit_code == 0
    return run


def crashed(project: Run) -> None:
    """Begin one release more, and do not commit it."""

    def crash(*_: object) -> None:
        raise RuntimeError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "commit", crash)
        assert project(*PRIVATIZE, "--again", "--exhausted", "drop").exit_code == 1


def systems(run: Run, directory: str) -> None:
    """A project with a head on which of three systems wrote each response."""
    labels = pq.read_table("labels.parquet")
    prompts = list(dict.fromkeys(labels["prompt"].to_pylist()))
    table = labels
    for side, other in (("a", "b"), ("b", "a")):
        texts = [
            labels[name].to_pylist() for name in ("prompt", f"response_{side}", f"response_{other}")
        ]
        place = [prompts.index(asked) + (own > its) for asked, own, its in zip(*texts, strict=True)]
        table = table.append_column(f"model_{side}", pa.array([f"system {n % 3}" for n in place]))
    pq.write_table(table, "systems.parquet")
    options = "--mechanism statistic --features source:model --public-column model --epsilon 3"
    options += f" {' '.join(FIRST)} --project"
    assert run("init", directory).exit_code == 0
    assert run("privatize", "systems.parquet", *options.split(), directory).exit_code == 0


def compare(name: str, result: Result, shown: Callable[[str], str] = str) -> None:
    """Compare what a command that succeeded printed with tests/golden/NAME.txt.

    The directory, trailing spaces and what is random in ids of releases (r0001-xxxxxxxx) are left
    out, and whatever `shown` masks.
    """
    assert result.exit_code == 0, result.output
    text = re.sub(r"\b(r\d{4})-[0-9a-f]{8}\b", r"\1-xxxxxxxx", shown(result.output))
    directories = sorted({str(Path.cwd()), os.path.realpath(Path.cwd())}, key=len, reverse=True)
    for directory in directories:
        text = text.replace(directory, "DIR")
    text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"if meant: UPDATE_GOLDEN=1 pytest {__file__}"


def without_digests(text: str) -> str:
    """The text without what a Parquet library's bytes decide."""
    return re.sub(r"\b[0-9a-f]{64}\b", "DIGEST", text)


# ---------------------------------------------------------------- texts


def test_privatize_reads_well(run: Run) -> None:
    run(*SIMULATE)
    run("init")
    compare("privatize", run(*PRIVATIZE))


def test_a_plan_reads_well(run: Run) -> None:
    """Its forecasts are measured, and differ between processors; `test_planner` judges them."""
    run(*SIMULATE)
    plan = run("plan", "labels.parquet", "--features", "length", "--epsilons", "3")
    compare("plan", plan, lambda text: re.sub(r"\d\.\d{3}|\d+%", "NUMBER", text))


@pytest.mark.parametrize("command", ["budget show", "release show"])
def test_what_looks_at_a_project_reads_well(project: Run, command: str) -> None:
    compare("-".join(command.split()), project(*command.split()))


def test_a_report_reads_well(project: Run) -> None:
    written = project("report", "-o", "report.md")
    compare("report", written, lambda text: without_digests(text + Path("report.md").read_text()))


@pytest.mark.docs
def test_the_demo_reads_well(run: Run) -> None:
    found = run("demo")
    written = (GOLDEN / "demo.txt").read_text(encoding="utf-8")
    if "UPDATE_GOLDEN" in os.environ:
        written = found.output
        compare("demo", found)
    # A product of matrices differs in its last digits between processors: measured shares may too.
    shares = re.compile(r"\b0\.\d\d\b")
    assert shares.sub("", found.output) == shares.sub("", written)
    for one, other in zip(
        *(map(float, shares.findall(text)) for text in (found.output, written)), strict=True
    ):
        assert one == pytest.approx(other, abs=0.05)


def test_there_are_few_golden_files() -> None:
    """A better sentence should cost one change, not forty."""
    assert len(list(GOLDEN.iterdir())) <= 8


def test_the_demo_goes_nowhere_where_something_is(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = run("demo", str(tmp_path))
    assert found.exit_code == 1
    assert "is not empty; remove it or name another directory" in found.output


# ---------------------------------------------------------------- JSON


CARD = (
    *("release", "labelguard", "format", "created_at", "kind", "mechanism", "mechanism_version"),
    *("privacy", "counts", "flip_probability", "budget", "train_with", "not_protected"),
)
"""The members of a card of randomized response, which docs/releases.md explains."""


@pytest.mark.docs
def test_json_has_the_documented_keys(
    project: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, desk = connected(find(), tmp_path, monkeypatch)
    desk.answer("maria", 1, "left")
    tasks = [own["body"] for own in desk.records.values()]
    Path("export.json").write_text(json.dumps(tasks))
    commands = {
        "connect check": "connect check desk",
        "connect reconcile": "connect reconcile desk",
        "hook work": "hook work --once",
        "hook run": "hook run export.json --connector desk",
        "pull": "pull desk",
        "push": "push desk r0001",
        "agreement": "agreement r0001",
        "account rr": "account rr --epsilon 3 --delta 1e-5 --labels 50",
        "account statistic": "account statistic --epsilon 3 --delta 1e-5",
        "account run": "account run uls --epsilon 3 --delta 1e-5 --steps 10",
        "audit rr": f"audit rr {SMALL_AUDIT}",
        "audit statistic": f"audit statistic {SMALL_AUDIT}",
        "budget export": "budget export -o ledger.json",
        "budget labeler": "budget labeler physician-0000",
        "labeler erase": "labeler erase physician-0003 --yes",
        "labeler retire": "labeler retire physician-0000 --yes",
        "policy activate": "policy activate clinic --yes",
        "policy close": "policy close --yes",
        "people link": "people link new-3 new-4",
        "policy distinct": "policy distinct new-5 NEW-5",
        "policy drop": "policy drop other",
        "policy groups": "policy groups groups.csv",
        "policy new": "policy new other --epsilon 3 --delta 1e-5 --allow rr:labels=50",
        "policy show": "policy show clinic",
        "project backup": "project backup backup.tar.zst",
        "project restore": "project restore backup.tar.zst restored --keys .labelguard/keys",
        "release abandon": "release abandon r0003",
        "init": "init elsewhere",
        "inspect": "inspect labels.parquet",
        "leaderboard": "leaderboard r0001 --project boards",
        "plan": "plan labels.parquet --features length --epsilons 3",
        "privatize": "privatize labels.parquet",  # the project costs more by then
        "release show": "release show r0001",
        "retrain": "retrain --init",
        "score": "score r0002 labels.parquet -o scored.parquet",
        "source add": "source add tool --people new",
        "simulate": "simulate -o other.parquet --labelers 5 --labels 60 --items 20",
    }
    props = ("--mechanism", "props", "--features", "length")
    assert project(*PRIVATIZE, *props).exit_code == 0  # a release with a head
    systems(project, "boards")
    crashed(project)
    (find().state / attempts.FILE).unlink()  # doctor tells of what crashed
    Path("groups.csv").write_text("labeler_id,group_id\nnew-1,household\nnew-2,household\n")
    assert project(*f"{CLINIC} --delta 1e-5".split()).exit_code == 0
    assert project("source", "add", "desk", "--people", "new").exit_code == 0
    found = reference().results()
    # No policy changes while a release is unfinished.
    late = ("policy close", "policy drop")
    for name in sorted(found, key=lambda name: (name != "release abandon", name in late, name)):
        if name == "serve":  # it goes on until it is told to end
            continue
        if name.startswith("train "):  # it loads torch; tests/trainer reads what it prints
            continue
        result = project(*commands.get(name, name).split(), "--json")
        assert result.exit_code == 0, (name, result.output)
        printed = json.loads(result.stdout)
        matches(printed, found[name])
        assert name != "release show" or tuple(printed) == CARD


def matches(printed: Any, described: Any) -> None:
    """What was printed has the keys of a result's type, and so has all that is in it."""
    kinds = [kind for kind in typing.get_args(described) if kind not in (type(None), ...)]
    if described is Any:
        return
    if isinstance(printed, list):
        for entry in printed:
            matches(entry, kinds[0])
    elif isinstance(printed, dict) and typing.get_origin(described) is abc.Mapping:
        for entry in printed.values():
            matches(entry, kinds[1])
    elif isinstance(printed, dict):
        own = [kind for kind in kinds or [described] if is_dataclass(kind)]
        names = [[field.name for field in fields(kind)] for kind in own]
        if any(typing.get_origin(kind) is abc.Mapping for kind in kinds):
            own = own if list(printed) in names else []  # any keys: a card, say
        assert not own or list(printed) in names, (list(printed), described)
        for kind in own:
            for name, inner in reference().hints(kind).items():
                matches(printed.get(name), inner)


def test_json_has_null_for_what_is_no_number(run: Run) -> None:
    command = "account rr --epsilon 1e-300 --delta 0 --labels 5 --json"
    result = run(*command.split())
    found = json.loads(result.output, parse_constant=pytest.fail)
    assert found["loss_multiplier"] is None


# ---------------------------------------------------------------- exit codes


def labels(count: int, first: int = 0) -> pa.Table:
    """`count` labels of one labeler, on pairs that nobody labelled before `first`."""
    names = [f"question {number}" for number in range(first, first + count)]
    return pa.table(
        {
            "labeler_id": ["ada"] * count,
            "prompt": names,
            "response_a": ["yes"] * count,
            "response_b": ["no"] * count,
            "label": [1.0] * count,
        }
    )


def test_an_error_is_one_line_and_ends_with_1(run: Run) -> None:
    Path("labels.parquet").touch()
    result = run(*PRIVATIZE)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert re.fullmatch(r"labelguard: no labelguard project in .*\n", result.stderr)


def test_a_file_that_was_altered_ends_verification_with_1(project: Run) -> None:
    data = next(Path(".labelguard/releases").glob("*/data.parquet"))
    data.write_bytes(data.read_bytes() + b"x")
    for command in ("budget verify", "release verify"):
        result = project(*command.split())
        assert result.exit_code == 1
        assert "data.parquet was altered since the release was committed; put" in result.stderr
    assert project("doctor").exit_code == 1


def test_a_map_of_an_unfinished_release_is_verified_too(project: Run) -> None:
    crashed(project)
    assert project("budget", "verify").exit_code == 0
    newest = max(find().released.iterdir())
    changed = next(newest.glob("*.parquet"))
    changed.write_bytes(changed.read_bytes() + b"x")
    result = project("budget", "verify")
    assert result.exit_code == 1
    assert "is not as it was drawn" in result.stderr and newest.name in result.stderr


def test_wrong_usage_ends_with_2(run: Run) -> None:
    assert run("privatize", "--nonsense").exit_code == 2
    assert run("nonsense").exit_code == 2


def test_labelers_without_places_end_with_3_and_nothing_is_charged(run: Run) -> None:
    run("init")
    pq.write_table(labels(6), "labels.parquet")
    assert run(*PRIVATIZE, "--max-labels-per-labeler", "8").exit_code == 0
    before = run("budget", "show", "--json").output
    pq.write_table(labels(4, first=6), "labels.parquet")
    result = run(*PRIVATIZE, "--max-labels-per-labeler", "8")
    assert result.exit_code == 3
    assert result.stdout == ""
    assert re.match(
        r"labelguard: 1 of 1 labeler lack allowance for 2 labels .*ε = 6, δ = 2e-5", result.stderr
    )
    assert run("budget", "show", "--json").output == before
    assert run(*PRIVATIZE, "--exhausted", "drop").exit_code == 0


def test_a_second_job_ends_with_4(project: Run) -> None:
    with Path(".labelguard/lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        result = project(*PRIVATIZE)
    assert result.exit_code == 4
    assert result.stderr.startswith("labelguard: another labelguard job works in ")
    assert project(*PRIVATIZE).exit_code == 0


def test_every_exit_code_is_documented() -> None:
    assert list(reference().EXIT_CODES) == [0, 1, 2, 3, 4, 130]
