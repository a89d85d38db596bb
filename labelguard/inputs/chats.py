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

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from duckdb.sqltypes import DuckDBPyType

from labelguard.errors import InvalidLabels
from labelguard.inputs.readers import (
    calls_sql,
    find_element_type,
    identifier,
    is_list,
    is_text,
    list_members,
    literal,
    read_members,
)

# Members of a message beside `role` and `content`, and of a part that is an image.
OPTIONAL = ("name", "tool_calls", "tool_call_id")
IMAGE = "url"
VARCHAR, NULL = "VARCHAR", '"NULL"'
MESSAGE = ("role", "content", "from", "value", *OPTIONAL)
_ADDRESSES = ("url", "image", "path", "image_url")
_PART = ("type", "text", *_ADDRESSES)
WITHIN = {"content": _PART, "image_url": ("url", "detail")}
# Members that are content: nobody can have them dropped.
MEMBERS = frozenset((*MESSAGE, *_PART, "detail"))
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


def can_hold_chats(kind: DuckDBPyType) -> bool:
    """Return whether a column holds lists of something, or one object as a side."""
    return is_list(kind) or kind.id == "struct"


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
    """Note members of types that are not understood, or wrong; `dropped` ones are passed by."""

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
            if child != VARCHAR and name not in but
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
    if shape == VARCHAR:
        return TEXT
    messages = [shape] if isinstance(shape, dict) else shape
    if not isinstance(messages, list):
        raise NotContent
    if not messages or messages[0] is None:
        return Content(chat=True)
    if not is_chat(messages):
        raise NotContent
    path = "messages[]"
    message = faults.take_members(messages[0], MESSAGE, path)
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
    elif shape not in (None, VARCHAR, "JSON"):
        faults.wrong.add(
            f"{path} that is no text: give tool calls, or their arguments, as the text of their "
            "JSON"
        )


def _shape_type(kind: DuckDBPyType) -> object:
    """Return a type as nested lists and objects, with None for what is always null."""
    if kind.id == "null":
        return None
    if is_text(kind):
        return VARCHAR
    if is_list(kind):
        return [_shape_type(find_element_type(kind))]
    if kind.id == "struct":
        return {name: _shape_type(child) for name, child in list_members(kind)}
    return str(kind)


# ---------------------------------------------------------------- content in SQL


def build_shape(content: Content) -> Any:
    """Return the type as nested lists and objects."""
    if not content.chat:
        return VARCHAR
    part = dict.fromkeys(["type", "text", *({IMAGE} & content.members)], VARCHAR)
    more = {name: VARCHAR for name in OPTIONAL if name in content.members}
    return [{"role": VARCHAR, "content": [part] if content.parts else VARCHAR, **more}]


def shape_sql(shape: Any) -> str:
    """Return the type of a shape in SQL."""
    if isinstance(shape, list):
        return f"{shape_sql(shape[0])}[]"
    if isinstance(shape, dict):
        members = ", ".join(f"{identifier(name)} {shape_sql(kind)}" for name, kind in shape.items())
        return f"STRUCT({members})"
    return str(shape)


def build_content_sql(value: str, kind: DuckDBPyType, shape: Any, level: int = 0) -> str:
    """Return SQL of a value of this type, which was checked whole, as one of `shape`.

    It is built of members by their places: a cast would find them by name, without case.
    """
    if kind.id == "null":
        return f"NULL::{shape_sql(shape)}"
    if not isinstance(shape, list):
        return f"{value}::{VARCHAR}"
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
        return f"{text}::{VARCHAR}"
    part = pack_members_sql(content[0], {"type": "'text'", "text": f"{text}::{VARCHAR}"})
    return f"CASE WHEN {text} IS NOT NULL THEN [{part}] END"


def _message_sql(value: str, kind: DuckDBPyType, shape: Mapping[str, Any]) -> str:
    """Return SQL of a message; one that says its role or its content twice has no role."""
    members = read_members(value, kind)
    texts = {name: f"{sql}::{VARCHAR}" for name, (sql, child) in members.items() if is_text(child)}
    roles = [texts[name] for name in ("role",) if name in texts]
    if "from" in texts:
        cases = " ".join(f"WHEN {literal(a)} THEN {literal(b)}" for a, b in _SPEAKERS.items())
        roles.append(f"CASE {texts['from']} {cases} ELSE {texts['from']} END")
    spoken = [texts[name] for name in ("content", "value") if name in texts]
    spoken = [text_as_content_sql(text, shape["content"]) for text in spoken]
    if "content" in members and "content" not in texts:
        sql, listed = members["content"]
        part = _part_sql("p", find_element_type(listed), shape["content"][0])
        spoken.append(f"list_transform({sql}, lambda p: {part})")
    (role, once), (content, one) = map(_choose_only_sql, (roles, spoken))
    made = {"role": f"CASE WHEN {once} AND {one} THEN {role} END" if len(roles) + len(spoken) > 2
            else role}  # fmt: skip
    made |= {"content": content} if spoken else {}
    made |= {name: texts[name] for name in OPTIONAL if name in texts}
    if "tool_calls" in members and "tool_calls" not in texts:
        made["tool_calls"] = calls_sql(*members["tool_calls"])
    return pack_members_sql(shape, made)


def _part_sql(value: str, kind: DuckDBPyType, shape: Mapping[str, Any]) -> str:
    """Return SQL of a part; one that has two addresses has no type."""
    if kind.id == "null":
        return f"NULL::{shape_sql(shape)}"
    members = read_members(value, kind)
    texts = {name: f"{sql}::{VARCHAR}" for name, (sql, child) in members.items() if is_text(child)}
    made: dict[str, str] = {n: texts[n] for n in ("type", "text") if n in texts}
    if IMAGE in shape:
        addresses = [texts[name] for name in _ADDRESSES if name in texts]
        if "image_url" in members and "image_url" not in texts:
            inner = read_members(*members["image_url"])
            addresses += [f"{inner['url'][0]}::{VARCHAR}"] if "url" in inner else []
        made[IMAGE], once = _choose_only_sql(addresses)
        kinds = f"CASE {made['type']} WHEN 'image' THEN 'image_url' ELSE {made['type']} END"
        made["type"] = f"CASE WHEN {once} THEN {kinds} END" if len(addresses) > 1 else kinds
    return pack_members_sql(shape, made)


def _choose_only_sql(values: Sequence[str]) -> tuple[str, str]:
    """Return SQL of the one of these values that is not null, and whether there are no two."""
    if not values:
        return f"NULL::{VARCHAR}", "true"
    if len(values) == 1:
        return values[0], "true"
    there = " + ".join(f"({value} IS NOT NULL)::INTEGER" for value in values)
    return f"coalesce({', '.join(values)})", f"{there} < 2"


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
        return VARCHAR
    if isinstance(structure, list):
        return [shape_structure(child) for child in structure]
    if isinstance(structure, dict):
        return {name: shape_structure(child, name) for name, child in structure.items()}
    return structure
