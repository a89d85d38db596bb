"""Formats: the shapes in which preference data is published, each turned into columns by role.

A format is recognised by names and types of columns alone, never by a value: what a label says must
not decide how a file is read. Its SQL is laid over a part where the part is opened, so that all
that follows (layouts, canonical pairs, quarantine) sees columns that are called like their roles.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import duckdb

from labelguard.errors import InvalidLabels
from labelguard.inputs import scan
from labelguard.inputs.contents import side_columns
from labelguard.inputs.formats.arena import ARENA, KAGGLE, WINNERS
from labelguard.inputs.formats.argilla import ARGILLA
from labelguard.inputs.formats.label_studio import LABEL_STUDIO
from labelguard.inputs.formats.pairs import CHOICES, PAIRS, RANKINGS, TRANSCRIPTS, refuse_thumbs
from labelguard.inputs.formats.potato import POTATO
from labelguard.inputs.formats.scores import HELPSTEER, SCORES, ULTRAFEEDBACK
from labelguard.inputs.formats.seen import Adapted, Format, Seen
from labelguard.inputs.layouts import ANSWERS, ROLES, Reading
from labelguard.inputs.sources import Part
from labelguard.spelling import suggest
from labelguard.text import AUTO_FORMAT

__all__ = ["FORMATS", "Understood", "understood"]

_TOOLS = (ARGILLA, LABEL_STUDIO, POTATO)
_SETS = (ULTRAFEEDBACK, PAIRS, KAGGLE, SCORES, HELPSTEER, ARENA, CHOICES, RANKINGS, TRANSCRIPTS)
FORMATS: Mapping[str, Format] = {one.name: one for one in (*_TOOLS, *_SETS)}
"""Every format by name. The first that recognises a part is taken, in this order, of those that
find the columns they read labels from.
"""


@dataclass(frozen=True)
class Understood:
    """A part under the format it was recognised as; `reading` knows where its roles are.

    `names` is what the file calls the roles that the format made, for messages, and `recorded` what
    the ledger keeps of them. `labelers` is what to say where nobody is named.
    """

    part: Part
    reading: Reading
    format: str
    names: Mapping[str, str] = field(default_factory=dict)
    recorded: Mapping[str, str] = field(default_factory=dict)
    labelers: str = ""
    own_values: bool = False
    """Whether the format says what its labels mean, whatever the policy does."""
    left_out: str = ""
    """SQL of how many answers it leaves out for which public reason (`Adapted.left_out`)."""
    note: str = ""


def understood(part: Part, connection: duckdb.DuckDBPyConnection, reading: Reading) -> Understood:
    """A part as its format has it: the one that `reading` names, else the one recognised.

    Raises `InvalidLabels` for a part that is not of the format that was named, and for a column of
    labels in a public role. A part that no format recognises is left as it is; `layouts.layout`
    says what it lacks.
    """
    _refuse_directories(part, (*_answers(part, reading), *WINNERS))
    types = scan.columns(part, connection)
    names = partial(scan.rows, part, connection)
    seen = Seen(types, reading, part.sparse, part=part.name, names=names)
    found = _format(part, seen)
    if found is None:
        refuse_thumbs(seen)
        return Understood(part, reading, PAIRS.name)
    private = frozenset((*found.private, *WINNERS))
    seen = replace(seen, private=private & frozenset(seen.types))
    _refuse_answers_of(part, found, reading)
    _check(part, found, seen)
    adapted = found.adapt(seen)
    if adapted is None and seen.private:
        adapted = Adapted(f"SELECT {seen.without()} FROM part", frozenset())
    if adapted is None:
        return Understood(part, reading, found.name, labelers=found.labelers)
    named = reading.columns
    if found.of_tool is None:  # else columns are within its objects
        _check_named(part, found, seen, adapted)
    for role in sorted(adapted.made & named.keys()):
        if adapted.names.get(role, named[role]) != named[role]:
            raise InvalidLabels(
                f"{part.name}: format {found.name} makes {role} of {adapted.names[role]}; leave "
                f"{role} out of --columns, or name another --format"
            )
    return Understood(
        replace(part, open=lambda connection: _laid(part.open(connection), adapted.query)),
        replace(
            reading,
            columns={
                **adapted.columns,
                **{role: name for role, name in named.items() if role not in adapted.made},
            },
            values=adapted.values or reading.values,
        ),
        found.name,
        adapted.names,
        {role: named.get(role, role) for role in adapted.made},
        found.labelers,
        adapted.values is not None and not adapted.usual,
        adapted.left_out,
        adapted.note and f"{part.name}: {adapted.note}",
    )


def _check_named(part: Part, found: Format, seen: Seen, adapted: Adapted) -> None:
    """Refuse a public column that was named and is not there, by the columns that the file has.

    In a sparse part, which columns of answers there are may follow from labels: none is listed.
    """
    named = seen.reading.columns
    own = _listed(seen)
    for role, name in named.items():
        if role not in ROLES or role in ANSWERS or name in {*seen.types, *adapted.made}:
            continue
        people = adapted.columns.get(role)
        known = (
            f"; as {found.name} its labelers are in {people!r}: leave the option out"
            if people
            else ""
        )
        raise InvalidLabels(
            f"{part.name}: no column {name!r} (given for {role}){suggest(name, own)}{known}; "
            f"found: {', '.join(own)}"
        )


def _listed(seen: Seen) -> list[str]:
    """Return the columns that messages list: of a sparse part, none that any format reads."""
    private = {name for one in FORMATS.values() for name in one.private} if seen.sparse else set()
    return [name for name in seen.listed if name not in private]


def _laid(relation: duckdb.DuckDBPyRelation, query: str) -> duckdb.DuckDBPyRelation:
    # Under a name of its own: whoever reads the laid part calls that one `part`.
    laid = relation.query("part as it is", f'WITH part AS (FROM "part as it is") {query}')
    assert laid is not None  # None is for statements without a result
    return laid


def _format(part: Part, seen: Seen) -> Format | None:
    named = seen.reading.format
    if named == AUTO_FORMAT:
        return _recognised(seen)
    if named not in FORMATS:
        raise InvalidLabels(
            f"--format: unknown format {named!r}{suggest(named, FORMATS)}; "
            f"formats: {AUTO_FORMAT}, {', '.join(FORMATS)}"
        )
    found = FORMATS[named]
    if not (found.fits or found.recognises)(seen):
        raise InvalidLabels(
            f"{part.name}: not of format {named} ({found.about}); found: {', '.join(_listed(seen))}"
        )
    return found


def _recognised(seen: Seen) -> Format | None:
    fitting = [one for one in FORMATS.values() if one.recognises(seen)]
    # Further pairs of a release have the features that its labels have, which were judged there.
    further = not seen.reading.labelled and seen.reading.unit == "none"
    if further:
        fitting = [one for one in fitting if not _hidden_feature(one, seen)]
    # Which column of labels a sparse part lacks may follow from labels. Where blanks are public
    # that tells nothing new; elsewhere, what its other columns say has to do.
    blind = seen.sparse and seen.reading.labelled and seen.reading.skips == "tie"
    telling = fitting if blind else [one for one in fitting if one.tells(seen)]
    return next(iter(telling or fitting), None)


def _hidden_feature(found: Format, seen: Seen) -> str | None:
    """A column of a feature that was asked for and that tells labels in a format, if any."""
    columns = seen.reading.all_carried()
    return next((name for name in columns if name in found.private and name in seen.types), None)


def _check(part: Part, found: Format, seen: Seen) -> None:
    """Refuse columns of labels in other roles, and labels that lack."""
    named = {*seen.reading.columns.values(), *seen.reading.all_carried()}
    for name in WINNERS:
        if name in named & seen.types.keys():
            raise InvalidLabels(
                f"{part.name}: column {name} says who won, as format {KAGGLE.name} reads it: it is "
                "private, and can be nothing else"
            )
    for role, name in seen.reading.columns.items():
        if name in seen.private and seen.column(role):
            raise InvalidLabels(
                f"{part.name}: format {found.name} reads column {name} for labels, which are "
                f"private: it cannot be {role}; leave it out of --columns, or name another --format"
            )
    feature = _hidden_feature(found, seen)
    if feature:
        raise InvalidLabels(
            f"{part.name}: format {found.name} reads column {feature} for labels, which are "
            "private: it cannot be a feature; if it tells no label, name --format pairs"
        )
    if found.private and seen.reading.labelled and not seen.sparse and not found.tells(seen):
        wanted = " or ".join(found.private)
        raise InvalidLabels(
            f"{part.name}: format {found.name} reads labels from column {wanted}, which is not "
            f"there; found: {', '.join(seen.types)}"
        )


_USUAL = ("split", "date", "year", "month", "day", "hour")
"""What data is often divided by, and nobody is asked."""


def _answers(part: Part, reading: Reading) -> frozenset[str]:
    """Columns that tell labels in any format: roles, by their own names or as they were named, and
    what tells of one side.
    """
    sides = side_columns([*part.partitions, *reading.columns.values()], reading.columns)
    named = (reading.columns.get(role, role) for role in ANSWERS)
    asked = () if reading.question is None else (reading.question,)
    return frozenset((*ANSWERS, *named, *asked, *sides))


def _refuse_directories(part: Part, names: Collection[str]) -> None:
    """Raise `InvalidLabels` if directories of `part` are named by one of these columns."""
    for name in sorted(names):
        if name.lower() in part.partitions:
            raise InvalidLabels(
                f"the input's directories are named by {name}, so that the order of its rows tells "
                "labels; write them into one table, mixed"
            )


def _refuse_answers_of(part: Part, found: Format, reading: Reading) -> None:
    """Raise `InvalidLabels` if directories of `part` are named by what `found` reads labels from.

    In exports of tools, where any column may be an answer, only those are taken that are not.
    """
    _refuse_directories(part, found.private)
    if found.of_tool is None:
        return
    roles = [role for role in ROLES if role not in ANSWERS]
    named = [reading.columns[role] for role in roles if role in reading.columns]
    named += reading.all_carried()
    public = {name.lower() for name in (*roles, *named, *_USUAL, *found.of_tool)}
    _refuse_directories(part, part.partitions - public)
