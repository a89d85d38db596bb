"""`release.options` of a job: options of the mechanisms that are installed, and no other."""

import pytest
from support.doors import install

from labelguard.configuration.loader import field_names
from labelguard.errors import LabelguardError
from labelguard.jobs import settings
from labelguard.jobs.settings import options_model
from labelguard.release.mechanisms import GROUP

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


def refused(text, here):
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
    assert refused(text, tmp_path).startswith(f"own.yaml: release.options.{name}: ")


def test_options_of_another_packages_mechanism_are_checked_like_ours(tmp_path, monkeypatch):
    assert "options.width: " in refused("width: 3", tmp_path)
    install(tmp_path / "packages", GROUP, "shapes", OTHERS, monkeypatch)
    assert "options.width: " in refused("width: wide", tmp_path)
    assert "options.shape: expected one of round, flat" in refused("shape: square", tmp_path)
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
