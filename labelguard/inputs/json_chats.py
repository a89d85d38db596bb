"""Chats in JSON: the types that values are read as, each in its own spelling."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from labelguard.inputs.chats import (
    MESSAGE,
    NULL,
    VARCHAR,
    WITHIN,
    pack_members_sql,
    shape_sql,
    text_as_content_sql,
)
from labelguard.inputs.readers import literal


def merge_shapes(one: object, other: object) -> object:
    """Return the shape of values of both; JSON where they differ in kind."""
    if one is None or other is None:
        return one if other is None else other
    if isinstance(one, list) and isinstance(other, list):
        inner = [*one, *other]
        return [reduce(merge_shapes, inner)] if inner else []
    if isinstance(one, dict) and isinstance(other, dict):
        names = dict.fromkeys([*one, *other])
        return {name: merge_shapes(one.get(name), other.get(name)) for name in names}
    return one if one == other else "JSON"


@dataclass(frozen=True)
class JsonChats:
    """Read values of JSON that hold chats: as the `sql` type, each in its own spelling.

    `structure` is what `from_json` takes, which fills in and leaves out what is null; `rebuild`,
    if there is one, is SQL of what becomes of that, and `unwrap` of the JSON before.
    """

    sql: str
    structure: str
    unwrap: Callable[[str], str] | None = None
    rebuild: Callable[[str], str] | None = None

    @property
    def is_rebuilt(self) -> bool:
        """True where more is to be done than a cast to the type."""
        return bool(self.unwrap or self.rebuild)

    def read_sql(self, value: str) -> str:
        """Return SQL of a value (JSON) as the type `sql`."""
        value = self.unwrap(value) if self.unwrap else value
        read = f"from_json({value}, {literal(self.structure)})"
        return self.rebuild(read) if self.rebuild else read


def read_json_chats(shape: Any, parts: object = None, *, wrapped: bool = False) -> JsonChats | None:
    """Return how JSON of this shape is read, which is a chat, or a list of chats or texts.

    Members that no chat has are read as JSON, so that they are named and not missed. `parts`: what
    parts are, where some messages have text as their content. `wrapped`: some values are one
    message. None where two members of one object agree but for case.
    """
    read = _choose_json_type(shape)
    if _has_names_twice(read):
        return None

    def wrap_object(value: str) -> str:
        return f"CASE json_type({value}) WHEN 'OBJECT' THEN json_array({value}) ELSE {value} END"

    unwrap = wrap_object if wrapped else None
    if parts is None:
        return JsonChats(shape_sql(read), json.dumps(read), unwrap)
    made = _choose_json_type(_with_parts(shape, parts))
    listed = isinstance(read, list) and isinstance(read[0], list)

    def split_contents(value: str) -> str:
        if isinstance(read, dict):
            return f"CASE WHEN {value} IS NOT NULL THEN {_split_content_sql(value, read, made)} END"
        old, new = (read[0][0], made[0][0]) if listed else (read[0], made[0])
        inner = f"lambda m: {_split_content_sql('m', old, new)})"
        if listed:
            return f"list_transform({value}, lambda x: list_transform(x, {inner})"
        return f"list_transform({value}, {inner}"

    return JsonChats(shape_sql(made), json.dumps(read), unwrap, split_contents)


def _with_parts(shape: Any, parts: object) -> Any:
    if isinstance(shape, list):
        return [_with_parts(shape[0], parts)]
    listed = merge_shapes(parts, [{"type": VARCHAR, "text": VARCHAR}])
    return {**shape, "content": listed, "value": VARCHAR}


def _split_content_sql(message: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return SQL of a message whose content (JSON) is text or a list of parts: text is one part."""
    members = {name: f"struct_extract_at({message}, {n})" for n, name in enumerate(old, 1)}
    content = members["content"]
    text = text_as_content_sql(f"({content}->>'$')", new["content"])
    listed = f"from_json({content}, {literal(json.dumps(new['content']))})"
    members["content"] = (
        f"CASE json_type({content}) WHEN 'ARRAY' THEN {listed} WHEN 'VARCHAR' THEN {text} END"
    )
    return pack_members_sql(new, members)


def _choose_json_type(shape: Any, known: Collection[str] = MESSAGE) -> Any:
    """Return the type, as nested lists and objects, that JSON of this shape is read as."""
    if isinstance(shape, list):
        inner = shape[0] if shape else None
        empty = (
            {"role": VARCHAR, "content": NULL}
            if known is MESSAGE
            else {"type": VARCHAR, "text": VARCHAR}
        )
        return [empty if inner is None else _choose_json_type(inner, known)]
    if isinstance(shape, dict):
        return {
            name: _choose_json_type(child, WITHIN.get(name, ()))
            if name in known and (name == "content" or not isinstance(child, list))
            else "JSON"
            for name, child in shape.items()
            if child is not None
        } | ({"content": NULL} if "content" in shape and shape["content"] is None else {})
    return shape if shape == VARCHAR else "JSON"


def _has_names_twice(shape: object) -> bool:
    if isinstance(shape, list):
        return any(map(_has_names_twice, shape))
    if not isinstance(shape, dict):
        return False
    lower = [name.lower() for name in shape]
    return len({*lower}) < len(lower) or any(map(_has_names_twice, shape.values()))
