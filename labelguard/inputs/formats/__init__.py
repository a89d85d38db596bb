"""Formats: the shapes in which preference data is published, each turned into columns by role.

A format is recognised by names and types of columns alone, never by a value: what a label says must
not decide how a file is read. Its SQL is laid over a file where the file is opened, so that all
that follows (layouts, canonical pairs, quarantine) sees columns that are called like their roles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

import duckdb
from duckdb.sqltypes import DuckDBPyType

from labelguard.errors import InvalidLabels
from labelguard.inputs import chats, readers
from labelguard.inputs.columns import (
    ANSWERS,
    MESSAGES,
    NO_PROMPT,
    ROLES,
    Reading,
    TableSchema,
    tells_a_side,
)
from labelguard.inputs.formats import argilla, label_studio, plain, prodigy
from labelguard.inputs.formats.base import FormatQuery
from labelguard.inputs.formats.nested import find_nested_answers
from labelguard.inputs.formats.plain import WINNERS
from labelguard.inputs.layouts import Layout, find_layout
from labelguard.inputs.readers import InputFile, identifier, is_text, source_column
from labelguard.inputs.shapes import CROWDS, SHAPES, PublishedShape, find_crowd_columns
from labelguard.text import AUTO_FORMAT, suggest

_views = count()
# What makes columns of these shapes; of others they are as they should be.
_ADAPTERS: Mapping[str, Callable[[TableSchema], FormatQuery | None]] = {
    "argilla": argilla.adapt,
    "label-studio": label_studio.adapt,
    "prodigy": prodigy.adapt,
    "pairs": plain.unify_pairs,
    "scores": plain.adapt_scores,
    "helpsteer": plain.adapt_helpsteer,
    "arena": plain.adapt_arena,
    "hh-rlhf": plain.adapt_dialogues,
}
# Columns of labels that --columns may name by what their format calls them: winner=NAME.
_LABELS = ("winner", "overall_preference", "preference_strength")


@dataclass(frozen=True)
class FormattedFile:
    """A file under the format it was recognised as; `reading` knows where its roles are.

    `names` is what the file calls the roles that the format made, for messages, and `recorded` what
    the ledger keeps of them. `left_out` is SQL of how many answers it leaves out for which public
    reason. `types` are its own columns and their types.
    """

    file: InputFile
    reading: Reading
    format: str
    names: Mapping[str, str] = field(default_factory=dict)
    recorded: Mapping[str, str] = field(default_factory=dict)
    left_out: str = ""
    types: Mapping[str, DuckDBPyType] = field(default_factory=dict)

    def find_layout(self, connection: duckdb.DuckDBPyConnection) -> Layout:
        """Return its layout; raise `InvalidLabels` for what lacks."""
        return find_layout(self.file, connection, self.reading, list(self.types), self.names)


def apply_format(
    file: InputFile, connection: duckdb.DuckDBPyConnection, reading: Reading
) -> FormattedFile:
    """Return a file as its format has it: the one that `reading` names, else the one recognised.

    Raises `InvalidLabels` for a file that is not of the format that was named, and for a column of
    labels in a public role. A file that no format recognises is left as it is; its layout says what
    it lacks. A row with a list of answers is one of each person. A prompt that is called by the
    empty text is an empty text in every row, and so is one that no column of a table of pairs can
    be.
    """
    listed = readers.read_columns(file, connection)
    for role, column in reading.columns.items():
        if role not in ROLES and role in listed and column in ROLES:
            raise InvalidLabels(
                f"columns maps roles to columns, and {role!r} is a column, {column!r} a role: turn "
                f"it round, {{{column!r}: {role!r}}}"
            )
    reading = reading.recall(listed.keys())
    select = partial(readers.read_rows, file, connection)
    schema = TableSchema(file.name, listed, reading, file.sparse, select=select)
    if any(shape.of_tool and shape.recognises(schema) for shape in SHAPES.values()):
        return replace(_apply_format(file, connection, reading), types=listed)
    names: dict[str, str] = {}
    left_out = ""
    if nested := find_nested_answers(schema):
        left_out = nested.count_unanswered_sql()
        file = replace(file, open=partial(_open_with_query, file, nested.query(schema)))
        names |= nested.describe()
        schema = replace(schema, types=readers.read_columns(file, connection))
    reading = replace(reading, columns={**find_crowd_columns(schema), **reading.columns})
    prompt = reading.get_column_name("prompt")
    if "+" in prompt and prompt not in schema.types:
        file = _join_columns(file, schema.types, reading)
        schema = replace(schema, types=readers.read_columns(file, connection))
    if name := _find_messages(schema.types, reading):
        reading = replace(reading, columns={**reading.columns, "prompt": name})
    schema = replace(schema, reading=reading)
    recorded = dict(names)
    if plain.lacks_prompt(schema):
        if schema.has("prompt"):
            raise schema.error("there is a column prompt; leave out --no-prompt, or drop it")
        named = {role: name for role, name in reading.columns.items() if role != "prompt"}
        file = _add_column(file, schema.types, "prompt", "''")
        reading = replace(reading, columns=named)
        names["prompt"], recorded["prompt"] = NO_PROMPT, ""
    formatted = _apply_format(file, connection, reading)
    return replace(
        formatted,
        names={**formatted.names, **names},
        recorded={**formatted.recorded, **recorded},
        left_out=formatted.left_out or left_out,
        types=listed,
    )


def _apply_format(
    file: InputFile, connection: duckdb.DuckDBPyConnection, reading: Reading
) -> FormattedFile:
    types = readers.read_columns(file, connection)
    own = {name: reading.columns[name] for name in _LABELS if name in reading.columns}
    if scores := _find_named_scores(reading):
        if "label" in {*types, *reading.columns} and reading.format == AUTO_FORMAT:
            raise InvalidLabels(
                f"{file.name}: --columns names {' and '.join(scores)} beside a column label; say "
                "--format scores, or --format pairs where they tell no label"
            )
        own |= scores
        reading = replace(reading, format="scores")
    if own:
        file, reading = _rename_label_columns(file, types, reading, own)
        types = readers.read_columns(file, connection)
    select = partial(readers.read_rows, file, connection)
    schema = TableSchema(file.name, types, reading, file.sparse, select=select)
    form = _choose_format(schema)
    if form is None:
        plain.refuse_thumbs(schema)
        return FormattedFile(file, reading, "pairs", types=types)
    schema = replace(schema, private=frozenset({*SHAPES[form].private, *WINNERS} & types.keys()))
    _check_label_column_use(form, schema)
    adapt = _ADAPTERS.get(form)
    query = adapt(schema) if adapt else None
    if query is None and schema.private:
        query = FormatQuery(
            f"SELECT {schema.select_public_except().rstrip(', ')} FROM part", frozenset()
        )
    if query is None:
        return FormattedFile(file, reading, form, types=types)
    named = reading.columns
    if not SHAPES[form].of_tool:  # else columns are within its objects
        _refuse_missing_columns(form, schema, query)
    for role in sorted(query.made & named.keys()):
        if query.names.get(role, named[role]) != named[role] and named[role]:
            label = query.names[role]
            named_so = f", or name it: --columns {label}={named[role]}" if label in _LABELS else ""
            raise schema.error(
                f"format {form} makes {role} of {query.names[role]}; leave "
                f"{role} out of --columns{named_so}, or name another --format"
            )
    # Columns of the format's own, of other names here: the query has read them.
    consumed = {name for name in query.names.values() if name not in ROLES}
    others = {r: name for r, name in named.items() if r not in query.made and r not in consumed}
    return FormattedFile(
        replace(file, open=partial(_open_with_query, file, query.query)),
        replace(
            reading, columns={**query.columns, **others}, values=query.values or reading.values
        ),
        form,
        {role: own.get(name, name) for role, name in query.names.items()},
        {
            role: "" if query.names.get(role) == NO_PROMPT else reading.get_column_name(role)
            for role in query.made
        },
        query.left_out,
        types,
    )


def _join_columns(
    file: InputFile, types: Mapping[str, DuckDBPyType], reading: Reading
) -> InputFile:
    """Return a file with one more column, named like the prompt A+B: the texts of A and B, in this
    order, with a blank line between; blank ones are left out.

    Raises `InvalidLabels` for a column that is no text, that has another role, or that tells labels
    in any format: the prompt is published.
    """
    joined = reading.get_column_name("prompt")
    names = [name.strip() for name in joined.split("+")]
    taken = {name for role, name in reading.columns.items() if role != "prompt"}
    taken |= {*ROLES, *WINNERS, *(name for shape in SHAPES.values() for name in shape.private)}
    taken = {name.lower() for name in taken - {"prompt", "question"}}
    answers = tuple(crowd.answers for crowd in CROWDS)
    for name in names:
        if name.lower() in taken or tells_a_side(name) or name.startswith(answers):
            raise InvalidLabels(
                f"{file.name}: column {name} has another role, or tells of one response or its "
                "label: it cannot be a part of the prompt, which is published"
            )
        if name not in types:
            raise InvalidLabels(
                f"{file.name}: no column {name!r} (of {joined}, given for prompt)"
                f"{suggest(name, types)}; found: {', '.join(types)}"
            )
        if not is_text(types[name]):
            raise InvalidLabels(
                f"{file.name}: column {name} is no text: only columns of text are joined to a "
                "prompt; write one column of both"
            )
    texts = ", ".join(f"nullif({source_column(name)}, '')" for name in names)
    return _add_column(file, types, joined, f"concat_ws(chr(10) || chr(10), {texts})")


def _add_column(file: InputFile, names: Iterable[str], name: str, sql: str) -> InputFile:
    """Return a file with the columns `names`, and one more (SQL)."""
    columns = ", ".join(f"{source_column(one)} AS {identifier(one)}" for one in names)
    query = f"SELECT {columns}, {sql} AS {identifier(name)} FROM part"
    return replace(file, open=partial(_open_with_query, file, query))


def _find_messages(types: Mapping[str, DuckDBPyType], reading: Reading) -> str | None:
    """Return the column of messages before two answers of one message each, which are no dialogues,
    where exactly one is there and no prompt: so LLaMA-Factory and axolotl have it.
    """
    sides = [types.get(reading.get_column_name(role)) for role in ("chosen", "rejected")]
    if reading.get_column_name("prompt") in types or "prompt" in reading.columns:
        return None
    if not all(side and side.id == "struct" for side in sides):
        return None
    names = [name for name in types if name.lower() in MESSAGES]
    return names[0] if len(names) == 1 and chats.holds_messages(types[names[0]]) else None


def _find_named_scores(reading: Reading) -> dict[str, str]:
    """Return the two columns that `--columns` names as the label together, unless features read
    them. Raises `InvalidLabels` for one of them alone.
    """
    named = {
        role: name for role, name in reading.columns.items() if role in SHAPES["scores"].private
    }
    is_read = named.keys() & {*reading.list_feature_columns()}
    if not named or is_read or reading.format not in (AUTO_FORMAT, "scores"):
        return {}
    if len(named) < len(SHAPES["scores"].private):
        raise InvalidLabels(
            "--columns names one of score_a and score_b; the label are both together, as in "
            "--columns score_a=won_a,score_b=won_b"
        )
    return named


def _rename_label_columns(
    file: InputFile, names: Iterable[str], reading: Reading, own: Mapping[str, str]
) -> tuple[InputFile, Reading]:
    """Return a file whose columns of labels are called as formats call them; `own` maps these."""
    renamed = {name: role for role, name in own.items()}
    columns = ", ".join(
        f"{source_column(name)} AS {identifier(renamed.get(name, name))}"
        for name in names
        if name in renamed or name.lower() not in own
    )
    others = {role: name for role, name in reading.columns.items() if role not in own}
    opener = partial(_open_with_query, file, f"SELECT {columns} FROM part")
    return replace(file, open=opener), replace(reading, columns=others)


def _open_with_query(
    file: InputFile, query: str, connection: duckdb.DuckDBPyConnection
) -> duckdb.DuckDBPyRelation:
    # Under a name of its own: whoever reads the result calls that one `part`, or as another.
    view = f"part {next(_views)}"
    query = f"WITH part AS (FROM {identifier(view)}) {query}"
    return readers.open_query(file, connection, query, view)


def _choose_format(schema: TableSchema) -> str | None:
    """Return the format that was named, else the first that recognises a file, if one does."""
    named = schema.reading.format
    if named == AUTO_FORMAT:
        return _recognise(schema)
    if named not in SHAPES:
        raise InvalidLabels(
            f"--format: unknown format {named!r}{suggest(named, SHAPES)}; "
            f"formats: {AUTO_FORMAT}, {', '.join(SHAPES)}"
        )
    if not SHAPES[named].recognises(schema):
        raise schema.missing_error(f"not of format {named} ({SHAPES[named].about})")
    return named


def _recognise(schema: TableSchema) -> str | None:
    fitting = [name for name, shape in SHAPES.items() if shape.recognises(schema)]
    # Further pairs of a release have the features that its labels have, which were judged there.
    if not schema.reading.labelled and schema.reading.unit == "none":
        fitting = [name for name in fitting if not _find_label_feature(SHAPES[name], schema)]
    # Which column of labels a sparse file lacks may follow from labels. Where blanks are public
    # that tells nothing new; elsewhere, what its other columns say has to do.
    blind = schema.sparse and schema.reading.labelled and schema.treats_blanks_as_ties
    telling = [name for name in fitting if blind or SHAPES[name].has_label_columns(schema)]
    return next(iter(telling or fitting), None)


def _find_label_feature(shape: PublishedShape, schema: TableSchema) -> str | None:
    """Return a column of a requested feature that tells labels in a shape, if any."""
    columns = schema.reading.list_feature_columns()
    return next((name for name in columns if name in shape.private and schema.has(name)), None)


def _refuse_missing_columns(form: str, schema: TableSchema, query: FormatQuery) -> None:
    """Refuse a public column that was named and is not there, by the columns that the file has."""
    for role, name in schema.reading.columns.items():
        if role not in ROLES or role in ANSWERS or name in {*schema.types, *query.made}:
            continue
        people = query.columns.get(role)
        hint = f"; as {form} its labelers are in {people!r}: leave the option out"
        near = suggest(name, schema.types)
        raise schema.missing_error(
            f"no column {name!r} (given for {role}){near}{hint if people else ''}"
        )


def _check_label_column_use(form: str, schema: TableSchema) -> None:
    """Refuse columns of labels in other roles, and labels that lack."""
    shape = SHAPES[form]
    reading = schema.reading
    named = {*reading.columns.values(), *reading.list_feature_columns()}
    for name in WINNERS:
        if name in named and schema.has(name):
            raise schema.error(
                f"column {name} says who won: it is private; make of such columns one, label "
                "(a, b or tie), or name both sides: --columns "
                "score_a=winner_model_a,score_b=winner_model_b"
            )
    for role, name in reading.columns.items():
        if name in schema.private and schema.find_column(role):
            raise schema.error(
                f"format {form} reads column {name} for labels, which are private: it "
                f"cannot be {role}; leave it out of --columns, or name another --format"
            )
    if feature := _find_label_feature(shape, schema):
        raise schema.error(
            f"format {form} reads column {feature} for labels, which are "
            "private: it cannot be a feature; if it tells no label, name --format pairs"
        )
    required = shape.private and reading.labelled and not schema.sparse
    if required and not shape.has_label_columns(schema):
        own = next((name for name in shape.private if name in _LABELS), "")
        raise schema.missing_error(
            f"format {form} reads labels from column {' or '.join(shape.private)}, which is "
            f"not there{own and f' (of another name: --columns {own}=NAME)'}"
        )
