"""job.yaml: what a job pulls, releases, trains, judges and promotes, and whom it notifies."""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, create_model, model_validator

from labelguard.budget.request import PolicyRequest
from labelguard.configuration import loader
from labelguard.configuration.loader import (
    ColumnName,
    SettingsTable,
    Text,
    setting,
    validate_nested_settings,
    validate_settings,
)
from labelguard.options import (
    FILE,
    NAMES_OR_PATHS,
    Exhausted,
    Option,
    ReadingOptions,
    RunOptions,
    option_declarations,
)
from labelguard.release.mechanisms import collect_options
from labelguard.storage.files import is_remote

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


def check_job_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `release.options` of a job; raise `InvalidSetting` for what is no such option.

    Options that the policy in force fixes, and those that agree to something, are none.
    """
    validate_nested_settings(build_options_model(), options)
    return options


class ReleaseSettings(SettingsTable):
    """Release of new labels."""

    mechanism: Text = setting("rr, statistic, props, or another installed", "rr")
    min_new_labels: int = setting("fewer new labels than these wait for the next run", 100, ge=1)
    exhausted: Exhausted = setting(
        "leave out labels beyond their labeler's allowance, or release nothing", "drop"
    )
    options: Annotated[Mapping[str, Any], AfterValidator(check_job_options)] = setting(
        "options of the mechanism, and of how input is read", {}
    )


class TrainSettings(SettingsTable):
    """Training of a model on the newest release."""

    step: Text = setting("head, dpo, reward, or another installed", "head")
    options: Mapping[str, Any] = setting("options of the step", {})


class GateSettings(SettingsTable):
    """Decision whether the trained model replaces the model in use."""

    by: Literal["released", "probes", "held-out", "none"] = setting(
        "evidence to judge by; no option reads raw labels without charging", "released"
    )
    probes: Text | None = setting("for probes: a file of public pairs")
    margin: float = setting("how much worse it may be", 0.0, ge=0, allow_inf_nan=False)
    confidence: float = setting("how sure that it is not worse, one-sided", 0.5, ge=0.5, lt=1)
    at_least: float | None = setting(
        "least value in any case, for a first model of its whole interval; "
        "default, of a first: what a coin reaches",
        allow_inf_nan=False,
    )

    @model_validator(mode="after")
    def _check_probes_setting(self) -> Self:
        if (self.by == "probes") != (self.probes is not None):
            raise ValueError("probes goes with by: probes, and by: probes needs it")
        return self


class PromoteSettings(SettingsTable):
    """Directory of the model in use."""

    directory: Text = setting("holds models 0001, 0002, … and the link `current`", "models")
    keep: int = setting("so many newest stay, and the one in use", 5, ge=1)


class NotifySettings(SettingsTable):
    """Notifications by a signed webhook (Standard Webhooks)."""

    url: Text = Field(description="where, by https")
    secret_env: str = setting(
        "environment variable with the secret; NAME_FILE names a file with it",
        "LABELGUARD_NOTIFY_SECRET",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
    )
    budget_below: float = setting("notify once when less of an allowance is left", 0.1, ge=0, le=1)
    exhausted_above: float = setting(
        "notify once when a larger share of labelers has nothing left", 0.1, ge=0, le=1
    )


class JobSettings(SettingsTable):
    """All of job.yaml."""

    name: str | None = setting("default: the file's name", pattern=NAME)
    project: Text | None = setting("default: LABELGUARD_PROJECT, or the nearest one upwards")
    pull: tuple[Text, ...] = setting("connectors to pull from first", ())
    input: Text | tuple[Text, ...] | None = setting(
        "files or globs to release; default: what was ingested"
    )
    source: Text | None = setting("whose labelers these are")
    release: ReleaseSettings = ReleaseSettings()
    train: TrainSettings = TrainSettings()
    gate: GateSettings = GateSettings()
    promote: PromoteSettings = PromoteSettings()
    notify: NotifySettings | None = None

    @model_validator(mode="after")
    def _refuse_pull_with_input(self) -> Self:
        if self.pull and self.input is not None:
            raise ValueError("pull and input exclude each other: what was pulled is released")
        return self


@dataclass(frozen=True)
class Job:
    """A job: its settings, its name, and the directory that its relative paths refer to."""

    name: str
    settings: JobSettings
    base: Path

    @property
    def source(self) -> list[str] | None:
        """The files to release, or None for the answers that were ingested."""
        paths = self.settings.input
        if paths is None:
            return None
        paths = (paths,) if isinstance(paths, str) else paths
        return [resolve_pattern(path, self.base) for path in paths]

    @property
    def models(self) -> Path:
        """The directory of promoted models."""
        return self.base / self.settings.promote.directory

    @property
    def options(self) -> dict[str, Any]:
        """Options of `privatize` that come from job.yaml, with their paths relative to it."""
        return resolve_paths(self.base, self.settings.release.options)

    @property
    def digest(self) -> str:
        """A digest of the settings that decide what a run does."""
        content = self.settings.model_dump(mode="json", exclude={"notify", "project", "name"})
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def load_job(path: Path) -> Job:
    """Return the job of a file; its default name is the file's.

    Raises `LabelguardError` with the file and the setting that is wrong.
    """
    content = loader.read_settings_file(path, hint="labelguard retrain --init writes one")
    return parse_job(content, path.name, path.absolute().parent, path.stem)


def parse_job(content: Mapping[str, Any], file: str, base: Path, name: str) -> Job:
    """Return the job with these settings; errors name `file`."""
    settings = validate_settings(JobSettings, content, file)
    name = validate_settings(JobSettings, {"name": settings.name or name}, file).name or name
    return Job(name, settings, base)


def build_job_schema() -> dict[str, Any]:
    """Return the JSON schema of job.yaml, with the options of mechanisms that are installed."""
    schema = JobSettings.model_json_schema(mode="validation")
    options = build_options_model().model_json_schema(mode="validation")
    schema["$defs"]["ReleaseSettings"]["properties"]["options"] |= options
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema


def build_options_model() -> type[SettingsTable]:
    """Return the model of `release.options`; `also` and `split` may be one or several."""
    members: dict[str, Any] = {
        name: (_build_option_type(option) | None, Field(None, description=option.text))
        for name, option in _list_job_options().items()
    }
    for name in {"also", "split"} & members.keys():
        members[name] = (Text | tuple[Text, ...] | None, members[name][1])
    text = "How a job reads its input, and options of mechanisms."
    return create_model("ReleaseOptions", __base__=SettingsTable, __doc__=text, **members)


def _list_job_options() -> dict[str, Option]:
    """Return the options that a job may set, by name: those of all releases and of mechanisms."""
    groups = (option_declarations(kind) for kind in (ReadingOptions, PolicyRequest, RunOptions))
    shared = {name: option for group in groups for name, option in group.items() if option.in_jobs}
    special = {
        name: option for name, (_, option) in collect_options().items() if name not in shared
    }
    return shared | special


def _build_option_type(option: Option) -> Any:
    """Return the type of an option in the file."""
    text: Any = Text if option.kind is str else option.kind
    if option.choices:
        return Literal[tuple(option.kind(choice) for choice in option.choices)]
    if option.table:
        return Mapping[str, ColumnName]
    if option.many:
        return tuple[Text, ...]
    return text if option.least is None else Annotated[text, Field(ge=option.least)]


def resolve_paths(base: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with their paths relative to `base`.

    A value that may be a name or a path is a path where that file exists.
    """
    declarations = _list_job_options()
    resolved = dict(options)
    for name, value in options.items():
        if value is None or name not in declarations:
            continue
        kind = declarations[name].metavar
        if kind == FILE and isinstance(value, str):
            resolved[name] = resolve_pattern(value, base)
        elif kind == FILE:
            resolved[name] = [resolve_pattern(path, base) for path in value]
        elif kind in NAMES_OR_PATHS and (base / value).exists():
            resolved[name] = str(base / value)
    return resolved


def resolve_pattern(pattern: str, base: Path) -> str:
    """Return a path or glob relative to `base`, whose characters are no wildcards, or a URL."""
    if is_remote(pattern):
        return pattern
    path = base / pattern
    if path.exists() or Path(pattern).is_absolute():
        return str(path)
    return str(Path(glob.escape(str(base))) / pattern)
