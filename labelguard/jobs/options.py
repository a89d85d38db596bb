"""`release.options` of job.yaml: the options of a release that a job may repeat."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, create_model

from labelguard.budget.request import PolicyRequest
from labelguard.configuration.loader import SettingsTable, Text, check_model
from labelguard.options import (
    FILE,
    NAMES_OR_PATHS,
    Option,
    ReadingOptions,
    RunOptions,
    declared,
)
from labelguard.release.mechanisms import of_mechanisms

__all__ = ["check_options", "options_model", "relative_to", "resolve_pattern"]


def _one_of(*choices: Any) -> AfterValidator:
    """Return a check for one of some values that are found when the program runs."""

    def check(value: Any) -> Any:
        if value not in choices:
            shown = (f"{one:g}" if isinstance(one, float) else one for one in choices)
            raise ValueError(f"expected one of {', '.join(shown)}")
        return value

    return AfterValidator(check)


def _enumerated(kind: Any, choices: Sequence[Any]) -> Any:
    """Return the type with its choices, which its schema lists."""
    return Annotated[kind, _one_of(*choices), Field(json_schema_extra={"enum": list(choices)})]


def options_model() -> type[SettingsTable]:
    """Return the model of `release.options`; `also` may be several files."""
    members: dict[str, Any] = {
        name: (_type(one) | None, Field(None, description=one.text))
        for name, one in _options().items()
    }
    if also := members.get("also"):
        members["also"] = (Text | tuple[Text, ...] | None, also[1])
    text = "How a job reads its input, and options of mechanisms."
    return create_model("ReleaseOptions", __base__=SettingsTable, __doc__=text, **members)


def check_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of a job; raise `Wrong` for what is none of them.

    What the policy in force fixes, and what agrees to something, is none.
    """
    check_model(options_model(), options)
    return options


def relative_to(base: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with their paths relative to `base`.

    What may be a name or a path is a path where there is one.
    """
    known = _options()
    found = dict(options)
    for name, value in options.items():
        if value is None or name not in known:
            continue
        kind = known[name].metavar
        if kind == FILE:
            found[name] = (
                resolve_pattern(value, base)
                if isinstance(value, str)
                else [resolve_pattern(one, base) for one in value]
            )
        elif kind in NAMES_OR_PATHS and (base / value).exists():
            found[name] = str(base / value)
    return found


def resolve_pattern(text: str, base: Path) -> str:
    """Return a path or glob relative to `base`, of which no sign counts as one of a glob."""
    path = base / text
    if path.exists() or Path(text).is_absolute():
        return str(path)
    return str(Path(glob.escape(str(base))) / text)


def _type(one: Option) -> Any:
    """Return the type of a member of the file."""
    text: Any = Text if one.kind is str else one.kind
    if one.choices:
        return _enumerated(one.kind, [one.kind(choice) for choice in one.choices])
    if one.table:
        return Mapping[str, Text]
    if one.many:
        return tuple[Text, ...]
    return text if one.least is None else Annotated[text, Field(ge=one.least)]


def _options() -> dict[str, Option]:
    """Return what a job may say, by name: of what all releases share, and of mechanisms."""
    shared = (declared(kind) for kind in (ReadingOptions, PolicyRequest, RunOptions))
    found = {name: one for group in shared for name, one in group.items() if one.in_jobs}
    return found | {n: one for n, (_, one) in of_mechanisms().items() if n not in found}
