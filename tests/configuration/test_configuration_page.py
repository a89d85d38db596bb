"""docs/configuration.md is that of the models, and its files are understood."""

import tomllib

import pytest
import yaml
from jsonschema import Draft202012Validator
from support.pages import DOCS, blocks, script

from labelguard.answers.connector import Settings, connector
from labelguard.configuration import project_file
from labelguard.jobs.settings import load_job


@pytest.fixture(scope="module")
def reference():
    return script(DOCS / "generate_configuration.py")


def test_the_page_is_up_to_date(reference):
    command = "run: python docs/generate_configuration.py"
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page(), command


def test_the_schemas_accept_the_files_of_the_page(reference):
    validators = [Draft202012Validator(schema()) for schema in reference.SCHEMAS.values()]
    [text] = [one for _, one in blocks("configuration.md", "toml") if one.startswith("format")]
    [job] = [one for _, one in blocks("configuration.md", "yaml") if one.startswith("pull")]
    files = (tomllib.loads(text), yaml.safe_load(job))
    for validator, valid, other in zip(validators, files, files[::-1], strict=True):
        validator.check_schema(validator.schema)
        assert validator.is_valid(valid) and not validator.is_valid(other)


def test_the_files_of_the_page_are_understood(tmp_path):
    [text] = [one for _, one in blocks("configuration.md", "toml") if one.startswith("format")]
    found = project_file.read(text.encode(), "labelguard.toml")
    for name, table in found["connectors"].items():
        connector(Settings.of(name, table))
    [job] = [one for _, one in blocks("configuration.md", "yaml") if one.startswith("pull")]
    (tmp_path / "job.yaml").write_text(job, encoding="utf-8")
    assert load_job(tmp_path / "job.yaml").options == {
        "features": "text+length",
        "bad_rows": "quarantine",
    }
