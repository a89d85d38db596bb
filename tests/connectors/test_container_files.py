"""The Dockerfile and the example of compose: linted, without root, secrets and what is not there.

No image is built here; what they say is compared with the repository and with the command line.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import pytest
import yaml
from dockerfile_parse import DockerfileParser
from labelguard_connectors.hook.schedule import Schedule
from support.pages import check_command

from labelguard.ingest.connector import Settings, connector
from labelguard.project.retention import kept_for

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
COMPOSE = EXAMPLES / "compose.yaml"
TOOLS = Path(sys.executable).parent
SECRET = re.compile(r"(?i)password|secret|token|api_key|passphrase")
GOOD = (ROOT / "Dockerfile").read_text()


class Dockerfile:
    """Its instructions in order, each with its words, lines put together."""

    def __init__(self, text: str) -> None:
        parser = DockerfileParser(fileobj=io.BytesIO(text.encode()))
        self.steps = [
            (step["instruction"], step["value"])
            for step in parser.structure
            if step["instruction"] != "COMMENT"
        ]
        self.images = parser.parent_images

    def all(self, instruction: str) -> list[str]:
        return [value for name, value in self.steps if name == instruction]

    def last_stage(self) -> list[tuple[str, str]]:
        start = max(n for n, (name, _) in enumerate(self.steps) if name == "FROM")
        return self.steps[start:]


def faults(dockerfile: Dockerfile) -> Iterator[str]:
    """What must not be in an image's description."""
    for image in dockerfile.images:
        name, _, tag = image.partition(":")
        if not tag or tag.startswith("latest"):
            yield f"{name} has no tag that stays"
    last = dockerfile.last_stage()
    users = [value for name, value in last if name == "USER"]
    if not users or not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", users[-1]):
        yield "it runs as root, or as a name that Kubernetes cannot tell from root"
    if not any(name == "HEALTHCHECK" and "/healthz" in value for name, value in last):
        yield "no health check of /healthz"
    for name, value in dockerfile.steps:
        if name in ("ENV", "ARG", "LABEL") and SECRET.search(value):
            yield f"{name} names a secret"
        if name == "COPY" and not value.startswith("--from="):
            *sources, _ = shlex.split(value)
            yield from (f"{one} is not there" for one in sources if not (ROOT / one).exists())
            yield from (f"{one} is ignored" for one in sources if f"!{one}" not in kept())


def kept() -> list[str]:
    """What .dockerignore lets into the build."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    return [line for line in lines if line.startswith("!")]


def test_the_dockerfile_has_no_fault() -> None:
    assert list(faults(Dockerfile(GOOD))) == []


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("3.13-slim-bookworm", "latest", "python has no tag that stays"),
        ("USER 10001:10001", "USER labelguard", "it runs as root"),
        ("USER 10001:10001\n", "", "it runs as root"),
        ("/healthz", "/", "no health check"),
        ("PYTHONUNBUFFERED=1", "LABELGUARD_X_API_KEY=abc", "ENV names a secret"),
        ("COPY trainer trainer", "COPY trainers trainer", "trainers is not there"),
        ("COPY trainer trainer", "COPY tests trainer", "tests is ignored"),
    ],
)
def test_a_dockerfile_with_a_fault_is_found_out(before: str, after: str, fault: str) -> None:
    assert before in GOOD
    assert any(found.startswith(fault) for found in faults(Dockerfile(GOOD.replace(before, after))))


def test_the_image_installs_extras_that_there_are_and_starts_labelguard() -> None:
    dockerfile = Dockerfile(GOOD)
    (extras,) = [v.partition("=")[2] for v in dockerfile.all("ARG") if v.startswith("EXTRAS=")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert json.loads(dockerfile.all("ENTRYPOINT")[-1]) == ["labelguard"]
    check_command(json.loads(dockerfile.all("CMD")[-1]))


def test_nothing_of_a_project_can_get_into_the_image() -> None:
    names = {PurePath(line[1:]).name for line in kept()}
    assert not names & {".labelguard", ".git", ".venv", "examples", "tests"}
    assert "**/.labelguard" in (ROOT / ".dockerignore").read_text().splitlines()


def test_hadolint_finds_nothing() -> None:
    run(TOOLS / "hadolint", ROOT / "Dockerfile")


def test_the_compose_file_is_one() -> None:
    run(TOOLS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE)


def run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return found


@pytest.mark.parametrize("service", ["hook", "worker"])
def test_services_run_commands_that_there_are(service: str, compose: dict[str, Any]) -> None:
    check_command(compose["services"][service]["command"])


def test_the_commands_that_the_compose_file_begins_with_are_there() -> None:
    line = r"(?m)^#   docker compose run --rm (?:hook|worker) (.*)$"
    lines = re.findall(line, COMPOSE.read_text())
    assert [shlex.split(line)[0] for line in lines] == [
        *("init", "connect", "policy", "policy"),
        *("retrain", "retrain"),
    ]
    for line in lines:
        check_command(shlex.split(line))


def test_services_name_what_is_declared_and_no_more(compose: dict[str, Any]) -> None:
    services = compose["services"].values()
    volumes = {one.partition(":")[0] for service in services for one in service["volumes"]}
    assert volumes == set(compose["volumes"])
    for what in ("secrets", "networks"):
        assert {one for service in services for one in service[what]} == set(compose[what])


def test_images_have_tags_that_stay(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        tag = service["image"].partition(":")[2]
        assert tag and not tag.startswith("latest")


def test_no_secret_is_in_the_compose_file(compose: dict[str, Any]) -> None:
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


def test_who_breaks_into_the_hook_finds_no_key_of_the_tool(compose: dict[str, Any]) -> None:
    assert "label_studio_api_key" not in compose["services"]["hook"]["secrets"]
    assert "label_studio_hook_secret" not in compose["services"]["worker"]["secrets"]


def test_only_the_proxy_of_the_machine_reaches_the_hook(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        ports = service.get("ports", [])
        assert all(port.startswith("127.0.0.1:") for port in ports), name
        assert bool(ports) == (name == "hook")
    assert compose["networks"]["inside"] == {"internal": True}
    assert compose["services"]["postgres"]["networks"] == ["inside"]


def test_who_writes_the_project_is_no_root_and_gains_nothing(compose: dict[str, Any]) -> None:
    for name in ("hook", "worker"):
        service = compose["services"][name]
        assert "user" not in service  # the image's: 10001
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert {"project:/project", "keys:/keys"} <= set(service["volumes"])


def test_the_example_of_connectors_is_understood(compose: dict[str, Any]) -> None:
    told = tomllib.loads((EXAMPLES / "connectors.toml").read_text())
    tables = told["connectors"]
    Schedule.of(told["hook"])
    kept_for(told["ingest"])
    words = {re.sub(r"\W", "_", name).upper() for name in tables}
    for name, table in tables.items():
        connector(Settings.of(name, table))
    both = [compose["services"][name]["environment"] for name in ("hook", "worker")]
    for variable in (*both[0], *both[1]):
        found = re.fullmatch(r"LABELGUARD_(\w+)_(API_KEY|HOOK_SECRET)_FILE", variable)
        assert found is None or found[1] in words, variable
