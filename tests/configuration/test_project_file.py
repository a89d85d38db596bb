"""labelguard.toml: each table is checked when a project is opened, and a mistake is named."""

import tomllib

import pytest
import yaml
from jsonschema import Draft202012Validator
from support.pages import DOCS, blocks, script

from labelguard.answers.connector import Settings, open_connector
from labelguard.configuration import project_file
from labelguard.errors import ProjectError
from labelguard.jobs.settings import load_job
from labelguard.project.project import CONFIG, find
from labelguard.report.doctor import check_installation

TABLE = '[connectors.clinic]\nurl = "https://tool.example"\nproject = 7\n'


def refusal(project, more, *, head="format = 1\n"):
    """What is said of a project whose file is this; as `labelguard doctor` says it too."""
    (project.state / CONFIG).write_text(head + more, encoding="utf-8")
    with pytest.raises(ProjectError) as refused:
        find(project.state.parent)
    said = str(refused.value)
    assert said.startswith(f"{project.state / CONFIG}") and "\n" not in said
    [finding] = [one for one in check_installation(project.state.parent) if one.name == "project"]
    assert not finding.ok and finding.detail == said
    return said.removeprefix(f"{project.state / CONFIG}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[inptu]", ": inptu: "),
        ('[input]\nnamespace = "files"', ": input.namespace: "),
        ("[input]\ncolumns = 3", ": input.columns: "),
        ("[ingest]\nkeep = 90", ": ingest.keep: "),
        ('[ingest]\nkeep = "3 months"', ': ingest.keep: expected a number of days, like "90d"'),
        ("[hook.release]\npush = 1", ": hook.release.push: "),
        ('[hook.release]\nwhen = "hourly"', ": hook.release.when: expected manual, every:500"),
        (TABLE + "[connectors.clinic.hook]\nscheem = 1", ".hook.scheem: "),
        (TABLE + "source = 3", ": connectors.clinic.source: "),
        (TABLE + 'api_key = "x"', ": connectors.clinic.api_key: this does not belong into a file"),
        (TABLE + 'on = {token = "x"}', ": connectors.clinic.on.token: this does not belong into"),
        ("connectors = 3", ": connectors: "),
        ("a = 2026-01-01", ": only texts, finite numbers"),
        ("[ingest]\n[ingest]", ": Cannot declare ('ingest',) twice (at line 3"),
    ],
)
def test_what_is_wrong_in_the_file_is_named_with_its_table(text, said, project):
    assert said in refusal(project, text)


@pytest.mark.parametrize("head", ["", "format = 2\n", 'format = "hunter2"\n'])
def test_a_file_of_another_format_is_refused_and_its_value_is_not_shown(head, project):
    said = refusal(project, "", head=head)
    assert "reads format 1" in said and "hunter2" not in said


def test_the_file_of_a_new_project_says_its_source(project):
    assert find(project.state.parent).namespace == "files"
    path = project.state / CONFIG
    path.write_text(path.read_text().replace('source = "files"', 'source = "survey"'))
    assert find(project.state.parent).namespace == "survey"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('url = "https://x.example"\nprojct = 7', "connectors.clinic.projct: "),
        ("project = 7", "connectors.clinic.url: "),
        (
            'url = "https://me:pw@x.example"\nproject = 7',
            "connectors.clinic.url: expected one like",
        ),
    ],
)
def test_the_doctor_checks_what_a_connector_has_of_its_own(table, said, project):
    kind = f'[connectors.clinic]\nkind = "label-studio"\n{table}\n'
    (project.state / CONFIG).write_text(f"format = 1\n{kind}", encoding="utf-8")
    [finding] = [
        one for one in check_installation(project.state.parent) if one.name == "ingested answers"
    ]
    assert not finding.ok and said in finding.detail and "me:pw" not in finding.detail


# docs/configuration.md is that of the models, and its files are understood.


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
    found = project_file.read_project_file(text.encode(), "labelguard.toml")
    for name, table in found["connectors"].items():
        open_connector(Settings.from_table(name, table))
    [job] = [one for _, one in blocks("configuration.md", "yaml") if one.startswith("pull")]
    (tmp_path / "job.yaml").write_text(job, encoding="utf-8")
    assert load_job(tmp_path / "job.yaml").options == {
        "features": "text+length",
        "bad_rows": "quarantine",
    }
