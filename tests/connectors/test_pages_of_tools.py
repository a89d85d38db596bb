"""What the pages about annotation tools tell people to write is understood."""

import re
import shlex
import tomllib
from typing import Any

import pytest
from labelguard_connectors.hook.metrics import Metrics
from labelguard_connectors.hook.schedule import Schedule
from labelguard_connectors.hook.verification import Scheme
from support.pages import DOCS, blocks, check_command, commands

from labelguard.answers.connector import Settings, connector, kinds
from labelguard.project.retention import period

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
        settings = Settings.of(name, table)
        connector(settings)
        Scheme.of(settings)
    period(told.get("ingest", {}))
    Schedule.of(told.get("hook", {}))


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
    assert all(f"`{kind}`" in page for kind in kinds())


def test_metrics_and_alarms_are_about_what_the_hook_counts():
    counted = set(re.findall(r"(?m)^# TYPE (\w+)", Metrics().page().decode()))
    page = (DOCS / "connectors.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"labelguard_(?:hook|releases|last)_\w+", page))
    assert documented == {name for name in counted if not name.endswith("_created")}
