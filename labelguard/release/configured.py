"""What a file may say of a command: the command's options, by their names with underscores.

A file holds what describes a study, to be read again by everybody who works on it. What agrees to
something, or says what a command is to do this time, has to be typed: see `TYPED`.
"""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, create_model

from labelguard.configuration import reading
from labelguard.configuration.checking import Part, Text, Wrong, checked, names, parsed
from labelguard.errors import LabelguardError
from labelguard.planner.horizon import EVERY
from labelguard.policy.label_values import Skips, Ties
from labelguard.policy.policy import Unit
from labelguard.release.methods import AUTO, installed, options_of
from labelguard.terms import AUTO_FORMAT, FORMAT_NAMES

__all__ = ["COMMANDS", "TYPED", "check_job_options", "job_options", "located", "model", "read"]

TYPED = {
    "yes": "it answers a question",
    "again": "it charges once more",
    "accept_delta": "it agrees to a weaker promise",
    "accept_unproven": "it agrees to a weaker promise",
    "dry_run": "it is about one run",
    "wait": "it is about one run",
    "json": "it is about one run",
    "config": "a file names no other",
    "labeler_column": "it is short for columns: labeler_id",
    "help": "it is about one run",
}
"""Options that no file says, and why."""

_DIRECTORIES = ("output", "project")
_FILES, _NAMES_OR_PATHS = "FILE", ("ID_OR_PATH", "RELEASE")
"""How options of mechanisms say that they are a path (`metavar`)."""


def _one_of(*choices: Any) -> AfterValidator:
    """One of some values that are found when the program runs."""

    def check(value: Any) -> Any:
        if value not in choices:
            shown = (f"{one:g}" if isinstance(one, float) else one for one in choices)
            raise ValueError(f"expected one of {', '.join(shown)}")
        return value

    return AfterValidator(check)


def _listed(kind: Any, choices: Sequence[Any]) -> Any:
    """The type, and in its schema the list."""
    return Annotated[kind, _one_of(*choices), Field(json_schema_extra={"enum": list(choices)})]


class Reading(Part):
    """How an input is read."""

    columns: Mapping[str, Text] = {}
    format: _listed(str, [AUTO_FORMAT, *FORMAT_NAMES]) | None = None  # type: ignore[valid-type]
    split: Text | None = None
    question: Text | None = None


class _Bounded(Reading):
    max_input_bytes: Annotated[int, Field(ge=1)] | None = None


class Inspect(_Bounded):
    """What a file may say of `inspect`."""


class Score(Reading):
    """What a file may say of `score`."""

    output: Text | None = None
    project: Text | None = None


class Plan(_Bounded):
    """What a file may say of `plan`."""

    epsilons: Annotated[tuple[float, ...], Field(min_length=1)] | None = None
    delta: float | None = None
    features: Text | None = None
    recurring: _listed(str, EVERY) | None = None  # type: ignore[valid-type]
    duration: Annotated[Text | None, Field(alias="for")] = None
    agreement: float | None = None
    unit: Literal["labeler", "item"] | None = None
    max_labels_per_labeler: int | None = None
    bad_rows: Literal["stop", "quarantine"] | None = None
    output: Text | None = None
    source: Text | None = None
    project: Text | None = None


class JobOptions(_Bounded):
    """What `release.options` of job.yaml may say, beside the options of mechanisms."""

    bad_rows: Literal["stop", "quarantine"] | None = None
    workers: int | None = None


class Privatize(JobOptions):
    """What a file may say of `privatize`, beside the options of mechanisms."""

    mechanism: Text | None = None
    epsilon: float | None = None
    delta: float | None = None
    max_labels_per_labeler: int | None = None
    ties: Ties | None = None
    tie_status_public: bool | None = None
    label_values: Text | None = None
    skips: Skips | None = None
    assignment_reactive: bool | None = None
    exhausted: Literal["refuse", "drop"] | None = None
    source: Text | None = None
    unit: Unit | None = None
    releases: int | None = None
    recurring: _listed(str, EVERY) | None = None  # type: ignore[valid-type]
    duration: Annotated[Text | None, Field(alias="for")] = None
    output: Text | None = None
    project: Text | None = None


COMMANDS: Mapping[str, type[Part]] = {
    "inspect": Inspect,
    "plan": Plan,
    "privatize": Privatize,
    "score": Score,
}
"""The commands that take `--config`, each with its own options."""


def read(command: str, path: Path) -> dict[str, Any]:
    """The options of a command that a file says, by name; its paths are relative to it.

    Raises `LabelguardError`, naming the file and where in it, for what is none of them.
    """
    said = reading.read(path)
    for name in sorted(TYPED.keys() & said.keys()):
        raise LabelguardError(f"{path.name}: {name}: no file says this: {TYPED[name]}")
    found = checked(model(command), said, path.name)
    return located(
        found.model_dump(by_alias=True, exclude_unset=True, exclude_none=True), path.parent
    )


def model(command: str) -> type[Part]:
    """What a file may say of a command, with the options of all mechanisms that are installed."""
    own = COMMANDS[command]
    if command != "privatize":
        return own
    return create_model(
        own.__name__,
        __base__=own,
        __doc__=own.__doc__,
        mechanism=(_listed(str, [*installed(), AUTO]) | None, None),
        **_of_mechanisms(names(own)),
    )


def job_options() -> type[Part]:
    """What `release.options` of job.yaml may say; further pairs may be several files there."""
    of_mechanisms = _of_mechanisms(names(JobOptions))
    if also := of_mechanisms.get("also"):
        of_mechanisms["also"] = (Text | tuple[Text, ...] | None, also[1])
    return create_model(
        "ReleaseOptions", __base__=JobOptions, __doc__=JobOptions.__doc__, **of_mechanisms
    )


def check_job_options(said: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same, if a job may say so. Raises `Wrong`."""
    kind = job_options()
    elsewhere = (set(names(Privatize)) | set(TYPED)) - set(names(kind))
    for name in sorted(elsewhere & set(said)):
        raise Wrong(
            (name,), "this is no option of a job: the policy in force, or another line, says it"
        )
    parsed(kind, said)
    return said


def located(said: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Options whose paths are relative to `base`.

    What may be a name or a path is a path where there is one.
    """
    of_mechanisms = _metadata()
    found = dict(said)
    for name, value in said.items():
        if value is None:
            continue
        kind = of_mechanisms[name]["metavar"] if name in of_mechanisms else None
        if name in _DIRECTORIES:
            found[name] = str(base / value)
        elif kind == _FILES:
            found[name] = (
                pattern(value, base)
                if isinstance(value, str)
                else [pattern(one, base) for one in value]
            )
        elif kind in _NAMES_OR_PATHS and (base / value).exists():
            found[name] = str(base / value)
    return found


def pattern(text: str, base: Path) -> str:
    """A path or glob that is relative to `base`, of which no sign counts as one of a glob."""
    path = base / text
    if path.exists() or Path(text).is_absolute():
        return str(path)
    return str(Path(glob.escape(str(base))) / text)


def _of_mechanisms(taken: Sequence[str]) -> dict[str, Any]:
    """Their options as fields of a model; what a command has itself is its own."""
    return {
        name: (_kind(said) | None, Field(None, description=said["help"]))
        for name, said in _metadata().items()
        if name not in taken
    }


def _kind(said: Mapping[str, Any]) -> Any:
    if said["choices"]:
        return _listed(said["type"], [said["type"](choice) for choice in said["choices"]])
    return Text if said["type"] is str else said["type"]


def _metadata() -> dict[str, Mapping[str, Any]]:
    """What the options of mechanisms say of themselves, each once, as the command has them."""
    found: dict[str, Mapping[str, Any]] = {}
    for mechanism in installed():
        with contextlib.suppress(LabelguardError):
            for field in fields(options_of(mechanism)):  # type: ignore[arg-type]
                found.setdefault(field.name, field.metadata)
    return found
