"""Attack: files of settings that take long, run code, lead elsewhere, or make errors tell secrets.

Hypotheses: references or nesting unfold into much; a tag makes an object; a name twice lets two
readers read two things; numbers of many digits take long; an error repeats a value that was a
secret in the wrong place; a link or a file that others can write decides what a project is.
"""

import os
import tracemalloc

import pytest

from labelguard.configuration import loader, project_file
from labelguard.errors import LabelguardError, ProjectError
from labelguard.jobs import settings
from labelguard.project.project import CONFIG, find

SECRET = "hunter2-hunter2"
BOMB = "\n".join(["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60))])
HOSTILE = {
    "a bomb of references.yaml": BOMB,
    "merged references.yaml": "a: &a {x: 1}\nb: {<<: *a}",
    "a tag.yaml": "epsilon: !!python/object/apply:os.system ['touch pwned']",
    "a new object.yaml": "epsilon: !!python/object/new:os.system ['touch pwned']",
    "a name twice.yaml": f"source: a\nsource: {SECRET}",
    "a name twice.toml": f'source = "a"\nsource = "{SECRET}"',
    "deep lists.yaml": "a: " + "[" * 9_000,
    "deep maps.yaml": "a: " + "{a: " * 9_000,
    "deep lists.toml": "a = " + "[" * 30_000,
    "deep tables.toml": "a = " + "{a = " * 9_000,
    "deep names.toml": "a" + ".a" * 30_000 + " = 1",
    "deep names of signs.toml": "'a'" + ' . "a"' * 10_000 + " = 1",
    "deep names of a table.toml": "[a" + ".a" * 30_000 + "]",
    "a long name.toml": "a" * 60_000,
    "long dots.toml": "a." * 30_000,
    "digits.yaml": "gate: {margin: " + "9" * 60_000 + "}",
    "digits.toml": "epsilon = " + "9" * 60_000,
    "infinite.yaml": "gate: {margin: .inf}",
    "no number.toml": "epsilon = nan",
    "no text.yaml": b"\xff\xfe\x00\x01",
    "no text.toml": b"a = '\xff'",
    "half a sign.yaml": 'source: "\\ud800"',
    "zeros.yaml": b"\0" * 100,
    "huge.yaml": "a: " + "x" * (loader.MAX_BYTES + 1),
    "huge.toml": "#" * (loader.MAX_BYTES + 1),
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


def test_nesting_takes_little_memory(tmp_path):
    path = tmp_path / "deep names.toml"
    path.write_text(str(HOSTILE[path.name])[:20_000])
    tracemalloc.start()
    with pytest.raises(LabelguardError):
        loader.read_settings_file(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 32 << 20


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
