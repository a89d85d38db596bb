"""The options of `privatize`: what type checkers know of them is what there is."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from labelguard.policy import policy
from labelguard.release.intake import Intake, IntakeOptions
from labelguard.release.methods import installed, options_of
from labelguard.release.request import Options, Request


def names(*described: Any) -> set[str]:
    return {field.name for one in described for field in fields(one)}


def test_the_typed_options_are_the_fields_of_what_they_become() -> None:
    given_otherwise = {"event", "terms", "mechanism", "intake"}
    doors = [door.name for door in installed().values() if door.value.startswith("labelguard.")]
    asked = names(policy.Request, Request, *map(options_of, doors)) - given_otherwise
    assert set(IntakeOptions.__annotations__) == names(Intake)
    assert set(Options.__annotations__) == asked | names(Intake)
