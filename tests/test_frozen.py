"""What does not change within a minor version (CHANGELOG.md): format v1, exit codes, names.

`frozen.json` says how they are, in words. More may come; what is there stays, and the file changes
with a new minor version alone: UPDATE_FROZEN=1 pytest tests/test_frozen.py.
"""

import dataclasses
import hashlib
import inspect
import json
import os
from itertools import chain
from pathlib import Path
from typing import Any

import click
import labelguard_trainer
import pytest
from support.pages import DOCS, script

import labelguard as lg
from labelguard.errors import LabelguardError

FROZEN = Path(__file__).with_name("frozen.json")
REFERENCE = script(DOCS / "generate_cli.py")
PACKAGES = {"labelguard": lg, "labelguard.account": lg.account, "labelguard.policies": lg.policies}


def python_names():
    """Public names of each package, with the arguments of what can be called."""
    found = {
        package: {name: _arguments(getattr(module, name)) for name in sorted(module.__all__)}
        for package, module in PACKAGES.items()
    }
    return found | {"labelguard_trainer": " ".join(sorted(labelguard_trainer.__all__))}


def _arguments(value):
    if dataclasses.is_dataclass(value):
        return " ".join(field.name for field in dataclasses.fields(value))
    return " ".join(inspect.signature(value).parameters) if callable(value) else ""


def commands():
    """Options and arguments of every command, by its words."""
    return {
        " ".join(path): " ".join(
            sorted(
                name
                for one in command.params
                for name in (one.opts if isinstance(one, click.Option) else [str(one.name)])
            )
        )
        for path, command in REFERENCE.commands()
        if not isinstance(command, click.Group)
    }


def errors(kind=LabelguardError):
    """The exit code of each error of the library."""
    found = {kind.__name__: str(kind.exit_code)}
    for below in kind.__subclasses__():
        if below.__module__ == "labelguard.errors":
            found |= errors(below)
    return found


def describe():
    vectors = (DOCS / "format-v1.json").read_bytes()
    return {
        "format-v1.json": hashlib.sha256(vectors).hexdigest(),
        "exit codes": " ".join(map(str, REFERENCE.EXIT_CODES)),
        "errors": dict(sorted(errors().items())),
        "python": python_names(),
        "commands": commands(),
    }


def lost(before, now, path=""):
    """The words that are gone; more is no change."""
    if isinstance(before, dict):
        each = (lost(before[name], now.get(name, ""), f"{path}{name}: ") for name in before)
        return [f"{path}{name}" for name in before if name not in now] + [*chain(*each)]
    return [f"{path}{word}" for word in before.split() if word not in now.split()]


def test_nothing_that_is_promised_has_changed():
    if os.environ.get("UPDATE_FROZEN"):
        FROZEN.write_text(json.dumps(describe(), indent=1, ensure_ascii=False) + "\n", "utf-8")
    before: dict[str, Any] = json.loads(FROZEN.read_text(encoding="utf-8"))
    assert lost(before, describe()) == []


@pytest.mark.parametrize(
    ("before", "now", "gone"),
    [
        ({"a": "x"}, {"a": "x y", "b": ""}, []),
        ({"a": "x y"}, {"a": "y"}, ["a: x"]),
        ({"a": ""}, {}, ["a"]),
        ({"a": {"b": "3"}}, {"a": {"b": "4"}}, ["a: b: 3"]),
    ],
)
def test_more_is_no_change_and_less_is(before, now, gone):
    assert lost(before, now) == gone
