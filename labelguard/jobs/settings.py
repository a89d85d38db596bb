"""job.yaml: what a job pulls, releases, trains, asks, promotes and tells."""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from labelguard.errors import LabelguardError
from labelguard.jobs.reading import read_yaml
from labelguard.release.keywords import Auto

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
Text = Annotated[str, Field(min_length=1, max_length=1024)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Release(_Part):
    """How new labels are released."""

    mechanism: Annotated[Text, Field(description="rr, statistic, props, or another installed")] = (
        "rr"
    )
    min_new_labels: Annotated[
        int, Field(ge=1, description="fewer new labels than these wait for the next run")
    ] = 100
    exhausted: Annotated[
        Literal["drop", "refuse"],
        Field(description="leave out labels beyond their labeler's allowance, or release nothing"),
    ] = "drop"
    options: Annotated[
        Mapping[str, Any], Field(description="options of the mechanism, and of how input is read")
    ] = {}

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        for name in sorted(set(_NOT_IN_OPTIONS) & set(self.options)):
            raise ValueError(f"{name} is not an option of a job: {_NOT_IN_OPTIONS_WHY}")
        # Those of other packages' mechanisms are theirs to check.
        kinds = get_type_hints(Auto) | {"also": str | list[str] | None}
        for name in sorted(set(kinds) & set(self.options)):
            try:
                TypeAdapter(kinds[name]).validate_python(self.options[name], strict=True)
            except ValidationError as error:
                raise ValueError(f"options.{name}: {error.errors()[0]['msg']}") from None
        return self


_NOT_IN_OPTIONS = (
    *("epsilon", "delta", "ties", "tie_status_public", "unit", "max_labels_per_labeler"),
    *("releases", "label_values", "skips", "assignment_reactive", "recurring", "duration"),
    *("again", "accept_delta", "output", "mechanism", "namespace", "project", "exhausted"),
    *("source", "progress", "review", "wait"),
)
_NAME_OR_PATH = {"head", "model", "train_config"}
_NOT_IN_OPTIONS_WHY = "the policy in force, or another line of job.yaml, says it"


class Train(_Part):
    """How a model is learned from the newest release."""

    step: Annotated[Text, Field(description="head, dpo, reward, or another installed")] = "head"
    options: Annotated[Mapping[str, Any], Field(description="options of the step")] = {}


class Gate(_Part):
    """Whether what was learned replaces the model in use."""

    by: Annotated[
        Literal["released", "probes", "held-out", "none"],
        Field(description="by which evidence; none reads a raw label that was not paid for"),
    ] = "released"
    probes: Annotated[Text | None, Field(description="for probes: a file of public pairs")] = None
    margin: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="how much worse it may be")
    ] = 0.0
    confidence: Annotated[
        float, Field(ge=0.5, lt=1, description="how sure that it is not worse, one-sided")
    ] = 0.5
    at_least: Annotated[
        float | None, Field(allow_inf_nan=False, description="what it must reach in any case")
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.by == "probes") != (self.probes is not None):
            raise ValueError("probes goes with by: probes, and by: probes needs it")
        return self


class Mlflow(_Part):
    """A model registry that promoted models are registered in too."""

    model: Annotated[Text, Field(description="its registered model")]
    uri: Annotated[
        Text | None, Field(description="tracking server; default: MLFLOW_TRACKING_URI")
    ] = None


class Promote(_Part):
    """Where the model in use is."""

    directory: Annotated[
        Text, Field(description="holds models 0001, 0002, … and the link `current`")
    ] = "models"
    keep: Annotated[int, Field(ge=1, description="so many newest stay, and the one in use")] = 5
    mlflow: Mlflow | None = None


class Notify(_Part):
    """Who is told, by a signed webhook (Standard Webhooks)."""

    url: Text
    secret_env: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
            description="environment variable with the secret; NAME_FILE names a file with it",
        ),
    ] = "LABELGUARD_NOTIFY_SECRET"
    budget_below: Annotated[
        float, Field(ge=0, le=1, description="told once when less of an allowance is left")
    ] = 0.1


class Settings(_Part):
    """All of job.yaml."""

    name: Annotated[str | None, Field(pattern=NAME, description="default: the file's name")] = None
    project: Annotated[
        Text | None, Field(description="default: LABELGUARD_PROJECT, or the nearest one upwards")
    ] = None
    pull: Annotated[tuple[Text, ...], Field(description="connectors to pull from first")] = ()
    input: Annotated[
        Text | tuple[Text, ...] | None,
        Field(description="files or globs to release; default: what was ingested"),
    ] = None
    source: Annotated[Text | None, Field(description="whose labelers these are")] = None
    release: Release = Release()
    train: Train = Train()
    gate: Gate = Gate()
    promote: Promote = Promote()
    notify: Notify | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.pull and self.input is not None:
            raise ValueError("pull and input exclude each other: what was pulled is released")
        return self


@dataclass(frozen=True)
class Job:
    """A job: its settings, its name, and the directory that its relative paths refer to."""

    name: str
    settings: Settings
    base: Path

    @property
    def source(self) -> list[str] | None:
        """What `privatize` reads: files, or None for what was ingested."""
        given = self.settings.input
        return None if given is None else self._all_located(given)

    def _all_located(self, given: str | Sequence[str]) -> list[str]:
        return [self._located(one) for one in ([given] if isinstance(given, str) else given)]

    def _located(self, pattern: str) -> str:
        path = self.base / pattern
        if path.exists() or Path(pattern).is_absolute():
            return str(path)
        return str(Path(glob.escape(str(self.base))) / pattern)  # only the pattern is one

    @property
    def models(self) -> Path:
        """The directory of promoted models."""
        return self.base / self.settings.promote.directory

    @property
    def options(self) -> dict[str, Any]:
        """Options of `privatize` that come from job.yaml; those that may be a name or a path are a
        path where there is one.
        """
        options = dict(self.settings.release.options)
        for name in _NAME_OR_PATH & options.keys():
            path = self.base / (options[name] or "")
            options[name] = str(path) if options[name] and path.exists() else options[name]
        if options.get("also"):
            options["also"] = self._all_located(options["also"])
        return options

    @property
    def digest(self) -> str:
        """Of all that decides what a run does; whom it tells does not."""
        own = self.settings.model_dump(mode="json", exclude={"notify", "project", "name"})
        return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()


def load(path: Path) -> Job:
    """The job of a file. Raises `LabelguardError`, naming file and path in it, for what it is not.

    Its name is the file's, unless it says one.
    """
    return parsed(read_yaml(path), path.name, path.absolute().parent, path.stem)


def parsed(content: Mapping[str, Any], file: str, base: Path, name: str) -> Job:
    """The job of what a file says."""
    try:
        settings = Settings.model_validate_json(json.dumps(content, allow_nan=False))
        name = Settings(name=settings.name or name).name or name
    except ValidationError as error:
        raise LabelguardError(f"{file}: {_said(error)}") from None
    except (TypeError, ValueError):
        only = "only texts, numbers, lists and mappings belong here"
        raise LabelguardError(f"{file}: {only}") from None
    return Job(name, settings, base)


def _said(error: ValidationError) -> str:
    """The first thing that is wrong: where it stands, and why; nothing of what stands there."""
    found = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in found["loc"] if part not in ("str", "tuple[str, ...]"))
    why = found["msg"].removeprefix("Value error, ")
    why = "there is no such line" if found["type"] == "extra_forbidden" else why
    return f"{where}: {why}" if where else why


def schema() -> dict[str, Any]:
    """The JSON schema of job.yaml."""
    made = Settings.model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | made
