"""docs/configuration.md and the schemas are those of the models, and its files are understood."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
from support.pages import DOCS, blocks, script

from labelguard.configuration import project_file
from labelguard.inputs.connector import Settings, connector
from labelguard.jobs.settings import load


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return script(DOCS / "generate_configuration.py")


def test_the_page_and_the_schemas_are_up_to_date(reference: ModuleType) -> None:
    command = "run: python docs/generate_configuration.py"
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page(), command
    for path, schema in reference.SCHEMAS.items():
        assert json.loads(path.read_text(encoding="utf-8")) == schema(), command


def test_the_files_of_the_page_are_understood(tmp_path: Path) -> None:
    [text] = [one for _, one in blocks("configuration.md", "toml") if one.startswith("format")]
    found = project_file.read(text.encode(), "labelguard.toml")
    for name, table in found["connectors"].items():
        connector(Settings.of(name, table))
    [job] = [one for _, one in blocks("configuration.md", "yaml") if one.startswith("pull")]
    (tmp_path / "job.yaml").write_text(job, encoding="utf-8")
    assert load(tmp_path / "job.yaml").options == {
        "features": "text+length",
        "bad_rows": "quarantine",
    }
