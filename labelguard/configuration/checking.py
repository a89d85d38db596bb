"""Settings checked by a model: the first thing that is wrong is named, and no value of it.

What stands where it does not belong may be a secret, so that an error says where, and what is
expected there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from labelguard.errors import LabelguardError

__all__ = ["Part", "Text", "Wrong", "checked", "names", "secretive"]

Text = Annotated[str, Field(min_length=1, max_length=1024)]

T = TypeVar("T")

_SECRETS = ("key", "secret", "token", "password")
# What pydantic adds to the way to a value: which type of a union it tried.
_TAG = re.compile(r"(constrained-)?(str|int|float)|(tuple|list|dict|function)\W.*|nullable")

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


class Part(BaseModel):
    """A table of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


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
        raise _first(found) from None
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


def _first(error: ValidationError) -> Wrong:
    """Return the first thing that is wrong, in pydantic's words, which repeat no value."""
    details = error.errors(include_url=False, include_input=False)
    # A misspelled name tells more than the one that is missing instead.
    first = next((one for one in details if one["type"] in _UNKNOWN), details[0])
    path = [part for part in first["loc"] if not _TAG.fullmatch(str(part))]
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, Wrong):
        path += inner.path
    return Wrong(path, first["msg"].removeprefix("Value error, "))
