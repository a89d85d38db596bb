"""What people and programs read: the text of every command, its JSON, and its exit code.

The texts are in tests/golden; `UPDATE_GOLDEN=1 pytest tests/cli/test_cli_golden.py` writes them
anew.
Only the clock and the source of random bytes are replaced, so ids and counts are those of real
runs with one fixed key.
"""

import hashlib
import os
import re
import shlex
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from support import world
from support.codings import OPTION
from support.commands import FIRST
from support.pages import DOCS, script

from labelguard.cli.main import main
from labelguard.cli.release import _format_estimate
from labelguard.ledger.ledger import Ledger
from labelguard.mechanisms.agreement import AgreementEstimate
from labelguard.project.project import find

GOLDEN = Path(__file__).parents[1] / "golden"
REFERENCE = DOCS / "generate_cli.py"
PRIVATIZE = ("privatize", "labels.parquet", "--epsilon", "3", "--delta", "1e-5", *FIRST)
PRIVATIZE += OPTION
PRIVATIZE += ("--mechanism", "rr")
SIMULATE = shlex.split("simulate -o labels.parquet --labelers 5 --labels 60 --items 20")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a command in an empty directory, at a fixed time, with reproducible keys."""
    count = 0

    def next_bytes(size):
        nonlocal count
        count += 1
        return hashlib.shake_256(f"random bytes {count}".encode()).digest(size)

    world.fix_randomness(monkeypatch, next_bytes)
    world.fix_clock(monkeypatch, "2030-01-02T03:04:05Z")
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("LABELGUARD_PROJECT", "LABELGUARD_KEYS", "LABELGUARD_LEDGER_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def command(*arguments):
        return CliRunner().invoke(main, list(arguments))

    return command


@pytest.fixture
def project(run):
    """The same, in a project with one release of 60 simulated labels."""
    for command in (SIMULATE, ("init",), PRIVATIZE):
        assert run(*command).exit_code == 0
    return run


def crash_release(project):
    """Begin one release more, and do not commit it."""

    def crash(*_):
        raise RuntimeError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "commit", crash)
        assert project(*PRIVATIZE, "--again", "--exhausted", "drop").exit_code == 1


def compare(name, result, shown=str):
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


def without_digests(text):
    """The text without what a Parquet library's bytes decide."""
    return re.sub(r"\b[0-9a-f]{64}\b", "DIGEST", text)


# ---------------------------------------------------------------- texts


def test_privatize_reads_well(run):
    run(*SIMULATE)
    run("init")
    compare("privatize", run(*PRIVATIZE))


def test_a_plan_reads_well(run):
    """Its forecasts are measured, and differ between processors; `test_planner` judges them."""
    run(*SIMULATE)
    plan = run("plan", "labels.parquet", *OPTION, "--features", "length", "--epsilons", "3")
    compare("plan", plan, lambda text: re.sub(r"\d\.\d{3}|\d+%", "NUMBER", text))


@pytest.mark.parametrize("command", ["budget show", "release show"])
def test_what_looks_at_a_project_reads_well(project, command):
    compare("-".join(command.split()), project(*command.split()))


def test_a_report_reads_well(project):
    written = project("report", "-o", "report.md")
    compare("report", written, lambda text: without_digests(text + Path("report.md").read_text()))


@pytest.mark.docs
def test_the_demo_reads_well(run):
    found = run("demo")
    written = (GOLDEN / "demo.txt").read_text(encoding="utf-8")
    if "UPDATE_GOLDEN" in os.environ:
        written = found.output
        compare("demo", found)
    # A product of matrices differs in its last digits between processors: measured shares may too.
    shares = re.compile(r" +(\d+)%")
    table, other_table = (text.partition("Rows of")[0] for text in (found.output, written))
    assert shares.sub("", table) == shares.sub("", other_table)
    numbers = (map(int, shares.findall(text)) for text in (table, other_table))
    assert all(abs(one - other) <= 5 for one, other in zip(*numbers, strict=True))


def test_the_demo_goes_nowhere_where_something_is(run, tmp_path):
    (tmp_path / "file").touch()
    found = run("demo", str(tmp_path))
    assert found.exit_code == 1
    assert "is not empty; remove it or name another directory" in found.output


# ---------------------------------------------------------------- exit codes


def test_an_error_is_one_line_and_ends_with_1(run):
    Path("labels.parquet").touch()
    result = run(*PRIVATIZE)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert re.fullmatch(r"labelguard: no labelguard project in .*\n", result.stderr)


def test_a_file_that_was_altered_ends_verification_with_1(project):
    data = next(Path(".labelguard/releases").glob("*/data.parquet"))
    data.write_bytes(data.read_bytes() + b"x")
    for command in ("budget verify", "release verify"):
        result = project(*command.split())
        assert result.exit_code == 1
        assert "data.parquet was altered since the release was committed; put" in result.stderr
    assert project("doctor").exit_code == 1


def test_a_copy_is_shown_and_verified_without_its_project(project, monkeypatch, tmp_path_factory):
    path = next(Path(".labelguard/releases").iterdir())
    copy = Path(shutil.copytree(path, tmp_path_factory.mktemp("elsewhere") / "copy"))
    assert "compared" not in project("release", "verify", str(path)).stderr
    shown = project("release", "show").stdout
    monkeypatch.chdir(copy.parent)
    assert project("release", "show", "copy").stdout == shown
    result = project("release", "verify", "copy")
    assert result.exit_code == 0 and "only its project can tell" in result.stderr
    (copy / "CARD.md").write_text("mine")
    result = project("release", "verify", "copy")
    assert result.exit_code == 1 and "CARD.md was altered" in result.stderr


def test_an_estimate_that_tells_nothing_is_unknown():
    def shown(agreement, low, high):
        return _format_estimate(AgreementEstimate(agreement, low, high, 0.3, 0.6, 9, 3))

    assert shown(0.7, 0.1, 1) == "0.700"
    assert {shown(0.7, 0, 1), shown(1.678, 0, 1), shown(-0.1, 0, 0.5)} == {"unknown"}


def test_a_map_of_an_unfinished_release_is_verified_too(project):
    somebody_new = {"labeler_id": "ada", "response_a": "yes", "response_b": "no", "label": 1.0}
    rows = [somebody_new | {"prompt": f"question {number}"} for number in range(6)]
    pq.write_table(pa.Table.from_pylist(rows), "labels.parquet")
    crash_release(project)
    assert project("budget", "verify").exit_code == 0
    newest = max(find().private_maps.iterdir())
    changed = next(newest.glob("*.parquet"))
    changed.write_bytes(changed.read_bytes() + b"x")
    result = project("budget", "verify")
    assert result.exit_code == 1
    assert "is not as it was drawn" in result.stderr and newest.name in result.stderr


def test_wrong_usage_ends_with_2(run):
    assert run("privatize", "--nonsense").exit_code == 2
    assert run("nonsense").exit_code == 2


def test_every_exit_code_is_documented():
    assert list(script(REFERENCE).EXIT_CODES) == [0, 1, 2, 3, 4, 130]
