"""job.yaml: what it says is checked before anything happens, and named where it is wrong.

The files for schedulers in examples/: each is what its scheduler reads, and starts a job.
"""

import os
import re
import shlex
import shutil
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from croniter import croniter
from support.doors import install
from support.job_projects import SETTINGS
from support.pages import ROOT, blocks, check_command, script

from labelguard.configuration.loader import list_field_names
from labelguard.errors import BudgetExceeded, LabelguardError, ProjectBusy
from labelguard.jobs import settings
from labelguard.jobs.settings import JobSettings, build_job_schema, build_options_model, load_job
from labelguard.jobs.steps import open_step
from labelguard.release.mechanisms import GROUP
from labelguard.report import overview


def read_refusal(text, here):
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
        ("gate: {by: probes}", "gate: probes goes with by: probes"),
        ("gate: {margin: .nan}", "only texts"),
        ("release: {epsilon: 3}", "release.epsilon: "),
        ("release: {options: {epsilon: 3}}", "release.options.epsilon: "),
        ("release: {options: {also: {a: b}}}", "release.options.also: "),
        (
            "release: {options: {combine: hunter}}",
            "options.combine: Input should be 'hard' or 'soft'",
        ),
        ("release: {options: {namespace: x}}", "release.options.namespace: "),
        ("release: {options: {ridge: true}}", "release.options.ridge: "),
        ("release: {options: {format: xml}}", "release.options.format: "),
        ("release: {options: {columns: {prompt: 3}}}", "release.options.columns.prompt: "),
        ("name: ../../etc", "name: "),
        ("pull: [a]\ninput: b", "pull and input exclude each other"),
        ("notify: {url: x, secret_env: 'A B'}", "notify.secret_env: "),
        ("just words", "must hold lines"),
        ("name: a\nname: b", "this name occurs twice (at line 2)"),
        ("a: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("input: !!set {a, b}", "only texts"),
    ],
)
def test_what_cannot_be_a_job_is_refused_in_one_line(text, said, tmp_path):
    assert said in read_refusal(text, tmp_path)


def test_a_line_that_is_wrong_is_not_repeated(tmp_path):
    assert "hunter2" not in read_refusal("notify: {url: 7, secret: hunter2}", tmp_path)
    assert "hunter2" not in read_refusal("gate: {by: hunter2}", tmp_path)


def test_a_date_is_no_text_and_a_file_that_is_not_there_is_said(tmp_path):
    assert "only texts" in read_refusal("source: 2026-01-01", tmp_path)
    with pytest.raises(LabelguardError, match=r"there is no .*none\.yaml; .* --init writes one"):
        load_job(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(LabelguardError, match="not UTF-8"):
        load_job(tmp_path / "bytes.yaml")


def test_every_job_of_the_docs_is_one(tmp_path):
    found = list(blocks("retraining.md", "yaml"))
    assert len(found) == 2
    for _, block in found:
        (tmp_path / "job.yaml").write_text(block, encoding="utf-8")
        train = load_job(tmp_path / "job.yaml").settings.train
        open_step(train.step, train.options, tmp_path)


@pytest.mark.parametrize("settings", [{}, SETTINGS])
def test_the_schema_accepts_jobs_and_refuses_what_is_none(settings):
    jsonschema.Draft202012Validator.check_schema(build_job_schema())
    validator = jsonschema.Draft202012Validator(build_job_schema())
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


def test_a_job_says_no_option_that_its_policy_says():
    own = set(list_field_names(build_options_model()))
    assert {"columns", "label_values", "features", "workers", "bad_rows"} < own
    of_policies = {"epsilon", "delta", "ties", "unit", "releases", "skips"}
    agreeing = {"again", "accept_delta", "accept_unproven", "yes"}
    assert not own & (of_policies | agreeing | {"source", "project", "exhausted", "output"})


def test_options_of_another_packages_mechanism_are_checked_like_ours(tmp_path, monkeypatch):
    with pytest.raises(LabelguardError, match=r"options\.width: "):
        job("width: 3", tmp_path)
    install(tmp_path / "packages", GROUP, "shapes", OTHERS, monkeypatch)
    for text, said in (
        ("width: wide", "width: "),
        ("shape: square", "shape: Input should be .rou"),
    ):
        with pytest.raises(LabelguardError, match=rf"options\.{said}"):
            job(text, tmp_path)
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


FILES = ROOT / "examples" / "schedulers"
SERVICE, TIMER = "labelguard-retrain.service", "labelguard-retrain.timer"


def uncomment(text):
    """The same with the optional settings that stand behind a `#`."""
    return re.sub(r"(?m)^( *)# (?=LoadCredential=|Environment=|LABELGUARD_\w+=)", r"\1", text)


def check_retrain(words):
    """Raise unless these words run `labelguard retrain` with options that it has."""
    check_command(words[words.index("retrain") :])


def test_the_crontab_runs_the_job_every_night():
    lines = (FILES / "crontab").read_text().splitlines()
    [line] = [line for line in lines if not line.startswith("#")]
    *fields, command = line.split(" ", 5)
    assert croniter.is_valid(" ".join(fields))
    following = croniter(" ".join(fields), datetime(2026, 3, 3)).get_next(datetime)
    assert following == datetime(2026, 3, 3, 2, 30)
    assert "%" not in command  # cron ends a command there
    check_retrain(shlex.split(command))


def faults(here):
    """What systemd finds wrong with the units."""
    (here / "study").mkdir()
    for name in (SERVICE, TIMER):
        text = uncomment((FILES / name).read_text())
        # systemd looks whether the program is there.
        (here / name).write_text(text.replace("/opt/labelguard/bin/labelguard", "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", str(here / SERVICE)]
    own = os.environ | {"XDG_RUNTIME_DIR": str(here), "HOME": str(here)}
    result = subprocess.run([*command, str(here / TIMER)], capture_output=True, text=True, env=own)
    assert "Failed to initialize" not in result.stderr, result.stderr
    return [line for line in result.stderr.splitlines() if "labelguard-retrain" in line]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_accepts_the_units_and_their_optional_settings(tmp_path):
    assert faults(tmp_path) == []
    text = (FILES / TIMER).read_text()
    for calendar in re.findall(r"OnCalendar=(.*)|`(.*)` is every week", text):
        command = ["systemd-analyze", "calendar", "".join(calendar)]
        subprocess.run(command, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
@pytest.mark.parametrize("unit", [FILES / SERVICE, FILES.parent / "hook.service"])
def test_systemd_counts_few_exposures_of_the_units(unit):
    # 2.5 of 10: what the network, devices of a GPU and the user's own files need.
    command = ["systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=25"]
    result = subprocess.run([*command, str(unit)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
    text = unit.read_text()
    (project,) = re.findall(r"ExecStart=.*--project (\S+)", text)
    assert re.findall(r"(?m)^ReadWritePaths=(.*)$", text) == [project]


def test_the_service_runs_the_job():
    [line] = re.findall(r"(?m)^ExecStart=(.*)$", (FILES / SERVICE).read_text())
    check_retrain(shlex.split(line))


# The example examples/simulate_year.py: models follow preferences that drift.


@pytest.fixture(scope="module")
def example():
    return script(ROOT / "examples" / "simulate_year.py")


def follows(weeks):
    """Whether the models in use keep up with the preferences in the last quarter."""
    last = weeks.tail(max(2, len(weeks) // 4))
    return bool((last["at best"] - last["in use"]).mean() < 0.1)  # type: ignore[operator]


@pytest.mark.slow  # a run of `retrain` a week, each in a process of its own
def test_models_follow_the_drift_and_the_project_holds(example, tmp_path):
    weeks = example.simulate_year(tmp_path / "year", 16)
    assert follows(weeks)
    last = weeks.tail(4)
    assert (last["in use"] - last["of half-time"]).mean() > 0.04  # type: ignore[operator]
    assert overview.verify(tmp_path / "year").ok
    assert overview.read_budget(tmp_path / "year").lifetime.epsilon == pytest.approx(4)


@pytest.mark.slow
def test_a_gate_that_promotes_nothing_does_not_follow_it(example, tmp_path):
    assert not follows(example.simulate_year(tmp_path / "year", 6, confidence=1 - 1e-12))


@pytest.mark.parametrize("name", ["airflow", "dagster", "prefect"])
def test_an_orchestrator_runs_the_job_every_night_and_knows_its_exit_codes(name):
    """The codes: 3 is no failure and ends it, 4 is tried again."""
    text = (FILES / f"{name}_retrain.py").read_text()
    values: dict[str, Any] = {}
    for line in re.findall(r"(?m)^(?:COMMAND|EXHAUSTED, BUSY) = .*$", text):
        exec(line, values)
    words = values["COMMAND"].split()
    check_retrain(words)
    assert "--strict" in words and "--wait" not in words
    assert "30 2 * * *" in text
    if name == "airflow":
        assert f"skip_on_exit_code={BudgetExceeded.exit_code}," in text and "retries=3" in text
    else:
        codes = (BudgetExceeded.exit_code, ProjectBusy.exit_code)
        assert (values["EXHAUSTED"], values["BUSY"]) == codes
