"""What files say of commands: every option by its name, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from support.doors import install

from labelguard.cli.from_file import option_name
from labelguard.cli.main import main
from labelguard.cli.options import HELP
from labelguard.configuration.checking import Wrong, names
from labelguard.errors import LabelguardError
from labelguard.release import configured
from labelguard.release.methods import GROUP

OTHERS = """
from dataclasses import dataclass, field
from typing import ClassVar
from labelguard.release.methods.options import option

@dataclass(frozen=True)
class Options:
    mechanism: ClassVar[str] = "nowhere:Nothing"
    width: int | None = field(default=None, metadata=option("How wide.", int))
    shape: str | None = field(default=None, metadata=option("Which.", choices=("round", "flat")))

door = Options
"""


def refused(text: str, here: Path, command: str = "privatize") -> str:
    path = here / "own.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(LabelguardError) as caught:
        configured.read(command, path)
    return str(caught.value)


@pytest.mark.parametrize("command", sorted(configured.COMMANDS))
def test_a_file_says_every_option_of_its_command_that_need_not_be_typed(command: str) -> None:
    found = main.get_command(click.Context(main), command)
    assert found
    options = [
        one
        for one in found.get_params(click.Context(found, **HELP))
        if isinstance(one, click.Option)
    ]
    assert {option_name(one) for one in options} - configured.TYPED.keys() == set(
        names(configured.model(command))
    )


def test_a_job_says_no_option_that_its_policy_says() -> None:
    own = set(names(configured.job_options()))
    assert own < set(names(configured.model("privatize")))
    assert not own & {
        "epsilon",
        "delta",
        "ties",
        "unit",
        "source",
        "project",
        "exhausted",
        "output",
    }
    for name in ("epsilon", "source", "again", "accept_unproven"):
        with pytest.raises(Wrong, match="no option of a job"):
            configured.check_job_options({name: 1})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("epsilom: 3", "own.yaml: epsilom: there is no such name; did you mean epsilon?"),
        ("namespace: x", "own.yaml: namespace: there is no such name"),
        ("epsilon: '3'", "own.yaml: epsilon: expected a number"),
        ("epsilon: true", "own.yaml: epsilon: expected a number"),
        ("workers: 1.5", "own.yaml: workers: expected a whole number"),
        ("ties: split", "own.yaml: ties: expected 'coin', 'ternary', 'half', 'drop' or 'zero'"),
        ("format: xml", "own.yaml: format: expected one of auto, pairs"),
        ("mechanism: magic", "own.yaml: mechanism: expected one of rr, "),
        ("whitening: 0.3", "own.yaml: whitening: expected one of 0, 0.25, 0.5"),
        ("columns: {prompt: 3}", "own.yaml: columns.prompt: expected a text"),
        ("also: [a, b]", "own.yaml: also: expected a text"),
        ("again: true", "own.yaml: again: no file says this"),
        ("accept_delta: true", "own.yaml: accept_delta: no file says this"),
        ("config: other.yaml", "own.yaml: config: no file says this"),
        ("hub_token: x", "own.yaml: hub_token: there is no such name, and secrets have no place"),
    ],
)
def test_what_is_no_option_is_refused_by_its_name(text: str, said: str, tmp_path: Path) -> None:
    assert refused(text, tmp_path).startswith(said)


def test_options_of_another_packages_mechanism_are_checked_like_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "width: there is no such name" in refused("width: 3", tmp_path)
    install(tmp_path / "packages", GROUP, "shapes", OTHERS, monkeypatch)
    assert "width: expected a whole number" in refused("width: wide", tmp_path)
    assert "shape: expected one of round, flat" in refused("shape: square", tmp_path)
    (tmp_path / "own.yaml").write_text("mechanism: shapes\nwidth: 3\nshape: flat\n")
    assert configured.read("privatize", tmp_path / "own.yaml")["width"] == 3


def test_what_is_null_is_as_by_default(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("model: null\nties: null\nepsilon: 3\n")
    assert configured.read("privatize", tmp_path / "own.yaml") == {"epsilon": 3.0}


def test_paths_are_relative_to_the_file_and_names_stay_names(tmp_path: Path) -> None:
    here = tmp_path / "a [b]"
    (here / "base").mkdir(parents=True)
    said: dict[str, Any] = {}
    (here / "own.yaml").write_text(
        "model: base\nhead: r0001-5f20d921\noutput: ../out\nalso: more/*.csv\nfeatures: length\n"
        f"train_config: {tmp_path}/train.yaml\nproject: .\n"
    )
    said = configured.read("privatize", here / "own.yaml")
    assert said == {
        "model": str(here / "base"),
        "head": "r0001-5f20d921",
        "output": str(here / "../out"),
        "also": f"{tmp_path}/a [[]b]/more/*.csv",
        "features": "length",
        "train_config": f"{tmp_path}/train.yaml",
        "project": str(here),
    }
