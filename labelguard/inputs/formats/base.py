"""Elements of formats: the query of one, and SQL of prompts and sides.

Whatever is decided here of a row is decided by symmetric functions of its two sides, or of each
side alone: which of them was preferred cannot show.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from labelguard.budget.label_values import LabelValues
from labelguard.inputs import chats
from labelguard.inputs.chats import Content, NotContent
from labelguard.inputs.columns import TableSchema
from labelguard.inputs.readers import identifier, is_text


@dataclass(frozen=True)
class FormatQuery:
    """The query that reads a file: SQL over `part`, whose columns `made` are named by their roles.

    `columns` names the columns of further roles (a judge is the labeler), `values` is the domain of
    labels where the format fixes it, and `names` is what messages call the roles that were made.
    `left_out` is SQL of why answers are left out, by what is public of them, and of how many are.
    """

    query: str
    made: frozenset[str]
    columns: Mapping[str, str] = field(default_factory=dict)
    values: LabelValues | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    left_out: str = ""


CONTENT_ROLES = ("prompt", "response_a", "response_b")
# Names that no file's column has: how many messages both sides begin with, and those messages.
SHARED = identifier("labelguard: shared")
BEGINNING = identifier("labelguard: beginning")
ONE, OTHER = identifier("labelguard: one"), identifier("labelguard: other")


@dataclass(frozen=True)
class ContentSql:
    """Prompt and sides in SQL, over `source`."""

    prompt: str
    sides: tuple[str, ...]
    source: str = "part"


def unify_contents(schema: TableSchema, prompt: str, *sides: str) -> ContentSql:
    """Return the columns of these roles as one kind, where one is text and the other chats.

    Beside a prompt of messages, text sides become what the assistant says. Beside a prompt of text,
    what both sides begin with is the prompt if the user says that text in it; else the prompt
    becomes what a user says. A column that is not there is null. Other columns stay as they are:
    the layout says what is wrong with them.
    """
    roles = (prompt, *sides)
    kinds = [schema.find_type(role) for role in roles]
    prompt_text, *texts = map(schema.column_sql, roles)
    unchanged = ContentSql(prompt_text, tuple(texts))
    are_chats = [chats.can_hold_chats(kind) for kind in kinds]
    dropped = schema.reading.drop_members or ()
    with contextlib.suppress(NotContent):  # the layout says what is wrong
        if are_chats[0] and all(is_text(kind) or kind.id == "null" for kind in kinds[1:]):
            content = chats.find_content_of_types(kinds[:1], dropped)
            answers = (message_sql("assistant", text, content) for text in texts)
            return ContentSql(prompt_text, tuple(answers))
        if is_text(kinds[0]) and any(are_chats[1:]) and len(sides) == 2:
            content = chats.find_content_of_types(kinds[1:], dropped)
            if content.chat:
                return _strip_prompt_from_sides(
                    prompt_text, content, *read_chats(schema, sides, content)
                )
    return unchanged


def read_chats(schema: TableSchema, roles: Sequence[str], content: Content) -> list[str]:
    """Return SQL of the columns of these roles as contents of one kind."""
    shape = chats.build_shape(content)
    return [
        chats.build_content_sql(schema.column_sql(role), schema.find_type(role), shape)
        for role in roles
    ]


def _strip_prompt_from_sides(prompt: str, content: Content, one: str, other: str) -> ContentSql:
    """Return a prompt of text, which sides of messages may hold at their beginning."""
    [message] = chats.build_shape(content)
    text = chats.text_as_content_sql(prompt, message["content"])
    says = f"m.role = 'user' AND m.content = {text}"
    begins = f"len(list_filter({BEGINNING}, lambda m: {says})) > 0"
    return ContentSql(
        f"CASE WHEN {begins} THEN {BEGINNING} ELSE {message_sql('user', prompt, content)} END",
        tuple(
            f"CASE WHEN {begins} THEN {side}[{SHARED} + 1:] ELSE {side} END"
            for side in (ONE, OTHER)
        ),
        shared_beginning_sql(one, other),
    )


def split_off_shared_beginning(one: str, other: str) -> ContentSql:
    """Return two whole chats (SQL) as the beginning that they share, and the rest of each."""
    rests = (f"{ONE}[{SHARED} + 1:]", f"{OTHER}[{SHARED} + 1:]")
    return ContentSql(BEGINNING, rests, shared_beginning_sql(one, other))


def shared_beginning_sql(one: str, other: str) -> str:
    """Return a FROM clause with two chats as `ONE` and `OTHER`, the number `SHARED` of their
    messages that are equal from the beginning on, and these as `BEGINNING`; null where one is.
    """
    both = f"SELECT *, {one} AS {ONE}, {other} AS {OTHER} FROM part"
    counted = f"SELECT *, {common_prefix_length_sql(ONE, OTHER)} AS {SHARED} FROM ({both})"
    return f"(SELECT *, {ONE}[:{SHARED}] AS {BEGINNING} FROM ({counted}))"


def common_prefix_length_sql(one: str, other: str) -> str:
    """Return SQL of how many elements two lists begin with in common; one is left to each."""
    least = f"least(len({one}), len({other}))"
    differs = f"list_transform(range(1, {least}), lambda i: {one}[i] IS DISTINCT FROM {other}[i])"
    return (
        f"CASE WHEN {one} IS NOT NULL AND {other} IS NOT NULL "
        f"THEN greatest(coalesce(list_position({differs}, true), {least}) - 1, 0) END"
    )


def message_sql(role: str, text: str, content: Content) -> str:
    """Return SQL of a chat in which `role` says `text`; null where that is."""
    [message] = chats.build_shape(content)
    members = {"role": f"'{role}'", "content": chats.text_as_content_sql(text, message["content"])}
    chat = chats.pack_members_sql(message, members)
    return f"CASE WHEN {text} IS NOT NULL THEN [{chat}] END"


def unify_prompt_and_sides(schema: TableSchema, *sides: str) -> FormatQuery | None:
    """Return a prompt and sides in their roles' columns, made to agree; None if they do."""
    roles = ("prompt", *sides)
    contents = unify_contents(schema, *roles)
    expressions = (contents.prompt, *contents.sides)
    if expressions == tuple(map(schema.column_sql, roles)):
        return None
    query = select_roles(schema, dict(zip(roles, expressions, strict=True)), contents.source)
    names = {role: schema.find_column(role) or role for role in roles}
    return FormatQuery(query, frozenset(roles), names=names)


def select_roles(schema: TableSchema, made: Mapping[str, str], source: str, *consumed: str) -> str:
    """Return SQL of the columns that are `made` (SQL by name) and all public ones of other names,
    but for those of the roles that are `consumed`.
    """
    columns = ", ".join(f"{sql} AS {name}" for name, sql in made.items())
    return f"SELECT {schema.select_public_except(*made, *consumed)}{columns} FROM {source}"


def select_pairs(
    schema: TableSchema, contents: ContentSql, label: str, *consumed: str, **further: str
) -> str:
    """Return SQL of pairs of these contents, of `further` columns and, if labels are read, of
    `label` (SQL); columns of the roles that are `consumed` are left out.
    """
    made = dict(zip(CONTENT_ROLES, (contents.prompt, *contents.sides), strict=True)) | further
    made |= {"label": label} if schema.reading.labelled else {}
    return select_roles(schema, made, contents.source, "label", "tie", *consumed)
