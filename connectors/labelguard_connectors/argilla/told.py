"""What Argilla tells, taken apart: errors say where something else was expected, never what is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from labelguard.errors import ConnectorError

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_TIME = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)?", re.IGNORECASE | re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Told:
    """A value of parsed JSON, and where it is: `what` was told, and the `path` in it.

    A path is made of names that this package asks for and of numbers, and so holds nothing private.
    Every method raises `ConnectorError` where the value is something else.
    """

    what: str
    value: Any = field(repr=False)
    path: str = ""

    def __getitem__(self, name: str) -> Told:
        """A member of an object."""
        members = self.object()
        inner = f"{self.path}.{name}" if self.path else name
        if name not in members:
            raise ConnectorError(f"{self.what}: {inner}: missing")
        return Told(self.what, members[name], inner)

    def object(self) -> dict[str, Any]:
        """The members of an object."""
        if not isinstance(self.value, dict) or not all(isinstance(key, str) for key in self.value):
            raise self.unlike("an object")
        return self.value

    def elements(self) -> Iterator[Told]:
        """The elements of a list."""
        if not isinstance(self.value, list):
            raise self.unlike("a list")
        for number, element in enumerate(self.value):
            yield Told(self.what, element, f"{self.path}[{number}]")

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

    def count(self) -> int:
        """A whole number from 0."""
        if not isinstance(self.value, int) or isinstance(self.value, bool) or self.value < 0:
            raise self.unlike("a whole number")
        return self.value

    def uuid(self) -> str:
        """An id, in lower case."""
        if not isinstance(self.value, str) or not is_uuid(self.value):
            raise self.unlike("an id (UUID)")
        return self.value.lower()

    def time(self) -> int:
        """A time in µs since 1970 UTC. Those of Argilla name no zone and are UTC."""
        if not isinstance(self.value, str) or not _TIME.fullmatch(self.value):
            raise self.unlike("a time")
        try:
            then = datetime.fromisoformat(self.value.upper())
        except ValueError:
            raise self.unlike("a time") from None
        if then.tzinfo is None:
            then = then.replace(tzinfo=UTC)
        if then < _EPOCH:
            raise self.unlike("a time since 1970")
        return (then - _EPOCH) // timedelta(microseconds=1)

    def unlike(self, expected: str) -> ConnectorError:
        """The error that says that something else is here."""
        where = f"{self.what}: {self.path}" if self.path else self.what
        return ConnectorError(f"{where}: expected {expected}")


def is_uuid(text: str) -> bool:
    """Whether it is an id as Argilla writes them."""
    return _UUID.fullmatch(text) is not None
