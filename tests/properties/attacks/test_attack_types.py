"""Which side was chosen decided, by the types of its column, whether a run stopped and how.

Every case is one table of pairs; its worlds differ only in which side stands under `chosen`. All
worlds must end alike: exit code, public reason, item ids, released rows.
"""

import datetime
import itertools
import json
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.published import observed
from support.releases import make_release

import labelguard
from labelguard.errors import LabelguardError
from labelguard.inputs.pairs import read_public_pairs

MEMBERS: dict[str, Any] = {
    "nothing": None,
    "true": True,
    "whole": 1,
    "fraction": 1.5,
    "large": 2**63,
    "text": "text",
    "day": "2024-01-01",
    "no list": [],
    "numbers": [1],
    "texts": ["a"],
    "nulls": [None],
    "no members": {},
    "object": {"k": 1},
    "upper object": {"K": 1},
    "objects": [{"k": 1}],
}
CONTENTS: dict[str, Any] = {
    "null": None,
    "text": "text",
    "empty": "",
    "number": 1,
    "true": True,
    "no message": [],
    "object": {"a": 1},
    "numbers": [1],
    "lists": [[]],
    "nulls": [None],
    "chat": [{"role": "user", "content": "x"}],
    "chat with a null": [{"role": "user", "content": "x"}, None],
    "chat of parts": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
    "chat without text": [{"role": "user", "content": None}],
    "chat in capitals": [{"Role": "user", "Content": "x"}],
    "Id": [{"role": "user", "content": "x", "Id": "1"}],
    "id": [{"role": "user", "content": "x", "id": "2"}],
    "both": [{"role": "user", "content": "x", "id": "2", "Id": "1"}],
}


def message(member):
    return [{"role": "assistant", "content": "calls", "tool": member}]


def rows_of(sides, swapped):
    chat = any(isinstance(side, list) for side in sides)
    found = []
    for number, swap in enumerate(swapped):
        chosen, rejected = sides[::-1] if swap else sides
        prompt = [{"role": "user", "content": f"p{number}"}] if chat else f"p{number}"
        found.append(
            {"labeler_id": f"x{number}", "prompt": prompt, "chosen": chosen, "rejected": rejected}
        )
    return found


def outcome(source, **options):
    """What the reading of an input tells: its contents in canonical order, or that it is none."""
    try:
        read = read_public_pairs(source, **options)
    except LabelguardError as error:
        return observed(error)
    return str(read.table.schema), read.table.to_pylist(), read.ids.to_pylist(), read.skipped


def release(path, source, **options):
    """What an observer of a run sees, but for the released labels."""
    labelguard.init(path)
    try:
        made = make_release(source, epsilon=3, delta=1e-5, project=path, **options)
    except LabelguardError as error:
        return observed(error)
    frame = labelguard.load(made)
    sides = [sorted(map(repr, pair)) for pair in frame.select("chosen", "rejected").rows()]
    return 0, str(frame.schema), frame["item_id"].to_list(), sides, made.card["counts"]


def as_jsonl(rows, path):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


WORLDS = ((False, False), (False, True), (True, True))


def worlds(sides):
    return [rows_of(sides, swapped) for swapped in WORLDS]


SLOW = pytest.mark.slow
# Every kind of member beside an object, every kind of content beside a chat; the rest is slow.
JSON_CASES = [
    pytest.param(
        (message(one), message(MEMBERS[b])),
        id=f"member {a} | {b}",
        marks=[] if b == "object" else SLOW,
    )
    for a, one in MEMBERS.items()
    for b in ("nothing", "text", "object")
    if a != b
] + [
    pytest.param((one, CONTENTS[b]), id=f"{a} | {b}", marks=[] if b == "chat" else SLOW)
    for a, one in CONTENTS.items()
    for b in ("null", "text", "chat", "Id")
    if a != b
]


@pytest.mark.quick("member nothing | object", "text | chat")
@pytest.mark.parametrize("sides", JSON_CASES)
def test_no_type_in_jsonl_tells_which_side_was_chosen(sides, tmp_path):
    found = []
    sound = rows_of(("yes", "no"), (False,)) if not any(map(is_list, sides)) else []
    for number, rows in enumerate(worlds(sides)):
        here = tmp_path / str(number)
        here.mkdir()
        source = as_jsonl(rows + sound, here / "labels.jsonl")
        found.append(outcome(source, bad_rows="quarantine"))
    assert found == found[:1] * len(found)


# Of which Arrow makes one type or none, by which of them is first.
IN_MEMORY: list[tuple[Any, Any]] = [
    (datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), -1),
    (True, np.float32(1)),
    (b"x", "x"),
    (2**63, -1),
]


@pytest.mark.quick("member nothing | object-list", "number | chat-DataFrame")
@pytest.mark.parametrize("made", [list, pd.DataFrame])
@pytest.mark.parametrize("sides", [*JSON_CASES, *IN_MEMORY])
def test_no_type_of_rows_in_memory_tells_which_side_was_chosen(sides, made):
    """A column had one type or several, by which side of each row stood in it."""
    found = [outcome(made(rows), bad_rows="quarantine") for rows in worlds(sides)]
    assert found == found[:1] * len(found)


ANSWERS: list[list[Any]] = [[0, 0], [0, 1], [0, "tie"], [True, 1], [0.5, "b"], [2**70, -1]]


@pytest.mark.parametrize("made", [list, pd.DataFrame])
def test_no_type_of_a_label_in_memory_tells_what_it_is(made):
    """Numbers beside a text were refused, so that who saw the error knew of the text."""
    found = []
    for labels in ANSWERS:
        rows = rows_of(("yes", "no"), (False, False))
        for row, label in zip(rows, labels, strict=True):
            row |= {"response_a": row.pop("chosen"), "response_b": row.pop("rejected")}
            row["label"] = label
        found.append(outcome(made(rows), label_values="1-0"))
    assert found == found[:1] * len(found)


def is_list(side):
    return isinstance(side, list)


def chats(kind):
    return pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("tool", kind)]))


DAY = datetime.date(2024, 1, 1)
TYPES: dict[str, tuple[pa.DataType, Any]] = {
    "null": (pa.null(), None),
    "bool": (pa.bool_(), True),
    "int8": (pa.int8(), 1),
    "int64": (pa.int64(), 1),
    "uint64": (pa.uint64(), 2**63),
    "half": (pa.float16(), None),
    "double": (pa.float64(), 1.0),
    "decimal": (pa.decimal128(9, 2), 1),
    "text": (pa.string(), "1"),
    "view": (pa.string_view(), "1"),
    "words": (pa.dictionary(pa.int32(), pa.string()), "1"),
    "bytes": (pa.binary(), b"1"),
    "date": (pa.date32(), DAY),
    "time": (pa.timestamp("us"), datetime.datetime(2024, 1, 1)),
    "zoned": (pa.timestamp("us", "UTC"), datetime.datetime(2024, 1, 1)),
    "span": (pa.duration("us"), datetime.timedelta(1)),
    "month span": (pa.month_day_nano_interval(), None),
    "map": (pa.map_(pa.string(), pa.string()), [("k", "v")]),
    "nulls": (pa.list_(pa.null()), [None]),
    "numbers": (pa.list_(pa.int64()), [1]),
    "two numbers": (pa.list_(pa.int64(), 2), [1, 2]),
    "objects": (pa.list_(pa.struct([("k", pa.int64())])), [{"k": 1}]),
    "empty struct": (pa.struct([]), {}),
    "k": (pa.struct([("k", pa.string())]), {"k": "1"}),
    "K": (pa.struct([("K", pa.string())]), {"K": "1"}),
    "k null": (pa.struct([("k", pa.null())]), {"k": None}),
    "k and K": (pa.struct([("k", pa.string()), ("K", pa.string())]), {"k": "1", "K": "2"}),
}


def give_types(kinds, *, swap, member):
    """One row under two types, the column's or that of a member of its messages."""
    columns: dict[str, Any] = {"labeler_id": ["x"]}
    prompt: Any = [{"role": "user", "content": "p", "tool": None}]
    columns["prompt"] = pa.array([prompt], chats(pa.string())) if member else ["p"]
    for role, name in zip(("chosen", "rejected"), kinds[::-1] if swap else kinds, strict=True):
        kind, value = TYPES[name]
        if member:
            value = [{"role": "assistant", "content": name, "tool": value}]
            columns[role] = pa.array([value], chats(kind))
        else:
            columns[role] = pa.array([value], kind)
    return pa.table(columns)


FIRST = {("k", True, True): "members in files", ("text", False, False): "columns of tables"}
# Every type as a member in a file, beside a struct, and as a column of a table, beside text.
GRID = [
    pytest.param(
        (kind, beside),
        *how,
        id=f"{kind} | {beside}, {FIRST.get((beside, *how), how)}",
        marks=[] if (beside, *how) in FIRST else SLOW,
    )
    for kind, beside in itertools.product(TYPES, ("text", "k"))
    for how in itertools.product((False, True), repeat=2)
]


@pytest.mark.quick("null | text, columns of tables", "time | k, members in files")
@pytest.mark.parametrize(("kinds", "member", "parquet"), GRID)
def test_no_type_of_a_column_tells_which_side_was_chosen(kinds, member, parquet, tmp_path):
    found = []
    for swap in (False, True):
        here = tmp_path / str(swap)
        here.mkdir()
        source: Any = give_types(kinds, swap=swap, member=member)
        if parquet:
            try:
                pq.write_table(source, here / "labels.parquet")
            except pa.ArrowException:
                pytest.skip("Parquet has no such type")
            source = here / "labels.parquet"
        found.append(outcome(source))
    assert found[0] == found[1]


@pytest.mark.quick("Id | id")
@pytest.mark.parametrize(
    "sides",
    [
        (CONTENTS["Id"], CONTENTS["id"]),
        (CONTENTS["both"], CONTENTS["chat"]),
        (CONTENTS["null"], CONTENTS["chat"]),
        (message(True), message(1.0)),
        (message(None), message("text")),
    ],
    ids=["Id | id", "both | chat", "null | chat", "true | 1.0", "null | text"],
)
def test_no_type_tells_an_observer_of_a_release_which_side_was_chosen(sides, tmp_path):
    found = []
    for number, rows in enumerate(worlds(sides)):
        here = tmp_path / str(number)
        here.mkdir()
        source = as_jsonl(rows, here / "labels.jsonl")
        found.append(release(here, source, bad_rows="quarantine"))
    assert found == found[:1] * len(found)
