"""What tools say, taken apart: errors say where something else was expected, never what is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from labelguard.errors import ConnectorError

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_TIME = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)?", re.IGNORECASE | re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GREATEST = 2**63 - 1


@dataclass(frozen=True)
class Value:
    """A value of parsed JSON, and where it is: `what` said it, and the `path` in that.

    A path is made of names that this package asks for and of numbers, and so holds nothing private.
    Every method raises `ConnectorError` where the value is something else.
    """

    what: str
    value: Any = field(repr=False)
    path: str = ""

    def __getitem__(self, name: str) -> Value:
        """A member of an object."""
        found = self.get(name)
        if name not in self.value:
            raise ConnectorError(f"{self.what}: {found.path}: missing")
        return found

    def get(self, name: str) -> Value:
        """A member of an object, or null where there is none."""
        inner = f"{self.path}.{name}" if self.path else name
        return Value(self.what, self.object().get(name), inner)

    def object(self) -> dict[str, Any]:
        """The members of an object."""
        if not isinstance(self.value, dict) or not all(isinstance(key, str) for key in self.value):
            raise self.unlike("an object")
        return self.value

    def elements(self) -> Iterator[Value]:
        """The elements of a list."""
        if not isinstance(self.value, list):
            raise self.unlike("a list")
        for number, element in enumerate(self.value):
            yield Value(self.what, element, f"{self.path}[{number}]")

    def text(self) -> str:
        """A text that is not empty."""
        if not isinstance(self.value, str) or not self.value:
            raise self.unlike("a text")
        return self.value

    def text_or_none(self) -> str | None:
        """A text, or null."""
        if self.value is not None and not isinstance(self.value, str):
            raise self.unlike("a text or null")
        return self.value

    def flag(self) -> bool:
        """True or false, which null is too."""
        if self.value is not None and not isinstance(self.value, bool):
            raise self.unlike("true or false")
        return bool(self.value)

    def count(self) -> int:
        """A whole number from 0."""
        if not isinstance(self.value, int) or isinstance(self.value, bool) or self.value < 0:
            raise self.unlike("a whole number")
        return self.value

    def number(self) -> int:
        """An id that is a positive whole number."""
        if type(self.value) is not int or not 0 < self.value <= _GREATEST:
            raise self.unlike("an id (a whole number)")
        return self.value

    def uuid(self) -> str:
        """An id, in lower case."""
        if not isinstance(self.value, str) or not is_uuid(self.value):
            raise self.unlike("an id (UUID)")
        return self.value.lower()

    def time(self, *, zoned: bool = False) -> int:
        """A time in µs since 1970 UTC; `zoned`: it must name its zone, which is UTC otherwise."""
        if not isinstance(self.value, str) or not _TIME.fullmatch(self.value):
            raise self.unlike("a time")
        try:
            then = datetime.fromisoformat(self.value.upper())
        except ValueError:
            raise self.unlike("a time") from None
        if then.tzinfo is None and zoned:
            raise self.unlike("a time with its zone")
        then = then.replace(tzinfo=then.tzinfo or UTC)
        if then <= _EPOCH:
            raise self.unlike("a time after 1970")
        return (then - _EPOCH) // timedelta(microseconds=1)

    def unlike(self, expected: str) -> ConnectorError:
        """The error that says that something else is here."""
        where = f"{self.what}: {self.path}" if self.path else self.what
        return ConnectorError(f"{where}: expected {expected}")


def is_uuid(text: str) -> bool:
    """Whether it is an id as Argilla writes them."""
    return _UUID.fullmatch(text) is not None


def server_url(where: str, given: str) -> str:
    """Return the URL of a server without its last slashes; it is shown, and holds no secret."""
    url = given.rstrip("/")
    try:
        parts = urlsplit(url)
        private = parts.username or parts.password or parts.query or parts.fragment
        plain = parts.scheme in ("http", "https") and parts.hostname and not private
    except ValueError:
        plain = False
    if not plain:
        raise ConnectorError(
            f"{where}.url: expected one like https://tool.example.com, without user, password or "
            "query"
        )
    return url
