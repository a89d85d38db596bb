"""`release.options` of job.yaml: how input is read, and options of the installed mechanisms."""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, create_model

from labelguard.configuration.checking import Part, Text, names, parsed
from labelguard.errors import LabelguardError
from labelguard.release.methods import installed, options_of
from labelguard.release.methods.options import FILE, NAMES_OR_PATHS
from labelguard.terms import AUTO_FORMAT, FORMAT_NAMES

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


class ReleaseOptions(Part):
    """How a job reads its input, beside the options of mechanisms."""

    columns: Mapping[str, Text] = {}
    format: _enumerated(str, [AUTO_FORMAT, *FORMAT_NAMES]) | None = None  # type: ignore[valid-type]
    split: Text | None = None
    question: Text | None = None
    public_columns: tuple[Text, ...] | None = None
    max_input_bytes: Annotated[int, Field(ge=1)] | None = None
    bad_rows: Literal["stop", "quarantine"] | None = None
    workers: int | None = None


def options_model() -> type[Part]:
    """Return the model of `release.options`; `also` may be several files."""
    taken = names(ReleaseOptions)
    of_mechanisms: dict[str, Any] = {
        name: (_type(metadata) | None, Field(None, description=metadata["help"]))
        for name, metadata in _metadata().items()
        if name not in taken
    }
    if also := of_mechanisms.get("also"):
        of_mechanisms["also"] = (Text | tuple[Text, ...] | None, also[1])
    return create_model(
        "ReleaseOptions", __base__=ReleaseOptions, __doc__=ReleaseOptions.__doc__, **of_mechanisms
    )


def check_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of a job; raise `Wrong` for what is none of them.

    What the policy in force fixes, and what agrees to something, is none.
    """
    parsed(options_model(), options)
    return options


def relative_to(base: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with their paths relative to `base`.

    What may be a name or a path is a path where there is one.
    """
    metadata = _metadata()
    found = dict(options)
    for name, value in options.items():
        if value is None or name not in metadata:
            continue
        kind = metadata[name]["metavar"]
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


def _type(metadata: Mapping[str, Any]) -> Any:
    if metadata["choices"]:
        kind = metadata["type"]
        return _enumerated(kind, [kind(choice) for choice in metadata["choices"]])
    return Text if metadata["type"] is str else metadata["type"]


def _metadata() -> dict[str, Mapping[str, Any]]:
    """Return what the options of mechanisms say of themselves, each once."""
    found: dict[str, Mapping[str, Any]] = {}
    for mechanism in installed():
        with contextlib.suppress(LabelguardError):
            for field in fields(options_of(mechanism)):  # type: ignore[arg-type]
                found.setdefault(field.name, field.metadata)
    return found
