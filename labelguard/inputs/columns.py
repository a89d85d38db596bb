"""Columns of a table of preferences: their roles, how rows are read, and which hold what.

Which columns hold what is compared follows from their names. All others are the labelers' own, or
nobody's. In JSON, where types follow from what is written, none of those may decide how prompts and
responses are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from duckdb.sqltypes import SQLNULL, DuckDBPyType

from labelguard.budget.label_values import (
    DEFAULT,
    WHITE_SPACE,
    LabelValues,
    Skips,
    list_names_that_declare,
)
from labelguard.errors import InvalidLabels
from labelguard.inputs.chats import parse_dropped_members
from labelguard.inputs.readers import identifier, literal, nan_to_null_sql, source_column
from labelguard.learning.columns import FeatureColumn
from labelguard.options import ReadingOptions
from labelguard.text import AUTO_FORMAT

LAYOUTS: Mapping[str, tuple[str, ...]] = {
    "pairs": ("prompt", "response_a", "response_b", "label"),
    "chosen": ("prompt", "chosen", "rejected"),
    "ranking": ("prompt", "responses", "ranks"),
    "choices": ("prompt", "responses", "choice"),
}
# Layouts of lists of responses, which are broken into pairs.
LISTED = ("ranking", "choices")
OPTIONAL = (
    *("labeler_id", "tie", "item_id", "question"),
    *("ranking_id", "submitted_at", "record_id"),
)
# Columns that say which system each response is of, where a label names the one that won.
SYSTEMS = ("system_a", "system_b")
IDS = ("labeler_id", "item_id", "question", "ranking_id", "record_id", *SYSTEMS)
ROLES = tuple(dict.fromkeys([*(r for roles in LAYOUTS.values() for r in roles), *OPTIONAL]))
# Roles whose columns nothing but the label itself may depend on.
PRIVATE_ROLES = ("label", "tie", "ranks", "choice")
# Roles whose columns tell labels: the private ones, and the sides by which was preferred. Every
# question may have columns of its own for them.
ANSWERS = (*PRIVATE_ROLES, "chosen", "rejected")
# Endings of the columns of a feature after its name, in each layout.
FEATURE_SIDES: Mapping[str, tuple[str, ...]] = {
    "pairs": ("_a", "_b"),
    "chosen": ("_chosen", "_rejected"),
    "ranking": ("",),
    "choices": ("",),
}
# Names of fields of an annotation tool that hold a prompt.
PROMPTS = ("prompt", "instruction", "question", "context")
# Names of columns of messages, that are a prompt beside two answers of one message.
MESSAGES = ("conversations", "messages")
# What messages call a prompt that there is none of.
NO_PROMPT = "(no prompt)"
# Whole conversations, as arenas publish them: their messages may have further members.
CONVERSATIONS = ("conversation_a", "conversation_b")
CONTENTS = ("prompt", "response_a", "response_b", "chosen", "rejected", "responses")
_STEMS = "response|answer|completion|output|reply|candidate|generation|text|option|model"
_MEMBER = re.compile(rf"((?:{_STEMS})s?)([ ._-]?)(?:([a-z])|([0-9]+))", re.IGNORECASE)
_COUPLES = (("chosen", "rejected"), ("left", "right"))


@dataclass(frozen=True)
class Reading:
    """The choices that decide how rows are read.

    `columns` maps roles to names; `unit` is `labeler`, `item` (what is compared, whoever compares
    it) or `none`: nobody is charged. `features` are public properties of responses that are carried
    along with their side (see `learning.columns`), of columns that are declared by `public_columns`
    (see `budget.label_values`). Unless `labelled`, the columns of labels are dropped at the door:
    every row reads like a tie, whatever it says. Unless it `has_labelers`, who gave them is not
    read. `question` is what all rows were asked about their pair, where no column tells it.
    `values` is the domain of labels, `skips` what becomes of blank ones. `format` is one of
    `labelguard.inputs.formats`, and `split` those to read of a dataset that has several.
    `recalled` and `recalled_values` are columns and values that the source had before.
    `drop_members` are names of members of messages, and of their parts, that are not read.
    """

    columns: Mapping[str, str]
    unit: str = "labeler"
    features: tuple[FeatureColumn, ...] = ()
    labelled: bool = True
    has_labelers: bool = True
    question: str | None = None
    values: LabelValues = DEFAULT
    skips: Skips = "public"
    format: str = AUTO_FORMAT
    split: str | Sequence[str] | None = None
    public_columns: tuple[str, ...] = ()
    recalled: Mapping[str, str] = field(default_factory=dict)
    recalled_values: LabelValues = DEFAULT
    drop_members: Sequence[str] | None = ()

    def __post_init__(self) -> None:
        split = (self.split,) if isinstance(self.split, str) else tuple(self.split or ())
        object.__setattr__(self, "split", split)
        if self.question is not None and not (self.question and self.question.isprintable()):
            raise InvalidLabels("--question expects a name of printable characters")
        object.__setattr__(self, "drop_members", parse_dropped_members(self.drop_members))

    @classmethod
    def from_options(
        cls,
        options: ReadingOptions,
        unit: str,
        features: tuple[FeatureColumn, ...] = (),
        **others: Any,
    ) -> Reading:
        """Return the choices that options make, and `others`."""
        return cls(
            options.columns,
            unit,
            features,
            question=options.question,
            values=LabelValues.parse(options.label_values or ""),
            format=options.format,
            split=options.split,
            drop_members=options.drop_members,
            **others,
        )

    def recall(self, names: Collection[str]) -> Reading:
        """Return the same with what is `recalled` of the source, as far as a file with these names
        has it, where this one is silent. What it has not stays `recalled`: a sparse file may lack
        columns of labels.
        """
        there = {
            role: column
            for role, column in self.recalled.items()
            if column in names or ("+" in column and {*names} >= {*column.split("+")})
        }
        coding, columns = self.recalled_values, {**there, **self.columns}
        choices, responses, ranks = (
            columns.get(r, r) in names for r in ("choice", "responses", "ranks")
        )
        of_choices = choices or (coding.first is not None and responses and not ranks)
        fits = self.values == DEFAULT and (coding.first is not None) == of_choices
        missing = {r: name for r, name in self.recalled.items() if r not in columns}
        values = coding if fits else self.values
        return replace(self, columns=columns, values=values, recalled=missing)

    def get_column_name(self, role: str) -> str:
        """Return the name of a role's column, whether there is one or not."""
        return self.columns.get(role, role)

    def find_columns_of(self, feature: FeatureColumn, kind: str) -> tuple[str, ...]:
        """Return the columns of a feature in a layout: one for each side, a list, or a stratum's.

        They are called NAME_a and NAME_b (NAME_chosen and NAME_rejected, NAME beside lists), or as
        `columns` says.
        """
        if feature.kind == "stratum":
            return (feature.name,)
        return tuple(self.get_column_name(feature.name + side) for side in FEATURE_SIDES[kind])

    def list_feature_columns(self) -> tuple[str, ...]:
        """Return the columns of all features, in any layout."""
        columns = (self.find_columns_of(f, kind) for f in self.features for kind in FEATURE_SIDES)
        return tuple(dict.fromkeys(name for names in columns for name in names))

    def is_declared_public(self, column: str) -> bool:
        """Return whether a column was declared public, by its name or that of both sides."""
        return not set(list_names_that_declare(column)).isdisjoint(self.public_columns)


def merge_reading_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with those of their `reading`, where they are silent, and with
    `labeler_column` and `no_prompt`, if given, among their `columns`.

    Raises `InvalidLabels` for a `reading` that is no `lg.Reading`, and if `columns` names what
    `labeler_column` or `no_prompt` say, too.
    """
    others, usual = dict(options), vars(ReadingOptions())
    reading = others.pop("reading", None) or ReadingOptions()
    if not isinstance(reading, ReadingOptions):
        kind = type(reading).__name__
        raise InvalidLabels(f"reading expects lg.Reading(columns=…, label_values=…), found {kind}")
    given = vars(reading)
    named = {**given["columns"], **(others.get("columns") or {})}
    for name, value in given.items():
        if value != usual[name] and others.get(name, usual[name]) in (None, usual[name]):
            others[name] = value
    if labelers := others.pop("labeler_column", None):
        if "labeler_id" in named:
            raise InvalidLabels("--columns names labeler_id, and so does --labeler-column")
        named["labeler_id"] = labelers
    if others.pop("no_prompt", False):
        if named.get("prompt"):
            raise InvalidLabels("--columns names a prompt, and --no-prompt says that there is none")
        named["prompt"] = ""
    return {**others, "columns": named} if named or "columns" in options else others


@dataclass(frozen=True)
class TableSchema:
    """Names and types of a file's columns, and the options of reading.

    Never a value: so no label can decide how a file is read. A `sparse` file lacks the columns for
    which no row has a value. `private` columns tell labels: no other role has them. `name` is that
    of the file in messages, which list its own columns (`listed`). `select` runs SQL for what
    objects within columns call their members (of fields, of questions), which no type tells where
    they differ from row to row.
    """

    name: str
    types: Mapping[str, DuckDBPyType]
    reading: Reading
    sparse: bool = False
    listed: Sequence[str] = ()
    private: frozenset[str] = frozenset()
    select: Callable[[str], list[tuple[Any, ...]]] = lambda query: []

    def error(self, text: str) -> InvalidLabels:
        """Return an error that names the file."""
        return InvalidLabels(f"{self.name}: {text}")

    def missing_error(self, text: str) -> InvalidLabels:
        """Return an error that names the file, and the columns that it has."""
        return self.error(f"{text}; found: {', '.join(self.listed or self.types)}")

    @property
    def treats_blanks_as_ties(self) -> bool:
        """True where blank answers are ties, which nothing may tell from others."""
        return self.reading.skips == "tie"

    def has(self, *columns: str) -> bool:
        """Return whether there are columns of these names."""
        return all(name in self.types for name in columns)

    def find_column(self, role: str) -> str | None:
        """Return the column of a role, as it was named or by the role's own name, if there is."""
        name = self.reading.get_column_name(role)
        return name if name in self.types else None

    def find_type(self, role: str) -> DuckDBPyType:
        """Return the type of that column; that of NULL if there is none."""
        return self.types.get(self.reading.get_column_name(role), SQLNULL)

    def has_all(self, *roles: str) -> bool:
        """Return whether there is a column for each of these roles.

        A sparse file lacks a side that is null in every row: which of chosen and rejected it is
        must not matter.
        """
        sides = {"chosen", "rejected"}
        if not self.sparse or not sides <= {*roles}:
            return all(map(self.find_column, roles))
        return self.has_any(*sides) and self.has_all(*({*roles} - sides))

    def has_any(self, *roles: str) -> bool:
        """Return whether there is a column for one of these roles."""
        return any(self.find_column(role) for role in roles)

    def column_sql(self, role: str) -> str:
        """Return SQL of that column; NULL if there is none."""
        name = self.find_column(role)
        return source_column(name) if name else "NULL"

    def trimmed_text_sql(self, name: str) -> str:
        """Return SQL of a column as text without blanks around it; NULL for NaN, or without it."""
        if name not in self.types:
            return "NULL::VARCHAR"
        value = nan_to_null_sql(source_column(name), self.types[name])
        return f"nullif(trim({value}::VARCHAR, {literal(WHITE_SPACE)}), '')"

    def select_public_except(self, *roles: str) -> str:
        """Return the beginning of a SELECT list: all columns but those of these roles, those called
        like them, and private ones, each with a comma.
        """
        dropped = {*roles, *map(self.reading.get_column_name, roles), *self.private}
        lower = {name.lower() for name in dropped}
        left = (name for name in self.types if name.lower() not in lower)
        return "".join(f"{source_column(name)} AS {identifier(name)}, " for name in left)


def find_content_role_columns(names: Sequence[str], columns: Mapping[str, str]) -> list[str]:
    """Return those of these columns that are called like a role of prompts and responses."""
    return _match_content_names(names, columns, ())


def find_possible_content_columns(names: Sequence[str], columns: Mapping[str, str]) -> list[str]:
    """Return those that may hold prompts or responses; `columns` names some by role."""
    members = {name.lower() for family in group_similar_names(names) for name in family}
    return _match_content_names(
        names, columns, {*PROMPTS, *MESSAGES, *CONVERSATIONS, *members} - {*CONTENTS}
    )


def _match_content_names(
    names: Sequence[str], columns: Mapping[str, str], more: Sequence[str] | set[str]
) -> list[str]:
    known = {columns.get(role, role).lower() for role in CONTENTS} | {*more}
    known -= {name.lower() for role, name in columns.items() if role not in CONTENTS}
    return [name for name in names if name.lower() in known]


def tells_a_side(name: str) -> bool:
    """Return whether a column tells, by its name, of the chosen side alone or of the other."""
    return name.lower().endswith(FEATURE_SIDES["chosen"])


def find_side_columns(names: Sequence[str], columns: Mapping[str, str]) -> list[str]:
    """Return those that tell of one side; `columns` names some by role, and others otherwise."""
    named = {column for role, column in columns.items() if tells_a_side(role)}
    others = set(columns.values()) - named
    return [n for n in names if n in named or (tells_a_side(n) and n not in others)]


def find_custom_paired_roles(columns: Mapping[str, str]) -> set[str]:
    """Return roles in `--columns` that are not ours and come in pairs: `system_a`, `system_b`.

    They name public columns that features may read; whoever reads none of them need not know.
    """
    pairs = [sides for sides in FEATURE_SIDES.values() if len(sides) > 1]
    return {
        stem + side
        for sides in pairs
        for stem in {role.removesuffix(sides[0]) for role in columns if role.endswith(sides[0])}
        for side in sides
        if all(stem + end in columns and stem + end not in ROLES for end in sides)
    }


def group_similar_names(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return fields that are called alike but for a letter or a number, or chosen and rejected."""
    members: dict[tuple[str, ...], list[tuple[int | str, str]]] = {}
    for name in names:
        match = _MEMBER.fullmatch(name)
        if match:
            stem, sign, letter, number = match.groups()
            kind = (stem.lower(), sign, "letter" if letter else "number")
            members.setdefault(kind, []).append((letter.lower() if letter else int(number), name))
    groups = [tuple(name for _, name in sorted(f)) for f in members.values() if len(f) > 1]
    lower = {name.lower(): name for name in names}
    couples = (couple for couple in _COUPLES if set(couple) <= set(lower))
    return groups + [tuple(lower[name] for name in couple) for couple in couples]
