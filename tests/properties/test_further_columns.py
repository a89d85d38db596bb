"""Adding any column or member, of any name, to either side of any file: either the file is refused
whatever its labels say, or what is published stays as it is.
"""

import csv
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import exports
from support.published import SHAPES, publish

from labelguard.inputs import readers, shapes
from labelguard.inputs.columns import ROLES, Reading

SOURCES = Path(shapes.__file__).parent
MEMBERS = (
    *("role", "content", "name", "tool_calls", "tool_call_id", "type", "text", "url"),
    *("from", "value", "image", "image_url", "path", "detail"),
)
# Columns that a format reads where they are there: one more changes what a file says.
READ = {
    *ROLES,
    *(name for form in shapes.SHAPES.values() for name in form.private),
    *("winner_model_a", "winner_model_b", "winner_tie", "judge", "judge_hash", "tstamp", "turn"),
    *("conversation_a", "conversation_b", "context", "response1", "response2", "response_1"),
    *("response_2", "data", "annotations", "annotator", "annotation_id", "lead_time", "drafts"),
    *("interface", "id", "updated_at", "created_at", "items", "total", "fields", "responses"),
    *("metadata", "external_id", "dataset_id", "_server_id", "completion"),
    # What may be a prompt, or a response, of whole dialogues and in an export of a tool.
    *("instruction", "question", "query", "input", "problem", "user_prompt", "conversations"),
}


def list_own_names():
    """All names that our own SQL gives to anything, and that it reads."""
    text = "".join(path.read_text("utf-8") for path in SOURCES.rglob("*.py"))
    names = {*re.findall(r"\bAS (\w+)", text), *re.findall(r"lambda (\w+):", text)}
    names |= {"part", "part as it is", "named", "encoded", "ordered", "pairs", "*", "#1", "e0"}
    return sorted({*names, *READ, *MEMBERS, "of the file: chosen", "chosen_1", ""})


COMPUTED = [
    f"labelguard: {name}"
    for name in ("one", "other", "shared", "beginning", "answer", "user", "status", "value")
]
SAID = ("chosen", "rejected", "response_a", "response_b", "prompt", "label")
NAMES = list_own_names()
# How many files `make test` tries.
FEW = 150
VALUES: tuple[Any, ...] = (
    *(None, "Use a map.", "left", "", 1, 0.5, True, "a", "w0"),
    [{"role": "user", "content": "What of 1?"}, {"role": "assistant", "content": "No."}],
    *(["\n\nHuman: Hello", " Hi"], [1, 2], {"content": "No."}),
)
ASKED = {"argilla": {"question": exports.NAME}, "label-studio": {"question": exports.NAME}}


def of_tools(write):
    """Rows of an export; nobody's answer is a tie, which Label Studio has no way to say."""

    def rows(preferences):
        answers = [
            {
                "labeler_id": f"w{number % 3}",
                "prompt": f"What of {number}?",
                "response_a": "Use a map.",
                "response_b": "Use a list.",
                "label": 1 if preference == "a" else 0,
            }
            for number, preference in enumerate(preferences)
        ]
        return write(answers)

    return rows


WRITERS: dict[str, tuple[Any, dict[str, Any]]] = {
    **{name: (shape.rows, {}) for name, shape in SHAPES.items()},
    "flat records": (of_tools(exports.argilla_flat), ASKED["argilla"]),
    "records": (of_tools(exports.argilla_records), ASKED["argilla"]),
    "tasks": (of_tools(exports.label_studio), ASKED["label-studio"]),
    "rows of tasks": (of_tools(exports.label_studio_csv), ASKED["label-studio"]),
}
LABELERS = {name: shape.labeler for name, shape in SHAPES.items()}
# Each as often as it has ways to read a file.
SHAPES_TRIED = [*WRITERS, *("hh-rlhf", "implicit", "binarized", "mixed", "pairs") * 2]
DOORS = ("table", "Parquet", "rows", "JSONL", "CSV")
QUICK = (*("table",) * 24, *("Parquet",) * 3, "rows", "JSONL", "CSV")
WORLDS = ("abbaba", "babbab")
SIDES = {"chosen": "win", "rejected": "lose"}


class Case:
    """A random file: its shape and door, and what is added to it; by its number alone."""

    def __init__(self, number):
        self.number = number
        self.rng = np.random.default_rng(number)
        self.shape = self.pick(SHAPES_TRIED)
        self.door = self.pick(QUICK if number < FEW else DOORS)
        self.rows, options = WRITERS[self.shape]
        self.renamed = bool(self.rng.random() < 0.4)
        columns = {**options.get("columns", {})}
        if LABELERS.get(self.shape, "labeler_id") == "annotator":
            columns["labeler_id"] = "annotator"
        sample = self.rows("ab")
        self.columns = {
            role: name for role, name in SIDES.items() if self.renamed and role in sample[0]
        }
        self.reading = Reading(**{**options, "columns": {**columns, **self.columns}})
        # The sides of a row may be lists of messages, to which members are added.
        chats = [name for name, value in sample[0].items() if is_chat(value)]
        self.member_of = self.columns.get(c := self.pick(chats), c) if chats else None
        self.in_member = self.member_of is not None and bool(self.rng.random() < 0.5)
        names = [("role", "content"), MEMBERS, NAMES] if self.in_member else [COMPUTED, SAID, NAMES]
        self.name = self.pick((str, str, str.upper, str.title))(self.pick(self.pick(names)))
        # Of the kind of what it could stand for, or of any.
        fitting = [sample[0][name] for name in ("chosen", "rejected", "response_a")
                   if name in sample[0]]  # fmt: skip
        whole = [value.split("\n\nAssistant:") for value in fitting if isinstance(value, str)]
        self.value = self.pick(
            (fitting and self.rng.random() < 0.7 and self.pick([fitting, whole or fitting]))
            or VALUES
        )
        if self.in_member and self.name in MEMBERS:
            self.value = None  # a value would be content, of one side
        self.place = int(self.rng.integers(2))

    def pick(self, options):
        return options[int(self.rng.integers(len(options)))]

    def __repr__(self):
        what = f"member of {self.member_of}" if self.in_member else "column"
        return f"{self.shape} as {self.door}: {what} {self.name!r} = {self.value!r}"

    @property
    def is_read(self):
        """Whether one more of this name may mean something, and so may change what is read."""
        similar = re.fullmatch(r"(?i).*(response|answer|completion|output|reply|text|option|model"
                               r"|candidate|generation)[ _-]?\w", self.name.strip())  # fmt: skip
        ends = (".responses", ".users", ".status", "left", "right")
        return (
            self.name.strip().lower() in {name.lower() for name in READ}
            or similar is not None
            or self.name.lower().endswith(ends)
            or self.shape == "rows of tasks"
        )

    def write(self, worlds, path, *, added):
        """The input in these worlds, with or without what is added."""
        rows = [
            {self.columns.get(name, name): value for name, value in row.items()}
            for preferences in worlds
            for row in self.rows(preferences)
        ]
        if self.door in ("table", "Parquet"):
            table = self.add_to_table(pa.Table.from_pylist(rows)) if added else None
            table = table or pa.Table.from_pylist(rows)
            if self.door == "table":
                return table
            pq.write_table(table, path := path.with_suffix(".parquet"))
            return path
        if self.door == "rows":
            return [self.add_to_row(row) for row in rows] if added else rows
        if self.door == "JSONL":
            lines = [
                self.add_to_line(json.dumps(row)) if added else json.dumps(row) for row in rows
            ]
            (path := path.with_suffix(".jsonl")).write_text("".join(f"{ln}\n" for ln in lines))
            return path
        names = list(rows[0])
        lines = [[as_text(row.get(name)) for name in names] for row in rows]
        if added and not self.in_member:
            lines = [[*ln[: self.place], as_text(self.value), *ln[self.place :]] for ln in lines]
            names.insert(self.place, self.name)
        with (path := path.with_suffix(".csv")).open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([names, *lines])
        return path

    def add_to_table(self, table):
        if not self.in_member:
            return table.add_column(self.place, self.name, pa.array([self.value] * len(table)))
        chats = table[self.member_of].combine_chunks()
        messages, kind = chats.values, chats.values.type
        names = [field.name for field in kind]
        members = [messages.field(place) for place in range(kind.num_fields)]
        members.insert(self.place, pa.array([self.value] * len(messages)))
        names.insert(self.place, self.name)
        lists = pa.ListArray.from_arrays(chats.offsets, pa.StructArray.from_arrays(members, names))
        return table.set_column(table.column_names.index(self.member_of), self.member_of, lists)

    def add_to_row(self, row):
        if not self.in_member:
            return {self.name: self.value, **row}
        chat = [{self.name: self.value, **message} for message in row[self.member_of]]
        return {**row, self.member_of: chat}

    def add_to_line(self, line):
        member = f"{json.dumps(self.name)}: {json.dumps(self.value)}, "
        if not self.in_member:
            return "{" + member + line[1:]
        begin = f'"{self.member_of}": [{{'
        return line.replace(begin, begin + member)


def is_chat(value):
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and (
        "role" in value[0]
    )  # fmt: skip


def as_text(value):
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def publish_worlds(case, path, connection, *, added):
    """What is published in both worlds, which differ in labels alone.

    A table's schema is that of its worlds together, so both stand in one; what is in a text file
    may decide how it is read, so that it is one of each world in the slow rounds.
    """
    if case.number < FEW or case.door in ("table", "Parquet"):
        source = case.write(WORLDS, path, added=added)
        how, rows, labels = publish(source, connection, case.reading)
        half = len(rows) // 2
        return [(how, rows[:half], labels[:half]), (how, rows[half:], labels[half:])]
    files = [case.write([w], path.with_name(f"{path.name}-{n}"), added=added)
             for n, w in enumerate(WORLDS)]  # fmt: skip
    return [publish(source, connection, case.reading) for source in files]


def check(number, directory, connection, plain):
    """Try one random file; return whether it was read. `plain` is what is known of files as they
    are.
    """
    case = Case(number)
    try:
        one, other = publish_worlds(case, directory / f"{number}", connection, added=True)
    except (pa.ArrowException, ValueError):
        return False  # no such file
    assert one[:2] == other[:2], (number, case)
    if one[0] == "input" or case.is_read:
        return one[0] != "input"
    key = case.shape, case.door, case.renamed
    if key not in plain:
        path = directory / f"{number}-plain"
        plain[key] = publish_worlds(case, path, connection, added=False)
    assert [one, other] == plain[key], (number, case)
    return True


def try_files(numbers, directory):
    plain: dict[Any, Any] = {}
    with readers.connect(directory / "spill") as connection:
        connection.execute("SET threads = 1")
        read = [check(number, directory, connection, plain) for number in numbers]
    return sum(read)


def test_what_is_further_in_a_file_changes_nothing_that_is_published(tmp_path):
    assert try_files(range(FEW), tmp_path) > FEW / 3


@pytest.mark.slow
def test_what_is_further_in_five_thousand_files_changes_nothing_that_is_published(tmp_path):
    for start in itertools.islice(itertools.count(FEW, 500), 10):
        directory = tmp_path / str(start)
        directory.mkdir()
        assert try_files(range(start, start + 500), directory) > 150
