"""What the pages about annotation tools tell people to write is understood."""

import io
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path, PurePath
from typing import Any

import pytest
import yaml
from dockerfile_parse import DockerfileParser
from labelguard_connectors.hook.metrics import Metrics, render_metrics
from labelguard_connectors.hook.schedule import Schedule
from labelguard_connectors.hook.served import ServedProject
from labelguard_connectors.hook.serving import Scheme
from labelguard_connectors.label_studio import rest
from support.pages import DOCS, blocks, check_command, commands

from labelguard.answers.connector import Settings, list_connector_kinds, open_connector
from labelguard.project.retention import parse_retention_period

PAGES = ("connectors.md", "label-studio.md", "argilla.md")
TABLES = [
    pytest.param(block, id=f"{page}-{number}")
    for page in PAGES
    for number, (_, block) in enumerate(blocks(page, "toml"))
]
LINES = [
    line
    for page in PAGES
    for _, block in blocks(page, "console", "sh")
    for line in commands(block)
    if line.startswith("labelguard ")
]


@pytest.mark.parametrize("block", TABLES)
def test_tables_of_labelguard_toml_are_understood(block):
    told = tomllib.loads(block)
    assert set(told) <= {"connectors", "ingest", "hook"}
    for name, table in told.get("connectors", {}).items():
        settings = Settings.from_table(name, table)
        open_connector(settings)
        Scheme.of(settings)
    parse_retention_period(told.get("ingest", {}))
    Schedule.of(told.get("hook", {}))


def test_the_page_of_label_studio_quotes_what_is_said():
    page = (DOCS / "label-studio.md").read_text(encoding="utf-8")
    quoted = dict(re.findall(r"(?m)^\| `HTTP (\d+): (.*?)` \|", page))
    assert len(quoted) == 2
    assert all(rest._HINTS[int(code)].startswith(text) for code, text in quoted.items())


@pytest.mark.parametrize("line", sorted(set(LINES)))
def test_commands_and_options_are_those_of_the_command_line(line):
    check_command(shlex.split(line)[1:])


def test_the_table_of_connectors_names_every_key():
    page = (DOCS / "configuration.md").read_text()
    keys = set(re.findall(r"`(\w+)`", "".join(re.findall(r"(?m)^\| (`.*?) \|", page))))
    own: dict[str, Any] = Settings.__dataclass_fields__
    assert keys >= set(own) - {"name", "options", "hook"} | {
        "url",
        "project",
        "dataset",
        "workspace",
    }
    assert all(f"`{kind}`" in page for kind in list_connector_kinds())


def test_metrics_and_alarms_are_about_what_the_hook_counts(project):
    metrics = Metrics(ServedProject(project), ["label-studio"])
    counted = set(re.findall(r"(?m)^# TYPE (\w+)", render_metrics({"": metrics}).decode()))
    page = (DOCS / "connectors.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"labelguard_(?:hook|releases|last)_\w+", page))
    assert documented == {name for name in counted if not name.endswith("_created")}


# The Dockerfile and the example of compose: linted, without root, secrets and what is not there.


ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
COMPOSE = EXAMPLES / "compose.yaml"
SECRET = re.compile(r"(?i)password|secret|token|api_key|passphrase")


def list_context():
    """What .dockerignore lets into the build."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    return [line for line in lines if line.startswith("!")]


@pytest.fixture(scope="module")
def steps():
    """The instructions of the Dockerfile, lines put together."""
    parser = DockerfileParser(fileobj=io.BytesIO((ROOT / "Dockerfile").read_bytes()))
    return [(step["instruction"], step["value"]) for step in parser.structure]


def test_the_image_runs_without_root_and_holds_no_secret(steps):
    images = [value.split()[0] for name, value in steps if name == "FROM"]
    assert all(re.fullmatch(r"[^:]+:(?!latest).+", image) for image in images)
    last = steps[max(n for n, (name, _) in enumerate(steps) if name == "FROM") :]
    *_, user = [value for name, value in last if name == "USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)  # Kubernetes cannot tell names from root
    assert any(name == "HEALTHCHECK" and "/healthz" in value for name, value in last)
    for name, value in steps:
        assert name not in ("ENV", "ARG", "LABEL") or not SECRET.search(value)
        if name == "COPY" and not value.startswith("--from="):
            *sources, _ = shlex.split(value)
            assert all((ROOT / one).exists() and f"!{one}" in list_context() for one in sources)


def test_the_image_installs_extras_that_there_are_and_starts_labelguard(steps):
    said = dict(steps)
    [extras] = [v.partition("=")[2] for n, v in steps if n == "ARG" and v.startswith("EXTRAS=")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert json.loads(said["ENTRYPOINT"]) == ["labelguard"]
    check_command(json.loads(said["CMD"]))


def test_nothing_of_a_project_can_get_into_the_image():
    names = {PurePath(line[1:]).name for line in list_context()}
    assert not names & {".labelguard", ".git", ".venv", "examples", "tests"}
    assert "**/.labelguard" in (ROOT / ".dockerignore").read_text().splitlines()


@pytest.fixture(scope="module")
def compose():
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return found


def test_the_commands_that_the_compose_file_begins_with_are_there():
    wanted = r"(?m)^#   docker compose run --rm (?:hook|worker) (.*)$"
    for line in re.findall(wanted, COMPOSE.read_text()):
        check_command(shlex.split(line))


def test_services_run_what_there_is_and_name_what_is_declared(compose):
    services = compose["services"].values()
    for name in ("hook", "worker"):
        check_command(compose["services"][name]["command"])
    volumes = {one.partition(":")[0] for service in services for one in service["volumes"]}
    assert volumes == set(compose["volumes"])
    for what in ("secrets", "networks"):
        assert {one for service in services for one in service[what]} == set(compose[what])
    assert all(re.fullmatch(r"[^:]+:(?!latest).+", service["image"]) for service in services)


def test_no_secret_is_in_the_compose_file(compose):
    for service in compose["services"].values():
        for name, value in service["environment"].items():
            if SECRET.search(name):
                assert name.endswith("_FILE"), name
                secret = value.removeprefix("/run/secrets/")
                assert secret in service["secrets"], value
            else:
                assert not re.search(r"://[^/]*:[^/]*@", value), "a password in a URL"
                assert not re.search(r"passfile=(?!/run/secrets/ledger_pgpass$)", value)
    assert all(set(secret) == {"file"} for secret in compose["secrets"].values())
    assert not (EXAMPLES / "secrets").exists()


def test_who_breaks_into_the_hook_finds_no_key_of_the_tool(compose):
    assert "label_studio_api_key" not in compose["services"]["hook"]["secrets"]
    assert "label_studio_hook_secret" not in compose["services"]["worker"]["secrets"]


def test_only_the_proxy_of_the_machine_reaches_the_hook(compose):
    for name, service in compose["services"].items():
        ports = service.get("ports", [])
        assert all(port.startswith("127.0.0.1:") for port in ports), name
        assert bool(ports) == (name == "hook")
    assert compose["networks"]["inside"] == {"internal": True}
    assert compose["services"]["postgres"]["networks"] == ["inside"]


def test_who_writes_the_project_is_no_root_and_gains_nothing(compose):
    for name in ("hook", "worker"):
        service = compose["services"][name]
        assert "user" not in service  # the image's: 10001
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert {"project:/project", "keys:/keys"} <= set(service["volumes"])


def test_the_example_of_connectors_is_understood(compose):
    told = tomllib.loads((EXAMPLES / "connectors.toml").read_text())
    tables = told["connectors"]
    Schedule.of(told["hook"])
    parse_retention_period(told["ingest"])
    words = {re.sub(r"\W", "_", name).upper() for name in tables}
    for name, table in tables.items():
        open_connector(Settings.from_table(name, table))
    both = [compose["services"][name]["environment"] for name in ("hook", "worker")]
    for variable in (*both[0], *both[1]):
        found = re.fullmatch(r"LABELGUARD_(\w+)_(API_KEY|HOOK_SECRET)_FILE", variable)
        assert found is None or found[1] in words, variable


# The alert rules in examples/: Prometheus takes them, they fire when they should, and on nothing.


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


def test_they_fire_when_they_should_and_not_else():
    promtool("test", "rules", CASES)


def test_every_alert_has_a_case_that_fires():
    alerts = re.findall(r"alert: (\w+)", RULES.read_text())
    fired = re.findall(r"alertname: (\w+)\n +exp_alerts: \[\{", CASES.read_text())
    assert set(alerts) == set(fired)


def test_they_are_about_what_the_hook_measures(project):
    metrics = Metrics(ServedProject(project), ["label-studio"])
    metrics.deliveries.labels("label-studio", "200").inc()
    measured = set(NAME.findall(render_metrics({"": metrics}).decode()))
    assert set(NAME.findall(RULES.read_text())) <= measured
