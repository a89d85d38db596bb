"""The alert rules in examples/: Prometheus takes them, they fire when they should, and on nothing
that the hook does not measure."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from labelguard_connectors.hook.metrics import Metrics

ROOT = Path(__file__).parents[2]
RULES = ROOT / "examples" / "alerts.yml"
CASES = Path(__file__).with_name("alerts.test.yml")
NAME = re.compile(r"\blabelguard_(?:hook|releases|last)_\w+")


def promtool(*arguments):
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("there is no promtool (apt-get install prometheus)")
    ran = subprocess.run([program, *arguments], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_prometheus_takes_the_rules():
    assert "8 rules found" in promtool("check", "rules", RULES)


def test_they_fire_when_they_should_and_not_else():
    promtool("test", "rules", CASES)


def test_every_alert_has_a_case_that_fires():
    alerts = re.findall(r"alert: (\w+)", RULES.read_text())
    fired = re.findall(r"alertname: (\w+)\n +exp_alerts: \[\{", CASES.read_text())
    assert set(alerts) == set(fired)


def test_they_are_about_what_the_hook_measures():
    metrics = Metrics()
    metrics.deliveries.labels("label-studio", "200").inc()
    measured = set(NAME.findall(metrics.page().decode()))
    assert set(NAME.findall(RULES.read_text())) <= measured
