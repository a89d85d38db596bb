"""What is told of long jobs where nobody watches: ever more rarely, and how long they take."""

import json
import math

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import labelguard as lg
from labelguard.cli import terminal
from labelguard.cli.main import main

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


def test_a_line_may_come_at_once_and_the_next_as_ever(capsys):
    clock = Clock()
    report = terminal.ProgressLines(clock, at_once=True)
    for second in range(6):
        clock.now = 100.0 + second
        report(f"{second}", None)
    assert capsys.readouterr().err.splitlines() == ["labelguard: 0", "labelguard: 5"]


def test_lines_say_the_share_and_how_long_it_will_take(capsys):
    assert _lines(1000, capsys)[:4] == [
        "labelguard: training, 0%, about 17 min left",
        "labelguard: training, 1%, about 16 min left",
        "labelguard: training, 2%, about 16 min left",
        "labelguard: training, 4%, about 16 min left",
    ]


def test_a_day_fills_no_log_and_is_never_silent_for_long(capsys):
    few = 1 + math.log2(600 / 5) + DAY / 600
    assert DAY / 600 <= len(_lines(DAY, capsys)) <= few


def test_a_step_that_begins_anew_is_estimated_anew(capsys):
    clock = Clock()
    report = terminal.ProgressLines(clock)
    for now, step, share in (
        *((100, "reading", 0.0), (102, "planning", 0.0), (112, "planning", 0.5)),
        *((124, "drawing", 0.2), (154, "drawing", 0.4), (210, "publishing", None)),
    ):
        clock.now = float(now)
        report(step, share)
    assert capsys.readouterr().err.splitlines() == [
        "labelguard: planning, 50%, about 10 s left",
        "labelguard: drawing, 20%",
        "labelguard: drawing, 40%, about 90 s left",
        "labelguard: publishing",
    ]


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


def _run(*arguments):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result


def test_progress_goes_to_standard_error_unless_a_program_reads_or_it_is_off(plan, monkeypatch):
    result = _run(*plan)
    assert "labelguard: simulating labels, 0%" in result.stderr.splitlines()
    assert "labelguard:" not in result.stdout
    result = _run(*plan, "--json")
    assert json.loads(result.stdout) and "simulating" not in result.stderr
    monkeypatch.setenv("LABELGUARD_PROGRESS", "off")
    assert "simulating" not in _run(*plan).stderr
