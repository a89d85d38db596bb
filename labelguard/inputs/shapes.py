"""Names and types of columns that tell what may be in them, for proposals and questions.

No value is looked at, and both sides are told by the same names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from duckdb.sqltypes import DuckDBPyType

from labelguard.inputs.columns import (
    ANSWERS,
    CONTENTS,
    OPTIONAL,
    TableSchema,
    group_similar_names,
    tells_a_side,
)

# Names of columns that usually hold what was asked, beside these: whole, or as the last word.
_ASKED = re.compile(
    r"(.*[^a-z])?(prompts?|instructions?|questions?|contexts?|query|queries|inputs?|problems?"
    r"|messages|histor(y|ies)|dialog(ue)?s?|conversations?|chats?|posts?|articles?|sources?|goals?"
    r"|tasks?|topics?|system|documents?|passages?|requests?|user|human|text|title|body|turns)",
    re.IGNORECASE,
)
# Names of columns that tell of a row, of who labeled it, or of an answer: none of them was asked.
_BESIDE = re.compile(
    r"(.*[^a-z])?(id|ids|idx|index|row|number|key|hash|uuid|guid|md5|split|subset|fold|lang|language"
    r"|locale|date|time|timestamp|tstamp|at|duration|seconds|url|link|ip|country|age|gender|version"
    r"|models?|systems?|engine|generator|dataset|category|type|tags?|status|state|label(er)?s?"
    r"|annotat(or|ion)s?|rater|worker|judge|reviewer|performer|assessor|name|email|score|scores"
    r"|rank|ranks|ratings?|votes?|won|wins?|winner|choice|preference|preferred|pref|better|grade"
    r"|strength|margin|confidence|comments?|reasons?|rationale|explanation|justification|feedback"
    r"|tie|agreement|difficulty|notes?|tokens?|length|metadata|meta|extra|flags?|skip)"
    r"([^a-z].*)?",
    re.IGNORECASE,
)
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_SIDE = re.compile(r"(.*?)([ ._-]?)(a|b|1|2|left|right|one|two|first|second)", re.IGNORECASE)
_OTHER_SIDE = dict(
    pair
    for a, b in (("a", "b"), ("1", "2"), ("left", "right"), ("one", "two"), ("first", "second"))
    for pair in ((a, b), (b, a))
)
# Columns that usually say who gave a label.
PEOPLE = (
    *("annotator", "annotator_id", "rater", "rater_id", "worker", "worker_id", "workerid"),
    *("user_id", "labeler", "judge", "performer", "reviewer", "assessor", "user"),
)
# Columns that usually say which response is preferred.
_LABELS = ("preference", "preferred", "choice", "winner", "vote", "better", "answer", "selected")
_SIDES = ("response_a", "response_b")


def find_possible_prompts(
    schema: TableSchema, names: Iterable[str], used: Collection[str], *, by_type: bool
) -> list[str]:
    """Return those of these columns that may be the prompt, and are not `used`: by their names, and
    `by_type` any text or list of which the name does not say something else.
    """
    reading = schema.reading
    known = {*OPTIONAL, *ANSWERS} - {"question"}
    taken = {name.lower() for name in (*used, *known, *reading.columns.values())}
    taken |= {name.lower() for name in reading.list_feature_columns()}
    telling, others = [], []
    for name in sorted(names):
        if name.lower() in taken or tells_a_side(name) or name in schema.private:
            continue
        words = _CAPITAL.sub("_", name)
        if _ASKED.fullmatch(words):
            telling.append(name)
        elif by_type and not _BESIDE.fullmatch(words) and _can_hold_prompts(schema.types[name]):
            others.append(name)
    return telling + others


def _can_hold_prompts(kind: DuckDBPyType) -> bool:
    # In JSON, whether nothing but nulls is in a column may follow from the labels.
    return kind.id in ("varchar", "list", "array", "null") or str(kind) == "JSON"


def find_two_sided_labels(names: Collection[str]) -> list[tuple[str, str]]:
    """Return pairs of columns that are called alike but for the side, and hold no response."""
    families = {name for family in group_similar_names(tuple(names)) for name in family}
    lower = {name.lower(): name for name in names}
    pairs = []
    for name in sorted(names):
        match = _SIDE.fullmatch(name)
        if match is None or not match[1] or name in families or name.lower() in CONTENTS:
            continue
        end = match[3].lower()
        other = lower.get((match[1] + match[2] + _OTHER_SIDE[end]).lower())
        if other and list(_OTHER_SIDE).index(end) % 2 == 0:
            pairs.append((name, other))
    return pairs


def explain_scores(one: str, other: str) -> str:
    """Return the way to read two columns that are the label together."""
    return (
        f"{one} and {other} may be the label: --columns score_a={one},score_b={other} (the "
        "higher is preferred, equal is a tie)"
    )


def list_two_sides(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return pairs of columns that are called like two responses."""
    return [group for group in group_similar_names(names) if len(group) == len(_SIDES)]


def propose_columns(
    schema: TableSchema, missing: Sequence[str], free: Sequence[str]
) -> dict[str, str]:
    """Return columns that may be the roles that are missing, by their names."""
    known: dict[str, str] = {}
    sides = list_two_sides(free)
    if {*_SIDES} <= {*missing} and sides:
        known |= zip(_SIDES, sides[0], strict=True)
    types = set(free) & schema.types.keys()
    prompts = find_possible_prompts(schema, types, known.values(), by_type=False)
    labels = [name for name in free if name.lower() in _LABELS]
    people = [name for name in free if name.lower() in PEOPLE]
    for role, names in (("prompt", prompts), ("label", labels), ("labeler_id", people)):
        known |= {role: names[0]} if names and role in missing else {}
    return known
