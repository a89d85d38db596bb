"""Settings checked by a model: the first thing that is wrong is named, and no value of it.

What stands where it does not belong may be a secret, so that an error says where, and what is
expected there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from labelguard.errors import LabelguardError

__all__ = ["Part", "Text", "Wrong", "checked", "names", "secretive"]

Text = Annotated[str, Field(min_length=1, max_length=1024)]

T = TypeVar("T")

_SECRETS = ("key", "secret", "token", "password")
_TAG = re.compile(r"(constrained-)?(str|int|float)|(tuple|list|dict|function)\W.*|nullable")
"""What pydantic adds to the way to a value: which type of a union it tried."""

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_EXPECTED = {
    "missing": "this is missing",
    "string_type": "expected a text",
    "string_too_short": "expected a text that is not empty",
    "bool_type": "expected true or false",
    "int_type": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "finite_number": "expected a finite number",
    "tuple_type": "expected a list",
    "list_type": "expected a list",
    "dict_type": "expected a table of `name: value`",
    "mapping_type": "expected a table of `name: value`",
    "model_type": "expected a table of `name: value`",
    "model_attributes_type": "expected a table of `name: value`",
    "dataclass_type": "expected a table of `name: value`",
}


class Part(BaseModel):
    """A table of settings. `was` are names that it had, and how they are called now."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    was: ClassVar[dict[str, str]] = {}


class Wrong(ValueError):
    """What a check of a part found: where in it, and why."""

    def __init__(self, path: Sequence[str | int], why: str) -> None:
        super().__init__(why)
        self.path = tuple(path)


def checked(
    kind: type[T],
    content: Any,
    where: str = "",
    *,
    at: Sequence[str] = (),
    error: type[LabelguardError] = LabelguardError,
) -> T:
    """What was read, as its model (or frozen dataclass): `where` is the file, `at` the table in it.

    Raises `error` with the first thing that does not fit.
    """
    try:
        return parsed(kind, content)
    except Wrong as wrong:
        path = ".".join(map(str, (*at, *wrong.path)))
        raise error(": ".join(filter(None, (where, path, str(wrong))))) from None


def parsed(kind: type[T], content: Any) -> T:
    """The same, for checks of parts: raises `Wrong`."""
    try:
        return TypeAdapter(kind).validate_json(json.dumps(content, allow_nan=False))
    except ValidationError as found:
        raise _wrong(kind, found) from None
    except (TypeError, ValueError):
        only = "only texts, finite numbers, true and false, lists and tables belong here"
        raise Wrong((), only) from None


def names(kind: Any) -> list[str]:
    """What a table of this model may say."""
    if is_dataclass(kind):
        return [field.name for field in fields(kind)]
    return [field.alias or name for name, field in kind.model_fields.items()]


def secretive(name: str) -> bool:
    """Whether something is called as secrets are, which have no place in a file of settings."""
    return any(word in name.lower() for word in _SECRETS)


def _wrong(kind: Any, error: ValidationError) -> Wrong:
    told = error.errors(include_url=False, include_input=False)
    # A misspelled name tells more than the one that is missing instead.
    found = next((one for one in told if one["type"] in _UNKNOWN), told[0])
    path = [part for part in found["loc"] if not _TAG.fullmatch(str(part))]
    if found["type"] == "json_invalid":
        return Wrong((), "only Unicode texts belong here")
    if found["type"] in _UNKNOWN:
        return Wrong(path, _unknown(kind, path))
    inner = found.get("ctx", {}).get("error")
    if isinstance(inner, Wrong):
        return Wrong((*path, *inner.path), str(inner))
    said = found["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    return Wrong(path, _EXPECTED.get(found["type"], said))


def _unknown(kind: Any, path: Sequence[str | int]) -> str:
    """Why a name is none, with the one that was meant if any is near."""
    *way, name = map(str, path)
    for step in way:
        inner = [one.model_fields for one in _models(kind) if hasattr(one, "model_fields")]
        told = (
            field.annotation
            for known in inner
            for own, field in known.items()
            if step in (own, field.alias)
        )
        kind = next(told, kind)
    owners = _models(kind)
    was = {old: new for one in owners for old, new in getattr(one, "was", {}).items()}
    if name in was:
        return f"this is called {was[name]}"
    if secretive(name):
        return (
            "there is no such name, and secrets have no place here: put them into the environment, "
            "a file or the keyring (docs/configuration.md)"
        )
    near = get_close_matches(name, [own for one in owners for own in names(one)], n=1)
    return "there is no such name" + (f"; did you mean {near[0]}?" if near else "")


def _models(kind: Any) -> list[Any]:
    """The tables that a type is made of."""
    return [one for one in _types(kind) if is_dataclass(one) or hasattr(one, "model_fields")]


def _types(kind: Any) -> Iterator[Any]:
    yield kind
    for inner in get_args(kind):
        yield from _types(inner)
