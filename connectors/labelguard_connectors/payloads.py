"""JSON of annotation tools: validated by models, and bounded in size.

Errors name the field that was unexpected, and never what is in it. Labelers may send a tool any
value there is. A task beyond the bounds is a dead letter, in a delivery and in a pull, by what is
public of it. A label that cannot be stored is one outside its domain, so a tie. So nobody's answer
stops others' at the next release, and no error depends on what was answered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import chain
from typing import Annotated, Any, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, PlainValidator, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from labelguard.errors import ConnectorError

T = TypeVar("T")

# The most regions of an answer, bytes of its labels, bytes of its task.
REGIONS, LABEL_BYTES, TASK_BYTES = 64, 8 << 10, 2 << 20
_UNSTORABLE = "a label that cannot be stored"
# The most levels that a label has, and a task; the reader takes 128 with what is around them.
_LABEL_LEVELS, _TASK_LEVELS = 8, 100
# An answer takes so many bytes or a multiple: blanks fill up the rest, so that the sizes of what
# is stored do not tell "left" from "right".
STEP = 2_048
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_TIME = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)?", re.IGNORECASE | re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GREATEST = 2**63 - 1
_EXPECTED = {"model_type": "an object", "list_type": "a list"}


class Payload(BaseModel):
    """An object in a tool's JSON; members that it does not name are ignored."""


class Timestamp(NamedTuple):
    """A time as a tool wrote it, and in µs since 1970 UTC."""

    text: str
    microseconds: int


def parse(model: type[T], value: Any, origin: str, path: str = "") -> T:
    """Return parsed JSON as the model.

    Raises `ConnectorError` with the `origin`, the path of the field that was unexpected, below
    `path`, and what was expected there: all of them are names of ours or numbers.
    """
    try:
        parsed: T = _adapter(cast(Any, model)).validate_python(value)
        return parsed
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    for name in problem["loc"]:
        path += f"[{name}]" if isinstance(name, int) else f".{name}" if path else name
    expected = _EXPECTED.get(problem["type"], problem["msg"])
    why = "missing" if problem["type"] == "missing" else f"expected {expected}"
    # Outside the handler, so that no traceback holds the value.
    raise ConnectorError(f"{origin}: {path}: {why}" if path else f"{origin}: {why}")


@cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def make_validator(noun: str, is_valid: Callable[[Any], bool]) -> PlainValidator:
    """Return a validator that takes such values as they are, and says that `noun` was expected."""

    def check(value: Any) -> Any:
        if not is_valid(value):
            raise PydanticCustomError("unexpected", "{noun}", {"noun": noun})
        return value

    return PlainValidator(check)


def is_uuid(value: Any) -> bool:
    """Return whether it is an id as Argilla writes them."""
    return isinstance(value, str) and _UUID.fullmatch(value) is not None


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 < value <= _GREATEST


def _validate_reference(value: Any) -> int:
    number: Any = value.get("id") if isinstance(value, dict) else value
    if not _is_id(number):
        raise PydanticCustomError("unexpected", "an id (a whole number)")
    return int(number)


def _validate_time(value: Any) -> Timestamp:
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        raise PydanticCustomError("unexpected", "a time")
    try:
        time = datetime.fromisoformat(value.upper())
    except ValueError:
        raise PydanticCustomError("unexpected", "a time") from None
    time = time.replace(tzinfo=time.tzinfo or UTC)
    if time <= _EPOCH:
        raise PydanticCustomError("unexpected", "a time after 1970")
    return Timestamp(value, (time - _EPOCH) // timedelta(microseconds=1))


def _check_zone(time: Timestamp) -> Timestamp:
    if not re.search(r"(Z|[+-]\d\d:\d\d)$", time.text, re.IGNORECASE):
        raise PydanticCustomError("unexpected", "a time with its zone")
    return time


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


Id = Annotated[int, make_validator("an id (a whole number)", _is_id)]
# An id, or an object that has one.
Reference = Annotated[int, PlainValidator(_validate_reference)]
Uuid = Annotated[str, make_validator("an id (UUID)", is_uuid), AfterValidator(str.lower)]
Count = Annotated[
    int, make_validator("a whole number", lambda value: type(value) is int and value >= 0)
]
Text = Annotated[
    str, make_validator("a text", lambda value: isinstance(value, str) and value != "")
]
TextOrNone = Annotated[
    str | None,
    make_validator("a text or null", lambda value: value is None or isinstance(value, str)),
]
# False where it is null.
Flag = Annotated[
    bool | None,
    make_validator("true or false", lambda value: value is None or isinstance(value, bool)),
]
Object = Annotated[dict[str, Any], make_validator("an object", _is_object)]
# Without a zone, a time is in UTC.
Time = Annotated[Timestamp, PlainValidator(_validate_time)]
ZonedTime = Annotated[Time, AfterValidator(_check_zone)]


class OutOfBounds(ConnectorError):
    """A task has more than may be in one. The message names the bound, and nothing of it."""


def keep_storable_label(label: Any, number: int) -> Any:
    """Return one of a `number` of labels of an answer, or in its place one of no domain.

    It is stored if it can be written (no NaN, no half of a surrogate pair, not too deep), in its
    share of the bytes.
    """
    try:
        text = _to_json(label, _LABEL_LEVELS)
    except ValueError:
        return _UNSTORABLE
    return label if len(text.encode()) * number <= LABEL_BYTES else _UNSTORABLE


def serialize_padded_task(
    task: Mapping[str, Any], name: str, answer: Mapping[str, Any], origin: str
) -> str:
    """Return the JSON of a task with one answer, in its list `name`, filled up with blanks.

    Its length depends on that of the answer in large steps alone. Raises `ValueError` for what
    cannot be written, and `OutOfBounds` for the task, whose message begins with `origin`.
    """
    public, private = _to_json(task, _TASK_LEVELS), _to_json(answer, _TASK_LEVELS)
    if len(public.encode()) > TASK_BYTES:
        raise OutOfBounds(f"{origin}: expected a task of at most {TASK_BYTES:,} bytes")
    return f'{public[:-1]},"{name}":[{private}]}}{" " * (-len(private.encode()) % STEP)}'


def _to_json(value: Any, levels: int) -> str:
    """Return compact JSON that every reader takes; raise `ValueError` where there is none."""
    if not _is_nested_within(value, levels):
        raise ValueError
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except (TypeError, RecursionError):
        raise ValueError from None
    return text


def _is_nested_within(value: Any, levels: int) -> bool:
    """Return whether parsed JSON has at most so many levels of objects and lists."""
    values = [value]
    for _ in range(levels + 1):
        nested = [value for value in values if isinstance(value, dict | list)]
        if not nested:
            return True
        children = (value.values() if isinstance(value, dict) else value for value in nested)
        values = list(chain.from_iterable(children))
    return False


def parse_server_url(where: str, text: str) -> str:
    """Return the URL of a server without its last slashes; it is shown, and holds no secret."""
    url = text.rstrip("/")
    try:
        parts = urlsplit(url)
        private = parts.username or parts.password or parts.query or parts.fragment
        is_plain = parts.scheme in ("http", "https") and parts.hostname and not private
    except ValueError:
        is_plain = False
    if not is_plain:
        raise ConnectorError(
            f"{where}.url: expected one like https://tool.example.com, without user, password or "
            "query"
        )
    return url
