"""What else is in a file took the place of what is read of it, and so told labels.

The attacker controls a file's schema or the configuration of a tool, and never a label. Every case
is one file in worlds that differ only in labels: all worlds are refused, or all publish the same.
"""

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from labelguard_connectors.argilla import answers as of_argilla
from labelguard_connectors.label_studio import answers as of_label_studio
from support import exports
from support.published import REFUSED, observed, read
from support.releases import make_release

import labelguard as lg
from labelguard.errors import InvalidLabels, LabelguardError
from labelguard.inputs.columns import Reading
from labelguard.inputs.pairs import read_public_pairs
from labelguard.inputs.readers import translate_error
from labelguard.inputs.sources import resolve_file
from labelguard.keys.keyring import KeyRing

Row = dict[str, Any]
WORLDS = ((False, False, False, False), (False, True, False, True), (True, True, True, True))
SIDES = (("one", "other"), ("yes", "no"), ("a map", "a list"), ("this", "that"))


def say(text, role="assistant"):
    return [{"role": role, "content": text}]


def pairs(swapped, *, chat=True, prompt=True, names=("chosen", "rejected"), **more):
    """Pairs of which some labels are turned, with columns that are alike in every row."""
    rows = []
    for number, (sides, swap) in enumerate(zip(SIDES, swapped, strict=True)):
        texts = sides[::-1] if swap else sides
        asked = say(f"p{number}", "user")
        both = [say(text) for text in texts] if chat else list(texts)
        if not prompt:
            said = f"\n\nHuman: p{number}\n\nAssistant:"
            both = [asked + side if chat else said + side for side in both]
        beside = {"prompt": asked if chat else f"p{number}"} if prompt else {}
        row = dict(zip(names, both, strict=True))
        rows.append({"labeler_id": f"x{number}", **beside, **row, **more})
    return pa.Table.from_pylist(rows)


def with_member(table, name, *, place=0, value=None, column="chosen"):
    """The same with one more member in the messages of one column."""
    chats = table[column].combine_chunks()
    messages = chats.values
    names = [field.name for field in messages.type]
    members = [messages.field(number) for number in range(len(names))]
    texts = [value] * len(messages)
    members.insert(place, pa.nulls(len(messages)) if value is None else pa.array(texts))
    names.insert(place, name)
    lists = pa.ListArray.from_arrays(chats.offsets, pa.StructArray.from_arrays(members, names))
    return table.set_column(table.column_names.index(column), column, lists)


def as_parquet(table, path):
    pq.write_table(table, path)
    return path


def publish(tmp_path, sources, *, unit="labeler", **reading):
    """The outcome of all worlds, which observers cannot tell apart; the labels differ."""
    found = []
    for number, source in enumerate(sources):
        given = Reading(**{"columns": {}, "unit": unit, **reading})
        path = tmp_path / f"staged-{number}-{len(list(tmp_path.iterdir()))}"
        found.append(read(source, path, KeyRing.public(), given, quarantine=True))
    assert all(one.public == found[0].public for one in found)
    if found[0].public != REFUSED:
        assert all(len(one.labels) == len(found[0].labels) for one in found)
    return found[0]


MEMBERS = {
    "an empty member in capitals": ("CONTENT", 0, None),
    "an empty member of the same name": ("content", 0, None),
    "a member of the same name": ("content", 0, "the same"),
    "an empty role in capitals": ("ROLE", 0, None),
    "an empty member after it": ("Content", 2, None),
}


@pytest.mark.quick(
    "a member of the same name-datasets",
    "an empty member in capitals-table",
    "an empty member after it-Parquet",
    "a member of the same name-polars",
)
@pytest.mark.parametrize("door", ["table", "Parquet", "datasets", "polars"])
@pytest.mark.parametrize("member", MEMBERS)
def test_a_second_member_of_one_name_takes_no_text_of_one_side(member, door, tmp_path):
    name, place, value = MEMBERS[member]
    tables = [with_member(pairs(world), name, place=place, value=value) for world in WORLDS]
    try:
        sources = [
            through(door, table, tmp_path / f"{n}.parquet") for n, table in enumerate(tables)
        ]
    except (pa.ArrowException, TypeError, ValueError):
        pytest.skip("this door takes no such type")
    plain = publish(tmp_path, [pairs(world) for world in WORLDS])
    assert publish(tmp_path, sources).public in (plain.public, REFUSED)


def through(door, table, path):
    if door == "Parquet":
        return as_parquet(table, path)
    if door == "datasets":
        datasets = pytest.importorskip("datasets")
        return datasets.Dataset(datasets.table.InMemoryTable(table))
    if door == "polars":
        return pytest.importorskip("polars").from_arrow(table)
    return table


@pytest.mark.parametrize("name", ["CONTENT", "content"])
def test_whole_dialogues_have_no_second_member_either(name, tmp_path):
    tables = [with_member(pairs(world, prompt=False), name) for world in WORLDS]
    assert publish(tmp_path, tables).public == REFUSED


def test_a_key_written_twice_in_a_message_takes_no_text_of_one_side(tmp_path):
    """JSON declares no types: the first of two keys counted, of one column alone."""
    sources = []
    for number, world in enumerate(WORLDS):
        lines = [
            json.dumps(row).replace('"chosen": [{', '"chosen": [{"content": null, ')
            for row in pairs(world).to_pylist()
        ]
        path = tmp_path / f"{number}.jsonl"
        path.write_text("".join(f"{line}\n" for line in lines))
        sources.append(path)
    assert publish(tmp_path, sources).public == REFUSED


COMPUTED = ["one", "other", "shared", "beginning", "turns", "answer", "user", "status", "value"]


@pytest.mark.quick("turns-chats", "one-chats", "value-texts", "status-texts", "answer-texts")
@pytest.mark.parametrize("chat", [True, False], ids=["chats", "texts"])
@pytest.mark.parametrize("name", COMPUTED)
def test_a_column_that_is_called_as_one_of_ours_takes_no_place(name, chat, tmp_path):
    column = f"labelguard: {name}"
    fixed: Any = say("p1", "user") + say("yes") if chat else ["\n\nHuman: p1", "yes"]
    for called in (column, column.upper()):
        tables = [pairs(world, chat=chat, prompt=False, **{called: fixed}) for world in WORLDS]
        plain = publish(tmp_path, [pairs(world, chat=chat, prompt=False) for world in WORLDS])
        assert publish(tmp_path, tables, format="hh-rlhf").public in (plain.public, REFUSED)


@pytest.mark.quick("chats-Chosen", "chats-label", "texts-REJECTED", "texts-response_a")
@pytest.mark.parametrize(
    "name", ["chosen", "Chosen", "REJECTED", "rejected", "response_a", "label"]
)
@pytest.mark.parametrize("chat", [True, False], ids=["chats", "texts"])
def test_a_column_called_like_a_role_does_not_stand_for_the_one_that_was_named(
    name, chat, tmp_path
):
    columns = {"chosen": "win", "rejected": "lose"}
    fixed: Any = say("yes") if chat else "yes"

    def tables(**more):
        return [pairs(world, chat=chat, names=("win", "lose"), **more) for world in WORLDS]

    plain = publish(tmp_path, tables(), columns=columns)
    seen = publish(tmp_path, tables(**{name: fixed}), columns=columns)
    assert seen.public in (plain.public, REFUSED)


@pytest.mark.parametrize("name", ["chosen", "Chosen", "REJECTED"])
def test_nor_where_a_prompt_of_messages_goes_with_texts(name, tmp_path):
    """The sides are made anew then, under the names of their roles."""
    columns = {"chosen": "win", "rejected": "lose"}
    sources = []
    for world in WORLDS:
        table = pairs(world, chat=False, names=("win", "lose"), **{name: say("yes")})
        asked = pa.array([say(f"p{number}", "user") for number in range(table.num_rows)])
        sources.append(table.set_column(1, "prompt", asked))
    publish(tmp_path, sources, columns=columns)


def outcome(act):
    try:
        return act()
    except LabelguardError as error:
        return observed(error)


SHADOWED: dict[str, Any] = {
    "a second member": lambda world: (with_member(pairs(world), "CONTENT"), {}),
    "a computed name": lambda world: (
        pairs(world, prompt=False, **{"labelguard: one": say("p1", "user") + say("yes")}),
        {},
    ),
    "a role's name": lambda world: (
        pairs(world, chat=False, names=("win", "lose"), Chosen=say("yes")).set_column(
            1, "prompt", pa.array([say(f"p{number}", "user") for number in range(len(SIDES))])
        ),
        {"columns": {"chosen": "win", "rejected": "lose"}},
    ),
}


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """A release with a head, which tells of each pair what it prefers."""
    options = {"mechanism": "statistic", "features": "length", "epsilon": 3, "delta": 1e-5}
    project = lg.init(tmp_path_factory.mktemp("head"))
    made = make_release(pairs(WORLDS[1], chat=False), project=project, **options)
    assert len(lg.score(made, pairs(WORLDS[0], chat=False))) == len(SIDES)
    return made


@pytest.mark.quick("a computed name")
@pytest.mark.parametrize("attack", SHADOWED)
def test_nor_through_a_plan_an_inspection_a_score_or_a_second_export(attack, head, tmp_path):
    seen: list[list[Any]] = []
    for number, world in enumerate(WORLDS[:2]):
        source, options = SHADOWED[attack](world)
        home = tmp_path / str(number)
        lg.init(home)
        told = [outcome(lambda s=source, o=options: repr(lg.plan(s, delta=1e-5, **o)))]
        told.append(outcome(lambda s=source, o=options: repr(lg.inspect(s, **o))))
        told.append(outcome(lambda s=source, o=options: lg.score(head, s, **o).to_dicts()))
        for again in range(2):
            # A re-export is recognised as the same release, or it is not, whatever labels say.
            turned = SHADOWED[attack](WORLDS[again])[0]
            told.append(outcome(lambda s=turned, h=home, o=options: release(s, h, **o)))
        seen.append(told)
    assert seen[0] == seen[1]


def release(source, home, **options):
    made = make_release(source, epsilon=3, delta=1e-5, mechanism="rr", project=home, **options)
    frame = lg.load(made)
    sides = [sorted(map(repr, pair)) for pair in frame.select("chosen", "rejected").rows()]
    return frame["item_id"].to_list(), sides, made.card["counts"]


@pytest.mark.parametrize("null", ["chosen", "rejected"])
def test_statistics_of_a_file_are_not_believed(null, tmp_path):
    """A null response was a row under `chosen`, and a fault under `rejected`."""
    texts = {"chosen": ["a", "c"], "rejected": ["b", "d"]}
    texts[null] = [texts[null][0], None]
    table = pa.table({"labeler_id": ["x", "y"], "prompt": ["p", "q"], **texts})
    path = tmp_path / "labels.parquet"
    claim_no_nulls(table, path)
    found = read(path, tmp_path / "s", KeyRing.public(), Reading(columns={}), quarantine=True)
    plain = tmp_path / "plain.parquet"
    pq.write_table(table, plain)
    honest = read(plain, tmp_path / "h", KeyRing.public(), Reading(columns={}), quarantine=True)
    assert found.public == honest.public
    assert found.public[8] == 1  # one fault


def claim_no_nulls(table, path):
    """Write a file in which both sides are said to have no nulls."""
    pq.write_table(table, path, use_dictionary=False, compression="none")
    data = bytearray(path.read_bytes())
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    group = pq.ParquetFile(path).metadata.row_group(0)
    for place in range(begin, len(data) - 9):
        # A field of statistics in Thrift's compact protocol: i64, here the number 1 by zigzag.
        if data[place : place + 2] == b"\x16\x02" or data[place : place + 2] == b"\x36\x02":
            data[place + 1] = 0
            forged = bytes(data)
            try:
                counts = [
                    pq.ParquetFile(pa.BufferReader(forged)).metadata.row_group(0).column(n)
                    for n in range(group.num_columns)
                ]
                nulls = [one.statistics.null_count for one in counts]
                sound = [one.num_values for one in counts] == [table.num_rows] * len(counts)
            except (OSError, pa.ArrowException, AttributeError):
                nulls, sound = [1], False
            if sound and not any(nulls):
                path.write_bytes(forged)
                return
            data[place + 1] = 2
    raise AssertionError("no statistics of nulls in the file")


def test_a_zero_has_no_sign_beside_whole_numbers(tmp_path):
    """A zero with a sign, where only one side's column has one, changed the digest of a request."""
    from labelguard.learning.columns import parse_feature_columns

    features = parse_feature_columns("columns:f")
    sources = []
    for world in WORLDS:
        table = pairs(world, chat=False)
        values = [(-0.0, 0.0) if swap else (0.0, -0.0) for swap in world]
        whole = pa.array([int(one) for one, _ in values], pa.int64())
        fraction = pa.array([other for _, other in values], pa.float64())
        table = table.append_column("f_chosen", whole).append_column("f_rejected", fraction)
        sources.append(table)
    publish(tmp_path, sources, features=features, public_columns=("f",))


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_a_zero_has_no_sign_beside_fractions(kind, tmp_path):
    from labelguard.learning.columns import parse_feature_columns

    features = parse_feature_columns("columns:f")
    found = []
    for zero in (0.0, -0.0):
        table = pairs(WORLDS[0], chat=False)
        for name, value in (("f_chosen", zero), ("f_rejected", 0.0)):
            table = table.append_column(name, pa.array(np.full(len(SIDES), value, kind)))
        given = Reading(columns={}, features=features, public_columns=("f",))
        found.append(read(table, tmp_path / str(zero), KeyRing.public(), given).public)
    assert found[0] == found[1]


ANSWERS = [row for row in exports.answers() if row["label"] in (0, 1)]
FLAT = exports.argilla_flat(exports.answers())


@pytest.mark.parametrize("name", ["user", "status", "value"])
def test_an_export_of_argilla_brings_no_column_of_ours(name, tmp_path):
    found = []
    for column in ({}, {f"labelguard: {name}": "submitted"}):
        table = pa.Table.from_pylist([row | column for row in FLAT])
        path = tmp_path / f"{len(column)}"
        given = Reading(columns={}, question=exports.NAME)
        found.append(read(table, path, KeyRing.public(), given, quarantine=True))
    assert found[1].public in (found[0].public, REFUSED)
    assert found[1].public == REFUSED or found[1].labels == found[0].labels


@pytest.mark.parametrize("name", ["labelguard: answer", "Labelguard: Answer"])
def test_an_export_of_label_studio_brings_no_column_of_ours(name, tmp_path):
    rows = exports.label_studio_csv(ANSWERS)
    found = []
    for column in ({}, {name: "left"}):
        path = exports.write(tmp_path / f"{len(column)}.csv", [row | column for row in rows])
        given = Reading(columns={}, question=exports.NAME)
        place = tmp_path / f"staged-{len(column)}"
        found.append(read(path, place, KeyRing.public(), given, quarantine=True))
    assert found[1].public in (found[0].public, REFUSED)
    assert found[1].public == REFUSED or found[1].labels == found[0].labels


def test_a_field_that_is_named_takes_no_place_of_what_the_export_tells(tmp_path):
    """`--columns item_id=labeler_id` gave all labels to whom a field of the task names."""
    found = []
    for who in ("one", "another"):
        tasks = exports.label_studio(ANSWERS)
        for task in tasks:
            task["data"]["labeler_id"] = who
        path = exports.write(tmp_path / f"{who}.jsonl", tasks)
        given = Reading(columns={"item_id": "labeler_id"}, question=exports.NAME)
        found.append(read(path, tmp_path / f"s-{who}", KeyRing.public(), given, quarantine=True))
    assert [one.public for one in found] == [REFUSED] * 2


RECORDINGS = Path(__file__).parents[2] / "connectors/recordings"
DEEP: Any = json.loads("[" * 200 + "]" * 200)
UNSTORABLE = {
    "longer than 8 KiB": "l" * 9_000,
    "half a surrogate pair": "\ud800",
    "no number": math.nan,
    "nested without end": DEEP,
    "a list that is long": ["left"] * 9_000,
}


def recorded():
    """A recorded event of one annotation, about a task of texts."""
    events = json.loads((RECORDINGS / "label_studio/events.json").read_text("utf-8"))
    event = next(event for event in events if event["action"] == "ANNOTATION_UPDATED")
    event["task"]["data"] = {"prompt": "p", "answer1": "one", "answer2": "other"}
    return event


def hear_label_studio(label):
    """Answers of an event with this label in it."""
    event = recorded()
    event["annotation"]["result"][0]["value"]["selected"] = label
    return of_label_studio.parse_event(event, event["project"]["id"])


def hear_argilla(label):
    event = json.loads((RECORDINGS / "argilla/02.response.created.json").read_text("utf-8"))
    event["data"]["values"]["preference"]["value"] = label
    return of_argilla.parse_event(of_argilla.DatasetName("prefs", "labelers"), event)


HEARD: dict[str, Any] = {
    "Label Studio": (hear_label_studio, "better", "left"),
    "Argilla": (hear_argilla, "preference", "response_a"),
}


def read_answers(answers, question, path):
    """What a release reads of answers that a connector stored."""
    path.mkdir()
    stored = path / "answers.jsonl"
    stored.write_text("".join(f"{answer.body}\n" for answer in answers))
    file = replace(resolve_file(stored), answers=stored)
    given = Reading(columns={}, question=question)
    return read(file, path / "staged", KeyRing.public(), given, quarantine=True)


@pytest.mark.quick(
    "Argilla-longer than 8 KiB",
    "Label Studio-half a surrogate pair",
    "Label Studio-longer than 8 KiB",
    "Argilla-nested without end",
)
@pytest.mark.parametrize("what", UNSTORABLE)
@pytest.mark.parametrize("tool", HEARD)
def test_a_label_that_cannot_be_stored_is_a_tie(tool, what, tmp_path):
    """It was a dead letter, or a skip: the row was missing, and `/status` counted it."""
    hear, question, honest = HEARD[tool]
    answers = [hear(label) for label in (honest, UNSTORABLE[what])]
    plain, odd = (
        read_answers(one, question, tmp_path / str(number)) for number, one in enumerate(answers)
    )
    assert len(answers[0]) == len(answers[1]) == 1
    assert plain.public == odd.public != REFUSED
    assert [*odd.labels.values()] == [2]


def test_more_regions_than_are_read_are_no_dead_letter(tmp_path):
    """How many regions an annotation has is the labeler's, as its label is."""
    event = recorded()
    many = copy.deepcopy(event)
    many["annotation"]["result"] *= 100
    found = []
    for number, one in enumerate((event, many)):
        answers = of_label_studio.parse_event(one, one["project"]["id"])
        found.append(read_answers(answers, "better", tmp_path / str(number)))
    assert found[0].public == found[1].public != REFUSED
    assert found[0].labels == found[1].labels


WORDS = ("out of memory", "failed to offload", "no space left", "Malformed JSON", "in line 7")


@pytest.mark.parametrize("words", WORDS)
def test_no_word_of_a_response_chooses_the_reason_of_a_failure(words, tmp_path):
    """Errors of DuckDB quote content, and their text was searched for words."""
    found = []
    for number, said in enumerate(("plain", words)):
        path = tmp_path / f"{number}.csv"
        path.write_text(f"labeler_id,prompt,chosen,rejected\nx,p,{said},b,c\n")
        with pytest.raises(InvalidLabels) as refused:
            read_public_pairs(path)
        found.append((observed(refused.value), str(refused.value).partition(": ")[2]))
    assert found[0] == found[1]


def test_too_little_memory_has_the_reason_of_every_input_that_cannot_be_read():
    error = translate_error(duckdb.OutOfMemoryException("chosen"), "labels.json")
    assert observed(error) == REFUSED and "chosen" not in str(error)
