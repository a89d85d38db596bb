"""What values beside a side are read as told which side was chosen.

A feature that was a number here and a text there was read or refused by where the texts stood.
Every case is one input in worlds that differ only in labels.
"""

import decimal
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.published import REFUSED, observed

from labelguard.errors import InvalidLabels, LabelguardError
from labelguard.inputs.pairs import read_public_pairs

Row = dict[str, Any]
WORLDS = ((False, False, False), (False, True, False), (True, False, False), (True, True, True))
TEXTS = (("a", "b"), ("c", "d"), ("e", "f"))


def outcome(source, **options):
    """What a reading tells: its pairs with their features, or how it ends."""
    options.setdefault("bad_rows", "quarantine")
    try:
        read = read_public_pairs(source, **options)
    except LabelguardError as error:
        return observed(error)
    return read.table.to_pylist(), read.ids.to_pylist(), read.skipped


def alike(sources, **options):
    """The one outcome of all worlds."""
    first, *others = (outcome(source, **options) for source in sources)
    assert others == [first] * len(others)
    return first


def lines(path, rows):
    """A JSONL file in which null members are left out."""
    texts = (
        row
        if isinstance(row, str)
        else json.dumps({name: value for name, value in row.items() if value is not None})
        for row in rows
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def pair(number, chosen, rejected, **more):
    sides = {"chosen": chosen, "rejected": rejected}
    return {"labeler_id": f"x{number}", "prompt": f"p{number}", **sides, **more}


def world(values, swapped):
    """Pairs with a value `m` of each side, of which some labels are turned."""
    rows = []
    for number, (texts, both, swap) in enumerate(zip(TEXTS, values, swapped, strict=True)):
        order = -1 if swap else 1
        m = dict(zip(("m_chosen", "m_rejected"), both[::order], strict=True))
        rows.append(pair(number, *texts[::order], **m))
    return rows


VALUES: dict[str, tuple[str, list[tuple[Any, Any]]]] = {
    "numbers in text": ("columns", [("0.1", 0.2), ("0.3", 0.4), ("0.5", 0.6)]),
    "decimal numbers": ("columns", [(decimal.Decimal("1.5"), 0.5)] * 2 + [(2, 1)]),
    "truth values, or nothing": ("columns", [(True, False), (True, None), (True, None)]),
    "truth values and numbers": ("columns", [(True, 1), (True, 0), (False, 2)]),
    "large whole numbers": ("columns", [(2**63, 1), (5, -1), (-(2**54) - 3, 1.5)]),
    "names and numbers": ("source", [("u", 1), ("v", 2), ("u", 1)]),
    "names and truth values": ("source", [(True, "u"), (True, "v"), (False, "u")]),
    "names and fractions": ("source", [(1, "u"), (None, "v"), (1, "u")]),
    "names and nothing": ("source", [(None, "u"), (None, "v"), ("w", "u")]),
    "nothing": ("source", [(None, "u"), (None, "v"), (None, "w")]),
}
ROUTES: dict[str, Callable[[list[Row], Path], Any]] = {
    "rows": lambda rows, path: rows,
    "pandas": lambda rows, path: pd.DataFrame(rows),
    "jsonl": lambda rows, path: lines(path, [json.dumps(row, default=str) for row in rows]),
}


@pytest.mark.quick("rows", "pandas-numbers in text", "jsonl-names and truth values")
@pytest.mark.parametrize(("kind", "values"), VALUES.values(), ids=list(VALUES))
@pytest.mark.parametrize("route", ROUTES)
def test_what_is_beside_a_side_is_read_alike_wherever_it_stands(route, kind, values, tmp_path):
    sources = [
        ROUTES[route](world(values, swapped), tmp_path / f"{number}" / "labels.jsonl")
        for number, swapped in enumerate(WORLDS)
    ]
    alike(sources, features=f"{kind}:m", public_columns=["m"])


def test_numbers_and_names_of_one_kind_are_read():
    """The usual: numbers are features, names and whole numbers are sources."""
    for kind, values in (("columns", [(1, 2.5)] * 3), ("source", [("u", "v")] * 3),
                         ("source", [(1, 2)] * 3)):  # fmt: skip
        rows = [world(values, swapped) for swapped in WORLDS]
        read = alike(rows, features=f"{kind}:m", public_columns=["m"])
        assert read != REFUSED and len(read[0]) == 3
        assert read == alike(list(map(pd.DataFrame, rows)), features=f"{kind}:m",
                             public_columns=["m"])  # fmt: skip


def test_a_narrow_number_in_an_array_is_no_feature_of_a_side():
    row = pair(0, "a", "b", m_chosen=0.1, m_rejected=np.array(0.1, np.float32))
    with pytest.raises(InvalidLabels, match="numbers of 64 bits"):
        read_public_pairs([row], features="columns:m", public_columns=["m"])


def test_a_side_of_missing_numbers_is_a_side_of_nothing():
    """A column of NaN alone is one of numbers in pandas, and one of objects beside a text."""
    sides = [(np.nan, "b"), (np.nan, "d")], [(np.nan, "b"), ("d", np.nan)]
    alike([pd.DataFrame([pair(n, *side) for n, side in enumerate(one)]) for one in sides])


@pytest.mark.parametrize("jsonl", [False, True], ids=["rows", "jsonl"])
@pytest.mark.parametrize("beside", [True, False], ids=["beside", "instead"])
def test_keys_in_capitals_do_not_tell_their_side(jsonl, beside, tmp_path):
    found = []
    for name, other in (("chosen", "rejected"), ("rejected", "chosen")):
        row = {"labeler_id": "x", "prompt": "p", name.title(): "a", other: "b"}
        rows = [row | {name: "a"} if beside else row]
        found.append(outcome(lines(tmp_path / "labels.jsonl", rows) if jsonl else rows))
    assert found == [REFUSED] * 2


@pytest.mark.parametrize("jsonl", [False, True], ids=["rows", "jsonl"])
def test_a_side_without_values_does_not_decide_the_format(jsonl, tmp_path):
    """Scores were private where both sides had chats, and features where one side had none."""
    chats = [[{"role": "assistant", "content": text}] for text in ("a", "b")]
    found = []
    for sides in (((None, chats[0]), (None, chats[1])), ((None, chats[0]), (chats[1], None))):
        scores = {"score_chosen": 1.5, "score_rejected": 2.5}
        rows = [pair(number, *side, **scores) for number, side in enumerate(sides)]
        source: Any = lines(tmp_path / "labels.jsonl", rows) if jsonl else rows
        found.append(outcome(source, features="columns:score", public_columns=["score"]))
    assert found == [REFUSED] * 2


BROKEN: dict[str, tuple[list[tuple[str, str]], str]] = {
    "an end of line": ([("a\nb", "c")], ".csv"),
    "a carriage return": ([("c", ""), ("a", "\r")], ".csv"),
    "a line that begins with one": ([("a\r", "b"), ("\rc", "d")], ".csv"),
    "an empty line": ([("a", "b"), ("c", "d\n"), ("e", "f")], ".csv"),
    "a quote inside, or a quoted end": ([('5" a', '"b\rc"'), ("d", "e")], ".csv"),
    "a quote, or bytes": ([('"a"b', "\udcff")], ".csv"),
    "a value, or bytes": ([('"a"//', '"\udcff"')], ".json"),
}


@pytest.mark.parametrize(("sides", "suffix"), BROKEN.values(), ids=list(BROKEN))
@pytest.mark.parametrize("first", [False, True])
def test_a_text_that_breaks_its_file_does_not_tell_its_side(sides, suffix, first, tmp_path):
    """pandas does not quote a carriage return: at the end of a line it was read over."""
    path = tmp_path / f"labels{suffix}"
    for swapped in itertools.product((1, -1), repeat=len(sides)):
        rows = [both[::order] for both, order in zip(sides, swapped, strict=True)]
        text = json_text(rows) if suffix == ".json" else csv_text(rows, first)
        path.write_bytes(text.encode(errors="surrogateescape"))
        assert outcome(path) == REFUSED


def csv_text(rows, first):
    """Both sides in the first columns, or in the last."""
    lines = [("labeler_id", "prompt", "chosen", "rejected")]
    lines += [(f"w{n}", "p", *row) for n, row in enumerate(rows)]
    return "".join(",".join(line[2:] + line[:2] if first else line) + "\n" for line in lines)


def json_text(rows):
    head = '"labeler_id": "x", "prompt": "p"'
    return "\n".join(f'{{{head}, "chosen": {c}, "rejected": {r}}}' for c, r in rows)
