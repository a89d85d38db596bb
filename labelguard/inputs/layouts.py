"""What a table of preference labels looks like: its layouts, and which column plays which role.

Four layouts are understood: pairs (prompt, response_a, response_b, label[, tie]), chosen pairs
(prompt, chosen, rejected[, tie]), rankings (prompt, responses, ranks) and choices of the best
(prompt, responses, choice). All become canonical
pairs: the two sides in canonical order, and a label that says whether the first is preferred.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import duckdb
from duckdb.sqltypes import SQLNULL, DuckDBPyType

from labelguard.budget import public_columns
from labelguard.budget.label_values import DEFAULT, LabelValues, Skips
from labelguard.errors import InvalidLabels
from labelguard.inputs import canonical
from labelguard.inputs.canonical import Content, NotContent, is_text
from labelguard.inputs.contents import tells_a_side
from labelguard.learning.columns import FeatureColumn
from labelguard.spelling import suggest
from labelguard.text import AUTO_FORMAT

MAX_RANKED = 256

LAYOUTS: Mapping[str, tuple[str, ...]] = {
    "pairs": ("prompt", "response_a", "response_b", "label"),
    "chosen": ("prompt", "chosen", "rejected"),
    "ranking": ("prompt", "responses", "ranks"),
    "choices": ("prompt", "responses", "choice"),
}
_BY_LABELER = ("labeler", "group")
"""Units for which it must be known who gave a label."""
LISTED = ("ranking", "choices")
"""Layouts of lists of responses, which are broken into pairs."""
_OPTIONAL = (
    *("labeler_id", "tie", "item_id", "question"),
    *("ranking_id", "submitted_at", "record_id"),
)
IDS = ("labeler_id", "item_id", "question", "ranking_id", "record_id")
ROLES = tuple(dict.fromkeys([*(r for roles in LAYOUTS.values() for r in roles), *_OPTIONAL]))
PRIVATE_ROLES = ("label", "tie", "ranks", "choice")
"""Roles whose columns nothing but the label itself may depend on."""
ANSWERS = (*PRIVATE_ROLES, "chosen", "rejected")
"""Roles whose columns tell labels: the private ones, and the sides by which was preferred. Every
question may have columns of its own for them."""

NO_ID = "expected an id, found null or an empty string"
_NO_CONTENT = "expected text or chat messages, found null or a chat without messages"

PUBLIC_FAULTS: Mapping[int, tuple[str, str]] = {
    1: ("labeler_id", NO_ID),
    2: ("prompt", _NO_CONTENT),
    3: ("response_a", _NO_CONTENT),
    4: ("response_b", _NO_CONTENT),
    # One message for both: naming the empty side would name the preferred one.
    5: ("chosen or rejected", _NO_CONTENT),
    6: ("responses", "expected a list of texts or chats, found null, or a chat without messages"),
    7: ("responses", f"expected 2 to {MAX_RANKED} responses"),
    8: ("item_id", NO_ID),
    9: ("ranking_id", NO_ID),
    10: ("submitted_at", "expected a time (ISO 8601, or a whole number)"),
    # Which side lacks it is not said either.
    12: ("of a feature", "expected a finite number for every response"),
    13: ("question", NO_ID),
    14: ("of a source", "expected the name of what wrote each response, found null or blanks"),
    15: ("of a stratum", "expected a name, found null or blanks"),
}
LABEL_FAULTS: Mapping[int, tuple[str, str]] = {
    100: ("label", "found a value outside the domain"),
    101: ("tie", "contradicts the label"),
    102: ("tie", "expected true, false or nothing"),
    103: ("ranks", "expected one number for each response"),
    104: ("choice", "expected the number of a response, counted from 0"),
    105: ("choice", "expected the number of a response, counted from 1"),
}


@dataclass(frozen=True)
class Layout:
    """How one part's columns are read: its kind, and the column that plays each role.

    `types` are the columns' types by role, `content` is the type of prompt and responses.
    `features` maps what is carried for features to its columns: one for each side, or one list; of
    a stratum, one.
    `absent` columns are read as nulls. With content units the words of every side are read too, of
    which units are made (see `labelguard.inputs.canonical`).
    """

    kind: str
    columns: Mapping[str, str]
    types: Mapping[str, DuckDBPyType]
    content: Content
    features: Mapping[FeatureColumn, tuple[str, ...]]
    reading: Reading
    absent: tuple[str, ...] = ()

    @property
    def asked(self) -> bool:
        """Whether rows say which question they answer."""
        return self.reading.question is not None or "question" in self.columns

    @property
    def listed(self) -> bool:
        """Whether rows hold lists of responses."""
        return self.kind in LISTED

    @property
    def content_units(self) -> bool:
        """Whether units are made of the words of all sides."""
        return self.reading.unit == "item"

    @property
    def chat(self) -> bool:
        """Whether prompt and responses are chat messages."""
        return self.content.chat


@dataclass(frozen=True)
class Reading:
    """The choices that decide how rows are read.

    `columns` maps roles to names; `unit` is `labeler`, `group` (of labelers), `item` (what is
    compared, whoever compares it) or `none`: nobody is charged. `features` are public properties of
    responses that are carried along with their side (see `learning.columns`), of columns that are
    declared by `public_columns` (see `policy.public_columns`). Unless `labelled`,
    the columns of labels are dropped at the door: every row reads like a tie, whatever it says.
    `question` is what all rows were asked about their pair, where no column tells it. `values` is
    the domain of labels, `skips` what becomes of blank ones. `format` is one of
    `labelguard.inputs.formats`, and `split` the one to read of a dataset that has several.
    """

    columns: Mapping[str, str]
    unit: str = "labeler"
    features: tuple[FeatureColumn, ...] = ()
    labelled: bool = True
    question: str | None = None
    values: LabelValues = DEFAULT
    skips: Skips = "public"
    format: str = AUTO_FORMAT
    split: str | None = None
    public_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.question is not None and not (self.question and self.question.isprintable()):
            raise InvalidLabels("--question expects a name of printable characters")

    def carried(self, one: FeatureColumn, kind: str) -> tuple[str, ...]:
        """The columns of what is carried, in a layout: one for each side, a list, or a stratum's.

        They are called NAME_a and NAME_b (NAME_chosen and NAME_rejected, NAME beside lists), or as
        `columns` says.
        """
        if one.kind == "stratum":
            return (one.name,)
        roles = (one.name + side for side in FEATURE_SIDES[kind])
        return tuple(self.columns.get(role, role) for role in roles)

    def declares(self, column: str) -> bool:
        """Return whether a column was declared public, by its name or that of both sides."""
        return not set(public_columns.names_of(column)).isdisjoint(self.public_columns)

    def all_carried(self) -> tuple[str, ...]:
        """The columns of everything that is carried, in any layout."""
        found = (self.carried(one, kind) for one in self.features for kind in FEATURE_SIDES)
        return tuple(dict.fromkeys(column for columns in found for column in columns))


def layout(
    relation: duckdb.DuckDBPyRelation,
    name: str,
    reading: Reading,
    *,
    sparse: bool = False,
    labelers: str = "",
) -> Layout:
    """Find each role's column in a part; `InvalidLabels` says what lacks. In a `sparse` part a
    column is missing where no row has a value for it. `labelers` says where a format names them.
    """
    types = dict(zip(relation.columns, relation.types, strict=True))
    named = reading.columns
    layouts = _layouts(types, reading)
    if not reading.labelled:
        private = {named.get(role, role) for role in PRIVATE_ROLES}
        types = {column: kind for column, kind in types.items() if column not in private}
        named = {role: column for role, column in named.items() if role not in PRIVATE_ROLES}
    absent = _absent(types, reading) if sparse else ()
    types |= dict.fromkeys(absent, SQLNULL)
    part = _Part(name, reading, types, listed_columns(types, reading, sparse=sparse))
    columns = part.columns(named)
    kind = part.kind(columns, layouts)
    used = (*layouts[kind], *(r for r in _OPTIONAL if r != "tie" or kind not in LISTED))
    for role in named:
        if role in ROLES and role not in used:
            raise InvalidLabels(
                f"{name}: --columns names {role}, which does not go with columns "
                f"({', '.join(layouts[kind])})"
            )
    columns = {role: column for role, column in columns.items() if role in used}
    if "labeler_id" not in columns and reading.unit in _BY_LABELER:
        raise part.no_labelers(labelers)
    part.check_roles(columns, kind)
    part.check_values(kind)
    part.check_types(columns)
    features = {one: part.carried(one, kind, columns) for one in reading.features}
    kinds = {role: types[column] for role, column in columns.items()}
    return Layout(kind, columns, kinds, part.content(columns, kind), features, reading, absent)


@dataclass(frozen=True)
class _Part:
    """A part on the way to its layout: its columns, and those of them that messages list."""

    name: str
    reading: Reading
    types: Mapping[str, DuckDBPyType]
    shown: Sequence[str]

    def _error(self, text: str) -> InvalidLabels:
        return InvalidLabels(f"{self.name}: {text}")

    def columns(self, named: Mapping[str, str]) -> dict[str, str]:
        """The column of each role that a part has one for."""
        carried = {one.name + side for one in self.reading.features for side in _ALL_SIDES}
        known = {*ROLES, *side_roles(named), *carried}
        for role, column in named.items():
            if role not in known:
                raise InvalidLabels(
                    f"--columns: unknown role {role!r}{suggest(role, ROLES)}; "
                    f"roles: {', '.join(ROLES)}"
                )
            if column not in self.types:
                raise self._error(
                    f"no column {column!r} (given for {role}){suggest(column, self.shown)}; "
                    f"found: {', '.join(self.shown)}"
                )
        columns = {role: named.get(role, role) for role in ROLES}
        # A question is published with the labels: that a column is called so is not enough.
        return {
            role: column
            for role, column in columns.items()
            if column in self.types and (role != "question" or role in named)
        }

    def kind(self, columns: Mapping[str, str], layouts: Mapping[str, tuple[str, ...]]) -> str:
        """The kind of layout that these columns of roles make."""
        complete = [kind for kind, roles in layouts.items() if all(r in columns for r in roles)]
        if len(complete) == 1:
            return complete[0]
        if complete:
            raise self._error(
                f"columns for {' and '.join(complete)} are both present; "
                "rename or drop the columns that are not meant"
            )
        nearest = max(layouts, key=lambda kind: sum(r in columns for r in layouts[kind]))
        missing = [role for role in layouts[nearest] if role not in columns]
        wanted = " or ".join(f"({', '.join(roles)})" for roles in layouts.values())
        sides = LAYOUTS["chosen"][1:]
        if not set(sides).isdisjoint(missing) and set(sides).isdisjoint(self.shown):
            missing = [role for role in layouts[nearest] if role in (*missing, *sides)]
        free = tuple(column for column in self.shown if column not in columns.values())
        lacking = ", ".join(f"{role}{suggest(role, free)}" for role in missing)
        if self.reading.unit in _BY_LABELER and "labeler_id" not in columns:
            missing.append("labeler_id")
        named = ",".join(f"{role}=NAME" for role in missing)
        raise self._error(
            f"no column {lacking}; expected {wanted}; found: {', '.join(self.shown)}; "
            f"name columns with --columns {named}"
        )

    def no_labelers(self, labelers: str) -> InvalidLabels:
        """What is said where no column tells whose labels these are."""
        export = f"{labelers} " if labelers else ""
        return self._error(
            f"no column labeler_id{suggest('labeler_id', self.shown)}; name the one that says who "
            f"gave each label: --labeler-column NAME. {export}Without one, --unit item protects "
            "each pair that was compared instead of each person: whoever gave several labels is "
            "protected for each alone, and all of them together may tell about that person. Choose "
            "it only if nobody gave more than one label, or if that is enough; "
            f"found: {', '.join(self.shown)}"
        )

    def check_roles(self, columns: Mapping[str, str], kind: str) -> None:
        """Refuse two answers to one question, half an answer, and private columns made public."""
        if "question" in columns and self.reading.question is not None:
            raise self._error(
                f"column {columns['question']} says which question every row answers; "
                "leave out --question, or drop the column"
            )
        # Which text was chosen is a label, whatever else the column is called.
        hidden = (*PRIVATE_ROLES, *(LAYOUTS[kind][1:] if kind == "chosen" else ()))
        label = columns.get("label", "")
        stem = label.removesuffix("_a").removesuffix("_b")
        if label != stem and {f"{stem}_a", f"{stem}_b"} <= self.types.keys():
            raise self._error(
                f"column {label} tells of one side, and {stem}_a and {stem}_b of both:"
                " neither can be label, where a tie would count as a loss; make one column of both"
            )
        for role, column in columns.items():
            if role in hidden and list(columns.values()).count(column) > 1:
                raise self._error(
                    f"column {column} is {role}, which is private, and cannot be anything else too"
                )
            if kind == "chosen" and role not in hidden and tells_a_side(column):
                raise self._error(
                    f"column {column} tells of the text that was chosen, or of the other: such "
                    f"a column cannot be {role}; if it does not, rename it to {role}"
                )

    def check_values(self, kind: str) -> None:
        """Refuse words for labels that are numbers of responses, and numbers for all others."""
        counted = replace(DEFAULT, first=self.reading.values.first)
        if kind == "choices" and self.reading.values != counted:
            raise self._error(
                "--label-values names words, but choices are numbers of responses, counted "
                "from 0 or, with --label-values first=1, from 1"
            )
        if kind != "choices" and self.reading.values.first:
            raise self._error(
                "--label-values first=1 goes with choices (prompt, responses, choice) alone"
            )

    def check_types(self, columns: Mapping[str, str]) -> None:
        """Refuse ids and times whose columns cannot be what they are named."""
        for role, column in columns.items():
            kind = self.types[column]
            if role in IDS:
                fits, expected = is_id(kind), ID_EXPECTED
            elif role == "submitted_at":
                fits = is_text(kind) or kind.id in (*INTEGER, "date", "null")
                fits = fits or kind.id.startswith("timestamp")
                expected = "timestamps, ISO 8601 text or whole numbers"
            else:  # What labels are is judged row by row, whatever type their column has.
                continue
            if not fits:
                raise self._error(
                    f"column {column}: expected {expected}, found type {_short(kind)}"
                )

    def content(self, columns: Mapping[str, str], kind: str) -> Content:
        """Return what prompt and responses are; raise `InvalidLabels` if they are no content."""
        found = [self.types[columns[role]] for role in LAYOUTS[kind][: 1 if kind in LISTED else 3]]
        if kind in LISTED:
            listed = self.types[columns["responses"]]
            if listed.id not in ("list", "array"):
                raise self._error(
                    f"column {columns['responses']}: expected a list, found type {_short(listed)}"
                )
            found.append(canonical.element(listed))
        try:
            return canonical.content_of_types(found)
        except NotContent:
            raise canonical.refuse(self.name) from None

    def carried(self, one: FeatureColumn, kind: str, columns: Mapping[str, str]) -> tuple[str, ...]:
        """The columns of what is carried for a feature, checked."""
        wanted = self.reading.carried(one, kind)
        inner = []
        for column in wanted:
            if column not in self.types:
                raise self._error(
                    f"no column {' and '.join(wanted)} for the {_NOUNS[one.kind]} {one.name}"
                    f"{_near(one, kind, self.types)}; found: {', '.join(self.shown)}"
                )
            self._check_public(one, column, kind, columns)
            if not self.reading.declares(column):
                raise self._undeclared(one, column)
            inner.append(self.types[column])
        if kind in LISTED and one.kind != "stratum":
            inner = [canonical.element(k) if k.id in ("list", "array") else k for k in inner]
            inner = [k for k in inner if str(k) != "JSON"]  # lists in JSON files: judged row by row
        fits = _is_number if one.kind == "number" else is_id
        if not all(map(fits, inner)) or len({_family(k) for k in inner if k.id != "null"}) > 1:
            # Not which column, nor its type: of chosen and rejected, these would name a side.
            expected = "numbers" if one.kind == "number" else f"names ({ID_EXPECTED})"
            raise self._error(
                f"{_NOUNS[one.kind]} {one.name}: expected {expected} of one type in "
                f"{' and '.join(wanted)}, so that no value tells which side it stands on"
            )
        return wanted

    def _check_public(
        self, one: FeatureColumn, column: str, kind: str, columns: Mapping[str, str]
    ) -> None:
        """Refuse columns that tell labels or labelers, in what is carried for features.

        Names of sources and strata are published. Who labelled, an id or a time would be published
        with them, and a pair would differ by who compared it; a text is no property of its writer.
        """
        role = next((role for role, taken in columns.items() if taken == column), "")
        if role:
            why = ", which is private: it" if role in PRIVATE_ROLES else ": a column with a role"
            raise self._error(
                f"column {column} is {role}{why} cannot be a feature; expected a column "
                "of its own, that tells of the responses"
            )
        if one.kind == "number" or (one.kind == "source" and kind == "chosen"):
            return
        sides = LAYOUTS["chosen"][1:]
        answers = {columns.get(side, side) for side in sides} if kind == "chosen" else set(sides)
        if column in answers or tells_a_side(column):
            raise self._error(
                f"column {column} tells of the text that was chosen, or of the other: such a "
                f"column cannot be the {_NOUNS[one.kind]} {one.name}"
            )

    def _undeclared(self, one: FeatureColumn, column: str) -> InvalidLabels:
        """What is said of a column that nobody declared public."""
        name = public_columns.names_of(column)[-1]
        return self._error(
            f"column {column} becomes the {_NOUNS[one.kind]} {one.name} only if it is declared "
            f"public: --public-column {name}, before the project's first release. That says that "
            "it was made of prompts and responses alone (which system wrote them, what a model "
            "says of them), and of nobody's answers: who won, a score or a rating people gave. "
            "The guarantee depends on it, and no look at the file could tell"
        )


def side_roles(columns: Mapping[str, str]) -> set[str]:
    """Roles in `--columns` that are not ours, and come in pairs: `system_a` and `system_b`.

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


def listed_columns(columns: Iterable[str], reading: Reading, *, sparse: bool) -> list[str]:
    """Return the columns that messages list: of a sparse part no answers, and by their names.

    Which of chosen and rejected it has, and which it has first, may follow from labels.
    """
    if not sparse:
        return list(columns)
    answers = {reading.columns.get(role, role).lower() for role in ANSWERS}
    return sorted(c for c in columns if c.lower() not in answers and not tells_a_side(c))


def _absent(types: Mapping[str, DuckDBPyType], reading: Reading) -> tuple[str, ...]:
    """Columns that a sparse part may lack because of its labels: they are as good as there."""

    present = {column.lower() for column in types}

    def lacking(*roles: str) -> list[str]:
        columns = [reading.columns.get(role, role) for role in roles]
        return [column for column in columns if column.lower() not in present]

    pairs = not lacking("response_a", "response_b")
    sides = lacking("chosen", "rejected")
    chosen = not pairs and len(sides) < 2
    found = sides if chosen else []
    if chosen:
        for one in reading.features:
            both = reading.carried(one, "chosen")
            missing = [column for column in both if column.lower() not in present]
            found += missing if len(missing) < len(both) else []
    if reading.labelled and (pairs or chosen):
        found += lacking("tie")
    if reading.labelled and pairs and (reading.skips == "tie" or not lacking("tie")):
        found += lacking("label")
    if reading.labelled and reading.skips == "tie" and not pairs and not chosen:
        role = "choice" if reading.format == "choices" or "choice" in reading.columns else "ranks"
        listed = not lacking("responses") and lacking("ranks") and lacking("choice")
        found += lacking(role) if listed else []
    return tuple(dict.fromkeys(found))


def _layouts(types: Mapping[str, DuckDBPyType], reading: Reading) -> Mapping[str, tuple[str, ...]]:
    """The roles of every layout; without labels, only those that are public.

    Rankings and choices then differ by the column that is there and is not read.
    """
    if reading.labelled:
        return LAYOUTS
    ranks, choice = (reading.columns.get(role, role) in types for role in ("ranks", "choice"))
    other = "ranking" if choice and not ranks else "choices"
    return {
        kind: tuple(role for role in roles if role not in PRIVATE_ROLES)
        for kind, roles in LAYOUTS.items()
        if kind != other
    }


FEATURE_SIDES: Mapping[str, tuple[str, ...]] = {
    "pairs": ("_a", "_b"),
    "chosen": ("_chosen", "_rejected"),
    "ranking": ("",),
    "choices": ("",),
}
"""How the columns of a feature are called after its name, in each layout."""
_ALL_SIDES = tuple(dict.fromkeys(side for sides in FEATURE_SIDES.values() for side in sides))


def _is_number(kind: DuckDBPyType) -> bool:
    return kind.id in (*NUMERIC, "boolean", "null") or is_text(kind)  # CSV: text


def _family(kind: DuckDBPyType) -> str:
    """Return what two columns have in common whose values are read alike.

    Whole numbers and those of 64 bits are: as DOUBLE, in which both are compared, they are one. A
    number of 32 bits is not the same in 64, nor a decimal one with fewer digits.
    """
    if is_text(kind) or kind.id == "null":
        return "text" if is_text(kind) else "null"
    return "number" if kind.id in (*INTEGER, "double") else str(kind)


_NOUNS = {"number": "feature", "source": "source", "stratum": "stratum"}
_TYPED = {"number": "columns:", "source": "source:", "stratum": "by="}


def _near(one: FeatureColumn, kind: str, types: Mapping[str, DuckDBPyType]) -> str:
    """What was probably meant, as it is typed among features."""
    sides = ("",) if one.kind == "stratum" else FEATURE_SIDES[kind]
    stems = {name.removesuffix(side) for side in sides for name in types if name.endswith(side)}
    return suggest(one.name, sorted(stems), _TYPED[one.kind])


ID_EXPECTED = "text or whole numbers"


def is_id(kind: DuckDBPyType) -> bool:
    """Whether a column can hold ids: text or whole numbers."""
    return is_text(kind) or kind.id in (*INTEGER, "uuid", "null")


def _short(kind: DuckDBPyType) -> str:
    found = str(kind).replace('"', "")
    return found if len(found) < 80 else found[:77] + "..."


INTEGER = (*canonical.INTEGERS, *canonical.LARGE_INTEGERS)
NUMERIC = (*INTEGER, *canonical.FRACTIONS)
