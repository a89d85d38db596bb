"""Prompts and responses as columns of Arrow: plain texts, or chats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from labelguard.errors import InvalidLabels

_CHAT = pa.struct([("role", pa.large_string()), ("content", pa.large_string())])


def content_column(pairs: pa.Table, name: str) -> pa.Array:
    """A column of texts as large_string, or of chats as large_list<struct<role, content>>.

    Nulls become empty texts; further members of messages are left out. Raises `InvalidLabels` if
    the column is missing, or holds neither texts nor chats.
    """
    if name not in pairs.column_names:
        raise InvalidLabels(f"pairs need a column {name}, found {', '.join(pairs.column_names)}")
    column = pairs[name]
    if _is_text(column.type):
        return _filled_text(column).combine_chunks()
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise InvalidLabels(f"column {name} must hold texts or chats, found {kind}")
    message = kind.value_type
    if not (pa.types.is_struct(message) and {"role", "content"} <= {f.name for f in message}):
        raise InvalidLabels(f"messages in column {name} need role and content, found {message}")
    if not _is_text(message.field("content").type):
        raise InvalidLabels(
            f"the content of messages in column {name} must be text, "
            f"found {message.field('content').type}"
        )
    lists = column.combine_chunks()
    flat = lists.flatten()
    members = [_filled_text(pc.struct_field(flat, part.name)) for part in _CHAT]
    return _lists(_list_offsets(lists), pa.StructArray.from_arrays(members, fields=list(_CHAT)))


def joined(column: pa.Array, separator: str = "\n") -> pa.Array:
    """Of a `content_column`: texts as they are, chats as the contents of all their messages."""
    if pa.types.is_large_string(column.type):
        return column
    return join_messages(column, pc.struct_field(column.flatten(), "content"), separator)


def join_messages(chats: pa.Array, texts: pa.Array, separator: str) -> pa.Array:
    """One text per chat from one text per message (in the order of `chats.flatten()`)."""
    return pc.binary_join(
        _lists(_list_offsets(chats), texts), pa.scalar(separator, pa.large_string())
    )


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_null(kind)
    )


def _filled_text(texts: Any) -> Any:
    # large_string, because one array of string holds at most 2 GiB.
    return texts.cast(pa.large_string()).fill_null("")


def _list_offsets(lists: pa.Array) -> pa.Array:
    """Where each list starts in `lists.flatten()`, which leaves out what slices and nulls hide."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy()
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())


def _lists(offsets: pa.Array, values: pa.Array) -> pa.Array:
    return pa.LargeListArray.from_arrays(offsets, values)
