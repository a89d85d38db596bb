"""Columns of a table of pairs: prompts and responses, and public columns that features need.

A specification of features names public columns; reading an input brings them along, turned to the
canonical order of the two sides, so that a provider finds them in the table of pairs:

    columns:a, verdict:a          feature_a, the difference of the two sides
    source:model,by=language      source_model_first, source_model_second and stratum_language
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from labelguard.errors import InvalidLabels, LabelguardError
from labelguard.learning.providers import FeatureProvider, Features, State, Stateless

_CHAT = pa.struct([("role", pa.large_string()), ("content", pa.large_string())])


@dataclass(frozen=True)
class FeatureColumn:
    """A public property of what is compared, and its name in the specification.

    A `number` of each response, the `source` that wrote it, or the `stratum` of the whole pair.
    """

    name: str
    kind: Literal["number", "source", "stratum"] = "number"

    @property
    def pair_columns(self) -> tuple[str, ...]:
        """Its names in a table of pairs."""
        if self.kind == "source":
            return f"source_{self.name}_first", f"source_{self.name}_second"
        return (f"{'feature' if self.kind == 'number' else 'stratum'}_{self.name}",)


def is_feature_column(column: str) -> bool:
    """Return True if a column of a table of pairs is public and for features."""
    of_sides = column.startswith("source_") and column.endswith(("_first", "_second"))
    return of_sides or column.startswith(("feature_", "stratum_"))


def parse_feature_columns(spec: str) -> tuple[FeatureColumn, ...]:
    """Return the public columns of a feature specification; raise as `parse_source_options`."""
    columns: list[FeatureColumn] = []
    for part in spec.split("+"):
        name, _, options = part.strip().partition(":")
        if name == "columns" or (name == "verdict" and not is_verdict_of_model(options)):
            columns += [FeatureColumn(n.strip()) for n in options.split(",") if n.strip()]
        if name == "source":
            column, by = parse_source_options(options)
            columns += [
                FeatureColumn(column, "source"),
                *([FeatureColumn(by, "stratum")] if by else []),
            ]
    return tuple(dict.fromkeys(columns))


def is_verdict_of_model(options: str) -> bool:
    """Return True if a model is asked for verdicts, and no column has them."""
    return options.partition("=")[0].strip() == "model"


def parse_source_options(options: str) -> tuple[str, str | None]:
    """Return the columns of `source:COLUMN,by=COLUMN`; `LabelguardError` if they are none."""
    column, *rest = (option.strip() for option in options.split(","))
    by = rest[0].removeprefix("by=").strip() if rest and rest[0].startswith("by=") else ""
    if not column or "=" in column or len(rest) > 1 or (rest and not by):
        raise LabelguardError(
            f"expected source:COLUMN or source:COLUMN,by=COLUMN, found source:{options}"
        )
    return column, by or None


def content_column(pairs: pa.Table, name: str, *, parts: bool = True) -> pa.Array:
    """Return a column of texts as large_string, or of chats as large_list<struct<role, content>>.

    Nulls become empty texts; further members of messages are left out. Of `parts`, the texts
    are taken, a line each; whoever trains on contents refuses them. Raises `InvalidLabels` if
    the column is missing, or holds neither texts nor chats.
    """
    if name not in pairs.column_names:
        raise InvalidLabels(f"pairs need a column {name}, found {', '.join(pairs.column_names)}")
    column = pairs[name]
    if _is_text(column.type):
        return _filled_text(column).combine_chunks()
    kind = column.type
    if not _is_list(kind):
        raise InvalidLabels(f"column {name} must hold texts or chats, found {kind}")
    message = kind.value_type
    if not (pa.types.is_struct(message) and {"role", "content"} <= {f.name for f in message}):
        raise InvalidLabels(f"messages in column {name} need role and content, found {message}")
    lists = column.combine_chunks()
    flat = lists.flatten()
    spoken = pc.struct_field(flat, "content")
    if parts and _is_list(spoken.type) and _has_texts(spoken.type.value_type):
        words = pl.element().struct.field("text").drop_nulls()
        spoken = pl.Series(spoken).list.eval(words).list.join("\n").to_arrow()
    elif not _is_text(spoken.type):
        raise InvalidLabels(
            f"the content of messages in column {name} must be text, or parts of text and images, "
            f"found {spoken.type}"
        )
    members = [_filled_text(pc.struct_field(flat, "role")), _filled_text(spoken)]
    return _lists(_list_offsets(lists), pa.StructArray.from_arrays(members, fields=list(_CHAT)))


def plain_text(column: pa.Array, separator: str = "\n") -> pa.Array:
    """Return the texts of a `content_column`, and chats as the contents of all their messages."""
    if pa.types.is_large_string(column.type):
        return column
    return join_messages(column, pc.struct_field(column.flatten(), "content"), separator)


def join_messages(chats: pa.Array, texts: pa.Array, separator: str) -> pa.Array:
    """Return one text per chat from one text per message (in the order of `chats.flatten()`)."""
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


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _has_texts(part: pa.DataType) -> bool:
    """Return whether a type is that of parts: objects with a text."""
    place = part.get_field_index("text") if pa.types.is_struct(part) else -1
    return place >= 0 and _is_text(part.field(place).type)


def _filled_text(texts: Any) -> Any:
    # large_string, because one array of string holds at most 2 GiB.
    return texts.cast(pa.large_string()).fill_null("")


def _list_offsets(lists: pa.Array) -> pa.Array:
    """Return where lists start in `lists.flatten()`, which omits what slices and nulls hide."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy()
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())


def _lists(offsets: pa.Array, values: pa.Array) -> pa.Array:
    return pa.LargeListArray.from_arrays(offsets, values)


def columns(options: str, state: State | None) -> FeatureProvider:
    """Return the provider `columns:a,b`."""
    names = [name.strip() for name in options.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise LabelguardError(f"expected columns:NAME,… with distinct names, found {options!r}")
    return _Columns(names)


class _Columns(Stateless):
    """Numeric columns of the pairs that hold differences already; d = number of columns."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def __call__(self, pairs: pa.Table) -> Features:
        return np.stack(
            [_read_number_column(pairs, f"feature_{name}") for name in self._names], axis=1
        )

    def names(self) -> tuple[str, ...]:
        return tuple(self._names)

    def identity(self) -> str:
        return f"columns {','.join(self._names)}"


def _read_number_column(pairs: pa.Table, name: str) -> Features:
    if name not in pairs.column_names:
        known = [column for column in pairs.column_names if column.startswith("feature_")]
        raise InvalidLabels(f"pairs have no column {name}; found {', '.join(known) or 'none'}")
    column = pairs[name]
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise InvalidLabels(f"column {name} must hold numbers, found {kind}")
    # Through integers, because Arrow has no cast from boolean to double; nulls become NaN.
    plain = column.cast(pa.int8()) if pa.types.is_boolean(kind) else column
    return cast(Features, plain.cast(pa.float64(), safe=False).to_numpy().astype(np.float32))
