"""Commands that are told to end in the middle: nothing raw stays behind."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest
from support.commands import PRIVATIZE, run
from support.releases import make_release

import labelguard as lg
from labelguard.cli import terminal

PATIENCE = 60
TEXT = b"a question that nobody else may read"
ROWS = 200_000
RELEASE = (*PRIVATIZE, "--epsilon", "3", "--delta", "1e-5")


@pytest.fixture
def temporary(tmp_path):
    directory = tmp_path / "tmp"
    directory.mkdir()
    return directory


@pytest.fixture(scope="module")
def labels(tmp_path_factory):
    """A file that takes longer to read than to look for what is kept of it."""
    path = tmp_path_factory.mktemp("labels") / "labels.jsonl"
    row = {"labeler_id": "u", "prompt": TEXT.decode(), "response_a": "a", "response_b": "b"}
    path.write_text((json.dumps(row | {"label": 1}) + "\n") * ROWS)
    return str(path)


def _heed_signals():
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def reading(temporary, within, *arguments):
    """A command in the middle of its input, of which it keeps rows somewhere `within`."""
    command = [sys.executable, "-m", "labelguard", *arguments]
    environment = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        preexec_fn=_heed_signals,  # tests may run where hanging up is ignored
    ) as process:
        deadline = time.monotonic() + PATIENCE
        while not find_copies(within):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        try:
            yield process
        finally:
            process.kill()  # nothing happens if it has ended


def find_copies(directory):
    """Files in which rows of the input are."""
    found = []
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):  # it may just have been removed
            if path.is_file() and TEXT in path.read_bytes():
                found.append(path)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_what_was_read_goes_with_the_command(number, labels, temporary):
    with reading(temporary, temporary, "inspect", labels) as process:
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    assert f"stopped; to finish, run it again: labelguard inspect {labels}".encode() in errors
    assert not list(temporary.iterdir())


def test_a_release_keeps_what_it_read_in_its_project_alone(labels, temporary, project):
    arguments = (*RELEASE, labels, "--project", str(project.state))
    with reading(temporary, project.state, *arguments) as process:
        assert not find_copies(temporary)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM
    assert not find_copies(project.state) and not list(temporary.iterdir())


@pytest.mark.slow
def test_what_a_killed_release_kept_goes_with_the_next_job(labels, temporary, project):
    arguments = (*RELEASE, labels, "--project", str(project.state))
    with reading(temporary, project.state, *arguments) as process:
        process.kill()
        process.communicate(timeout=PATIENCE)
    assert find_copies(project.state) and not list(temporary.iterdir())
    with pytest.raises(lg.errors.InvalidLabels):
        make_release("none.jsonl", mechanism="rr", epsilon=3, delta=1e-5, project=project)
    assert not find_copies(project.state)


def test_an_ignored_signal_stays_ignored():
    code = (
        "import os, signal; from labelguard.cli.terminal import handle_stop_signals\n"
        "with handle_stop_signals(): os.kill(os.getpid(), signal.SIGHUP)\n"
        "print('still here')"
    )
    found = subprocess.run(
        ["sh", "-c", 'trap "" HUP; exec "$0" -c "$1"', sys.executable, code], capture_output=True
    )
    assert found.stdout == b"still here\n", found.stderr


# What is told of long jobs where nobody watches: ever more rarely, and how long they take.


DAY = 24 * 3600


class Clock:
    """It shows what it is set to."""

    now = 100.0

    def __call__(self):
        return self.now


def _lines(seconds, capsys):
    """What is told of a job of so many seconds, of which each brings it equally far."""
    clock = Clock()
    report = terminal.ProgressLines(clock)
    for second in range(seconds):
        clock.now = 100.0 + second
        report("training", second / seconds)
    told = capsys.readouterr()
    assert not told.out
    return told.err.splitlines()


def test_nothing_is_told_of_what_takes_less_than_five_seconds(capsys):
    assert not _lines(5, capsys)


def test_a_day_fills_no_log_and_is_never_silent_for_long(capsys):
    few = 1 + math.log2(600 / 5) + DAY / 600
    assert DAY / 600 <= len(_lines(DAY, capsys)) <= few


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """A command of which every step is told, however quick it is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LABELGUARD_PROGRESS")
    for seconds in ("_SOON", "_RARELY"):
        monkeypatch.setattr(terminal, seconds, 0.0)
    made = lg.simulate(labelers=20, labels=200, items=50)
    file = tmp_path / "labels.parquet"
    pq.write_table(made, file)
    return ["plan", str(file), "--features", "length", "--epsilons", "3"]


def test_progress_goes_to_standard_error_unless_a_program_reads_or_it_is_off(plan, monkeypatch):
    result = run(*plan)
    assert "labelguard: simulating labels, 0%" in result.stderr.splitlines()
    assert "labelguard:" not in result.stdout
    result = run(*plan, "--json")
    assert json.loads(result.stdout) and "simulating" not in result.stderr
    monkeypatch.setenv("LABELGUARD_PROGRESS", "off")
    assert "simulating" not in run(*plan).stderr
