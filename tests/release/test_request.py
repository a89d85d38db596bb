"""The options of `privatize`: what type checkers know of them is what there is."""

from __future__ import annotations

from dataclasses import fields
from importlib.metadata import entry_points
from inspect import signature
from pathlib import Path
from typing import Any, get_args, get_overloads, get_type_hints

import pytest

import labelguard as lg
from labelguard.errors import PolicyError
from labelguard.policy import policy
from labelguard.release import pipeline
from labelguard.release.intake import Intake, IntakeOptions
from labelguard.release.methods import AUTO, GROUP, options_of
from labelguard.release.request import Request, requested


def names(*described: Any) -> set[str]:
    return {field.name for one in described for field in fields(one)}


def keywords_of() -> dict[str, frozenset[str]]:
    """What a type checker lets through for each mechanism, by the overloads of `privatize`."""
    found = {}
    for overload in get_overloads(lg.privatize):
        hints = get_type_hints(overload)
        (given,) = get_args(hints["options"])
        found |= dict.fromkeys(get_args(hints["mechanism"]), given.__optional_keys__)
    return found


def test_the_typed_keywords_of_a_mechanism_are_the_fields_of_what_they_become() -> None:
    given_otherwise = {"event", "ball", "sampling", "terms", "choices", "mechanism", "intake"}
    ours = [door.name for door in entry_points(group=GROUP) if door.value.startswith("labelguard")]
    shared = names(policy.Request, Request, Intake) - given_otherwise
    shared |= set(signature(pipeline.privatize).parameters) - {"source", "mechanism", "options"}
    expected = {name: shared | names(options_of(name)) for name in ours}
    expected[AUTO] = set().union(*expected.values())
    assert keywords_of() == expected
    assert set(IntakeOptions.__annotations__) == names(Intake)


def test_the_shape_of_noise_cannot_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="ball"):
        requested(lg.init(tmp_path), "statistic", {"ball": 4})
