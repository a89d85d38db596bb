"""The options of `privatize`: what type checkers know of them is what there is."""

from __future__ import annotations

from dataclasses import fields
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import labelguard as lg
from labelguard.errors import PolicyError
from labelguard.policy import policy
from labelguard.release.intake import Intake, IntakeOptions
from labelguard.release.methods import GROUP, options_of
from labelguard.release.request import Options, Request, requested


def names(*described: Any) -> set[str]:
    return {field.name for one in described for field in fields(one)}


def test_the_typed_options_are_the_fields_of_what_they_become() -> None:
    given_otherwise = {"event", "ball", "sampling", "terms", "choices", "mechanism", "intake"}
    ours = [door.name for door in entry_points(group=GROUP) if door.value.startswith("labelguard")]
    asked = names(policy.Request, Request, *map(options_of, ours)) - given_otherwise
    assert set(IntakeOptions.__annotations__) == names(Intake)
    assert set(Options.__annotations__) == asked | names(Intake)


def test_the_shape_of_noise_cannot_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="ball"):
        requested(lg.init(tmp_path), "statistic", {"ball": 4})
