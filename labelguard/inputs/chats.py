"""The language of content: text, or a chat, in each way that tools spell it.

Content is text, or a chat: a list of messages {role, content, name?, tool_calls?, tool_call_id?}
whose content is text or a list of parts {type: text, text} or {type: image_url, url}. Everything in
it is text, so no value is read, cast or printed by the type of the column it stands in, and which
side was chosen cannot show. These spellings are read, and become that form:

- one message as a side is a list of one;
- `from` and `value` are `role` and `content`, as LLaMA-Factory and ShareGPT have them;
- images are {type: image_url, image_url: {url}} (OpenAI) or {type: image, image, url or path: text}
  (TRL, transformers); how closely a model is to look (`detail`) is not read;
- tool calls are text, or lists and objects of texts, which become the text of their JSON.

A type is checked whole, null members included, before anything is read. What is not understood is
listed for all sides together, whichever of them has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from duckdb.sqltypes import DuckDBPyType

from labelguard.errors import InvalidLabels
from labelguard.inputs.readers import literal

# Members of a message beside `role` and `content`, and of a part that is an image.
OPTIONAL = ("name", "tool_calls", "tool_call_id")
IMAGE = "url"
_VARCHAR, _NULL = "VARCHAR", '"NULL"'
_MESSAGE = ("role", "content", "from", "value", *OPTIONAL)
_ADDRESSES = ("url", "image", "path", "image_url")
_PART = ("type", "text", *_ADDRESSES)
_WITHIN = {"content": _PART, "image_url": ("url", "detail")}
# Members that are content: nobody can have them dropped.
MEMBERS = frozenset((*_MESSAGE, *_PART, "detail"))
# The order of members of tool calls, as OpenAI writes them; others follow by name.
_CALL = " id type function name arguments "
# Who speaks, as `from` says it.
_SPEAKERS = {
    "human": "user",
    "gpt": "assistant",
    "function_call": "assistant",
    "observation": "tool",
}


class NotContent(Exception):
    """A type that is neither text nor a chat, or types of which one is text and one is not.

    `unknown` are paths of members that are not understood, `wrong` what is wrong with known ones.
    """

    def __init__(self, unknown: Iterable[str] = (), wrong: Iterable[str] = ()) -> None:
        self.unknown, self.wrong = sorted(set(unknown)), sorted(set(wrong))
        super().__init__(", ".join([*self.unknown, *self.wrong]))


@dataclass(frozen=True)
class Content:
    """The type of prompts and responses: text, or a chat.

    `parts` says whether the content of messages is a list of parts, None where no message has any
    content; `members` are the optional ones that are there, of messages and of parts. `strings`:
    some messages have parts and some have text, which is read as one text part. Content that is
    one text part is encoded as that text then.
    """

    chat: bool = False
    parts: bool | None = None
    members: frozenset[str] = frozenset()
    strings: bool = False


TEXT = Content()


def build_content_error(where: str, fault: NotContent | None = None) -> InvalidLabels:
    """Return the error for prompts and responses outside the language of content."""
    fault = fault or NotContent()
    more = f"; found {'; '.join(fault.wrong)}" if fault.wrong else ""
    if fault.unknown:
        names = sorted({path.rpartition(".")[2] for path in fault.unknown})
        more += (
            f"; members not understood: {', '.join(fault.unknown)}: drop them by name on both "
            f"sides: --drop-members {','.join(names)}"
        )
    return InvalidLabels(
        f"{where}: prompts and responses must be all text, or all chats (messages of role, "
        "content, name, tool_calls and tool_call_id, whose content is text or parts of text and "
        f"image_url), without numbers, times or other members{more}; see docs/formats.md#chats"
    )


def parse_dropped_members(names: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return names of members to leave out, each once; a text may name several between commas.

    Raises `InvalidLabels` for members that are content.
    """
    texts = [names] if isinstance(names, str) else list(names or ())
    pieces = {piece.strip() for text in texts for piece in text.split(",")} - {""}
    for name in sorted(pieces):
        if name.lower() in MEMBERS:
            raise InvalidLabels(
                f"--drop-members: {name} is content, and cannot be dropped; drop others, such as "
                "timestamp or id"
            )
    return tuple(sorted(pieces))


def is_text(kind: DuckDBPyType) -> bool:
    """Return whether a column holds plain text."""
    return kind.id in ("varchar", "enum") and str(kind) != "JSON"


def is_list(kind: DuckDBPyType) -> bool:
    """Return whether a column holds lists, of one length or of several."""
    return kind.id in ("list", "array")


def can_hold_chats(kind: DuckDBPyType) -> bool:
    """Return whether a column holds lists of something, or one object as a side."""
    return is_list(kind) or kind.id == "struct"


def find_element_type(kind: DuckDBPyType) -> DuckDBPyType:
    """Return the type of a list's elements."""
    child = kind.children[0][1]
    assert isinstance(child, DuckDBPyType)
    return child


def holds_messages(kind: DuckDBPyType) -> bool:
    """Return whether a column holds lists of messages, whatever else is in these."""
    shape = _shape_type(kind)
    return isinstance(shape, list) and is_chat(shape)


def find_content_of_types(kinds: Iterable[DuckDBPyType], dropped: Collection[str] = ()) -> Content:
    """Return what columns of these types hold together; raise `NotContent` for anything else.

    Types may differ in spelling, in optional members, in those that are `dropped` and in members
    that are always null: which column has one may follow from the labels, and everything in a chat
    is text whatever the column says.
    """
    return _parse_shapes(map(_shape_type, kinds), dropped)


def find_content_of_structures(structures: Iterable[object]) -> Content:
    """Return the same for the structures that DuckDB's `json_structure` finds in JSON values."""
    return _parse_shapes(map(shape_structure, structures), ())


def find_content_of_conversations(kinds: Iterable[DuckDBPyType]) -> Content:
    """Return the same for published conversations, without members that no chat has."""
    return _parse_shapes((keep_chat_members(_shape_type(kind)) for kind in kinds), ())


def keep_chat_members(shape: object) -> object:
    """Return a shape without members that no chat has: published conversations have others.

    What is left out is not read, so its type and its values make no difference.
    """
    if isinstance(shape, list):
        return [keep_chat_members(child) for child in shape]
    if not isinstance(shape, dict):
        return shape
    return {name: keep_chat_members(shape[name]) for name in shape if name in MEMBERS}


def merge_content_types(contents: Iterable[Content]) -> Content:
    """Return the content that holds every value of all of them, text if there is none."""
    types = list(contents)
    return reduce(_merge_alike_contents, types) if types else TEXT


def _merge_alike_contents(first: Content, second: Content) -> Content:
    if first.chat != second.chat:
        raise NotContent
    parts = {first.parts, second.parts} - {None}
    strings = first.strings or second.strings or len(parts) > 1
    return Content(
        first.chat, True if strings else next(iter(parts), None), first.members | second.members,
        strings,
    )  # fmt: skip


# ---------------------------------------------------------------- the grammar


@dataclass
class _Faults:
    """What a type has that is not understood, or wrong; names that are `dropped` are passed by."""

    dropped: frozenset[str]
    unknown: set[str] = field(default_factory=set)
    wrong: set[str] = field(default_factory=set)

    def take_members(self, shape: object, known: Collection[str], path: str) -> dict[str, Any]:
        """Return the members of an object that are known and not always null."""
        if not isinstance(shape, dict):
            raise NotContent
        present = {
            name: child
            for name, child in shape.items()
            if child is not None and name.lower() not in self.dropped
        }
        self.unknown |= {f"{path}.{name}" for name in present.keys() - {*known}}
        return {name: child for name, child in present.items() if name in known}

    def expect_texts(self, members: Mapping[str, Any], path: str, *but: str) -> None:
        """Note members that are no text."""
        self.wrong |= {
            f"{path}.{name} that is no text"
            for name, child in members.items()
            if child != _VARCHAR and name not in but
        }


def _parse_shapes(shapes: Iterable[object], dropped: Collection[str]) -> Content:
    """Return the content of shapes; what is wrong is told of all of them together."""
    faults = _Faults(frozenset(name.lower() for name in dropped))
    contents, failed = list[Content](), False
    for shape in shapes:
        try:
            contents += [] if shape is None else [_parse_shape(shape, faults)]
        except NotContent:
            failed = True
    if failed or faults.unknown or faults.wrong:
        raise NotContent(faults.unknown, faults.wrong)
    return merge_content_types(contents)


def _parse_shape(shape: object, faults: _Faults) -> Content:
    if shape == _VARCHAR:
        return TEXT
    messages = [shape] if isinstance(shape, dict) else shape
    if not isinstance(messages, list):
        raise NotContent
    if not messages or messages[0] is None:
        return Content(chat=True)
    if not is_chat(messages):
        raise NotContent
    path = "messages[]"
    message = faults.take_members(messages[0], _MESSAGE, path)
    faults.expect_texts(message, path, "content", "tool_calls")
    _check_calls(message.get("tool_calls"), f"{path}.tool_calls", faults)
    members = frozenset(OPTIONAL) & message.keys()
    content, strings = message.get("content"), "value" in message
    if isinstance(content, list):
        images = _parse_part(content[0] if content else None, f"{path}.content[]", faults)
        return Content(True, True, members | images, strings)
    faults.expect_texts({"content": content} if content is not None else {}, path)
    return Content(True, False if content is not None or strings else None, members)


def _parse_part(shape: object, path: str, faults: _Faults) -> frozenset[str]:
    """Return which optional members a part has in our spelling."""
    if shape is None:
        return frozenset()
    part = faults.take_members(shape, _PART, path)
    if "type" not in part:
        raise NotContent
    image = part.get("image_url")
    if isinstance(image, dict):
        address = faults.take_members(image, ("url", "detail"), f"{path}.image_url")
        faults.expect_texts(address, f"{path}.image_url", "detail")
    for name in _ADDRESSES:
        if part.get(name) == "BLOB" or (isinstance(part.get(name), dict) and "bytes" in part[name]):
            faults.wrong.add(
                f"{path}.{name} with the bytes of images, which are taken by address alone: write "
                "them to files, and give their paths or URLs as text"
            )
            del part[name]
    faults.expect_texts(part, path, *(["image_url"] if isinstance(image, dict) else []))
    return frozenset((IMAGE,) if part.keys() & {*_ADDRESSES} else ())


def _check_calls(shape: object, path: str, faults: _Faults) -> None:
    """Note what is no text within tool calls: its type would decide how it is printed."""
    if isinstance(shape, list):
        for child in shape:
            _check_calls(child, f"{path}[]", faults)
    elif isinstance(shape, dict):
        for name, child in shape.items():
            _check_calls(child, f"{path}.{name}", faults)
    elif shape not in (None, _VARCHAR, "JSON"):
        faults.wrong.add(
            f"{path} that is no text: give tool calls, or their arguments, as the text of their "
            "JSON"
        )


def _shape_type(kind: DuckDBPyType) -> object:
    """Return a type as nested lists and objects, with None for what is always null."""
    if kind.id == "null":
        return None
    if is_text(kind):
        return _VARCHAR
    if is_list(kind):
        return [_shape_type(find_element_type(kind))]
    if kind.id == "struct":
        return {name: _shape_type(child) for name, child in _list_members(kind)}
    return str(kind)


def _list_members(kind: DuckDBPyType) -> list[tuple[str, DuckDBPyType]]:
    return [(name, child) for name, child in kind.children if isinstance(child, DuckDBPyType)]


# ---------------------------------------------------------------- content in SQL


def content_type_sql(content: Content) -> str:
    """Return its type in SQL, with members in a fixed order."""
    return shape_sql(build_shape(content))


def build_shape(content: Content) -> Any:
    """Return the type as nested lists and objects."""
    if not content.chat:
        return _VARCHAR
    part = dict.fromkeys(["type", "text", *({IMAGE} & content.members)], _VARCHAR)
    more = {name: _VARCHAR for name in OPTIONAL if name in content.members}
    return [{"role": _VARCHAR, "content": [part] if content.parts else _VARCHAR, **more}]


def shape_sql(shape: Any) -> str:
    """Return the type of a shape in SQL."""
    if isinstance(shape, list):
        return f"{shape_sql(shape[0])}[]"
    if isinstance(shape, dict):
        members = ", ".join(f"{_quoted(name)} {shape_sql(kind)}" for name, kind in shape.items())
        return f"STRUCT({members})"
    return str(shape)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def build_content_sql(value: str, kind: DuckDBPyType, shape: Any, level: int = 0) -> str:
    """Return SQL of a value of this type, which was checked whole, as one of `shape`.

    It is built of members by their places: a cast would find them by name, without case.
    """
    if kind.id == "null":
        return f"NULL::{shape_sql(shape)}"
    if not isinstance(shape, list):
        return f"{value}::{_VARCHAR}"
    if kind.id == "struct":
        return f"CASE WHEN {value} IS NOT NULL THEN [{_message_sql(value, kind, shape[0])}] END"
    if str(kind) == shape_sql(shape) and f'"{IMAGE}"' not in shape_sql(shape):
        return value
    element, child = f"e{level}", find_element_type(kind)
    if isinstance(shape[0], dict) and child.id != "null":
        inner = _message_sql(element, child, shape[0])
    else:
        inner = build_content_sql(element, child, shape[0], level + 1)
    return f"list_transform({value}, lambda {element}: {inner})"


def pack_members_sql(shape: Mapping[str, Any], members: Mapping[str, str]) -> str:
    """Return SQL of an object of `shape` from SQL of its members; those that lack are null."""
    pieces = (
        f"'{name}': {members.get(name, f'NULL::{shape_sql(kind)}')}" for name, kind in shape.items()
    )
    return f"{{{', '.join(pieces)}}}"


def text_as_content_sql(text: str, content: Any) -> str:
    """Return SQL of a text (SQL) as the content of a message of shape `content`: as it is, or as
    its one part; null where it is.
    """
    if not isinstance(content, list):
        return f"{text}::{_VARCHAR}"
    part = pack_members_sql(content[0], {"type": "'text'", "text": f"{text}::{_VARCHAR}"})
    return f"CASE WHEN {text} IS NOT NULL THEN [{part}] END"


def _read_members(value: str, kind: DuckDBPyType) -> dict[str, tuple[str, DuckDBPyType]]:
    """Return SQL of the members of an object by their places, and their types, but for nulls."""
    return {
        name: (f"struct_extract_at({value}, {place})", child)
        for place, (name, child) in enumerate(_list_members(kind), 1)
        if child.id != "null"
    }


def _message_sql(value: str, kind: DuckDBPyType, shape: Mapping[str, Any]) -> str:
    """Return SQL of a message; one that says its role or its content twice has no role."""
    members = _read_members(value, kind)
    texts = {name: f"{sql}::{_VARCHAR}" for name, (sql, child) in members.items() if is_text(child)}
    roles = [texts[name] for name in ("role",) if name in texts]
    if "from" in texts:
        cases = " ".join(f"WHEN {literal(a)} THEN {literal(b)}" for a, b in _SPEAKERS.items())
        roles.append(f"CASE {texts['from']} {cases} ELSE {texts['from']} END")
    said = [texts[name] for name in ("content", "value") if name in texts]
    said = [text_as_content_sql(text, shape["content"]) for text in said]
    if "content" in members and "content" not in texts:
        sql, listed = members["content"]
        part = _part_sql("p", find_element_type(listed), shape["content"][0])
        said.append(f"list_transform({sql}, lambda p: {part})")
    (role, once), (content, one) = map(_choose_only_sql, (roles, said))
    made = {"role": f"CASE WHEN {once} AND {one} THEN {role} END" if len(roles) + len(said) > 2
            else role}  # fmt: skip
    made |= {"content": content} if said else {}
    made |= {name: texts[name] for name in OPTIONAL if name in texts}
    if "tool_calls" in members and "tool_calls" not in texts:
        made["tool_calls"] = _calls_sql(*members["tool_calls"])
    return pack_members_sql(shape, made)


def _part_sql(value: str, kind: DuckDBPyType, shape: Mapping[str, Any]) -> str:
    """Return SQL of a part; one that has two addresses has no type."""
    if kind.id == "null":
        return f"NULL::{shape_sql(shape)}"
    members = _read_members(value, kind)
    texts = {name: f"{sql}::{_VARCHAR}" for name, (sql, child) in members.items() if is_text(child)}
    made: dict[str, str] = {n: texts[n] for n in ("type", "text") if n in texts}
    if IMAGE in shape:
        addresses = [texts[name] for name in _ADDRESSES if name in texts]
        if "image_url" in members and "image_url" not in texts:
            inner = _read_members(*members["image_url"])
            addresses += [f"{inner['url'][0]}::{_VARCHAR}"] if "url" in inner else []
        made[IMAGE], once = _choose_only_sql(addresses)
        kinds = f"CASE {made['type']} WHEN 'image' THEN 'image_url' ELSE {made['type']} END"
        made["type"] = f"CASE WHEN {once} THEN {kinds} END" if len(addresses) > 1 else kinds
    return pack_members_sql(shape, made)


def _choose_only_sql(values: Sequence[str]) -> tuple[str, str]:
    """Return SQL of the one of these values that is not null, and whether there are no two."""
    if not values:
        return f"NULL::{_VARCHAR}", "true"
    if len(values) == 1:
        return values[0], "true"
    there = " + ".join(f"({value} IS NOT NULL)::INTEGER" for value in values)
    return f"coalesce({', '.join(values)})", f"{there} < 2"


def _calls_sql(value: str, kind: DuckDBPyType) -> str:
    """Return SQL of tool calls as text: what is no text becomes the text of its JSON."""
    return f"({value}->>'$')" if str(kind) == "JSON" else _json_sql(value, kind)


def _json_sql(value: str, kind: DuckDBPyType, level: int = 0) -> str:
    """Return SQL of the JSON of lists and objects of texts, without null members.

    In one order, whatever that of the type is, which may tell a side.
    """
    if is_list(kind):
        element = f"c{level}"
        inner = _json_sql(element, find_element_type(kind), level + 1)
        items = f"list_transform({value}, lambda {element}: coalesce({inner}, 'null'))"
        return f"('[' || array_to_string({items}, ',') || ']')"
    if kind.id == "struct":
        members = _read_members(value, kind)
        pieces = (
            f"{literal(json.dumps(name, ensure_ascii=False) + ':')} "
            f"|| {_json_sql(*members[name], level)}"
            for name in sorted(members, key=lambda name: (_CALL.find(f" {name} ") < 0,
                                                          _CALL.find(f" {name} "), name))
        )  # fmt: skip
        joined = f"concat_ws(',', {', '.join(pieces)})" if members else "''"
        return f"CASE WHEN {value} IS NOT NULL THEN '{{' || {joined} || '}}' END"
    return f"to_json({value}::{_VARCHAR})::{_VARCHAR}" if kind.id != "null" else "NULL::VARCHAR"


# ---------------------------------------------------------------- chats in JSON


def is_chat(shape: object) -> bool:
    """Return whether a shape looks like a chat, or like one message, with whatever members."""
    message = (shape or [None])[0] if isinstance(shape, list) else shape
    if not isinstance(message, dict):
        return isinstance(shape, list) and message is None
    speaks = not {"role", "from"}.isdisjoint(message)
    return speaks and not {"content", "value", "tool_calls"}.isdisjoint(message)


def shape_structure(structure: object, member: str = "") -> object:
    """Return the shape of what `json_structure` found; tool calls are text whatever is in them."""
    if structure == "NULL":
        return None
    if member == "tool_calls":
        return _VARCHAR
    if isinstance(structure, list):
        return [shape_structure(child) for child in structure]
    if isinstance(structure, dict):
        return {name: shape_structure(child, name) for name, child in structure.items()}
    return structure


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
    """How values of JSON that hold chats are read: as the `sql` type, each in its own spelling.

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
    listed = merge_shapes(parts, [{"type": _VARCHAR, "text": _VARCHAR}])
    return {**shape, "content": listed, "value": _VARCHAR}


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


def _choose_json_type(shape: Any, known: Collection[str] = _MESSAGE) -> Any:
    """Return the type, as nested lists and objects, that JSON of this shape is read as."""
    if isinstance(shape, list):
        inner = shape[0] if shape else None
        empty = {"role": _VARCHAR} if known is _MESSAGE else {"type": _VARCHAR, "text": _VARCHAR}
        return [empty if inner is None else _choose_json_type(inner, known)]
    if isinstance(shape, dict):
        return {
            name: _choose_json_type(child, _WITHIN.get(name, ()))
            if name in known and (name == "content" or not isinstance(child, list))
            else "JSON"
            for name, child in shape.items()
            if child is not None
        } | ({"content": _NULL} if "content" in shape and shape["content"] is None else {})
    return shape if shape == _VARCHAR else "JSON"


def _has_names_twice(shape: object) -> bool:
    if isinstance(shape, list):
        return any(map(_has_names_twice, shape))
    if not isinstance(shape, dict):
        return False
    lower = [name.lower() for name in shape]
    return len({*lower}) < len(lower) or any(map(_has_names_twice, shape.values()))
