"""job.yaml: what it says is checked before anything happens, and named where it is wrong."""

from pathlib import Path

import jsonschema
import pytest
import yaml
from support.doors import install
from support.job_projects import SETTINGS

from labelguard.configuration.loader import field_names
from labelguard.errors import LabelguardError
from labelguard.jobs import settings
from labelguard.jobs.settings import JobSettings, job_schema, load_job, options_model
from labelguard.jobs.steps import open_step
from labelguard.release.mechanisms import GROUP


def refused(text, here):
    path = here / "job.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(LabelguardError) as caught:
        load_job(path)
    said = str(caught.value)
    assert "\n" not in said and said.startswith("job.yaml")
    return said


def test_an_empty_job_has_a_default_for_everything(tmp_path):
    (tmp_path / "nightly.yaml").write_text("{}")
    job = load_job(tmp_path / "nightly.yaml")
    assert job.name == "nightly" and job.settings == JobSettings() and job.source is None
    assert job.models == tmp_path / "models"


def test_paths_are_relative_to_the_file(tmp_path, monkeypatch):
    here = tmp_path / "a [b]"
    here.mkdir()
    (here / "job.yaml").write_text("input: [labels/*.parquet, plain.csv]")
    (here / "plain.csv").touch()
    monkeypatch.chdir(tmp_path)
    job = load_job(Path("a [b]/job.yaml"))
    assert job.source == [f"{tmp_path}/a [[]b]/labels/*.parquet", f"{here}/plain.csv"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("release: {min_new_labels: 0}", "release.min_new_labels: "),
        ("release: {min_new_labels: true}", "release.min_new_labels: "),
        ("gate: {by: vibes}", "gate.by: "),
        ("gate: {by: probes}", "gate: probes goes with by: probes"),
        ("gate: {margin: .nan}", "only texts"),
        ("release: {epsilon: 3}", "release.epsilon: "),
        ("release: {options: {epsilon: 3}}", "release.options.epsilon: "),
        ("release: {options: {also: {a: b}}}", "release.options.also: "),
        ("release: {options: {combine: hunter}}", "options.combine: expected one of hard, soft"),
        ("promot: {}", "promot: "),
        ("name: ../../etc", "name: "),
        ("pull: [a]\ninput: b", "pull and input exclude each other"),
        ("notify: {url: x, secret_env: 'A B'}", "notify.secret_env: "),
        ("just words", "must hold lines"),
        ("name: a\nname: b", "line 2: this name occurs twice"),
        ("a: &x 1\nb: *x", "line 2: references"),
        ("1: 2", "1: "),
        ("a: !!python/object/apply:os.system ['true']", "this is not YAML"),
        ("input: !!set {a, b}", "only texts"),
        ("a: " + "[" * 9_000, "nested too deep"),
        ("a: " + "x" * (65 << 10), "64 KiB"),
    ],
)
def test_what_cannot_be_a_job_is_refused_in_one_line(text, said, tmp_path):
    assert said in refused(text, tmp_path)


def test_a_line_that_is_wrong_is_not_repeated(tmp_path):
    assert "hunter2" not in refused("notify: {url: 7, secret: hunter2}", tmp_path)
    assert "hunter2" not in refused("gate: {by: hunter2}", tmp_path)


def test_bombs_of_references_are_not_unfolded(tmp_path):
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40)]
    assert "references" in refused("\n".join(lines), tmp_path)


def test_a_date_is_no_text_and_a_file_that_is_not_there_is_said(tmp_path):
    assert "only texts" in refused("source: 2026-01-01", tmp_path)
    with pytest.raises(LabelguardError, match=r"there is no .*none\.yaml; .* --init writes one"):
        load_job(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(LabelguardError, match="not UTF-8"):
        load_job(tmp_path / "bytes.yaml")


def test_every_job_of_the_docs_is_one(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "retraining.md").read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in page.split("```yaml\n")[1:]]
    assert len(blocks) == 2
    for block in blocks:
        (tmp_path / "job.yaml").write_text(block, encoding="utf-8")
        train = load_job(tmp_path / "job.yaml").settings.train
        open_step(train.step, train.options, tmp_path)


@pytest.mark.parametrize("settings", [{}, SETTINGS])
def test_the_schema_accepts_jobs_and_refuses_what_is_none(settings):
    jsonschema.Draft202012Validator.check_schema(job_schema())
    validator = jsonschema.Draft202012Validator(job_schema())
    plain = yaml.safe_load(yaml.safe_dump(dict(settings)))
    assert validator.is_valid(plain)
    assert not validator.is_valid(plain | {"unknown": 1})
    assert not validator.is_valid(plain | {"gate": {"by": "vibes"}})
    assert not validator.is_valid(plain | {"name": "../x"})


# `release.options` of a job: options of the mechanisms that are installed, and no other.


OTHERS = """
from dataclasses import dataclass, field
from typing import ClassVar
from labelguard.options import option

@dataclass(frozen=True)
class Options:
    mechanism: ClassVar[str] = "nowhere:Nothing"
    width: int | None = option("How wide.")
    shape: str | None = option("Which.", choices=("round", "flat"))

door = Options
"""


def job(text, here):
    """The job whose options these are."""
    path = here / "own.yaml"
    path.write_text(f"release:\n  options: {{{text}}}\n", encoding="utf-8")
    return settings.load_job(path)


def refused_option(text, here):
    with pytest.raises(LabelguardError) as caught:
        job(text, here)
    return str(caught.value)


def test_a_job_says_no_option_that_its_policy_says():
    own = set(field_names(options_model()))
    assert {"columns", "features", "workers", "bad_rows"} < own
    of_policies = {"epsilon", "delta", "ties", "unit", "releases", "label_values", "skips"}
    agreeing = {"again", "accept_delta", "accept_unproven", "yes"}
    assert not own & (of_policies | agreeing | {"source", "project", "exhausted", "output"})


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("epsilon: 3", "epsilon"),
        ("namespace: x", "namespace"),
        ("workers: 1.5", "workers"),
        ("ridge: true", "ridge"),
        ("format: xml", "format"),
        ("columns: {prompt: 3}", "columns.prompt"),
        ("hub_token: x", "hub_token"),
    ],
)
def test_what_is_no_option_is_refused_by_its_name(text, name, tmp_path):
    assert refused_option(text, tmp_path).startswith(f"own.yaml: release.options.{name}: ")


def test_options_of_another_packages_mechanism_are_checked_like_ours(tmp_path, monkeypatch):
    assert "options.width: " in refused_option("width: 3", tmp_path)
    install(tmp_path / "packages", GROUP, "shapes", OTHERS, monkeypatch)
    assert "options.width: " in refused_option("width: wide", tmp_path)
    assert "options.shape: expected one of round, flat" in refused_option("shape: square", tmp_path)
    assert job("width: 3, shape: flat", tmp_path).options == {"width": 3, "shape": "flat"}


def test_paths_are_relative_to_the_file_and_names_stay_names(tmp_path):
    here = tmp_path / "a [b]"
    (here / "base").mkdir(parents=True)
    text = "model: base, head: r0001-5f20d921, also: [more/*.csv], features: length, "
    assert job("model: null, also: null", here).options == {"model": None, "also": None}
    assert job(text + f"train_config: {tmp_path}/train.yaml", here).options == {
        "model": str(here / "base"),
        "head": "r0001-5f20d921",
        "also": [f"{tmp_path}/a [[]b]/more/*.csv"],
        "features": "length",
        "train_config": f"{tmp_path}/train.yaml",
    }
