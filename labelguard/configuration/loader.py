"""Read settings that people write, in YAML or TOML, and check them by a model.

A file is one mapping with each name once and JSON's types. A value may be a secret in the wrong
place: errors say where it is, and what is expected.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from labelguard.errors import LabelguardError
from labelguard.text import suggest

if TYPE_CHECKING:
    import yaml

Text = Annotated[str, Field(min_length=1, max_length=1024)]
ColumnName = Annotated[str, Field(max_length=1024)]  # of a prompt that there is none of, empty
T = TypeVar("T")

_EXPONENT_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
_SECRET_WORDS = ("key", "secret", "token", "password")
# What pydantic adds to the path of a value: which type of a union it tried.
_UNION_TAG = re.compile(r"(constrained-)?(str|int|float)|(tuple|list|dict|function)\W.*|nullable")
_UNKNOWN_NAME = ("extra_forbidden", "unexpected_keyword_argument")


class SettingsTable(BaseModel):
    """A table of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def setting(text: str, default: Any = None, **limits: Any) -> Any:
    """Return a field of a table that `text` describes; `limits` are those of pydantic's `Field`."""
    return Field(default=default, description=text, **limits)


class InvalidSetting(ValueError):
    """A setting that its model refuses: its path in the table that was checked, and why."""

    def __init__(self, path: Sequence[str | int], why: str) -> None:
        super().__init__(why)
        self.path = tuple(path)


def read_settings_file(path: Path, *, hint: str = "", empty: bool = False) -> dict[str, Any]:
    """Return the settings of a file; `hint` is the remedy if it is missing.

    See `parse_settings`. Raises `LabelguardError` also for a file that cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise LabelguardError(f"there is no {path}" + (f"; {hint}" if hint else "")) from None
    except OSError as error:
        raise LabelguardError(f"cannot read {path}: {error.strerror}") from None
    return parse_settings(data, path.name, empty=empty)


def parse_settings(data: bytes, name: str, *, empty: bool = False) -> dict[str, Any]:
    """Return the settings in the bytes of the file `name`: TOML if it ends with .toml, else YAML.

    A YAML file may be `empty`. Raises `LabelguardError` with the line that cannot be read.
    """
    parse_text = tomllib.loads if name.lower().endswith(".toml") else _parse_yaml
    try:
        settings = parse_text(data.decode())
    except UnicodeDecodeError:
        raise LabelguardError(f"{name}: this is not UTF-8") from None
    except ValueError as error:
        raise LabelguardError(f"{name}: {error}") from None
    if settings is None and empty:
        return {}
    if not isinstance(settings, dict):
        raise LabelguardError(f"{name} must hold lines of `name: value`")
    return settings


def _parse_yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.load(text, _yaml_loader())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (at line {mark.line + 1})" if mark else ""
        why = getattr(error, "problem", None) or "this is not YAML"
        raise ValueError(f"{why}{where}") from None


@cache
def _yaml_loader() -> type[yaml.SafeLoader]:
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc, unused-ignore]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            names = set()
            for key, _ in node.value:
                if str(key.value) in names:
                    raise yaml.MarkedYAMLError(
                        problem="this name occurs twice", problem_mark=key.start_mark
                    )
                names.add(str(key.value))
            return super().construct_mapping(node, deep)

    # 1e-5 is a number, as in YAML 1.2; YAML 1.1 takes it for a text.
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT_NUMBER, list("-+0123456789"))
    return Loader


def validate_settings(
    kind: type[T],
    content: Any,
    file: str = "",
    *,
    at: Sequence[str] = (),
    error: type[LabelguardError] = LabelguardError,
) -> T:
    """Return settings as their model (or frozen dataclass).

    Raises `error` for the first setting that does not fit: `file`, the table `at` and the name.
    """
    try:
        return validate_nested_settings(kind, content)
    except InvalidSetting as invalid:
        path = ".".join(map(str, (*at, *invalid.path)))
        raise error(": ".join(filter(None, (file, path, str(invalid))))) from None


def validate_nested_settings(kind: type[T], content: Any) -> T:
    """Return settings as their model, inside the check of another; raises `InvalidSetting`."""
    try:
        return TypeAdapter(kind).validate_json(json.dumps(content, allow_nan=False))
    except ValidationError as error:
        raise _find_first_fault(error, kind) from None
    except (TypeError, ValueError):
        only = "only texts, finite numbers, true and false, lists and tables belong here"
        raise InvalidSetting((), only) from None


def _find_first_fault(error: ValidationError, kind: Any) -> InvalidSetting:
    """Return the first setting that is wrong, in pydantic's words, which repeat no value."""
    details = error.errors(include_url=False, include_input=False)
    # A misspelled name tells more than the one that is missing instead.
    first = next((detail for detail in details if detail["type"] in _UNKNOWN_NAME), details[0])
    path = [part for part in first["loc"] if not _UNION_TAG.fullmatch(str(part))]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InvalidSetting):
        path += cause.path
    if first["type"] in _UNKNOWN_NAME and path:
        return InvalidSetting(
            path, f"unknown key{suggest(str(path[-1]), _list_names_at(kind, path))}"
        )
    return InvalidSetting(path, first["msg"].removeprefix("Value error, "))


def _list_names_at(kind: Any, path: Sequence[str | int]) -> list[str]:
    """Return the names that belong where the last part of a path stands; none if that is open."""
    for part in path[:-1]:
        field = getattr(kind, "model_fields", {}).get(part)
        kind = getattr(field, "annotation", None)
    if is_dataclass(kind):
        return [field.name for field in fields(kind)]
    return list_field_names(kind) if hasattr(kind, "model_fields") else []


def list_field_names(kind: type[BaseModel]) -> list[str]:
    """Return the names that a table of this model may hold."""
    return [field.alias or name for name, field in kind.model_fields.items()]


def looks_secret(name: str) -> bool:
    """Return True for a name like those of secrets, which have no place in a file of settings."""
    return any(word in name.lower() for word in _SECRET_WORDS)
