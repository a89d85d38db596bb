"""Names and types of columns that tell what may be in them, for proposals and questions.

No value is looked at, and both sides are told by the same names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

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
# Names of columns that are most often a part of what was asked, whatever else is read.
PARTS_OF_PROMPTS = re.compile(
    r"(system|user)?[ _.-]?(prompt|messages?|history|instructions?)s?|inputs?|contexts?"
    r"|(chat|previous)[ _.-]?(history|turns)|turns|conversations?|dialog(ue)?s?|chat|quer(y|ies)"
    r"|question|passage|documents?|post|persona|background|problem",
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
    *("evaluator", "evaluator_id", "coder", "person", "participant", "participant_id"),
)
# Columns that usually say which response is preferred.
ANSWERED = ("preference", "preferred", "choice", "winner", "vote", "better", "answer", "selected")
_SIDES = ("response_a", "response_b")


@dataclass(frozen=True)
class PublishedShape:
    """A published shape: columns that it `needs`, each one of several names, and what page
    docs/formats.md says of its columns, of prompt and sides, of labels, and of who gave them.
    """

    name: str
    needs: tuple[tuple[str, ...], ...]
    columns: str
    contents: str
    label: str
    labelers: str


_HELPSTEER_NEEDS = (
    ("context", "prompt"),
    ("response1", "response_1"),
    ("response2", "response_2"),
    ("overall_preference", "preference_strength"),
)
SHAPES = (
    PublishedShape(
        "pairs",
        (),
        "`prompt`, and `response_a`, `response_b`, `label` or `chosen`, `rejected`[, `tie`]",
        "as they are",
        "`label`: a word that names a side, or as [`--label-values`](#what-labels-mean) says; or "
        "which side is `chosen`",
        "`labeler_id`",
    ),
    PublishedShape(
        "rankings",
        (),
        "`prompt`, `responses`, `ranks`",
        "lists",
        "ranks, 1 is best",
        "`labeler_id`",
    ),
    PublishedShape(
        "choices",
        (),
        "`prompt`, `responses`, `choice`",
        "lists",
        "the number of the preferred response (`--label-values first=0`: from 0; `first=1`: from "
        "1)",
        "`labeler_id`",
    ),
    PublishedShape(
        "scores",
        (("score_a",), ("score_b",)),
        "`prompt`, `response_a`, `response_b`, `score_a`, `score_b`",
        "as they are",
        "the higher score; equal is a tie",
        "`labeler_id`",
    ),
    PublishedShape(
        "hh-rlhf",
        (),
        "`chosen`, `rejected`",
        "whole dialogues, messages or texts with `\\n\\nAssistant:` before each reply; their "
        "common beginning is the prompt",
        "which side is `chosen`",
        "not in the published files",
    ),
    PublishedShape(
        "helpsteer",
        _HELPSTEER_NEEDS,
        "`context` or `prompt`; `response1`, `response2` (or `response_1`, `response_2`)",
        "as they are",
        "`overall_preference` or `preference_strength`, −3 … 3: below 0 the first is preferred, "
        "0 is a tie",
        "not in the published files",
    ),
    PublishedShape(
        "arena",
        (("conversation_a",), ("conversation_b",), ("winner",)),
        "`conversation_a`, `conversation_b`, `winner` (Chatbot Arena, MT-bench); or `prompt`, "
        "`response_a`, `response_b`, `winner`",
        "the messages that both begin with, up to `turn`, if present; or as they are",
        "`winner`: `model_a`, `model_b`, `tie`, `tie (bothbad)`, `both_bad`",
        "`judge` or `judge_hash`",
    ),
    PublishedShape(
        "argilla",
        (("fields",), ("responses",), ("external_id", "metadata", "status")),
        "`Q.responses`, `Q.responses.users`, `Q.responses.status` (`to_list(flatten=True)`, "
        "`to_datasets()`), or the REST interface's records with `responses`",
        "fields of the record",
        "the answer to question Q",
        "the user",
    ),
    PublishedShape(
        "label-studio",
        (("data",), ("annotations",)),
        "`data`, `annotations` (JSON); or the data with `annotator`, `annotation_id`, `lead_time` "
        "(JSON_MIN, CSV)",
        "fields of the task",
        "`<Pairwise>` or `<Choices>`: left or right, or the name of a field; in JSON also "
        "`<Ranker>` and a `<Rating>` each",
        "`completed_by`, `annotator`",
    ),
    PublishedShape(
        "prodigy",
        (("options",), ("accept",), ("_task_hash", "_session_id")),
        "`options` with `id` and `text`, `accept`, `answer`",
        "`prompt`, `question`, `text` or `html`; the options",
        "the option in `accept`; `answer` other than `accept` is a skip",
        "`_annotator_id`, `_session_id`, unless they are times",
    ),
)


def explain_near_misses(names: Collection[str]) -> str:
    """Return which shapes a table nearly has, and what it lacks of each; empty for none."""
    lower = {name.lower() for name in names}
    lacking = {}
    for shape in SHAPES:
        missing = [kinds for kinds in shape.needs if lower.isdisjoint(kinds)]
        if 0 < len(missing) < len(shape.needs) and len(missing) * 2 <= len(shape.needs):
            lacking[shape.name] = " and ".join(" or ".join(kinds) for kinds in missing)
    return "".join(f"; nearly {name}, without {columns}" for name, columns in lacking.items())


@dataclass(frozen=True)
class CrowdTable:
    """The results of a crowd work platform: what begins the names of columns that hold what was
    shown, and what was answered, and the columns of who answered and of the assignment.
    """

    name: str
    inputs: str
    answers: str
    labeler: str
    record: str


CROWDS = (
    CrowdTable("Mechanical Turk", "Input.", "Answer.", "WorkerId", "AssignmentId"),
    CrowdTable("Toloka", "INPUT:", "OUTPUT:", "ASSIGNMENT:worker_id", "ASSIGNMENT:assignment_id"),
)


def find_crowd_columns(schema: TableSchema) -> dict[str, str]:
    """Return the column of each role in the results of a crowd work platform, as far as names tell.

    A role that several columns may have is left out, for the refusal to ask.
    """
    for crowd in CROWDS:
        inputs = _strip(schema.types, crowd.inputs)
        answers = _strip(schema.types, crowd.answers)
        if inputs and answers and schema.has(crowd.labeler):
            break
    else:
        return {}
    columns = {"labeler_id": crowd.labeler}
    if schema.has(crowd.record):
        columns["record_id"] = crowd.record
    sides = list_two_sides(list(inputs)) or find_two_sided_columns(list(inputs))
    if len(sides) == 1:
        columns |= zip(_SIDES, map(inputs.__getitem__, sides[0]), strict=True)
    shown = {name: schema.types[column] for name, column in inputs.items()}
    used = sides[0] if sides else ()
    prompts = find_possible_prompts(replace(schema, types=shown), shown, used, by_type=False)
    if len(prompts) == 1:
        columns["prompt"] = inputs[prompts[0]]
    question = schema.reading.question
    labels = [question] if question in answers else list(answers)
    if len(labels) == 1:
        columns["label"] = answers[labels[0]]
    return columns


def _strip(names: Iterable[str], beginning: str) -> dict[str, str]:
    """Return names that begin so, by what follows."""
    return {name.removeprefix(beginning): name for name in names if name.startswith(beginning)}


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


def find_two_sided_columns(names: Collection[str]) -> list[tuple[str, str]]:
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
    known = [group for group in group_similar_names(names) if len(group) == len(_SIDES)]
    listed = (*known, *find_two_sided_columns(names))
    return [both for both in listed if not _BESIDE.fullmatch(_CAPITAL.sub("_", both[0]))]


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
    labels = [name for name in free if name.lower() in ANSWERED]
    people = [name for name in free if name.lower() in PEOPLE]
    for role, names in (("prompt", prompts), ("label", labels), ("labeler_id", people)):
        known |= {role: names[0]} if names and role in missing else {}
    return known
