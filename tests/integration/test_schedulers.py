"""Dagster runs the example's job: the real command, in a real project."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from integration.servers import installed
from support.job_projects import desk as new_desk

from labelguard.jobs.run import retrain
from labelguard.jobs.state import hold_lock

pytestmark = pytest.mark.integration
EXAMPLE = Path(__file__).parents[2] / "examples" / "schedulers" / "dagster_retrain.py"


@pytest.fixture
def execute(tmp_path):
    """Execute the example on the job of a desk; the exit code of Dagster, and what it logged."""
    program = installed("dagster", "dagster", "dagster") / "dagster"

    def run(desk):
        command = (
            f"{sys.executable} -m labelguard retrain {desk.job} --project {desk.path} --strict"
        )
        [line] = [x for x in EXAMPLE.read_text().splitlines() if x.startswith("COMMAND = ")]
        text = EXAMPLE.read_text().replace(line, f"COMMAND = {command!r}")
        copy = tmp_path / "example.py"
        copy.write_text(text.replace("seconds_to_wait=1800", "seconds_to_wait=0"))
        home = tmp_path / "dagster"
        home.mkdir()
        done = subprocess.run(
            [program, "job", "execute", "-f", copy, "-j", "labelguard_retrain"],
            env={**os.environ, "DAGSTER_HOME": str(home), "DAGSTER_DISABLE_TELEMETRY": "1"},
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_a_run_that_ends_well_is_a_success(execute, tmp_path):
    desk = new_desk(tmp_path / "desk")
    code, log = execute(desk)
    assert code == 0, log
    assert [run.outcome for run in desk.history()] == ["promoted"]


def test_an_exhausted_budget_is_no_failure_and_is_said(execute, tmp_path):
    desk = new_desk(tmp_path / "desk", allow=("rr:uses=6,block=1",))
    retrain(desk.job, project=desk.path)
    desk.label(2)
    code, log = execute(desk)
    assert code == 0 and "the budget is exhausted" in log, log
    assert len(desk.history()) == 2


def test_a_job_that_is_busy_is_tried_again(execute, tmp_path):
    desk = new_desk(tmp_path / "desk")
    retrain(desk.job, project=desk.path)
    with hold_lock(desk.state / "lock", "busy"):
        code, log = execute(desk)
    assert code == 1 and log.count("STEP_UP_FOR_RETRY") == 3, log
    assert len(desk.history()) == 1
