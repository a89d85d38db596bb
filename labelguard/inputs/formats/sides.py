"""Prompt and sides of one kind: all texts, or all chats, whichever of them is given as the other.

Whatever is decided here of a row is decided by symmetric functions of its two sides, or of each
side alone: which of them was preferred cannot show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from duckdb.sqltypes import SQLNULL, DuckDBPyType

from labelguard.inputs import canonical
from labelguard.inputs.canonical import Content, NotContent, is_text
from labelguard.inputs.formats.seen import Adapted, Seen
from labelguard.inputs.readers import identifier

SHARED = identifier("labelguard: shared")
"""How many messages both sides begin with: a name that no file's column has."""
BEGINNING = identifier("labelguard: beginning")
"""Those messages."""
ONE, OTHER = identifier("labelguard: one"), identifier("labelguard: other")


@dataclass(frozen=True)
class Value:
    """An expression in SQL and its type."""

    sql: str
    kind: DuckDBPyType

    @property
    def is_chat(self) -> bool:
        """Whether it is a list of messages, or may be."""
        return self.kind.id in ("list", "array")

    @property
    def may_be_text(self) -> bool:
        """Whether it is text, or always null."""
        return is_text(self.kind) or self.kind.id == "null"


@dataclass(frozen=True)
class Agreeing:
    """Prompt and sides in SQL, over `source`."""

    prompt: str
    sides: tuple[str, ...]
    source: str = "part"


def agreeing(prompt: Value, sides: Sequence[Value]) -> Agreeing:
    """Prompt and sides as one kind, where one is text and the other chats; else as they are.

    Beside a prompt of messages, text sides become what the assistant says. Beside a prompt of text,
    what both sides begin with is the prompt if the user says that text in it; else the prompt
    becomes what a user says.
    """
    as_they_are = Agreeing(prompt.sql, tuple(side.sql for side in sides))
    try:
        if prompt.is_chat and all(side.may_be_text for side in sides):
            content = canonical.content_of_types([prompt.kind])
            said = (message("assistant", side.sql, content) for side in sides)
            return Agreeing(prompt.sql, tuple(said))
        if is_text(prompt.kind) and any(side.is_chat for side in sides):
            content = canonical.content_of_types([side.kind for side in sides])
            if len(sides) == 2 and content.chat:
                return _begun(prompt.sql, sides[0].sql, sides[1].sql, content)
    except NotContent:
        return as_they_are  # the layout says what is wrong with it
    return as_they_are


def _begun(prompt: str, one: str, other: str, content: Content) -> Agreeing:
    """A prompt of text, which sides of messages may hold at their beginning."""
    says = f"m.role = 'user' AND m.content = {_content(prompt, content)}"
    begins = f"len(list_filter({BEGINNING}, lambda m: {says})) > 0"
    return Agreeing(
        f"CASE WHEN {begins} THEN {BEGINNING} ELSE {message('user', prompt, content)} END",
        tuple(
            f"CASE WHEN {begins} THEN {side}[{SHARED} + 1:] ELSE {side} END"
            for side in (ONE, OTHER)
        ),
        shared_beginning(one, other, content),
    )


def shared_beginning(one: str, other: str, content: Content) -> str:
    """FROM clause with two chats as `ONE` and `OTHER`, the number `SHARED` of their messages that
    are equal from the beginning on, and these as `BEGINNING`; null where one of them is.
    """
    kind = canonical.sql_type(content)
    both = f"SELECT *, {one}::{kind} AS {ONE}, {other}::{kind} AS {OTHER} FROM part"
    counted = f"SELECT *, {common(ONE, OTHER)} AS {SHARED} FROM ({both})"
    return f"(SELECT *, {ONE}[:{SHARED}] AS {BEGINNING} FROM ({counted}))"


def common(one: str, other: str) -> str:
    """SQL of how many elements two lists have in common at their beginning; one is left to each."""
    least = f"least(len({one}), len({other}))"
    differs = f"list_transform(range(1, {least}), lambda i: {one}[i] IS DISTINCT FROM {other}[i])"
    return (
        f"CASE WHEN {one} IS NOT NULL AND {other} IS NOT NULL "
        f"THEN greatest(coalesce(list_position({differs}, true), {least}) - 1, 0) END"
    )


def message(role: str, text: str, content: Content) -> str:
    """SQL of a chat in which `role` says `text`; null where that is."""
    said = f"[{{'role': '{role}', 'content': {_content(text, content)}}}]"
    return f"CASE WHEN {text} IS NOT NULL THEN {said}::{canonical.sql_type(content)} END"


def _content(text: str, content: Content) -> str:
    """SQL of a text as the `content` of a message of such a chat: as it is, or as its one part."""
    return f"[{{'type': 'text', 'text': {text}}}]" if content.parts else text


def has_chosen(seen: Seen) -> bool:
    """Return whether there are a prompt, chosen and rejected.

    A sparse part lacks a side that is null in every row: which one it is must not matter.
    """
    both = ("chosen", "rejected")
    return seen.all("prompt") and (seen.any(*both) if seen.sparse else seen.all(*both))


def adapt_sides(seen: Seen, *sides: str) -> Adapted | None:
    """A prompt and sides that have their roles' columns, made to agree; None if they do.

    Of a sparse part, a side that is null in every row has no column.
    """
    prompt, *values = (
        Value(seen.sql(role), seen.type(role)) if seen.column(role) else Value("NULL", SQLNULL)
        for role in ("prompt", *sides)
    )
    found = agreeing(prompt, values)
    if found == Agreeing(prompt.sql, tuple(value.sql for value in values)):
        return None
    roles = ("prompt", *sides)
    made = ", ".join(
        f"{sql} AS {role}" for role, sql in zip(roles, (found.prompt, *found.sides), strict=True)
    )
    query = f"SELECT {seen.rest(*roles)}{made} FROM {found.source}"
    names = {role: seen.column(role) or role for role in roles}
    return Adapted(query, frozenset(roles), names=names)
