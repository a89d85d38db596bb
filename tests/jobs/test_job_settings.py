"""job.yaml: what it says is checked before anything happens, and named where it is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from support.job_projects import SETTINGS

from labelguard.errors import LabelguardError
from labelguard.jobs.settings import Settings, load, schema
from labelguard.jobs.steps import open_step


def refused(text: str, here: Path) -> str:
    path = here / "job.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(LabelguardError) as caught:
        load(path)
    said = str(caught.value)
    assert "\n" not in said and said.startswith("job.yaml")
    return said


def test_an_empty_job_has_a_default_for_everything(tmp_path: Path) -> None:
    (tmp_path / "nightly.yaml").write_text("{}")
    job = load(tmp_path / "nightly.yaml")
    assert job.name == "nightly" and job.settings == Settings() and job.source is None
    assert job.models == tmp_path / "models"


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "a [b]"
    here.mkdir()
    (here / "job.yaml").write_text("input: [labels/*.parquet, plain.csv]")
    (here / "plain.csv").touch()
    monkeypatch.chdir(tmp_path)
    job = load(Path("a [b]/job.yaml"))
    assert job.source == [f"{tmp_path}/a [[]b]/labels/*.parquet", f"{here}/plain.csv"]


def test_options_that_are_paths_are_so_too_and_names_stay_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "job"
    (here / "models" / "small").mkdir(parents=True)
    (here / "job.yaml").write_text(
        "release: {options: {also: [more/*.parquet, /all.csv], head: r0001-5f20d921,"
        " model: models/small, learner: dpo, train_config: dpo.yaml}}"
    )
    (here / "dpo.yaml").touch()
    monkeypatch.chdir(tmp_path)
    options = load(Path("job/job.yaml")).options
    assert options == {
        "also": [f"{here}/more/*.parquet", "/all.csv"],
        "head": "r0001-5f20d921",
        "model": f"{here}/models/small",
        "learner": "dpo",
        "train_config": f"{here}/dpo.yaml",
    }
    (here / "job.yaml").write_text("release: {options: {model: null, also: null}}")
    assert load(here / "job.yaml").options == {"model": None, "also": None}
    (here / "job.yaml").write_text("release: {options: {model: org/small, also: more.csv}}")
    assert load(here / "job.yaml").options == {"model": "org/small", "also": f"{here}/more.csv"}


@pytest.mark.quick(
    "release: {min_new_labels: 0}",
    "gate: {by: vibes}",
    "release: {options: {workers: x}}",
    "release: {options: {namespace: x}}",
    "promote: {mlflow: {}}",
    "just words",
)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("release: {min_new_labels: 0}", "release.min_new_labels: "),
        ("release: {min_new_labels: '5'}", "release.min_new_labels: "),
        ("release: {min_new_labels: 1.5}", "release.min_new_labels: "),
        ("release: {min_new_labels: true}", "release.min_new_labels: "),
        ("gate: {by: vibes}", "gate.by: "),
        ("gate: {by: probes}", "gate: probes goes with by: probes"),
        ("gate: {confidence: 1.0}", "gate.confidence: "),
        ("gate: {margin: .nan}", "only texts"),
        ("gate: {margin: -1}", "gate.margin: "),
        ("mechanism: rr", "mechanism: "),
        ("release: {epsilon: 3}", "release.epsilon: "),
        ("release: {options: {epsilon: 3}}", "release.options.epsilon: "),
        ("release: {options: {again: true}}", "release.options.again: "),
        ("release: {options: {workers: x}}", "release.options.workers: "),
        ("release: {options: {workers: true}}", "release.options.workers: "),
        ("release: {options: {columns: 3}}", "release.options.columns: "),
        ("release: {options: {columns: {label: 3}}}", "release.options.columns.label: "),
        ("release: {options: {also: {a: b}}}", "release.options.also: "),
        (
            "release: {options: {featurs: text}}",
            "options.featurs: ",
        ),
        ("release: {options: {stages: 2.5}}", "release.options.stages: "),
        (
            "release: {options: {combine: hunter}}",
            "release.options.combine: expected one of hard, soft",
        ),
        ("release: {options: {namespace: x}}", "release.options.namespace: "),
        ("promot: {}", "promot: "),
        (
            "promote: {mlflow: {modle: x}}",
            "promote.mlflow.modle: ",
        ),
        ("notify: {url: x, token: y}", "notify.token: "),
        ("release: {options: {question: 5}}", "release.options.question: "),
        ("release: {options: {format: [pairs]}}", "release.options.format: "),
        ("release: {options: {bad_rows: drop}}", "release.options.bad_rows: "),
        ("name: ../../etc", "name: "),
        ("name: .hidden", "name: "),
        ("name: ''", "name: "),
        ("pull: [a]\ninput: b", "pull and input exclude each other"),
        ("pull: label-studio", "pull: "),
        ("promote: {keep: 0}", "promote.keep: "),
        ("promote: {mlflow: {}}", "promote.mlflow.model: "),
        ("notify: {}", "notify.url: "),
        ("notify: {url: x, secret_env: 'A B'}", "notify.secret_env: "),
        ("", "must hold lines"),
        ("- a\n- b", "must hold lines"),
        ("just words", "must hold lines"),
        ("a: [", "this is not YAML"),
        ("name: a\nname: b", "line 2: a name stands here twice"),
        ("release: {mechanism: rr, mechanism: statistic}", "line 1: a name stands here twice"),
        ("a: &x 1\nb: *x", "line 2: references"),
        ("1: 2", "1: "),
        ("a: !!python/object/apply:os.system ['true']", "this is not YAML"),
        ("input: !!binary aGk=", "only texts"),
        ("input: !!set {a, b}", "only texts"),
        ("a: " + "[" * 50 + "]" * 50, "a: "),
        ("a: " + "[" * 9_000, "nested too deep"),
        ("a: " + "x" * (65 << 10), "64 KiB"),
        ("input: \x00", "this is not YAML"),
    ],
)
def test_what_cannot_be_a_job_is_refused_in_one_line(text: str, said: str, tmp_path: Path) -> None:
    assert said in refused(text, tmp_path)


def test_a_line_that_is_wrong_is_not_repeated(tmp_path: Path) -> None:
    assert "hunter2" not in refused("notify: {url: 7, secret: hunter2}", tmp_path)
    assert "hunter2" not in refused("gate: {by: hunter2}", tmp_path)


def test_bombs_of_references_are_not_unfolded(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40)]
    assert "references" in refused("\n".join(lines), tmp_path)


def test_a_date_is_no_text_and_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    assert "only texts" in refused("source: 2026-01-01", tmp_path)
    with pytest.raises(LabelguardError, match=r"there is no .*none\.yaml; .* --init writes one"):
        load(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(LabelguardError, match="not UTF-8"):
        load(tmp_path / "bytes.yaml")


def test_every_job_of_the_docs_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "retraining.md").read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in page.split("```yaml\n")[1:]]
    assert len(blocks) == 2
    for block in blocks:
        (tmp_path / "job.yaml").write_text(block, encoding="utf-8")
        train = load(tmp_path / "job.yaml").settings.train
        open_step(train.step, train.options, tmp_path)


@pytest.mark.parametrize("settings", [{}, SETTINGS])
def test_the_schema_accepts_jobs_and_refuses_what_is_none(settings: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    validator = jsonschema.Draft202012Validator(schema())
    plain = yaml.safe_load(yaml.safe_dump(dict(settings)))
    assert validator.is_valid(plain)
    assert not validator.is_valid(plain | {"unknown": 1})
    assert not validator.is_valid(plain | {"gate": {"by": "vibes"}})
    assert not validator.is_valid(plain | {"name": "../x"})
