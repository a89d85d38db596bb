"""Layouts: which column of a file plays which role, and whether it can.

Four are understood: pairs (prompt, response_a, response_b, label[, tie]), chosen pairs (prompt,
chosen, rejected[, tie]), rankings (prompt, responses, ranks) and choices of the best (prompt,
responses, choice). All become canonical pairs: the two sides in canonical order, and a label that
says whether the first is preferred.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import duckdb
from duckdb.sqltypes import SQLNULL, DuckDBPyType

from labelguard.budget.label_values import DEFAULT, LabelValues, list_names_that_declare
from labelguard.errors import InvalidLabels
from labelguard.inputs import canonical, chats, readers
from labelguard.inputs.chats import Content, NotContent
from labelguard.inputs.codings import (
    check_coding,
    find_systems,
    name_sides,
)
from labelguard.inputs.columns import (
    ANSWERS,
    FEATURE_SIDES,
    IDS,
    LAYOUTS,
    LISTED,
    OPTIONAL,
    PRIVATE_ROLES,
    ROLES,
    Reading,
    TableSchema,
    find_custom_paired_roles,
    tells_a_side,
)
from labelguard.inputs.readers import InputFile, find_element_type, is_text, source_column
from labelguard.inputs.shapes import (
    PEOPLE,
    explain_near_misses,
    explain_scores,
    find_two_sided_columns,
    list_two_sides,
    propose_columns,
)
from labelguard.learning.columns import FeatureColumn
from labelguard.text import suggest

_SIDES = LAYOUTS["pairs"][1:3]
ID_EXPECTED = "text or whole numbers"
INTEGER = (*canonical.INTEGERS, *canonical.LARGE_INTEGERS)
_NUMERIC = (*INTEGER, *canonical.FRACTIONS)
_NOUNS = {"number": "feature", "source": "source", "stratum": "stratum"}
_TYPED = {"number": "columns:", "source": "source:", "stratum": "by="}


@dataclass(frozen=True)
class Layout:
    """The reading of one file's columns: its kind, and the column that plays each role.

    `types` are the columns' types by role, `content` is the type of prompt and responses.
    `features` maps what is carried for features to its columns: one for each side, or one list; of
    a stratum, one. `absent` columns are read as nulls. `names` is what the file calls the roles
    that its format made.
    """

    kind: str
    columns: Mapping[str, str]
    types: Mapping[str, DuckDBPyType]
    content: Content
    features: Mapping[FeatureColumn, tuple[str, ...]]
    reading: Reading
    absent: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def sides(self) -> tuple[str, str]:
        """Return what the file calls the first and the second of two responses."""
        one, other = LAYOUTS[self.kind][1:3] if self.kind == "chosen" else _SIDES
        both = (self.names.get(role) or self.columns.get(role, role) for role in (one, other))
        return next(both), next(both)

    @property
    def values(self) -> LabelValues:
        """Return the domain of labels: where nobody named one, words that name a side."""
        values = self.reading.values
        return name_sides(*self.sides) if values == DEFAULT else values

    @property
    def has_questions(self) -> bool:
        """True where rows say which question they answer."""
        return self.reading.question is not None or "question" in self.columns

    def column_sql(self, name: str) -> str:
        """Return SQL of a column; of an absent one, NULL."""
        return "NULL::VARCHAR" if name in self.absent else source_column(name)

    @property
    def is_list(self) -> bool:
        """True where rows hold lists of responses."""
        return self.kind in LISTED


def can_hold_ids(kind: DuckDBPyType) -> bool:
    """Return whether a column can hold ids: text or whole numbers."""
    return is_text(kind) or kind.id in (*INTEGER, "uuid", "null")


def find_layout(
    file: InputFile,
    connection: duckdb.DuckDBPyConnection,
    reading: Reading,
    listed: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
) -> Layout:
    """Find each role's column in a file; raise `InvalidLabels` for what lacks or cannot be.

    A sparse file lacks a column where no row has a value. `listed` are the file's own columns, and
    `names` what it calls roles that its format made.
    """
    types = readers.read_columns(file, connection)
    schema = TableSchema(file.name, types, reading, file.sparse, listed or list(types))
    layouts = _list_possible_layouts(schema)
    named = reading.columns
    if not reading.labelled:
        private = {reading.get_column_name(role) for role in PRIVATE_ROLES}
        types = {column: kind for column, kind in types.items() if column not in private}
        named = {role: column for role, column in named.items() if role not in PRIVATE_ROLES}
    absent = _find_columns_assumed_present(types, reading) if file.sparse else ()
    types |= dict.fromkeys(absent, SQLNULL)
    schema = replace(schema, types=types)
    columns = _find_columns_of_roles(schema, named)
    kind = _choose_layout(schema, columns, layouts)
    used = (*layouts[kind], *(r for r in OPTIONAL if r != "tie" or kind not in LISTED))
    for role in named:
        if role in ROLES and role not in used:
            go_with = f"({', '.join(layouts[kind])})"
            raise schema.error(f"--columns names {role}, which does not go with columns {go_with}")
    columns = {role: column for role, column in columns.items() if role in used}
    columns |= find_systems(schema, kind)
    if not reading.has_labelers:
        columns.pop("labeler_id", None)
    if "labeler_id" not in columns and reading.unit == "labeler":
        raise _missing_labeler_error(schema, columns.values())
    _refuse_role_conflicts(schema, columns, kind)
    _check_id_time_types(schema, columns)
    features = {f: _find_feature_columns(schema, f, kind, columns) for f in reading.features}
    kinds = {role: types[column] for role, column in columns.items()}
    content = _find_content_type(schema, columns, kind)
    layout = Layout(kind, columns, kinds, content, features, reading, absent, names or {})
    if reading.labelled:
        check_coding(schema, kind, layout.sides, types)
    return layout


def _list_possible_layouts(schema: TableSchema) -> Mapping[str, tuple[str, ...]]:
    """Return the roles of every layout; without labels, only those that are public.

    Rankings and choices then differ by the column that is there and is not read.
    """
    if schema.reading.labelled:
        return LAYOUTS
    hidden = "ranking" if schema.has_all("choice") and not schema.has_all("ranks") else "choices"
    return {
        kind: tuple(role for role in roles if role not in PRIVATE_ROLES)
        for kind, roles in LAYOUTS.items()
        if kind != hidden
    }


def _find_columns_assumed_present(
    types: Mapping[str, DuckDBPyType], reading: Reading
) -> tuple[str, ...]:
    """Return columns that a sparse file may lack because of its labels: they count as there."""
    present = {column.lower() for column in types}

    def list_missing(*roles: str) -> list[str]:
        return [name for name in map(reading.get_column_name, roles) if name.lower() not in present]

    pairs = not list_missing("response_a", "response_b")
    sides = list_missing("chosen", "rejected")
    chosen = not pairs and len(sides) < 2
    absent = sides if chosen else []
    if chosen:
        for feature in reading.features:
            both = reading.find_columns_of(feature, "chosen")
            missing = [column for column in both if column.lower() not in present]
            absent += missing if len(missing) < len(both) else []
    if reading.labelled and (pairs or chosen):
        absent += list_missing("tie")
    if reading.labelled and pairs and (reading.skips == "tie" or not list_missing("tie")):
        absent += list_missing("label")
    if reading.labelled and reading.skips == "tie" and not pairs and not chosen:
        counted = reading.format == "choices" or reading.values.first is not None
        role = "choice" if counted or "choice" in reading.columns else "ranks"
        is_list = not list_missing("responses") and list_missing("ranks") and list_missing("choice")
        absent += list_missing(role) if is_list else []
    return tuple(dict.fromkeys(absent))


def _find_columns_of_roles(schema: TableSchema, named: Mapping[str, str]) -> dict[str, str]:
    """Return the column of each role that a file has one for."""
    sides = {side for sides in FEATURE_SIDES.values() for side in sides}
    features = {feature.name + side for feature in schema.reading.features for side in sides}
    known = {*ROLES, *find_custom_paired_roles(named), *features}
    for role, column in named.items():
        if role not in known:
            raise InvalidLabels(
                f"--columns: unknown role {role!r}{suggest(role, ROLES)}; roles: {', '.join(ROLES)}"
            )
        if column not in schema.types:
            near = suggest(column, schema.listed)
            raise schema.missing_error(f"no column {column!r} (given for {role}){near}")
    columns = {role: named.get(role, role) for role in ROLES}
    # A question is published with the labels: that a column is called so is not enough.
    return {
        role: column
        for role, column in columns.items()
        if column in schema.types and (role != "question" or role in named)
    }


def _choose_layout(
    schema: TableSchema, columns: Mapping[str, str], layouts: Mapping[str, tuple[str, ...]]
) -> str:
    """Return the kind of layout that these columns of roles make."""
    complete = [kind for kind, roles in layouts.items() if all(r in columns for r in roles)]
    if len(complete) == 1:
        return complete[0]
    if complete:
        raise schema.error(
            f"columns for {' and '.join(complete)} are both present; "
            "rename or drop the columns that are not meant"
        )
    nearest = max(layouts, key=lambda kind: sum(r in columns for r in layouts[kind]))
    if nearest in LISTED and "responses" not in columns and list_two_sides(schema.listed):
        nearest = "pairs"
    missing = [role for role in layouts[nearest] if role not in columns]
    used = {columns.get(role) for role in (*layouts[nearest], *OPTIONAL)}
    free = tuple(column for column in schema.listed if column not in used)
    lacking_roles = tuple(missing)
    if schema.reading.unit == "labeler" and "labeler_id" not in columns:
        missing.append("labeler_id")
    expected = " or ".join(f"({', '.join(roles)})" for roles in layouts.values())
    known = propose_columns(schema, missing, free)
    lacking = ", ".join(
        role if role in known else f"{role}{suggest(role, free)}" for role in lacking_roles
    )
    mapping = ",".join(f"{role}={known.get(role, 'NAME')}" for role in missing)
    both = find_two_sided_columns(free) if "label" in missing else []
    way = f". Together {explain_scores(*both[0])}" if both else ""
    if "prompt" in missing:
        way = f"; if nothing was asked, --no-prompt{way}"
    raise schema.missing_error(
        f"no column {lacking}; expected {expected}; name columns with --columns {mapping}{way}"
        f"{explain_near_misses(schema.listed)}"
    )


def _missing_labeler_error(schema: TableSchema, used: Collection[str]) -> InvalidLabels:
    """Return the error for a file of which no column tells whose labels these are."""
    free = [name for name in schema.listed if name not in {*used, *ANSWERS, "winner"}]
    people = [name for name in free if name.lower() in PEOPLE]
    near = f" (did you mean {people[0]!r}?)" if people else suggest("labeler_id", free)
    return schema.missing_error(
        f"no column labeler_id{near}; name the one that says who gave each label: "
        "--labeler-column NAME. Without one, --unit item protects each pair that was "
        "compared instead of each person: whoever gave several labels is protected for each alone; "
        "together, one person's labels may still reveal their preferences. Choose it only if "
        "nobody gave more than one label, or if that is enough"
    )


def _refuse_role_conflicts(schema: TableSchema, columns: Mapping[str, str], kind: str) -> None:
    """Refuse two names of the question, a label of one side, and private columns made public."""
    if "question" in columns and schema.reading.question is not None:
        raise schema.error(
            f"column {columns['question']} says which question every row answers; "
            "leave out --question, or drop the column"
        )
    # Which text was chosen is a label, whatever else the column is called.
    hidden = (*PRIVATE_ROLES, *(LAYOUTS[kind][1:] if kind == "chosen" else ()))
    label = columns.get("label", "")
    for both in find_two_sided_columns(schema.listed):
        if label in both:
            raise schema.error(
                f"column {label} tells of one side: it cannot be label, where a tie would count as "
                f"a loss. Together {explain_scores(*both)}"
            )
    for role, column in columns.items():
        if role in hidden and list(columns.values()).count(column) > 1:
            raise schema.error(
                f"column {column} is {role}, which is private, and cannot be anything else too"
            )
        if kind == "chosen" and role not in hidden and tells_a_side(column):
            raise schema.error(
                f"column {column} tells of the text that was chosen, or of the other: such "
                f"a column cannot be {role}; if it does not, rename it to {role}"
            )


def _check_id_time_types(schema: TableSchema, columns: Mapping[str, str]) -> None:
    """Refuse ids and times whose columns cannot be what they are named.

    Labels are judged row by row, whatever type their column has.
    """
    for role, column in columns.items():
        kind = schema.types[column]
        if role in IDS and not can_hold_ids(kind):
            raise _wrong_type_error(schema, column, ID_EXPECTED, kind)
        is_time = kind.id.startswith("timestamp") or kind.id in (*INTEGER, "date", "null")
        if role == "submitted_at" and not (is_time or is_text(kind)):
            raise _wrong_type_error(
                schema, column, "timestamps, ISO 8601 text or whole numbers", kind
            )


def _wrong_type_error(
    schema: TableSchema, column: str, expected: str, kind: DuckDBPyType
) -> InvalidLabels:
    name = str(kind).replace('"', "")
    shown = name if len(name) < 80 else name[:77] + "..."
    return schema.error(f"column {column}: expected {expected}, found type {shown}")


def _find_content_type(schema: TableSchema, columns: Mapping[str, str], kind: str) -> Content:
    """Return what prompt and responses are; raise `InvalidLabels` if they are no content."""
    roles = LAYOUTS[kind][: 1 if kind in LISTED else 3]
    kinds = [schema.types[columns[role]] for role in roles]
    if kind in LISTED:
        responses = schema.types[columns["responses"]]
        if responses.id not in ("list", "array"):
            raise _wrong_type_error(schema, columns["responses"], "a list", responses)
        kinds.append(find_element_type(responses))
    try:
        return chats.find_content_of_types(kinds, schema.reading.drop_members or ())
    except NotContent as fault:
        names = ", ".join(columns[role] for role in LAYOUTS[kind][: len(kinds)])
        raise chats.build_content_error(f"{schema.name}: columns {names}", fault) from None


def _find_feature_columns(
    schema: TableSchema, feature: FeatureColumn, kind: str, columns: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the columns of what is carried for a feature, checked."""
    names = schema.reading.find_columns_of(feature, kind)
    called = f"{_NOUNS[feature.kind]} {feature.name}"
    fits = _can_hold_numbers if feature.kind == "number" else can_hold_ids
    signed, is_number = schema.reading.get_column_name(feature.name), feature.kind == "number"
    if is_number and kind == "pairs" and schema.has(signed) and not any(map(schema.has, names)):
        # Texts write a sign in several ways, one of which may be unreadable.
        names, fits = (signed,), _is_numeric
    for column in names:
        if column not in schema.types:
            sides = ("",) if feature.kind == "stratum" else FEATURE_SIDES[kind]
            stems = {n.removesuffix(end) for end in sides for n in schema.types if n.endswith(end)}
            near = suggest(feature.name, sorted(stems), _TYPED[feature.kind])
            raise schema.missing_error(f"no column {' and '.join(names)} for the {called}{near}")
        _check_public_feature(schema, feature, column, kind, columns)
    kinds = [schema.types[column] for column in names]
    if kind in LISTED and feature.kind != "stratum":
        kinds = [find_element_type(k) if k.id in ("list", "array") else k for k in kinds]
        kinds = [k for k in kinds if str(k) != "JSON"]  # lists in JSON files: judged row by row
    families = {_find_type_family(k) for k in kinds if k.id != "null"}
    if not all(map(fits, kinds)) or len(families) > 1:
        expected = "numbers" if is_number else f"names ({ID_EXPECTED})"
        raise schema.error(
            f"{called}: expected {expected} of one type in "
            f"{' and '.join(names)}, so that no value tells which side it stands on"
        )
    return names


def _check_public_feature(
    schema: TableSchema, feature: FeatureColumn, column: str, kind: str, columns: Mapping[str, str]
) -> None:
    """Refuse columns that tell labels or labelers, or that nobody declared public, as features.

    Names of sources and strata are published. Who labelled, an id or a time would be published
    with them, and a pair would differ by who compared it; a text is no property of its writer.
    """
    called = f"the {_NOUNS[feature.kind]} {feature.name}"
    role = next((role for role, name in columns.items() if name == column), "")
    if role:
        why = ", which is private: it" if role in PRIVATE_ROLES else ": a column with a role"
        raise schema.error(
            f"column {column} is {role}{why} cannot be a feature; expected a column "
            "of its own, that tells of the responses"
        )
    if feature.kind == "stratum" or (feature.kind == "source" and kind != "chosen"):
        sides: Sequence[str] = LAYOUTS["chosen"][1:]
        if kind == "chosen":
            sides = [columns.get(side, side) for side in sides]
        if column in sides or tells_a_side(column):
            raise schema.error(
                f"column {column} tells of the text that was chosen, or of the other: such a "
                f"column cannot be {called}"
            )
    if not schema.reading.is_declared_public(column):
        name = list_names_that_declare(column)[-1]
        raise schema.error(
            f"column {column} becomes {called} only if it is declared public: --public-column "
            f"{name}, before the project's first release. That says that it was made of prompts "
            "and responses alone (which system wrote them, what a model says of them), and of "
            "nobody's answers: who won, a score or a rating people gave. The guarantee depends on "
            "it, and no look at the file could tell"
        )


def _is_numeric(kind: DuckDBPyType) -> bool:
    return kind.id in _NUMERIC


def _can_hold_numbers(kind: DuckDBPyType) -> bool:
    return kind.id in (*_NUMERIC, "boolean", "null") or is_text(kind)  # CSV: text


def _find_type_family(kind: DuckDBPyType) -> str:
    """Return what two columns have in common whose values are read alike.

    Whole numbers and those of 64 bits are: both are compared as DOUBLE, in which a zero has no
    sign. Which of the two a column is may follow from labels, as pandas types it.
    """
    if is_text(kind):
        return "text"
    return "number" if kind.id in (*INTEGER, "double") else str(kind)


def find_common_content(files: Sequence[InputFile], layouts: Sequence[Layout]) -> Content:
    """Return the content that holds the prompts and responses of every file."""
    content = layouts[0].content
    for file, layout in zip(files, layouts, strict=True):
        try:
            # Text is one part throughout, or none: else files would change each other.
            parts = {one.parts and not one.strings for one in (content, layout.content)} - {None}
            if len(parts) > 1:
                raise NotContent
            content = chats.merge_content_types([content, layout.content])
        except NotContent:
            raise InvalidLabels(
                f"{file.name}: its prompts and responses have another type than those of the "
                "files before it; privatize files of one kind together"
            ) from None
    return content
