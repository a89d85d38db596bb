"""Attack: files of settings that run code, lead elsewhere, or make errors tell secrets.

Hypotheses: a tag makes an object; a name twice lets two readers read two things; an error repeats a
value that was a secret in the wrong place; a link or a file that others can write decides what a
project is.
"""

import os

import pytest

from labelguard.configuration import project_file
from labelguard.errors import LabelguardError, ProjectError
from labelguard.jobs import settings
from labelguard.project.project import CONFIG, find

SECRET = "hunter2-hunter2"
HOSTILE = {
    "a tag.yaml": "epsilon: !!python/object/apply:os.system ['touch pwned']",
    "a new object.yaml": "epsilon: !!python/object/new:os.system ['touch pwned']",
    "a name twice.yaml": f"source: a\nsource: {SECRET}",
    "a name twice.toml": f'source = "a"\nsource = "{SECRET}"',
    "a long name.toml": "a" * 60_000,
    "digits.yaml": "gate: {margin: " + "9" * 60_000 + "}",
    "digits.toml": "epsilon = " + "9" * 60_000,
    "infinite.yaml": "gate: {margin: .inf}",
    "no number.toml": "epsilon = nan",
    "no text.yaml": b"\xff\xfe\x00\x01",
    "no text.toml": b"a = '\xff'",
    "half a sign.yaml": 'source: "\\ud800"',
    "zeros.yaml": b"\0" * 100,
    "a secret for a number.yaml": f"gate: {{margin: {SECRET}}}",
    "a secret for a choice.yaml": f"gate: {{by: {SECRET}}}",
    "a secret for a choice of a mechanism.yaml": f"release: {{options: {{combine: {SECRET}}}}}",
    "a secret for a table.toml": f'release = "{SECRET}"',
    "a secret as itself.yaml": f"api_key: {SECRET}",
    "a secret that breaks.toml": f"epsilon = {SECRET}",
    "a secret that breaks.yaml": f"epsilon: [{SECRET}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_one_short_line_that_repeats_nothing_of_it(
    name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    content = HOSTILE[name]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(LabelguardError) as refused:
        settings.load_job(path)
    said = str(refused.value)
    assert "\n" not in said and len(said) < 300 and SECRET not in said
    assert refused.value.__context__ is None or refused.value.__suppress_context__
    assert not (tmp_path / "pwned").exists()
    if name.endswith(".toml"):
        data = b"format = 1\n" + path.read_bytes()
        with pytest.raises(ProjectError) as refused_too:
            project_file.read_project_file(data, CONFIG)
        assert SECRET not in str(refused_too.value)


def test_no_link_leads_a_project_to_another_file(project, tmp_path):
    path = project.state / CONFIG
    path.rename(tmp_path / "elsewhere.toml")
    path.symlink_to(tmp_path / "elsewhere.toml")
    with pytest.raises(ProjectError, match="symbolic link"):
        find(project.state.parent)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file away")
def test_settings_of_somebody_else_or_that_others_may_write_are_not_read(project):
    (project.state / CONFIG).chmod(0o666)
    with pytest.raises(ProjectError, match="writable by others"):
        find(project.state.parent)
    os.chown(project.state / CONFIG, 12_345, -1)
    with pytest.raises(ProjectError, match="belongs to another user"):
        find(project.state.parent)
