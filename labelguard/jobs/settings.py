"""job.yaml: what a job pulls, releases, trains, asks, promotes and tells."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from labelguard.configuration import loader
from labelguard.configuration.loader import SettingsTable, Text, validate
from labelguard.jobs.options import check_options, options_model, relative_to, resolve_pattern
from labelguard.options import Exhausted

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_HINT = "labelguard retrain --init writes one"


class Release(SettingsTable):
    """How new labels are released."""

    mechanism: Text = Field(default="rr", description="rr, statistic, props, or another installed")
    min_new_labels: int = Field(
        default=100, ge=1, description="fewer new labels than these wait for the next run"
    )
    exhausted: Exhausted = Field(
        default="drop",
        description="leave out labels beyond their labeler's allowance, or release nothing",
    )
    options: Annotated[Mapping[str, Any], AfterValidator(check_options)] = Field(
        default={}, description="options of the mechanism, and of how input is read"
    )


class Train(SettingsTable):
    """How a model is learned from the newest release."""

    step: Text = Field(default="head", description="head, dpo, reward, or another installed")
    options: Mapping[str, Any] = Field(default={}, description="options of the step")


class Gate(SettingsTable):
    """Whether what was learned replaces the model in use."""

    by: Literal["released", "probes", "held-out", "none"] = Field(
        default="released",
        description="by which evidence; none reads a raw label that was not paid for",
    )
    probes: Text | None = Field(default=None, description="for probes: a file of public pairs")
    margin: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="how much worse it may be"
    )
    confidence: float = Field(
        default=0.5, ge=0.5, lt=1, description="how sure that it is not worse, one-sided"
    )
    at_least: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description="what it must reach in any case, a first model with its whole interval; "
        "default, of a first: what a coin reaches",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.by == "probes") != (self.probes is not None):
            raise ValueError("probes goes with by: probes, and by: probes needs it")
        return self


class Mlflow(SettingsTable):
    """A model registry that promoted models are registered in too."""

    model: Text = Field(description="its registered model")
    uri: Text | None = Field(
        default=None, description="tracking server; default: MLFLOW_TRACKING_URI"
    )


class Promote(SettingsTable):
    """Where the model in use is."""

    directory: Text = Field(
        default="models", description="holds models 0001, 0002, … and the link `current`"
    )
    keep: int = Field(default=5, ge=1, description="so many newest stay, and the one in use")
    mlflow: Mlflow | None = None


class Notify(SettingsTable):
    """Who is told, by a signed webhook (Standard Webhooks)."""

    url: Text = Field(description="where, by https")
    secret_env: str = Field(
        default="LABELGUARD_NOTIFY_SECRET",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="environment variable with the secret; NAME_FILE names a file with it",
    )
    budget_below: float = Field(
        default=0.1, ge=0, le=1, description="told once when less of an allowance is left"
    )


class Settings(SettingsTable):
    """All of job.yaml."""

    name: str | None = Field(default=None, pattern=NAME, description="default: the file's name")
    project: Text | None = Field(
        default=None, description="default: LABELGUARD_PROJECT, or the nearest one upwards"
    )
    pull: tuple[Text, ...] = Field(default=(), description="connectors to pull from first")
    input: Text | tuple[Text, ...] | None = Field(
        default=None, description="files or globs to release; default: what was ingested"
    )
    source: Text | None = Field(default=None, description="whose labelers these are")
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
        if given is None:
            return None
        parts = [given] if isinstance(given, str) else given
        return [resolve_pattern(one, self.base) for one in parts]

    @property
    def models(self) -> Path:
        """The directory of promoted models."""
        return self.base / self.settings.promote.directory

    @property
    def options(self) -> dict[str, Any]:
        """Options of `privatize` that come from job.yaml, with their paths relative to it."""
        return relative_to(self.base, self.settings.release.options)

    @property
    def digest(self) -> str:
        """Of all that decides what a run does; whom it tells does not."""
        own = self.settings.model_dump(mode="json", exclude={"notify", "project", "name"})
        return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()


def load(path: Path) -> Job:
    """The job of a file. Raises `LabelguardError`, naming file and path in it, for what it is not.

    Its name is the file's, unless it says one.
    """
    content = loader.read_file(path, hint=_HINT)
    return parsed(content, path.name, path.absolute().parent, path.stem)


def parsed(content: Mapping[str, Any], file: str, base: Path, name: str) -> Job:
    """The job of what a file says."""
    settings = validate(Settings, content, file)
    name = validate(Settings, {"name": settings.name or name}, file).name or name
    return Job(name, settings, base)


def schema() -> dict[str, Any]:
    """The JSON schema of job.yaml, with the options of mechanisms that are installed."""
    made = Settings.model_json_schema(mode="validation")
    of_release = options_model().model_json_schema(mode="validation")
    made["$defs"]["Release"]["properties"]["options"] |= of_release
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | made
