"""Rows that list what several people answered, and answers in two columns, one for each side: what
is published of them depends on no answer.

Every case is read in two worlds that differ in answers alone. Compared are the texts, the rows
without their labels, what a refusal says in public, and the counts that cards have.
"""

import csv
import json
import shutil
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.preferences import files
from support.published import publish
from support.rounds import MORE_ROUNDS

from labelguard.budget.label_values import LabelValues
from labelguard.errors import LabelguardError
from labelguard.inputs import readers, stager
from labelguard.inputs.columns import Reading
from labelguard.inputs.staging import StagingOptions, stage
from labelguard.keys.keyring import KeyRing
from labelguard.project.attempts import find_reason
from labelguard.storage import buckets
from labelguard.text import LABEL_TIE

FEW, MANY = 200, 3000 * MORE_ROUNDS
LISTS = ("annotations", "votes", "judgments", "ratings", "reviews", "Answers", "labels")
PEOPLE = ("worker", "annotator_id", "rater", "user", "labeler_id", "Annotator", "participant_id")
ANSWERED = ("label", "choice", "preference", "winner", "value", "better")
BY_SIDE = (
    *(("won_A", "won_B"), ("pref.A", "pref.B"), ("votes_1", "votes_2"), ("score_a", "score_b")),
    *(("votes for a", "votes for b"), ("win_left", "win_right"), ("rating_a", "rating_b")),
)
# What an answer may be, and the coding that says so; None: words say it themselves.
CODINGS: tuple[tuple[tuple[Any, ...], str | None], ...] = (
    (("a", "b"), None),
    (("a", "b", "tie"), None),
    ((1, 0), "1-0"),
    ((0, 1), "0-1"),
    ((1, 2), "1-2"),
    ((True, False), "true-false"),
    ((1, 2, 3, 4, 5), "1..5"),
    (("ours", "theirs"), "a=ours,b=theirs"),
)
SCORES = ((0, 1), (True, False), (0.5, 1.5, 2.5), (1, 2, 3, 4, 5), ("3", "10", "2"), (1, 1.5))
MEMBERS = ("seconds", "note", "time", "id")


COUNTS = (
    *("chat", "formats", "rows_read", "rows", "received", "identical_sides", "fault_count"),
    *("fault_reasons", "skipped", "left_out", "withdrawn", "public_digest", "columns", "faulty"),
)
DOORS = ("table", "Parquet", "JSONL", "CSV")


class Case:
    """A random table and how it is read, by a number alone; `rows(world)` have its answers."""

    def __init__(self, number):
        self.rng, self.number = np.random.default_rng([11, number]), number
        self.nested = bool(self.rng.random() < 0.5)
        self.door = self.pick(DOORS[: 3 if self.nested else 4])
        self.sides = self.pick([("response_a", "response_b"), ("answer_1", "answer_2")])
        self.person, self.skips = self.pick(PEOPLE), self.pick(("public", "tie"))
        self.listed, self.label = self.pick(LISTS), self.pick(ANSWERED)
        self.values, coding = self.pick(CODINGS) if self.nested else (self.pick(SCORES), None)
        self.by_side = self.pick(BY_SIDE)
        self.members = [name for name in MEMBERS if self.rng.random() < 0.3]
        self.shape = self.rng.integers(0, 4, int(self.rng.integers(1, 9)))
        # Who skipped is public unless skips are to count as ties.
        self.blank = self.rng.random((32, 2)) < self.rng.choice([0, 0.2])
        columns = {"response_a": self.sides[0], "response_b": self.sides[1]}
        if not self.nested:
            columns |= {"score_a": self.by_side[0], "score_b": self.by_side[1]}
            columns |= {"labeler_id": self.person}
        elif self.door == "JSONL":
            self.skips = "public"
        values = LabelValues.parse(coding or "")
        self.reading = Reading(columns, values=values, skips=self.skips)

    def pick(self, options):
        return options[int(self.rng.integers(len(options)))]

    def rows(self, world):
        answers = np.random.default_rng([12, self.number, world])
        blank = answers.permutation(self.blank) if self.skips == "tie" else self.blank

        def answer(row, side=0):
            value = self.values[int(answers.integers(len(self.values)))]
            return None if blank[row, side] else value

        rows, place = [], 0
        for item, count in enumerate(self.shape.tolist()):
            shown = {"prompt": f"What of {item}?"}
            shown |= {self.sides[0]: f"Yes, {item}.", self.sides[1]: "No."}
            given = []
            for who in range(count):
                one = {self.person: f"w{who}", self.label: answer(place)}
                one |= dict.fromkeys(self.members, f"{item} {who}")
                by_side = {name: answer(place, side) for side, name in enumerate(self.by_side)}
                given.append(one if self.nested else {self.person: f"w{who}", **by_side})
                place += 1
            rows += [{**shown, self.listed: given}] if self.nested else [shown | g for g in given]
        return rows

    def write(self, worlds, path):
        """The input of some worlds, one after the other; a table's types are those of both."""
        both = [self.rows(0), self.rows(1)]
        rows = [row for world in worlds for row in both[world]]
        if self.door in ("table", "Parquet"):
            table = pa.Table.from_pylist([*both[0], *both[1]])
            table = table.slice(worlds[0] * len(both[0]), len(rows))
            if self.door == "table":
                return table
            pq.write_table(table, path := path.with_suffix(".parquet"))
        elif self.door == "JSONL":
            path = path.with_suffix(".jsonl")
            path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        else:
            with (path := path.with_suffix(".csv")).open("w", newline="") as file:
                names = [*rows[0]] if rows else ["prompt"]
                csv.writer(file).writerows([names, *([*row.values()] for row in rows)])
        return path


def observe(case, world, path):
    """What is published of one world."""
    source = case.write([world], path.with_name("input"))
    staged_at = path / str(world)
    try:
        staged = stage(source, staged_at, KeyRing.public(), StagingOptions(case.reading, "files"))
    except LabelguardError as error:
        return find_reason(error)
    private = {"label", "tiebreak"}
    rows = [buckets.read_bucket(staged.rows_directory, number) for number in range(staged.buckets)]
    shown = [r and sorted(map(repr, r.drop_columns([*private & {*r.column_names}]).to_pylist()))
             for r in rows]  # fmt: skip
    counts = {name: getattr(staged, name) for name in COUNTS}
    return counts, shown, files(staged.texts_directory)


def compare(numbers, directory):
    """Numbers of cases in which something differs, and how many were read."""
    differ, read = [], 0
    for number in numbers:
        case, path = Case(number), directory / str(number) / "staged"
        path.mkdir(parents=True)
        one, other = observe(case, 0, path), observe(case, 1, path)
        differ += [number] if one != other else []
        read += isinstance(one, tuple)
        shutil.rmtree(path.parent)
    return differ, read


def test_nothing_read_depends_on_answers_in_lists_or_in_two_columns(tmp_path):
    """Both worlds are in one input: how it is read is the same for both."""
    read = 0
    with readers.connect(tmp_path / "spill") as connection:
        connection.execute("SET threads = 1")
        for number in range(FEW):
            case = Case(number)
            source = case.write([0, 1], tmp_path / str(number))
            _, rows, labels = publish(source, connection, case.reading)
            half = len(rows) // 2
            assert rows[:half] == rows[half:], number
            read += labels[:half] != labels[half:]
    assert read > FEW / 2


@pytest.mark.slow
def test_nothing_published_depends_on_answers_in_lists_or_in_two_columns(tmp_path):
    differ, read = compare(range(FEW, MANY), tmp_path)
    assert not differ
    assert read > MANY / 2


def test_leaving_out_ties_is_found(tmp_path, monkeypatch):
    """A negative control: rows whose label is a tie vanish."""
    whole = stager.sort_bucket

    def sort_and_drop(task, bucket):
        done = whole(task, bucket)
        if table := buckets.read_bucket(task.staged / "rows", bucket):
            ties = pc.equal(table["label"], LABEL_TIE)
            buckets.bucket_path(task.staged / "rows", bucket).unlink()
            rest = table.filter(pc.invert(ties))
            buckets.write_bucket(task.staged / "rows", bucket, rest if len(rest) else None)
        return done

    monkeypatch.setattr("labelguard.inputs.stager.sort_bucket", sort_and_drop)
    differ, _ = compare(range(12), tmp_path)
    assert differ
