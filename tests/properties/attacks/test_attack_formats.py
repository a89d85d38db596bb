"""What a label says decided how a file of a published format was read.

Every case is one file in several worlds, which differ in labels only: which side is called chosen,
who won, by how much, whether anybody answered where blanks are ties. All must be read alike:
message, ids, contents, faults, counts.
"""

from typing import Any

import pyarrow as pa
import pytest
from support.codings import CODED
from support.published import SHAPES, as_jsonl, as_table, assistant, read, user

from labelguard.inputs.columns import Reading

TURN = "\n\nAssistant:"
ASK, HI = user("Ask"), assistant("Hi")
TEXTS: dict[str, tuple[Any, Any]] = {
    "a beginning": (f"\n\nHuman: q{TURN} a", f"\n\nHuman: q{TURN} a b"),
    "a further turn": (f"\n\nHuman: q{TURN} a", f"\n\nHuman: q{TURN} a\n\nHuman: r{TURN} b"),
    "a turn and none": (f"\n\nHuman: q{TURN} a", "\n\nHuman: q a"),
    "only the turn": (f"\n\nHuman: q{TURN}", f"\n\nHuman: q{TURN} a"),
    "a blank": ("a", "a "),
    "blanks": (" ", "  "),
    "empty": ("", "a b"),
    "null": (None, f"\n\nHuman: q{TURN} a"),
    "equal": ("a b", "a b"),
}
CHATS: dict[str, tuple[Any, Any]] = {
    "a beginning": ([ASK, HI], [ASK, HI, ASK, HI]),
    "no message": ([], [ASK, HI]),
    "one message": ([HI], [ASK, HI]),
    "a null message": ([ASK, None, HI], [ASK, HI]),
    "null": (None, [ASK, HI]),
    "a member more": ([ASK | {"id": 1}, HI], [ASK, HI | {"name": "x"}]),
    "a null member": ([ASK | {"id": None}, HI], [ASK, HI, HI]),
    "an empty member": ([ASK | {"meta": {}}, HI], [ASK, HI, HI]),
    "1 and 1.0": ([ASK | {"n": 1}, HI], [ASK | {"n": 1.0}, HI, HI]),
    "0 and -0": ([ASK | {"n": 0.0}, HI], [ASK | {"n": -0.0}, HI, HI]),
    "0 and -0 within": (
        [ASK | {"n": [{"m": 0.5}, {"m": 0.0}]}, HI],
        [ASK | {"n": [{"m": 0.5}, {"m": -0.0}]}, ASK],
    ),
    "1 and text": ([ASK | {"n": 1}, HI], [ASK | {"n": "1"}, HI, HI]),
    "parts and text": ([user("Ask") | {"content": [{"type": "text", "text": "Ask"}]}, HI], [ASK]),
    "another prompt": ([user("Else"), HI], [ASK, HI]),
}
MIXED: dict[str, tuple[Any, Any]] = {
    "text and chat": ("a", [HI]),
    "null and text": (None, "a"),
    "empty and text": ("", "a"),
    "null and null": (None, None),
}
CASES = {
    **{f"dialogues, {name}": (sides, {}) for name, sides in TEXTS.items()},
    **{f"conversations, {name}": (sides, {}) for name, sides in CHATS.items()},
    **{f"beside text, {name}": (sides, {"prompt": "Ask"}) for name, sides in CHATS.items()},
    **{f"dialogues, {name}": (sides, {}) for name, sides in MIXED.items()},
    **{f"beside a chat, {name}": (sides, {"prompt": [ASK]}) for name, sides in MIXED.items()},
}
# The same sides beside a prompt of their own: slow, but one of each kind.
SECOND = {name for name in CASES if name.startswith("beside")} - {
    "beside text, null",
    "beside text, a member more",
    "beside a chat, text and chat",
}
WORLDS = ((False, False), (False, True), (True, True))


def world(sides, beside, swapped):
    return [
        {"labeler_id": f"w{number}", **beside, "chosen": chosen, "rejected": rejected}
        for number, swap in enumerate(swapped)
        for chosen, rejected in [sides[::-1] if swap else sides]
    ]


def as_columns(rows):
    """A table whose columns have the types of what is in them; None where there is no such type."""
    try:
        return as_table(rows)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None


@pytest.mark.quick(
    "dialogues, a beginning", "conversations, no message", "conversations, 1 and text"
)
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if case in SECOND else []) for case in CASES]
)
def test_which_side_was_chosen_does_not_decide_where_a_prompt_ends(case, keys, places, tmp_path):
    """Types of columns follow from the side that is in them, in a table as in JSON."""
    sides, beside = CASES[case]
    worlds = [world(sides, beside, swapped) for swapped in WORLDS]
    path = tmp_path / "x.jsonl"

    def outcome(source):
        return str(read(source, next(places), keys, Reading({}), quarantine=True).public)

    assert len({outcome(as_jsonl(rows, path, sparse=True)) for rows in worlds}) == 1
    tables = [table for rows in worlds if (table := as_columns(rows)) is not None]
    assert len(set(map(outcome, tables))) <= 1


BLANK = [shape for shape, made in SHAPES.items() if made.blank and shape != "pairs"]


@pytest.mark.quick("False-rankings", "True-rankings")
@pytest.mark.parametrize("shape", BLANK)
@pytest.mark.parametrize("sparse", [False, True])
def test_whether_anybody_answered_is_not_told_where_blanks_are_ties(
    shape, sparse, keys, places, tmp_path
):
    """In JSON a column is missing where every row is blank; recognition went by it."""
    made = SHAPES[shape]
    columns = {} if made.labeler.startswith("judge") else {"labeler_id": made.labeler}
    reading = Reading(columns, skips="tie", format=made.format)
    path = tmp_path / "x.jsonl"
    wanted: list[list[Any]] = [["a", "b", "tie"], [None, "b", None], [None] * 3]
    found = [
        read(as_jsonl(made.rows(one), path, sparse=sparse), next(places), keys, reading)
        for one in wanted
    ]
    assert len({str(outcome.public) for outcome in found}) == 1
    assert list(found[2].labels.values()) == [2, 2, 2]


def test_which_columns_hold_labels_is_not_guessed_where_blanks_are_ties(keys, places, tmp_path):
    """A file with a label and scores, all of whose labels are blank, was read as scores."""
    path = tmp_path / "x.jsonl"
    found, reading = [], Reading({}, skips="tie", values=CODED)
    for labels in ([1, 0], [None, None]):
        rows = [
            {**row, "label": label}
            for row, label in zip(SHAPES["scores"].rows(["b", "b"]), labels, strict=True)
        ]
        source = as_jsonl(rows, path, sparse=True)
        found.append(read(source, next(places), keys, reading))
    assert found[0].public == found[1].public
    assert set(found[1].labels.values()) == {2}


VALUES: dict[str, tuple[str, list[Any]]] = {
    "arena": ("winner", ["model_a", "tie (bothbad)", "both_bad", " model_b\t"]),
    "helpsteer": ("overall_preference", [1, -3.0, "2", " -1 ", 0]),
    "scores": ("score_a", [1, 1.5, "2", float("inf"), -0.0, 2**70]),
}


@pytest.mark.quick("arena")
@pytest.mark.parametrize("shape", VALUES)
def test_how_a_label_is_written_decides_nothing(shape, keys, places, tmp_path):
    """Types of columns of JSON follow from all of its rows."""
    column, values = VALUES[shape]
    made = SHAPES[shape]
    columns = {} if made.labeler.startswith("judge") else {"labeler_id": made.labeler}
    path = tmp_path / "x.jsonl"
    seen = set()
    for value in values:
        first, *rest = made.rows(["a", "b", "a"])
        source = as_jsonl([first | {column: value}, *rest], path)
        outcome = read(source, next(places), keys, Reading(columns))
        assert len(outcome.labels) == 3
        seen.add(str(outcome.public))
    assert len(seen) == 1


@pytest.mark.slow
def test_the_order_of_rows_decides_nothing(keys, places):
    for shape, made in SHAPES.items():
        columns = {} if made.labeler.startswith("judge") else {"labeler_id": made.labeler}
        rows = made.rows(["a", "a", "b", "b", "tie"])
        found = [
            read(as_table(order), next(places), keys, Reading(columns))
            for order in (rows, rows[::-1])
        ]
        assert found[0] == found[1], shape


def chats_with_notes(notes, column):
    """Chats, beside which every labeler wrote something of their own."""
    return [
        {
            "labeler_id": f"w{number}",
            "prompt": [user(f"Ask {number}")],
            "chosen": [assistant("Hi")],
            "rejected": [assistant("No")],
            column: note,
        }
        for number, note in enumerate(notes)
    ]


NOTES: dict[str, Any] = {
    "a member more": [user("ok") | {"unsure": "yes"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "ok"}]}],
    "a member in upper case": [user("ok") | {"Role": 1}],
    "a text": "ok",
    "nothing": [],
}


@pytest.mark.quick("correction-a member more")
@pytest.mark.parametrize("note", NOTES)
@pytest.mark.parametrize("column", ["correction", "individual_preference"])
def test_what_labelers_note_for_themselves_does_not_decide_how_chats_are_read(
    note, column, keys, places, tmp_path
):
    """Their notes look like chats; in JSON they gave prompts their members, or took their type."""
    plain = [user("ok")]
    outcomes = [
        read(
            as_jsonl(chats_with_notes(notes, column), tmp_path / "x.jsonl"),
            next(places),
            keys,
            Reading({}),
        )
        for notes in ([plain, plain], [plain, NOTES[note]])
    ]
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0].labels) == 2


def test_a_column_that_is_named_for_labels_decides_no_type_whatever_it_is_called(
    keys, places, tmp_path
):
    """A column that would be a conversation of a published format holds labels here."""
    reading = Reading({"label": "conversation_a"}, labelled=False)
    outcomes = []
    for label in ([user("a")], [user("a") | {"m": 1}]):
        rows = [
            {"labeler_id": "w", "prompt": [ASK], "response_a": [HI], "response_b": [user("No")]}
            | {"conversation_a": label}
        ]
        source = as_jsonl(rows, tmp_path / "x.jsonl")
        outcomes.append(read(source, next(places), keys, reading).public)
    assert outcomes[0] == outcomes[1]
