"""What the values of labels mean is said by somebody, or by words that name a side; never assumed.

Worlds differ in labels only: no refusal here depends on one.
"""

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from support import exports
from support.commands import FIRST, run
from support.published import read, user
from support.releases import make_release

import labelguard as lg
from labelguard.budget.label_values import CODINGS, LabelValues
from labelguard.errors import InvalidLabels, NoCoding, PolicyError
from labelguard.inputs.columns import Reading
from labelguard.inputs.layouts import name_sides
from labelguard.inputs.pairs import read_public_pairs
from labelguard.inputs.query import LABEL_FAULT
from labelguard.report import overview
from labelguard.text import LABEL_A, LABEL_B, LABEL_SKIP, LABEL_TIE

A, B, TIE, SKIP, BAD = "a", "b", "tie", None, "outside"
SAID = {LABEL_A: A, LABEL_B: B, LABEL_TIE: TIE, LABEL_SKIP: SKIP, LABEL_FAULT: BAD}
PRICE: dict[str, Any] = {"mechanism": "rr", "epsilon": 3, "delta": 1e-5}
NOTHING_SAYS = "nothing says what they mean"


def pairs(labels, **columns):
    """Pairs of one labeler; in canonical order the first response is `response_a`."""
    count = len(labels)
    asked = {"labeler_id": ["x"] * count, "prompt": [f"p{n:02}" for n in range(count)]}
    sides = {"response_a": ["one"] * count, "response_b": ["other"] * count}
    return pa.table(asked | sides | {"label": labels} | columns)


def meaning(labels, here, coding=None, **reading):
    """What staging gets of labels."""
    frame = exports.read(pairs(labels), here, values=LabelValues.parse(coding or ""), **reading)
    return [SAID[label] for label in frame["label"]]


NUMBERS = {"1": A, " 1.0\t": A, "TRUE": A, "true": A, "0": B, "-0.0": B, "False": B, "0.5": TIE}
NUMBERS |= {"2": BAD, "-1": BAD, "tie": BAD, "a": BAD, "": SKIP}
TURNED = {A: B, B: A}
WORDS = {"tie": TIE, "TIE": TIE, "0.5": BAD, "": SKIP}
ONE_TWO = WORDS | {"1": A, "2.0": B, "0": BAD, "3": BAD}
TRUTH = WORDS | {"true": A, "True": A, "FALSE": B, "1": BAD, "0": BAD}
SEVEN = {"1": A, "2": A, "3.0": A, "4": TIE, "5": B, "7": B, "0": BAD, "8": BAD, "3.5": BAD}
THREE = {"-3": A, "-1.0": A, "0": TIE, "1": B, "3": B, "-4": BAD, "tie": BAD, "": SKIP}


def turn(expected):
    return {value: TURNED.get(said, said) for value, said in expected.items()}


READ: dict[str, Mapping[str, str | None]] = {
    "1-0": NUMBERS,
    "0-1": turn(NUMBERS),
    "1-2": ONE_TWO,
    "2-1": turn(ONE_TWO),
    "true-false": TRUTH,
    "false-true": turn(TRUTH),
    "a-b": WORDS | {"A": A, "a": A, "B": B, "b": B, "model_a": BAD, "1": BAD},
    "left-right": WORDS | {"left": A, "LEFT": A, "Right": B, "a": BAD, "1": BAD},
    "1..7": SEVEN,
    "7..1": turn(SEVEN),
    "-3..3": THREE,
    "3..-3": turn(THREE),
    "1..4": {"1": A, "2": A, "3": B, "4": B, "2.5": BAD, "0": BAD},
    "0..1": {"0": A, "1": B, "0.5": BAD, "2": BAD},
    "1-2,tie=3,skip=9": {"1": A, "2": B, "3": TIE, "9": SKIP, "tie": BAD},
    "a=win|won,b=loss,tie=draw,skip=n/a": {"won": A, "loss": B, "draw": TIE, "n/a": SKIP, "1": BAD},
}
assert CODINGS.keys() <= READ.keys()


@pytest.mark.parametrize("coding", READ)
def test_every_coding_reads_what_it_says(coding, tmp_path):
    expected = READ[coding]
    assert meaning([*expected], tmp_path, coding) == [*expected.values()]
    values = LabelValues.parse(coding)
    assert LabelValues.parse(str(values)) == values
    assert LabelValues.parse({m: getattr(values, m) for m in (A, B, "tie", "skip")}) == values


def test_numbers_and_booleans_of_every_type_are_read_by_a_coding(tmp_path):
    for coding, first in (("1-0", A), ("0-1", B)):
        for kind in (pa.int8(), pa.int64(), pa.float32(), pa.bool_()):
            read = meaning(pa.array([1, 0, None]).cast(kind), tmp_path, coding)
            assert read == [first, TURNED[first], SKIP], (coding, kind)
    assert meaning([4, 1, -3], tmp_path, "-3..3") == [BAD, B, A]


PLAIN: dict[tuple[str, str], Mapping[str, str | None]] = {
    ("response_a", "response_b"): {"A": A, "a": A, "response_b": B, "model_b": B, "tie": TIE},
    ("output A", "output B"): {"a": A, "output B": B, "output_b": BAD, "TIE": TIE, "left": BAD},
    ("left", "right"): {"left": A, "Right": B, "Tie": TIE, "a": BAD, "": SKIP},
    ("text_left", "text_right"): {"LEFT": A, "text_right": B, "a": BAD, "1": BAD},
    ("response_1", "response_2"): {"response_1": A, "response_2": B, "1": BAD, "2": BAD, "a": BAD},
    ("one", "other"): {"one": A, "other": B, "a": BAD, "b": BAD, "1": BAD, "0": BAD},
}


@pytest.mark.parametrize("sides", PLAIN, ids=" ".join)
def test_words_that_name_a_side_need_no_coding_and_numbers_name_none(sides, tmp_path):
    expected = PLAIN[sides]
    names = dict(zip(("response_a", "response_b"), sides, strict=True))
    table = pairs([*expected])
    table = table.rename_columns([names.get(name, name) for name in table.column_names])
    frame = exports.read(table, tmp_path, columns=names)
    assert [SAID[label] for label in frame["label"]] == [*expected.values()]
    assert not {"0", "1", "2", "0.5", "true"} & {*name_sides(*sides).a, *name_sides(*sides).b}


def test_a_coding_that_is_named_goes_with_columns_of_any_name(tmp_path):
    """Its words are not only those of columns that end in a and b."""
    names = {"response_a": "one", "response_b": "other"}
    table = pairs(["A", "b", "one", "1"])
    table = table.rename_columns([names.get(name, name) for name in table.column_names])
    coding = LabelValues.parse("a-b")
    frame = exports.read(table, tmp_path, columns=names, values=coding)
    assert [SAID[label] for label in frame["label"]] == [A, B, BAD, BAD]
    assert str(coding) == "a-b" and coding != LabelValues()


def test_further_pairs_have_no_labels_to_be_named():
    assert read_public_pairs(pairs([1, 0]), unit="none").table.num_rows == 2
    with pytest.raises(NoCoding):
        read_public_pairs(pairs([1, 0]), unit="item", first=True)


def refusal(source, error=NoCoding, **options):
    with pytest.raises(error) as refused:
        lg.privatize(source, **PRICE, once=True, **options)
    return str(refused.value)


def is_untouched(project):
    return [entry.kind for entry in overview.read_journal(project.state)] == ["created"] and not (
        [*project.releases.iterdir(), *project.private_maps.iterdir()] or project.work.exists()
    )


TYPES = {"numbers": pa.int64(), "fractions": pa.float64(), "true and false": pa.bool_()}


@pytest.mark.parametrize("kind", TYPES)
def test_numbers_without_a_coding_are_refused_everywhere_before_anything_is_charged(
    kind, project, tmp_path
):
    said = set()
    for labels in ([1, 0, 1], [0, 1, 0], [1, 1, None]):
        table = pairs(pa.array(labels).cast(TYPES[kind]))
        (problem,) = lg.inspect(table).problems
        with pytest.raises(NoCoding) as refused:
            lg.plan(table, epsilons=3, features="length")
        said |= {problem, str(refused.value), refusal(table, project=project)}
    message = said.pop()
    assert not said  # whatever labels are, whoever asks
    assert f"column label has {kind.replace('fractions', 'numbers')}, and {NOTHING_SAYS}" in message
    for coding in ("1-0", "0-1", "1-2", "true-false", "a-b", "left-right", "1..7", "a=@COLUMN"):
        assert coding in message
    path = exports.write(tmp_path / "labels.parquet", table.to_pylist())
    of = {"plan": None, "privatize": project}
    for command in (("plan", path), ("privatize", "--epsilon", "3", *FIRST, path)):
        # An empty coding is none: the helper adds none of its own.
        ended = run(*command, "--label-values", "", code=1, project=of[command[0]])
        assert NOTHING_SAYS in ended.stderr and len(ended.stderr.splitlines()) == 1
    assert NOTHING_SAYS in run("inspect", path, "--label-values", "").stdout.replace("\n", " ")
    assert is_untouched(project)


def test_numbers_of_text_are_outside_of_the_domain_of_words(project):
    said = refusal(pairs(["1", "0"]), InvalidLabels, project=project)
    assert "column label: found a value outside the domain" in said and "1-0" in said
    assert is_untouched(project)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_an_inspection_says_that_numbers_of_a_text_file_need_a_coding(suffix, tmp_path):
    rows = pairs([1, 0, 1]).to_pylist()
    path = exports.write(tmp_path / f"labels{suffix}", rows)
    (problem,) = lg.inspect(path).problems
    assert "column label: 3 labels outside the domain" in problem and "1-0" in problem
    assert not lg.inspect(path, label_values="1-0").problems
    path = exports.write(tmp_path / f"words{suffix}", [row | {"label": "a"} for row in rows])
    assert not lg.inspect(path).problems


def test_choices_say_from_where_they_count(project):
    row = {"labeler_id": "x", "prompt": "p", "responses": ["one", "other"]}
    said = {refusal([row | {"choice": n}], project=project) for n in (0, 1)}
    assert len(said) == 1 and "--label-values first=0 or first=1" in said.pop()
    for coding, choice in (("first=0", 1), ("first=1", 2)):
        assert str(LabelValues.parse(coding)) == coding
        made = make_release(
            [row | {"choice": choice, "prompt": coding}],
            **{**PRICE, "mechanism": "rr", "label_values": coding},
            project=lg.init(project.state.parent / coding),
        )
        assert made.card["counts"]["rows"] == 1


SYSTEMS = {"model_a": ["x", "y", "y", "z"], "model_b": ["y", "x", "y", "x"]}
BY_NAME = "a=@model_a,b=@model_b,tie=tie"


def test_labels_name_the_system_that_won(keys, places):
    reading = Reading({}, values=LabelValues.parse(BY_NAME))
    table = pairs(["x", "x", "y", "tie"], **SYSTEMS)
    found = read(table, next(places), keys, reading)
    assert found.told == {("p00", "one"), ("p01", "other"), ("p03", "a tie")}
    # A pair of one system with itself is left out whatever it says: by public columns.
    for labels in (["y", "y", "tie", "x"], ["tie"] * 4):
        other = read(pairs(labels, **SYSTEMS), next(places), keys, reading)
        assert other.public == found.public and "p02" not in dict(other.told)
    frame = exports.read(
        pairs(["z", "x", "y", "A"], **SYSTEMS), next(places), values=reading.values
    )
    assert [SAID[label] for label in frame["label"]] == [BAD, B, A, BAD]
    blank = pairs(["x"] * 4, **SYSTEMS | {"model_b": ["y", " ", "y", "x"]})
    message = read(blank, next(places), keys, reading).message
    assert "table row 2: column model_b: expected an id" in message


def test_words_beside_columns_of_systems_may_be_their_names(tmp_path):
    """By names of columns: what is in them does not matter, nor what labels are."""
    project = lg.init(tmp_path)
    apart = {"model_a": ["x"] * 2, "model_b": ["y"] * 2}
    for labels in (["x", "y"], ["y", "y"]):
        said = refusal(
            pairs(labels, **apart), InvalidLabels, label_values="a=x,b=y", project=project
        )
        assert "--label-values a=@model_a,b=@model_b" in said
        assert "--ignore-columns model_a,model_b" in said
    assert is_untouched(project)
    ignored = {"ignore_columns": ["model_a", "model_b"], "label_values": "a=x,b=y"}
    make_release(pairs(["x", "y"], **apart), project=project, **PRICE, **ignored)


@pytest.mark.parametrize(
    ("coding", "message"),
    [
        ("a=@model_x,b=@model_b", r"no column 'model_x' for --label-values \(did you mean"),
        ("a=@model_a,b=y", "a and b are one column each where one is"),
        ("a=@model_a|@model_b,b=x", "a and b are one column each"),
    ],
)
def test_columns_of_systems_are_two_that_are_there(coding, message, tmp_path):
    with pytest.raises(InvalidLabels, match=message):
        exports.read(pairs(["x"] * 4, **SYSTEMS), tmp_path, values=LabelValues.parse(coding))


def test_a_coding_may_be_a_dictionary_in_one_direction():
    named = LabelValues.parse("a=1|win,b=loss,tie=draw")
    assert LabelValues.parse({"A": ["win", 1], "b": "loss", "tie": ("draw",)}) == named
    assert LabelValues.parse({"first": 1}) == LabelValues.parse("first=1")
    assert LabelValues.parse({}) == LabelValues()
    assert LabelValues.parse({"a": True, "b": False, "tie": ()}).a == ("TRUE", "True", "true")
    with pytest.raises(InvalidLabels, match="a value cannot hold"):
        LabelValues.parse({"a": "this|that", "b": "none"})
    for turned in ({"win": "a", "loss": "b"}, {1: "a", 0: "b"}, {True: "a", False: "b"}):
        with pytest.raises(InvalidLabels, match=r"maps meanings to values.*turn it round") as said:
            LabelValues.parse(turned)
        assert ", ".join(map(repr, turned)) in str(said.value)


def test_a_coding_is_told_in_words():
    told = LabelValues.parse("1-0").explain("left", "right")
    assert told == "1 or true: left is preferred; 0 or false: right is preferred; 0.5: neither is"
    assert "the value of m_a: x is preferred" in LabelValues.parse("a=@m_a,b=@m_b").explain(
        "x", "y"
    )
    assert "from 1" in LabelValues.parse("first=1").explain("x", "y")


def test_a_source_remembers_columns_and_coding_and_refuses_another(project):
    def week(number, labels=(1, 0, 1)):
        table = pairs([*labels], label_of=[*labels]).drop_columns("label")
        texts = pa.array([f"week {number}, {text}" for text in table["prompt"].to_pylist()])
        return table.drop_columns("prompt").append_column("task", texts)

    columns = {"prompt": "task", "label": "label_of"}
    named = {"columns": columns, "label_values": {"a": 1, "b": 0}}
    lasting: dict[str, Any] = {**PRICE, "uses": 6, "accept_little_use": True, "project": project}
    first = lg.privatize(week(1), **lasting, **named)
    assert first.card["reading"]["label_values"] == "a=1,b=0"
    second = lg.privatize(week(2, (0, 0, 1)), **lasting)
    assert second.card["reading"] == first.card["reading"]
    for meaning in ("0-1", "1-0"):
        with pytest.raises(PolicyError, match="differs in label values: was 'a=1,b=0'") as refused:
            lg.privatize(week(3), **lasting, label_values=meaning)
        assert "--label-values a=1,b=0" in str(refused.value)
    with pytest.raises(NoCoding):
        lg.privatize(week(3), **lasting, label_values="")
    more = week(3).append_column("other", week(3)["label_of"])
    with pytest.raises(PolicyError, match="differs in label: was 'label_of', found 'other'"):
        lg.privatize(more, **lasting, columns={"label": "other"})
    assert len(overview.list_releases(project.state)) == 2


def test_words_that_name_sides_ask_for_nothing_whatever_they_say(keys, places):
    """A column without any value is one of words, too."""
    worlds = (["A", "b"], ["b", "b"], ["tie", "A"], [None, None])
    found = [
        read(
            [{**row, "prompt": [user(row["prompt"])]} for row in pairs(labels).to_pylist()],
            next(places),
            keys,
            Reading({}, skips="tie"),
        )
        for labels in worlds
    ]
    assert len({str(one.public) for one in found}) == 1
    assert not re.search(NOTHING_SAYS, found[0].message)
