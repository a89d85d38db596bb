"""An input as it was understood, in words: which column is what, what labels mean, what is not
read. By names and types of columns, and by public texts alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import duckdb
import numpy as np
from duckdb.sqltypes import DuckDBPyType

from labelguard.budget.label_values import (
    DEFAULT,
    LabelValues,
    format_public_column_options,
    parse_public_columns,
)
from labelguard.errors import InvalidLabels
from labelguard.inputs.codings import (
    check_coding,
    explain_domain,
    refuse_words_beside_systems,
)
from labelguard.inputs.columns import LAYOUTS, PRIVATE_ROLES, TableSchema
from labelguard.inputs.formats import FormattedFile
from labelguard.inputs.layouts import Layout
from labelguard.inputs.query import LABEL_FAULT, label_ignoring_tie_flag_sql, trim_sql
from labelguard.inputs.readers import InputFile, is_text, read_rows, source_column
from labelguard.inputs.shapes import PARTS_OF_PROMPTS, SHAPES
from labelguard.inputs.staged import Staged
from labelguard.options import ReadingOptions, option_declarations
from labelguard.storage import blocks, buckets
from labelguard.text import pluralize, suggest

_TEXTS = ("prompt", "first", "second")
_JOINED = re.compile(r" or |[/+]")


@dataclass(frozen=True)
class Understood:
    """The reading of an input, in words. No label is in it, and none was looked at."""

    # the format that was recognised, or named
    format: str
    # what the input calls each role
    columns: Mapping[str, str]
    # what labels mean
    meaning: str
    # columns that are not read
    unused: tuple[str, ...]


@dataclass(frozen=True)
class Example:
    """One pair, the two sides in an order that no label decides; chats as their words."""

    # what was asked
    prompt: str
    # one response
    first: str
    # the other response
    second: str


def describe_reading(staged: Staged) -> Understood:
    """Return how the files of an input are read."""
    columns: dict[str, str] = {}
    meanings, unused = dict[str, None](), dict[str, None]()
    for entry, layout in zip(staged.formatted, staged.readings, strict=True):
        columns |= _name_columns(entry, layout)
        meanings[_explain_labels(entry, layout)] = None
        unused |= dict.fromkeys(_list_unused(entry, layout))
    formats = ", ".join(sorted(staged.formats))
    return Understood(formats, columns, "; ".join(meanings), tuple(unused))


def refuse_unknown_codings(staged: Staged) -> None:
    """Raise `NoCoding` for labels that were not read, and of which nothing says what they mean."""
    for entry, layout in zip(staged.formatted, staged.readings, strict=True):
        if entry.format in ("pairs", "choices"):  # others say what their labels mean
            schema = TableSchema(entry.file.name, entry.types, entry.reading)
            check_coding(schema, layout.kind, layout.sides, entry.types)


def explain_labels_outside_domain(
    part: InputFile, formatted: FormattedFile, layout: Layout, connection: duckdb.DuckDBPyConnection
) -> str:
    """Return how many labels of a file have no meaning, such as numbers in a text file that nobody
    gave one; empty if none, and of tools, whose answers stop no release.
    """
    shape, values, kind = SHAPES[formatted.format], layout.values, layout.types.get("label")
    own = shape.of_tool or shape.own_values or layout.kind != "pairs" or values.columns
    if own or kind is None or not (is_text(kind) or str(kind) == "JSON"):
        return ""
    column = layout.columns["label"]
    fault = f"{label_ignoring_tie_flag_sql(layout)} >= {LABEL_FAULT}"
    labels = f"SELECT {trim_sql(source_column(column))} AS label FROM part"
    counted = f"SELECT count(*) FILTER ({fault}) FROM ({labels})"
    [(count,)] = read_rows(formatted.file, connection, counted)
    if not count:
        return ""
    named = formatted.names.get("label") or column
    outside = f"{pluralize(count, 'label')} outside the domain; mend the input"
    way = explain_domain(values, *layout.sides)
    return f"{part.name}: column {named}: {outside}{way}"


def refuse_unread_prompts(staged: Staged, ignored: Collection[str]) -> None:
    """Raise `InvalidLabels` for columns that may be part of the prompt and are neither read nor
    `ignored`, and for an `ignored` one that is in no file or is read.
    """
    listed: dict[str, None] = {}
    for entry, layout in zip(staged.formatted, staged.readings, strict=True):
        unused = {name: entry.types[name] for name in _list_unused(entry, layout)}
        listed |= dict.fromkeys(entry.types)
        if entry.format == "pairs" and layout.kind == "pairs":
            schema = TableSchema(entry.file.name, entry.types, layout.reading)
            refuse_words_beside_systems(schema, unused, ignored)
        parts = [name for name, kind in unused.items() if _may_be_prompt(name, kind)]
        parts = [name for name in parts if name not in ignored]
        if parts:
            prompt = _name_columns(entry, layout).get("prompt", "prompt")
            one, several = parts[0], len(parts) > 1
            ways = [f"leave {'them' if several else 'it'} out, --ignore-columns {','.join(parts)}"]
            if prompt in entry.types and is_text(entry.types[one]):
                ways += [f"join it, --columns prompt={one}+{prompt} if it comes before {prompt}"]
            elif prompt not in entry.types:
                ways += [f"name it, --columns prompt={one} if it is all that was asked"]
            raise InvalidLabels(
                f"{entry.file.name}: column{'s' * several} {', '.join(parts)} may be part of what "
                f"was asked, and {'are' if several else 'is'} not read: {'; or '.join(ways)}. A "
                "column that holds a response, too, is no part of the prompt: it would publish "
                "which one was preferred"
            )
        for name in ignored:
            if name in entry.types and name not in unused:
                raise InvalidLabels(
                    f"{entry.file.name}: column {name} is read, so that it cannot be ignored: "
                    "leave it out of --ignore-columns"
                )
    for name in ignored:
        if name not in listed:
            raise InvalidLabels(
                f"{staged.files[0].name}: no column {name!r} to ignore{suggest(name, listed)}; "
                f"found: {', '.join(listed)}"
            )


def format_reading_options(
    reading: ReadingOptions, public_columns: Iterable[str] | None
) -> list[str]:
    """Return the options by which an input is read, as they are typed."""
    words = []
    for name, one in option_declarations(ReadingOptions).items():
        value = getattr(reading, name)
        if name == "label_values":
            value = str(LabelValues.parse(value or ""))
        elif one.table:
            value = ",".join(f"{role}={column}" for role, column in value.items())
        elif one.many and not isinstance(value, str) and one.metavar != "NAME":
            value = ",".join(value or ())
        values = (value,) if isinstance(value, str | int) else value or ()
        words += [(one.flag, str(text)) for text in values if text not in ("", one.default)]
    public = format_public_column_options(parse_public_columns(public_columns))
    return [*(word for pair in words for word in pair), *public]


def read_examples(staged: Staged, count: int) -> Iterator[Example]:
    """Yield a pair of each of the first few items, in canonical order, whatever that of rows is."""
    for bucket in range(staged.buckets):
        texts = buckets.read_bucket(staged.texts_directory, bucket) if count else None
        if texts is None:
            continue
        items, of = blocks.unique(buckets.read_blocks(texts, "item"))
        shown = range(min(count, len(items)))
        for item in shown:
            rows = texts.select(_TEXTS).take(np.flatnonzero(of == item)).to_pylist()
            yield min(
                (Example(*map(_write_content, row.values())) for row in rows),
                key=lambda example: (example.prompt, example.first, example.second),
            )
        count -= len(shown)


def _write_content(content: str | list[dict[str, object]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(f"{one['role']}: {_write_parts(one['content'])}" for one in content)


def _write_parts(content: object) -> str:
    if not isinstance(content, list):
        return str(content or "")
    return " ".join(part.get("text") or f"[image {part['url']}]" for part in content)


def _name_columns(entry: FormattedFile, layout: Layout) -> dict[str, str]:
    """Return what the file calls each role, those of labels among them, read or not."""
    there = {role: name for role, name in layout.columns.items() if name not in layout.absent}
    named = {role: entry.reading.get_column_name(role) for role in PRIVATE_ROLES}
    order = dict.fromkeys((*LAYOUTS[layout.kind], *there))
    roles = {role: there.get(role) or named.get(role) for role in order}
    return {role: entry.names.get(role) or name for role, name in roles.items() if name}


def _explain_labels(entry: FormattedFile, layout: Layout) -> str:
    shape = SHAPES[entry.format]
    if shape.own_values:
        return shape.about
    if layout.kind == "ranking":
        return "the response with the lowest rank is preferred"
    if layout.kind == "chosen":
        one, other = layout.sides
        return f"{one} is preferred to {other}"
    values = layout.reading.values
    if layout.kind == "choices":
        return values.explain("", "") if values != DEFAULT else "the number of a response"
    return layout.values.explain(*layout.sides)


def _list_unused(entry: FormattedFile, layout: Layout) -> list[str]:
    """Return the file's own columns that nothing is read from; of tools none: theirs are within
    objects.
    """
    form = SHAPES[entry.format]
    if form.of_tool:
        return []
    used = {*_name_columns(entry, layout).values(), *entry.reading.columns.values(), *form.private}
    used |= {name for names in layout.features.values() for name in names}
    used |= {name.partition("[].")[0] for name in entry.names.values()}  # lists of answers
    names = {part.lower() for name in used for part in (name, *_JOINED.split(name))}
    return [name for name in entry.types if name.lower() not in names]


def _may_be_prompt(name: str, kind: DuckDBPyType) -> bool:
    holds = is_text(kind) or kind.id in ("list", "struct", "array") or str(kind) == "JSON"
    return holds and PARTS_OF_PROMPTS.fullmatch(name) is not None
