"""Preference data in every shape that is published, and what a reading of it tells.

`SHAPES[format].rows(preferences)` are a file's rows: one comparison a preference, which is `a`,
`b`, `tie` or None (no answer). What is compared is the same whatever is preferred.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from support.codings import choose_values

from labelguard.budget.label_values import DEFAULT
from labelguard.errors import LabelguardError, OutsideDomain
from labelguard.inputs import formats, query, readers, sources
from labelguard.inputs.staging import StagingOptions, stage
from labelguard.project.attempts import find_reason
from labelguard.storage import buckets

Rows = list[dict[str, Any]]
Preference = str | None

# What both sides say, of three questions in turn; one says nothing.
SAID = (("Use a map.", "Use a list."), ("Ask first.", "Just do it."), ("", "No."))


def question(number):
    return f"What of {number}?"


def sides(number):
    return SAID[number % len(SAID)]


def who(number):
    return f"w{number % 3}"


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def by_position(number, preference):
    """The sides as chosen and rejected; of a tie, as they come."""
    one, other = sides(number)
    return (other, one) if preference == "b" else (one, other)


def each(row):
    """Return what makes all rows of a function that makes one, of its number and preference."""
    return lambda preferences: [row(n, p) for n, p in enumerate(preferences)]


def _asked(n, *, beside=True):
    """Who was asked what, and both responses."""
    both = dict(zip(("response_a", "response_b"), sides(n), strict=True)) if beside else {}
    return {"labeler_id": who(n), "prompt": question(n), **both}


@each
def pairs(n, p):
    return {**_asked(n), "label": {"a": 1, "b": 0, "tie": 0.5, None: None}[p]}


@each
def mixed(n, p):
    """A prompt of messages beside sides of text, as tools for trainers write them."""
    chosen, rejected = by_position(n, p)
    row = {"prompt": [user(question(n))], "chosen": chosen, "rejected": rejected}
    return {"labeler_id": who(n), **row, "tie": p == "tie"}


@each
def rankings(n, p):
    ranks = {"a": [1, 2], "b": [2, 1], "tie": [1, 1], None: None}[p]
    return {**_asked(n, beside=False), "responses": list(sides(n)), "ranks": ranks}


@each
def scores(n, p):
    found = {"a": (0.9, -0.5), "b": (1.0, 7.0), "tie": (0.25, 0.25), None: (None, 0.5)}[p]
    return {**_asked(n), "score_a": found[0], "score_b": found[1]}


@each
def hh_rlhf(n, p):
    """Whole dialogues as texts; a tie is flagged, which the published files have no way to say."""
    begin = f"\n\nHuman: Hello\n\nAssistant: Hi\n\nHuman: {question(n)}\n\nAssistant:"
    chosen, rejected = (f"{begin} {said}" for said in by_position(n, p))
    return {"chosen": chosen, "rejected": rejected, "labeler_id": who(n), "tie": p == "tie"}


@each
def implicit(n, p):
    """TRL's implicit prompt: whole conversations as messages."""
    chosen, rejected = (
        [user("Hello"), assistant("Hi"), user(question(n)), assistant(said)]
        for said in by_position(n, p)
    )
    return {"chosen": chosen, "rejected": rejected, "labeler_id": who(n), "tie": p == "tie"}


@each
def binarized(n, p):
    """ultrafeedback_binarized: a prompt of text that both lists of messages begin with."""
    chosen, rejected = ([user(question(n)), assistant(said)] for said in by_position(n, p))
    return {
        "prompt": question(n),
        "prompt_id": f"p{n}",
        "labeler_id": who(n),
        "tie": p == "tie",
        "chosen": chosen,
        "rejected": rejected,
        "messages": chosen,
        "score_chosen": 5.0 if p == "tie" else 8.0 + n,
        "score_rejected": 5.0,
    }


@each
def helpsteer(n, p):
    """HelpSteer3: the context in messages, and how much better the second response is."""
    value = {"a": (-3, -1, -2), "b": (1, 3, 2), "tie": (0,) * 3, None: (None,) * 3}[p][n % 3]
    said = {"score": value, "reasoning": f"because {p}", "feedback1": "", "feedback2": ""}
    return {
        "domain": "general",
        "language": "english",
        "annotator": who(n),
        "context": [user("Hello"), assistant("Hi"), user(question(n))],
        **dict(zip(("response1", "response2"), sides(n), strict=True)),
        "overall_preference": value,
        "individual_preference": [said],
    }


@each
def helpsteer2(n, p):
    """HelpSteer2's preferences: prompts of text, other names."""
    return {
        "split": "train",
        "prompt": question(n),
        "annotator": who(n),
        **dict(zip(("response_1", "response_2"), sides(n), strict=True)),
        "preference_strength": {"a": -1, "b": 2, "tie": 0, None: None}[p],
        "preference_statement": f"{p} is better",
        "preference_elaboration": "",
    }


MODELS = {"model_a": "one", "model_b": "other"}
WINNERS = {"a": "model_a", "b": "model_b", "tie": "tie", None: None}


@each
def arena(n, p):
    """Chatbot Arena: battles of two models, the second of two turns judged."""
    before = [user("Hello"), assistant("Hi"), user(question(n))]
    winner = "tie (bothbad)" if p == "tie" else WINNERS[p]
    return {
        "question_id": f"q{n}",
        **MODELS,
        "winner": winner,
        "judge": who(n),
        "conversation_a": [*before, assistant(sides(n)[0])],
        "conversation_b": [*before, assistant(sides(n)[1])],
        "turn": 2,
        "anony": True,
        "language": "English",
        "tstamp": 1682351591.5 + n,
    }


@each
def mt_bench(n, p):
    """MT-bench: the first of two turns was judged; the whole conversations are in the file."""
    one, other = ([user(question(n)), assistant(said), user("More")] for said in sides(n))
    return {
        "question_id": 80 + n,
        **MODELS,
        "winner": WINNERS[p],
        "judge": who(n),
        "turn": 1,
        "conversation_a": [*one, assistant("later")],
        "conversation_b": [*other, assistant("late")],
    }


@each
def votes(n, p):
    """A winner beside a prompt and two responses, as votes of one's own arena are kept."""
    row = _asked(n)
    winner = "both_bad" if p == "tie" else WINNERS[p]
    return {"judge_hash": row.pop("labeler_id"), **row, "winner": winner}


@dataclass(frozen=True)
class Shape:
    """How a format's rows are made, what it is called, and how its labelers are."""

    rows: Callable[[Sequence[Preference]], Rows]
    format: str
    labeler: str = "labeler_id"
    # Whether a row can say that no answer was given.
    blank: bool = True


SHAPES = {
    "pairs": Shape(pairs, "pairs"),
    "mixed": Shape(mixed, "pairs", blank=False),
    "rankings": Shape(rankings, "rankings"),
    "scores": Shape(scores, "scores"),
    "hh-rlhf": Shape(hh_rlhf, "hh-rlhf", blank=False),
    "implicit": Shape(implicit, "hh-rlhf", blank=False),
    "binarized": Shape(binarized, "pairs", blank=False),
    "helpsteer": Shape(helpsteer, "helpsteer", "annotator"),
    "helpsteer2": Shape(helpsteer2, "helpsteer", "annotator"),
    "arena": Shape(arena, "arena", "judge"),
    "mt-bench": Shape(mt_bench, "arena", "judge"),
    "votes": Shape(votes, "arena", "judge_hash"),
}


def as_table(rows):
    return pa.Table.from_pylist(rows)


def as_jsonl(rows, path, *, sparse=False):
    """A file of one object a line; `sparse`: without members that are null."""
    kept = [{k: v for k, v in row.items() if not sparse or v is not None} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Outcome:
    """What a reading tells: the public part, and the labels apart, by who said what of which item.

    A label is 1 where the side that comes first in canonical order is preferred, 0 where the other
    is, 2 for a tie.
    """

    public: Any
    labels: dict[tuple[int, ...], int]
    # What was asked last, and the response that is preferred, or `a tie`.
    told: frozenset[tuple[str, str]] = frozenset()
    # What a refusal says to whoever holds the input.
    message: str = field(default="", compare=False)


def observed(error):
    """What observers see of a refusal: that there was one, and its public reason."""
    return error.exit_code, find_reason(error), isinstance(error, OutsideDomain)


# What they see of an input that cannot be read.
REFUSED = (1, "input", False)


def read(source, path, keys, reading, **options):
    """Everything that staging an input writes down or says, labels apart."""
    if reading.values == DEFAULT:
        reading = replace(reading, values=choose_values(source))
    given = StagingOptions(reading, "files", **options)
    try:
        staged = stage(source, path, keys, given)
    except LabelguardError as error:
        return Outcome(observed(error), {}, message=str(error))
    rows, texts = (_all(d) for d in (staged.rows_directory, staged.texts_directory))
    label = rows["label"].to_pylist() if rows else []
    names = [name for name in ("unit_hi", "unit_lo", "item_hi", "item_lo", "pair") if rows]
    known = [rows[n].to_pylist() for n in names if rows is not None and n in rows.column_names]
    apart = ("label", "row") if rows else ()
    public = (
        staged.public_digest,
        staged.formats,
        sorted(map(repr, rows.drop_columns([*apart]).to_pylist())) if rows else [],
        sorted(map(repr, texts.drop_columns(["row"]).to_pylist())) if texts else [],
        staged.rows_read,
        staged.rows,
        staged.identical_sides,
        staged.skipped,
        staged.fault_count,
        staged.columns,
        str(staged.content_type),
    )
    labels = dict(zip(zip(*known, strict=True), label, strict=True))
    return Outcome(public, labels, frozenset(_preferred_texts(rows, texts)))


def _preferred_texts(rows, texts):
    if rows is None or texts is None:
        return
    line = {row: index for index, row in enumerate(texts["row"].to_pylist())}
    pairs = texts.select(["prompt", "first", "second"]).to_pylist()
    for row, label in zip(rows["row"].to_pylist(), rows["label"].to_pylist(), strict=True):
        pair = pairs[line[row]]
        yield _last(pair["prompt"]), "a tie" if label == 2 else _last(pair[SIDE[label]])


SIDE = {1: "first", 0: "second"}


def _last(content):
    """A text without its speakers, or what a chat says last."""
    if isinstance(content, str):
        turns = content.removesuffix("\n\nAssistant:").rpartition("Human: ")
        return turns[2].strip()
    return str(content[-1]["content"])


def _all(directory):
    tables = (buckets.read_bucket(directory, bucket) for bucket in range(buckets.BUCKETS))
    found = [table for table in tables if table is not None]
    return pa.concat_tables(found, promote_options="permissive") if found else None


def publish(source, connection, reading):
    """What is published of an input, row by row, or that it is refused; and its labels apart."""
    try:
        (file,) = sources.resolve_input(source, roles=reading.columns)
        form = formats.apply_format(file, connection, reading)
        layout = form.find_layout(connection)
        sql = query.build_canonical_query(layout, layout.content)
        batches = list(readers.read_batches(form.file, connection, sql))
    except LabelguardError as error:
        return find_reason(error), [], []
    rows = [row for batch in batches for row in batch.to_pylist()]
    labels = [row.pop("label") for row in rows]
    shown = [{name: row[name] for name in row if name != "source_row"} for row in rows]
    return (form.format, layout.kind), list(map(repr, shown)), labels
