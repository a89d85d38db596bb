"""The table of shapes, and names and types of columns that tell what may be in them.

No value is looked at, and both sides are told by the same names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from duckdb.sqltypes import DuckDBPyType

from labelguard.inputs.columns import (
    ANSWERS,
    CONTENTS,
    CONVERSATIONS,
    LAYOUTS,
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
# What ends the name of a column of flattened records of Argilla, and columns of its records.
USERS = ".responses.users"
_RECORDS = {"external_id", "dataset_id", "_server_id", "metadata", "suggestions", "status"}


@dataclass(frozen=True)
class PublishedShape:
    """A published shape of preferences: how it is recognised, and its names.

    A file that has all columns of one of the `shown` groups, which are public, is recognised if
    `also` holds. Of several shapes that recognise a file, the one is taken that finds the columns
    of one of the groups of `labels`, where it has such. `private` columns tell labels, too: they
    are read for labels alone, and carried by nothing. `own_values`: it says what its labels mean,
    whatever the policy does. `of_tool`: it is the export of an annotation tool, whose columns are
    within objects. `about` is what messages say of it; page docs/formats.md has its `columns`,
    prompt and sides (`contents`), `label`, and who gave that (`labelers`). `needs` are columns,
    each one of several names, of which a near miss has most.
    """

    about: str
    shown: tuple[tuple[str, ...], ...]
    columns: str
    contents: str
    label: str
    labelers: str
    labels: tuple[tuple[str, ...], ...] = ()
    private: tuple[str, ...] = ()
    needs: tuple[tuple[str, ...], ...] = ()
    own_values: bool = False
    of_tool: bool = False
    also: Callable[[TableSchema], bool] = lambda schema: True

    def recognises(self, schema: TableSchema) -> bool:
        """Return whether a file has the public columns of this shape, by names and types."""
        return any(schema.has_all(*roles) for roles in self.shown) and self.also(schema)

    def has_label_columns(self, schema: TableSchema) -> bool:
        """Return whether a file has columns of labels, or a name was given for one."""
        named = ("label",) in self.labels and "label" in schema.reading.columns
        return not self.labels or named or any(schema.has_all(*roles) for roles in self.labels)

    def list_shown(self, schema: TableSchema) -> tuple[str, ...]:
        """Return the first group of public columns that a file has."""
        return next(roles for roles in self.shown if schema.has_all(*roles))


_PAIR = LAYOUTS["pairs"][:3]
_PREFERENCES = ("overall_preference", "preference_strength")
# Every shape by name, in the order in which they are tried.
SHAPES: Mapping[str, PublishedShape] = {
    "argilla": PublishedShape(
        "records of Argilla with the status of every response (Q.responses, Q.responses.users, "
        "Q.responses.status; or items of its REST interface)",
        ((),),
        "`Q.responses`, `Q.responses.users`, `Q.responses.status` (`to_list(flatten=True)`, "
        "`to_datasets()`), or the REST interface's records with `responses`",
        "fields of the record",
        "the answer to question Q",
        "the user",
        needs=(("fields",), ("responses",), ("external_id", "metadata", "status")),
        of_tool=True,
        also=lambda schema: (
            any(name.endswith(USERS) for name in schema.types)
            or schema.types.keys() == {"items", "total"}
            or (schema.has("fields", "responses") and not _RECORDS.isdisjoint(schema.types))
        ),
    ),
    "label-studio": PublishedShape(
        "tasks of Label Studio with data and annotations (JSON), or with annotator, annotation_id "
        "and lead_time beside the data (JSON_MIN, CSV)",
        (("data", "annotations"), ("annotator", "annotation_id", "lead_time")),
        "`data`, `annotations` (JSON); or the data with `annotator`, `annotation_id`, `lead_time` "
        "(JSON_MIN, CSV)",
        "fields of the task",
        "`<Pairwise>` or `<Choices>`: left or right, or the name of a field; in JSON also "
        "`<Ranker>` and a `<Rating>` each",
        "`completed_by`, `annotator`",
        needs=(("data",), ("annotations",)),
        of_tool=True,
    ),
    "prodigy": PublishedShape(
        "tasks of Prodigy's choice interface: text, options with id and text, accept, answer",
        (("options", "_task_hash"), ("options", "_session_id")),
        "`options` with `id` and `text`, `accept`, `answer`",
        "`prompt`, `question`, `text` or `html`; the options",
        "the option in `accept`; `answer` other than `accept` is a skip",
        "`_annotator_id`, `_session_id`, unless they are times",
        labels=(("accept",),),
        private=("accept", "answer"),
        needs=(("options",), ("accept",), ("_task_hash", "_session_id")),
        own_values=True,
    ),
    "pairs": PublishedShape(
        "prompt, chosen, rejected; or prompt, response_a, response_b, label",
        (_PAIR, LAYOUTS["chosen"]),
        "`prompt`, and `response_a`, `response_b`, `label` or `chosen`, `rejected`[, `tie`]",
        "as they are",
        "`label`: a word that names a side, or as [`--label-values`](#what-labels-mean) says; or "
        "which side is `chosen`",
        "`labeler_id`",
        labels=(LAYOUTS["chosen"], ("label",)),
    ),
    "scores": PublishedShape(
        "prompt, response_a, response_b and the scores of both, score_a and score_b: the higher is "
        "preferred",
        (_PAIR,),
        "`prompt`, `response_a`, `response_b`, `score_a`, `score_b`",
        "as they are",
        "the higher score; equal is a tie",
        "`labeler_id`",
        labels=(("score_a",), ("score_b",)),
        private=("score_a", "score_b"),
        needs=(("score_a",), ("score_b",)),
        own_values=True,
    ),
    "helpsteer": PublishedShape(
        "context (or prompt), response1, response2 and overall_preference from -3 (the first is "
        "much better) to 3",
        tuple(
            (prompt, f"response{sign}1", f"response{sign}2")
            for prompt in ("context", "prompt")
            for sign in ("", "_")
        ),
        "`context` or `prompt`; `response1`, `response2` (or `response_1`, `response_2`)",
        "as they are",
        "`overall_preference` or `preference_strength`, −3 … 3: below 0 the first is preferred, "
        "0 is a tie",
        "not in the published files",
        labels=tuple((name,) for name in _PREFERENCES),
        private=(
            *_PREFERENCES,
            *("individual_preference", "preference_statement", "preference_elaboration"),
        ),
        needs=(
            ("context", "prompt"),
            ("response1", "response_1"),
            ("response2", "response_2"),
            _PREFERENCES,
        ),
        own_values=True,
    ),
    "arena": PublishedShape(
        "conversation_a, conversation_b (or prompt, response_a, response_b), and the winner: "
        "model_a, model_b, tie or both bad",
        (CONVERSATIONS, _PAIR),
        "`conversation_a`, `conversation_b`, `winner` (Chatbot Arena, MT-bench); or `prompt`, "
        "`response_a`, `response_b`, `winner`",
        "the messages that both begin with, up to `turn`, if present; or as they are",
        "`winner`: `model_a`, `model_b`, `tie`, `tie (bothbad)`, `both_bad`",
        "`judge` or `judge_hash`",
        labels=(("winner",),),
        private=("winner",),
        needs=(("conversation_a",), ("conversation_b",), ("winner",)),
        own_values=True,
    ),
    "choices": PublishedShape(
        "prompt, responses, choice (the number of the preferred response, from 0)",
        (("prompt", "responses"),),
        "`prompt`, `responses`, `choice`",
        "lists",
        "the number of the preferred response (`--label-values first=0`: from 0; `first=1`: from "
        "1)",
        "`labeler_id`",
        also=lambda schema: (
            schema.reading.format == "choices"
            or (
                not schema.has_all("ranks")
                and (schema.has_all("choice") or schema.reading.values.first is not None)
            )
        ),
    ),
    "rankings": PublishedShape(
        "prompt, responses, ranks",
        (("prompt", "responses"),),
        "`prompt`, `responses`, `ranks`",
        "lists",
        "ranks, 1 is best",
        "`labeler_id`",
    ),
    "hh-rlhf": PublishedShape(
        "chosen and rejected hold whole dialogues, whose common beginning is the prompt",
        (LAYOUTS["chosen"][1:],),
        "`chosen`, `rejected`",
        "whole dialogues, messages or texts with `\\n\\nAssistant:` before each reply; their "
        "common beginning is the prompt",
        "which side is `chosen`",
        "not in the published files",
        also=lambda schema: schema.reading.format == "hh-rlhf" or not schema.has_all("prompt"),
    ),
}
# Those that say what their labels mean, whatever the policy does.
OWN_VALUES = frozenset(name for name, shape in SHAPES.items() if shape.own_values)


def explain_near_misses(names: Collection[str]) -> str:
    """Return which shapes a table nearly has, and what it lacks of each; empty for none."""
    lower = {name.lower() for name in names}
    lacking = {}
    for name, shape in SHAPES.items():
        missing = [kinds for kinds in shape.needs if lower.isdisjoint(kinds)]
        if 0 < len(missing) < len(shape.needs) and len(missing) * 2 <= len(shape.needs):
            lacking[name] = " and ".join(" or ".join(kinds) for kinds in missing)
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
