"""The files for schedulers in examples/: each is what its scheduler reads, and starts a job."""

import ast
import os
import re
import shlex
import shutil
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from croniter import croniter
from support.pages import check_command, script

from labelguard import __version__
from labelguard.errors import BudgetExceeded, ProjectBusy
from labelguard.report import overview

ROOT = Path(__file__).parents[2]
FILES = ROOT / "examples" / "schedulers"
SERVICE, TIMER = "labelguard-retrain.service", "labelguard-retrain.timer"

with_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd is not here"
)


def uncommented(text):
    """The same with the optional settings that stand behind a `#`."""
    return re.sub(r"(?m)^( *)# (?=LoadCredential=|Environment=|LABELGUARD_\w+=)", r"\1", text)


def check_retrain(words):
    """Raise unless these words run `labelguard retrain` with options that it has."""
    check_command(words[words.index("retrain") :])


def test_the_crontab_runs_the_job_every_night():
    lines = (FILES / "crontab").read_text().splitlines()
    [line] = [line for line in lines if not line.startswith("#")]
    *fields, command = line.split(" ", 5)
    assert croniter.is_valid(" ".join(fields))
    following = croniter(" ".join(fields), datetime(2026, 3, 3)).get_next(datetime)
    assert following == datetime(2026, 3, 3, 2, 30)
    assert "%" not in command  # cron ends a command there
    check_retrain(shlex.split(command))


def faults(here):
    """What systemd finds wrong with the units."""
    (here / "study").mkdir()
    for name in (SERVICE, TIMER):
        text = uncommented((FILES / name).read_text())
        # systemd looks whether the program is there.
        (here / name).write_text(text.replace("/opt/labelguard/bin/labelguard", "/bin/true"))
    command = ["systemd-analyze", "verify", "--user", "--man=no", str(here / SERVICE)]
    own = os.environ | {"XDG_RUNTIME_DIR": str(here), "HOME": str(here)}
    result = subprocess.run([*command, str(here / TIMER)], capture_output=True, text=True, env=own)
    assert "Failed to initialize" not in result.stderr, result.stderr
    return [line for line in result.stderr.splitlines() if "labelguard-retrain" in line]


@with_systemd
def test_systemd_accepts_the_units_and_their_optional_settings(tmp_path):
    assert faults(tmp_path) == []
    text = (FILES / TIMER).read_text()
    for calendar in re.findall(r"OnCalendar=(.*)|`(.*)` is every week", text):
        command = ["systemd-analyze", "calendar", "".join(calendar)]
        subprocess.run(command, check=True, capture_output=True)


def test_the_service_runs_the_job():
    [line] = re.findall(r"(?m)^ExecStart=(.*)$", (FILES / SERVICE).read_text())
    check_retrain(shlex.split(line))


def test_kubernetes_accepts_the_cronjob_and_runs_one_job_at_a_time():
    text = (FILES / "cronjob.yaml").read_text()
    whole = re.sub(r"(?m)^( *)# (env:|  - name|    valueFrom)", r"\1\2", text)
    for manifest in map(yaml.safe_load, (text, whole)):
        kubernetes_validate.validate(manifest, "1.31", strict=True)
    spec = manifest["spec"]
    assert spec["concurrencyPolicy"] == "Forbid" and croniter.is_valid(spec["schedule"])
    pod = spec["jobTemplate"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["env"][0]["valueFrom"]
    assert container["image"] == f"labelguard:{__version__}"
    assert pod["restartPolicy"] == "Never" and pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    check_retrain(container["args"])
    mounts = {one["mountPath"] for one in container["volumeMounts"]}
    assert {"/project", "/keys"} <= mounts
    assert f"--uid {pod['securityContext']['runAsUser']}" in (ROOT / "Dockerfile").read_text()


# The example examples/simulate_year.py: models follow preferences that drift.


EXAMPLE = Path(__file__).parents[2] / "examples" / "simulate_year.py"


@pytest.fixture(scope="module")
def example():
    return script(EXAMPLE)


def follows(weeks):
    """Whether the models in use keep up with the preferences in the last quarter."""
    last = weeks.tail(max(2, len(weeks) // 4))
    return bool((last["at best"] - last["in use"]).mean() < 0.1)  # type: ignore[operator]


@pytest.mark.slow  # a run of `retrain` a week, each in a process of its own
def test_models_follow_the_drift_and_the_project_holds(example, tmp_path):
    weeks = example.simulate_year(tmp_path / "year", 16)
    assert follows(weeks)
    last = weeks.tail(4)
    assert (last["in use"] - last["of half-time"]).mean() > 0.04  # type: ignore[operator]
    assert overview.verify(tmp_path / "year").ok
    assert overview.budget(tmp_path / "year").lifetime.epsilon == pytest.approx(4)


@pytest.mark.slow
def test_a_gate_that_promotes_nothing_does_not_follow_it(example, tmp_path):
    assert not follows(example.simulate_year(tmp_path / "year", 6, confidence=1 - 1e-12))


@pytest.mark.parametrize("name", ["airflow", "dagster", "prefect"])
def test_an_orchestrator_runs_the_job_every_night_and_knows_its_exit_codes(name):
    """The codes: 3 is no failure and ends it, 4 is tried again."""
    text = (FILES / f"{name}_retrain.py").read_text()
    assigned = [node for node in ast.parse(text).body if isinstance(node, ast.Assign)]
    values: dict[str, Any] = {}
    for node in assigned:
        if ast.unparse(node.targets[0]) in ("COMMAND", "(EXHAUSTED, BUSY)"):
            exec(compile(ast.Module([node], []), name, "exec"), values)
    words = values["COMMAND"].split()
    check_retrain(words)
    assert "--strict" in words and "--wait" not in words
    assert "30 2 * * *" in text
    if name == "airflow":
        assert f"skip_on_exit_code={BudgetExceeded.exit_code}," in text and "retries=3" in text
    else:
        assert (values["EXHAUSTED"], values["BUSY"]) == (
            BudgetExceeded.exit_code,
            ProjectBusy.exit_code,
        )
