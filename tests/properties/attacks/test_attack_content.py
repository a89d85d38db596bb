"""What stands in a prompt or a response was read by the type of the column it stood in.

One side's column was of float32, the other's of float64: how a number is written showed the side.
Every case is one table of pairs; its worlds differ only in which side stands under `chosen`. All
worlds must end alike: exit code, public reason, released rows.
"""

import contextlib
import datetime
import decimal
import enum
import json
import random
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.published import REFUSED, observed
from support.releases import make_release
from support.rounds import MORE_ROUNDS

import labelguard as lg
from labelguard.errors import InvalidLabels, LabelguardError, PolicyError
from labelguard.inputs.pairs import read_public_pairs

PAIRS = 59
ZONED = datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
NAIVE = ZONED.replace(tzinfo=None)


class Color(enum.Enum):
    RED = "red"


class Word(str):
    """A text that is no plain `str`."""


# Every type of Python, numpy and pandas that an export may hold.
VALUES: dict[str, Any] = {
    "none": None,
    "true": True,
    "one": 1,
    "large": 2**63,
    "larger": 2**80,
    "fraction": 1.5,
    "zero": -0.0,
    "nan": float("nan"),
    "infinity": float("inf"),
    "complex": 1j,
    "text": "text",
    "no text": "",
    "word": Word("text"),
    "surrogate": "\ud800",
    "nul": "\0",
    "bytes": b"text",
    "decimal": decimal.Decimal("1.50"),
    "date": datetime.date(2024, 1, 2),
    "time": datetime.time(3, 4, 5),
    "naive": NAIVE,
    "zoned": ZONED,
    "span": datetime.timedelta(1),
    "uuid": uuid.UUID(int=7),
    "color": Color.RED,
    "tuple": ("a", 1),
    "set": {"a"},
    "object": object(),
    "list": ["a"],
    "numbers": [1, 2.5],
    "no list": [],
    "nulls": [None],
    "dict": {"k": 1},
    "no dict": {},
    "empty key": {"": 1},
    "number key": {1: "a"},
    "message": {"role": "user", "content": "x"},
    "part": {"type": "text", "text": "x"},
    "parts": [{"type": "text", "text": "x"}],
    "image": [{"type": "image_url", "url": "x"}],
    "part with id": [{"type": "text", "text": "x", "id": "7"}],
    **{f"np.{kind.__name__}": kind(1) for kind in (np.int8, np.int64, np.uint64, np.bool_)},
    **{f"np.{kind.__name__}": kind(0.1) for kind in (np.float16, np.float32, np.float64)},
    "np.longdouble": np.longdouble(0.1),
    "np.complex128": np.complex128(1j),
    "np.str_": np.str_("text"),
    "np.bytes_": np.bytes_(b"text"),
    "np.void": np.void(b"text"),
    "np.datetime64": np.datetime64("2024-01-02T03:04:05"),
    "np.datetime64 day": np.datetime64("2024-01-02"),
    "np.NaT": np.datetime64("NaT"),
    "np.timedelta64": np.timedelta64(1, "D"),
    "array": np.array(1.0),
    "array of text": np.array(["a", "b"]),
    "array of objects": np.array(["a", 1], dtype=object),
    "array of numbers": np.array([1.0]),
    "pd.NA": pd.NA,
    "pd.NaT": pd.NaT,
    "pd.Timestamp": pd.Timestamp(NAIVE),
    "pd.Timestamp zoned": pd.Timestamp(ZONED),
    "pd.Timedelta": pd.Timedelta(days=1),
    "pd.Period": pd.Period("2024-01"),
    "pd.Interval": pd.Interval(0, 1),
    "pd.Series": pd.Series(["a"]),
    "pl.Series": pl.Series(["a"]),
    "pa.scalar": pa.scalar("a"),
}


# Values in the language of content, which a third of all mixtures have.
TEXTS = ["text", "word", "np.str_"]


def say(content, **members):
    return [{"role": "assistant", "content": content, **members}]


PLACES: dict[str, Callable[[Any], Any]] = {
    "side": lambda value: value,
    "list": lambda value: [value],
    "role": lambda value: [{"role": value, "content": "x"}],
    "content": say,
    "name": lambda value: say("x", name=value),
    "tool calls": lambda value: say("x", tool_calls=value),
    "within tool calls": lambda value: say("x", tool_calls=[{"arguments": {"v": value}}]),
    "other member": lambda value: say("x", weight=value),
    "part": lambda value: say([value]),
    "text of a part": lambda value: say([{"type": "text", "text": value}]),
    "image": lambda value: say([{"type": "image_url", "url": value}]),
    "other member of a part": lambda value: say([{"type": "text", "text": "x", "id": value}]),
    "empty key": lambda value: [{"role": "assistant", "content": "x", "": value}],
}


def outcome(source, **options):
    """What the reading of an input tells: its contents in canonical order, or that it is none."""
    try:
        read = read_public_pairs(source, bad_rows="quarantine", **options)
    except LabelguardError as error:
        return observed(error)
    return str(read.table.schema), repr(read.table.to_pylist()), read.ids.to_pylist(), read.skipped


def rows_of(sides, swapped):
    chat = any(isinstance(side, list) for side in sides)
    rows = []
    for number, swap in enumerate(swapped):
        chosen, rejected = sides[::-1] if swap else sides
        prompt: Any = [{"role": "user", "content": f"p{number}"}] if chat else f"p{number}"
        rows.append(
            {"labeler_id": f"x{number}", "prompt": prompt, "chosen": chosen, "rejected": rejected}
        )
    return rows


def as_table(rows):
    return pa.Table.from_pylist(rows)


ROUTES: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "rows": lambda rows: rows,
    "pandas": pd.DataFrame,
    "polars": lambda rows: pl.DataFrame(rows, infer_schema_length=None),
    "arrow": as_table,
    "jsonl": lambda rows: "".join(json.dumps(row) + "\n" for row in rows),
    "parquet": lambda rows: as_table(rows),
}
WORLDS = ((False, False), (True, True), (False, True), (True, False))
# Routes on which a library gives columns one type, and with it alters what is in them: there the
# worlds are those in which all labels are turned at once.
INFERRED = ("polars", "arrow", "parquet")


def write_rows(route, rows, path):
    """The rows as this route brings them; None where it has no such values."""
    try:
        source = ROUTES[route](rows)
        if route == "jsonl":
            path = path / "labels.jsonl"
            path.write_text(source)
            return path
        if route == "parquet":
            path = path / "labels.parquet"
            pq.write_table(source, path)
            return path
    except Exception:  # whatever the library says of such values: nothing reaches labelguard
        return None
    return source


def mixtures(seed):
    """Two sides with any two values in any two places, without end."""
    chance = random.Random(seed)
    while True:
        routes, names, places = list(ROUTES), list(VALUES), list(PLACES)
        one, other = (VALUES[chance.choice(names + 20 * TEXTS)] for _ in range(2))
        place = PLACES[chance.choice(places)]
        beside = place if chance.random() < 0.7 else PLACES[chance.choice(places)]
        sides = (place(one), beside(other) if chance.random() < 0.8 else say("plain"))
        yield chance.choice(routes), sides


def chats(kind):
    return pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("more", kind)]))


BY_SIDE: dict[str, tuple[pa.DataType, pa.DataType, Any]] = {
    "A1 float32 | float64": (pa.float32(), pa.float64(), 0.1),
    "A2 date | timestamp": (pa.date32(), pa.timestamp("us"), datetime.date(2024, 1, 2)),
    "A3 timestamp | zoned": (pa.timestamp("us"), pa.timestamp("us", "UTC"), NAIVE),
}


MIDNIGHT = {datetime.date(2024, 1, 2): datetime.datetime(2024, 1, 2)}


@pytest.mark.parametrize("kinds", BY_SIDE.values(), ids=list(BY_SIDE))
@pytest.mark.parametrize("parquet", [True, False])
def test_the_type_of_a_nested_member_does_not_tell_labels(kinds, parquet, tmp_path):
    """The released file showed, in how a number or a time is written, where a response stood."""
    *types, value = kinds
    labels = np.random.default_rng(1).integers(0, 2, PAIRS)
    columns: dict[str, Any] = {"labeler_id": ["physician"] * PAIRS}
    columns["prompt"] = pa.array([say(f"{n}", more=None) for n in range(PAIRS)], chats(types[1]))
    for role, kind, side in zip(("chosen", "rejected"), types, (0, 1), strict=True):
        words = [f"{n} {'yes' if label == side else 'no'}" for n, label in enumerate(labels)]
        more = value if kind == types[0] else MIDNIGHT.get(value, value)
        columns[role] = pa.array([say(text, more=more) for text in words], chats(kind))
    table: Any = pa.table(columns)
    if parquet:
        pq.write_table(table, tmp_path / "labels.parquet")
        table = tmp_path / "labels.parquet"
    lg.init(tmp_path)
    with pytest.raises(InvalidLabels, match="must be all text"):
        made = make_release(
            table, mechanism="rr", project=tmp_path, epsilon=0.1, delta=1e-5, bad_rows="quarantine"
        )
        pytest.fail(f"{count_labels(made, labels)} of {PAIRS} labels are in the released file")


def count_labels(made, labels):
    """How many labels can be read off how the members are written."""
    found = 0
    for row in lg.load(made).iter_rows(named=True):
        texts = {
            m["content"].split()[1]: str(m["more"]) for m in (*row["chosen"], *row["rejected"])
        }
        number = int(row["chosen"][0]["content"].split()[0])
        if texts["yes"] != texts["no"]:
            plain = min(texts, key=lambda word: len(texts[word]))
            found += (plain == "yes") == (labels[number] == 0)
    return max(found, PAIRS - found) if found else 0


@pytest.mark.parametrize("made", [list, pd.DataFrame])
def test_a_time_in_a_chat_in_memory_does_not_tell_its_side(made, tmp_path):
    """A5: one time with a zone and one without made Arrow shift those of one column."""
    found = []
    for swapped in WORLDS:
        rows = rows_of((say("yes", when=ZONED), say("no", when=NAIVE)), swapped)
        found.append(outcome(made(rows)))
    assert found == [REFUSED] * len(found)


def test_the_order_of_types_in_memory_does_not_tell_labels():
    """A5: numpy.float32 beside datetime64 ended in a signal or an error, by which came first."""
    odd = (np.float32(1), np.datetime64("2024-01-02"))
    found = [outcome(rows_of(odd, swapped)) for swapped in WORLDS]
    assert found == [REFUSED] * len(found)


def test_an_empty_key_does_not_tell_which_side_has_it(tmp_path):
    """A5: an empty key chose between two ways to end."""
    found = []
    for swapped in WORLDS:
        rows = rows_of((say("yes", **{"": 1}), say("no")), swapped)
        path = tmp_path / "labels.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        found.append(outcome(path))
    assert found == [REFUSED] * len(found)


QUALITY: dict[str, tuple[pa.DataType, pa.DataType]] = {
    "float32 | float64": (pa.float32(), pa.float64()),
    "decimal | float64": (pa.decimal128(9, 2), pa.float64()),
    "float32 | text": (pa.float32(), pa.string()),
    "half | float32": (pa.float16(), pa.float32()),
}


@pytest.mark.parametrize("kinds", QUALITY.values(), ids=list(QUALITY))
@pytest.mark.parametrize("swap", [False, True])
def test_the_type_of_a_feature_does_not_tell_its_side(kinds, swap):
    """A4: a feature of 32 bits under `chosen` and of 64 under `rejected` tells, by its last digits
    and so by whether a re-export is known again, which label changed.
    """
    table = pa.table(rows_frame(("yes", "no")))
    for name, kind in zip(("a_chosen", "a_rejected"), kinds[:: -1 if swap else 1], strict=True):
        value = decimal.Decimal("0.25") if pa.types.is_decimal(kind) else np.float16(0.25)
        value = "0.25" if pa.types.is_string(kind) else value
        table = table.append_column(name, pa.array([value], kind))
    with pytest.raises(InvalidLabels) as refused:
        read_public_pairs(table, features="columns:a", public_columns=["a"])
    assert "a_chosen and a_rejected" in str(refused.value)


def battle(tokens):
    talks = [
        [{"role": "user", "content": "ask"} | more, {"role": "assistant", "content": said} | more]
        for said, count in zip(("yes", "no"), tokens, strict=True)
        for more in [{} if count is None else {"num_tokens": count, "tags": [{"at": count}]}]
    ]
    return {
        "conversation_a": talks[0],
        "conversation_b": talks[1],
        "winner": "model_a",
        "judge": "x",
    }


@pytest.mark.quick("rows", "jsonl-tokens1", "arrow-tokens0", "pandas-tokens3")
@pytest.mark.parametrize("tokens", [(1, 2), (1, 2.5), ("1", 2), (1, None)])
@pytest.mark.parametrize("route", ["rows", "jsonl", "arrow", "pandas"])
def test_other_members_of_published_conversations_are_not_read(tokens, route, tmp_path):
    plain = outcome([battle((None, None))])
    assert len(plain) == 4
    assert outcome(write_rows(route, [battle(tokens)], tmp_path)) == plain


def rows_frame(sides):
    return {"labeler_id": ["x"], "prompt": ["p"], "chosen": [sides[0]], "rejected": [sides[1]]}


@pytest.mark.parametrize("kinds", [(pa.int8(), pa.int64()), (pa.int64(), pa.float64())])
def test_whole_numbers_beside_numbers_of_64_bits_are_one_feature(kinds):
    """A column becomes one of numbers with a fraction where one value has any, or is missing."""
    found = []
    for swap in (False, True):
        table = pa.table(rows_frame(("yes", "no") if swap else ("no", "yes")))
        values = (3, 5) if swap else (5, 3)
        for name, kind, value in zip(("a_chosen", "a_rejected"), kinds, values, strict=True):
            table = table.append_column(name, pa.array([value], kind))
        found.append(
            read_public_pairs(table, features="columns:a", public_columns=["a"]).table.to_pylist()
        )
    assert found[0] == found[1]


@pytest.mark.parametrize("number", [np.float16(0.1), np.float32(0.1), np.longdouble(0.1)])
def test_a_narrow_number_in_memory_is_no_feature_of_a_side(number):
    for name in ("a_chosen", "a_rejected"):
        row = dict(rows_of(("yes", "no"), (False,))[0], a_chosen=0.1, a_rejected=0.2)
        with pytest.raises(InvalidLabels, match="numbers of 64 bits"):
            read_public_pairs([row | {name: number}], features="columns:a", public_columns=["a"])


def test_ids_of_parts_and_signed_addresses_make_no_new_units(tmp_path):
    """A8: an exporter writes them anew every night; nine exports at ε = 1 told .9 of the labels."""
    lg.init(tmp_path)
    charged = 0
    for night in range(3):
        parts = [
            [{"type": "text", "text": text}, {"type": "image_url", "url": f"https://x/{night}"}]
            for text in ("ask", "yes", "no")
        ]
        sides = [say(part, name=f"writer {night}", tool_calls=f"call_{night}") for part in parts]
        row = dict(zip(("prompt", "response_a", "response_b"), sides, strict=True), label=1)
        with contextlib.suppress(PolicyError):  # the one label of this content was released
            made = make_release(
                [row], unit="item", mechanism="rr", epsilon=1, delta=1e-5, project=tmp_path
            )
            charged += made.card["counts"]["charged"]
    assert charged == 1
    with pytest.raises(InvalidLabels, match="must be all text"):
        part = [{"type": "text", "text": "yes", "id": "7"}]
        make_release([row | {"response_a": say(part)}], unit="item", project=tmp_path)


@pytest.mark.parametrize(
    "seeds",
    [range(30), pytest.param(range(30, 30 + 600 * MORE_ROUNDS), marks=pytest.mark.slow)],
    ids=str,
)
def test_no_value_of_any_type_tells_which_side_was_chosen(seeds, tmp_path):
    read = refused = 0
    for seed in seeds:
        route, sides = next(mixtures(seed))
        found = []
        for swapped in WORLDS[: 2 if route in INFERRED else None]:
            source = write_rows(route, rows_of(sides, swapped), tmp_path)
            found.append(None if source is None else outcome(source))
        if None in found:
            continue
        assert found == found[:1] * len(found), (seed, route, sides)
        read, refused = read + (found[0] != REFUSED), refused + (found[0] == REFUSED)
    assert read > len(seeds) / 20 and refused > len(seeds) / 5
