"""Published shapes of preference data are read as what they are, whatever their labels say."""

import json
from typing import Any

import polars as pl
import pytest
from support.codings import NUMBERS, choose_coding
from support.published import (
    SHAPES,
    Outcome,
    Preference,
    as_jsonl,
    as_table,
    assistant,
    question,
    read,
    sides,
    user,
)

import labelguard as lg
from labelguard.errors import InvalidLabels
from labelguard.inputs.columns import Reading
from labelguard.inputs.pairs import read_public_pairs
from labelguard.inputs.staging import StagingOptions, stage
from labelguard.keys.keyring import KeyRing

FLIP = {"a": "b", "b": "a", "tie": "tie", None: None}


def reading(shape, **choices):
    labeler = SHAPES[shape].labeler
    columns = {} if labeler in ("judge", "judge_hash") else {"labeler_id": labeler}
    return Reading(columns, **choices)


def preferences(shape):
    found: list[Preference] = ["a", "b", "tie", "b", "a", "b"]
    return [*found, None] if SHAPES[shape].blank else found


def rows(shape, wanted):
    return SHAPES[shape].rows(wanted)


def expected_preferences(wanted):
    """What was asked, and the response that is preferred."""
    return {
        (question(n), "a tie" if p == "tie" else sides(n)[0 if p == "a" else 1])
        for n, p in enumerate(wanted)
        if p is not None
    }


@pytest.mark.quick("pairs", "rankings", "scores", "implicit", "binarized", "helpsteer", "arena")
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_recognised_and_says_who_prefers_what(shape, keys, places):
    wanted = preferences(shape)
    found = read(as_table(rows(shape, wanted)), next(places), keys, reading(shape))
    assert found.public[1] == {SHAPES[shape].format}
    assert found.told == expected_preferences(wanted)


@pytest.mark.quick("jsonl-pairs", "jsonl-hh-rlhf", "jsonl-helpsteer")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", [pytest.param("table", marks=pytest.mark.slow), "jsonl"])
def test_other_labels_change_nothing_but_the_labels(shape, kind, keys, places, tmp_path):
    """Strengths, scores and reasons change along with the labels."""
    wanted = preferences(shape)

    def outcome(changed):
        made = rows(shape, changed)
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        source = as_table(made) if kind == "table" else as_jsonl(made, path, sparse=True)
        found = read(source, next(places), keys, reading(shape))
        hidden = str(found.public).replace(path.name, "input")
        return Outcome(hidden, found.labels)

    first = outcome(wanted)
    flipped = outcome([FLIP[p] for p in wanted])
    assert flipped.public == first.public
    assert {key: (label ^ 1 if label < 2 else label) for key, label in first.labels.items()} == (
        flipped.labels
    )
    ties = outcome([p and "tie" for p in wanted])
    assert ties.public == first.public
    assert set(ties.labels.values()) == {2}
    assert outcome([p and "b" for p in wanted]).public == first.public


def dialogues(chosen, rejected, **row):
    return [{"labeler_id": "w", "chosen": chosen, "rejected": rejected, **row}]


TURN = "\n\nAssistant:"
BEGINNINGS = {
    "turns": (f"\n\nHuman: q{TURN}", " one", " two"),
    "all but the last turn": (f"\n\nHuman: q{TURN} a\n\nHuman: r{TURN}", " one", " two"),
    "one is the other's beginning": (f"\n\nHuman: q{TURN}", " one", " one more"),
    "one has a further turn": (f"\n\nHuman: q{TURN}", " one", f" two\n\nHuman: r{TURN} three"),
    "one says nothing": (f"\n\nHuman: q{TURN}", "", " one"),
    "other letters": (f"\n\nHuman: ça 🙂 ǆ{TURN}", " é", " e\u0301"),
}


@pytest.mark.quick("turns", "one has a further turn")
@pytest.mark.parametrize("case", BEGINNINGS)
def test_the_prompt_of_dialogues_is_their_common_beginning(case):
    prompt, one, other = BEGINNINGS[case]
    for first, second in ((one, other), (other, one)):
        table = read_public_pairs(as_table(dialogues(prompt + first, prompt + second))).table
        assert table["prompt"].to_pylist() == [prompt]
        assert {table["first"][0].as_py(), table["second"][0].as_py()} == {one, other}


def test_texts_without_a_turn_in_common_are_no_dialogues():
    message = "row 1: column chosen or rejected: expected text or chat messages"
    with pytest.raises(InvalidLabels, match=message):
        read_public_pairs(as_table(dialogues("this", "that")))


def staged_table(rows, **options):
    coding = choose_coding(rows)
    return read_public_pairs(as_table(rows), label_values=coding, **options).table


def test_a_prompt_of_text_is_what_both_sides_begin_with_or_what_a_user_says():
    hello, hi, ask = user("Hello"), assistant("Hi"), user("Ask")
    one, other = assistant("one"), assistant("other")
    whole = staged_table(dialogues([hello, hi, ask, one], [hello, hi, ask, other], prompt="Ask"))
    assert whole["prompt"].to_pylist() == [[hello, hi, ask]]
    assert whole["first"].to_pylist() == [[one]] and whole["second"].to_pylist() == [[other]]
    for sides_alone in ([one], [other]), ([hi, one], [hi, other]), ([ask], [ask, other]):
        alone = staged_table(dialogues(*sides_alone, prompt="Ask"))
        assert alone["prompt"].to_pylist() == [[ask]]
        assert alone["first"].to_pylist()[0] in sides_alone


def test_a_prompt_of_parts_makes_parts_of_sides_of_text():
    part = {"type": "text", "text": "Ask"}
    prompt = [{"role": "user", "content": [part]}]
    found = staged_table(dialogues("one", "other", prompt=prompt))
    assert found["first"].to_pylist() == [
        [{"role": "assistant", "content": [{"type": "text", "text": "one"}]}]
    ]


def test_an_empty_text_is_a_response_and_a_prompt(tmp_path):
    row = {"labeler_id": "w", "prompt": "", "response_a": "", "response_b": "b", "label": 1}
    expected = [{"prompt": "", "first": "", "second": "b"}]
    assert staged_table([row]).select(["prompt", "first", "second"]).to_pylist() == expected
    path = tmp_path / "x.csv"
    path.write_text('labeler_id,prompt,response_a,response_b,label\nw,,"",b,1\nw,,,b,\n')
    assert read_public_pairs(path, label_values=NUMBERS).table.equals(staged_table([row]))
    ranked = {"labeler_id": "w", "prompt": "", "responses": ["", "b"], "ranks": [1, 2]}
    assert staged_table([ranked]).select(["prompt", "first", "second"]).to_pylist() == expected


@pytest.mark.parametrize("beside", [{"score_a": 1.0, "score_b": 2.0}, {"winner": "model_b"}])
def test_a_plain_label_beside_two_responses_is_the_label(beside, keys, places):
    plain = rows("pairs", ["a", "b", "tie"])
    more = as_table([row | beside for row in plain])
    found = read(more, next(places), keys, Reading({}))
    assert found.public == read(as_table(plain), next(places), keys, Reading({})).public
    assert found.told == expected_preferences(["a", "b", "tie"])


OUTSIDE: dict[str, tuple[str, list[Any]]] = {
    "helpsteer": ("overall_preference", [4, -4, 0.5, "better", [1], True]),
    "scores": ("score_b", ["high", [1], {"x": 1}]),
    "arena": ("winner", ["model_c", "Model_A", "0", 1, ["model_a"]]),
    "votes": ("winner", ["a", "one"]),
}


@pytest.mark.quick("helpsteer")
@pytest.mark.parametrize("shape", OUTSIDE)
def test_labels_outside_of_a_format_s_domain_are_refused_without_being_shown(shape, tmp_path):
    column, values = OUTSIDE[shape]
    for number, value in enumerate(values):
        made = [row | {column: value} for row in rows(shape, ["a", "b"])]
        options = StagingOptions(reading(shape), "files")
        staged = stage(as_table(made), tmp_path / str(number), KeyRing.public(), options)
        with pytest.raises(InvalidLabels) as caught:
            staged.refuse_labels_outside_domain()
        said = "score_a or score_b" if shape == "scores" else column
        where = f"table row 1: column {said}: found a value outside the domain"
        assert str(caught.value).startswith(f"{where} (1 more such row); ")
        assert str(caught.value).endswith("or name another --format")


CORRUPT: list[Any] = [None, "rubbish", [1], {"x": [2]}, float("nan")]
TELLING = {
    "scores": ("score_a", "score_b"),
    "helpsteer": ("overall_preference", "individual_preference"),
    "helpsteer2": ("preference_strength", "preference_statement"),
    "arena": ("winner",),
    "mt-bench": ("winner",),
    "votes": ("winner",),
}


@pytest.mark.quick("scores", "helpsteer2")
@pytest.mark.parametrize("shape", TELLING)
def test_where_labels_are_not_read_they_may_be_missing_or_rubbish(shape, keys, places, tmp_path):
    whole = rows(shape, ["a", "b", "tie"])
    blind = reading(shape, labelled=False, format=SHAPES[shape].format)

    def outcome(source):
        public = str(read(source, next(places), keys, blind).public)
        return public.replace(str(tmp_path / "x.jsonl"), "input")

    expected = outcome(as_table(whole))
    for value in CORRUPT:
        changed = [row | dict.fromkeys(TELLING[shape], value) for row in whole]
        assert outcome(as_table(changed)) == expected
        # One row only: in JSON, what is written there decides the type of a column.
        assert outcome(as_jsonl([*changed[:1], *whole[1:]], tmp_path / "x.jsonl")) == expected
    bare = [{k: v for k, v in row.items() if k not in TELLING[shape]} for row in whole]
    assert outcome(as_table(bare)) == expected


@pytest.mark.quick("scores", "helpsteer2")
@pytest.mark.parametrize("shape", [s for s, names in TELLING.items() if names])
def test_columns_of_labels_can_be_nothing_else(shape):
    name = TELLING[shape][0]
    source = as_table(rows(shape, ["a", "b"]))
    columns = reading(shape).columns
    message = f"reads column {name} for labels, which are private: it cannot be"
    with pytest.raises(InvalidLabels, match=f"{message} item_id"):
        read_public_pairs(source, columns={**columns, "item_id": name})
    if name.startswith("score"):
        with pytest.raises(InvalidLabels, match=f"{message} a feature"):
            read_public_pairs(
                source, columns=columns, features="columns:score", public_columns=["score"]
            )
        named = {"columns": columns, "features": "columns:score", "public_columns": ["score"]}
        found = read_public_pairs(source, format="pairs", **named)
        assert "feature_score" in found.table.column_names


def test_conversations_in_csv_are_refused(tmp_path):
    names = ("conversation_a", "conversation_b")
    battles = [row | {n: json.dumps(row[n]) for n in names} for row in rows("arena", ["a", "b"])]
    (tmp_path / "battles.csv").write_text(pl.DataFrame(battles).write_csv())
    with pytest.raises(InvalidLabels, match="conversation_b: expected lists of messages, as JSON"):
        read_public_pairs(tmp_path / "battles.csv")


def test_a_winner_of_another_name_is_named(tmp_path):
    battles = rows("arena", ["a", "b", "tie"])
    renamed = [{("best" if k == "winner" else k): v for k, v in r.items()} for r in battles]
    columns = {"winner": "best"}
    for source in (as_table(renamed), as_jsonl(renamed, tmp_path / "battles.jsonl")):
        found = read_public_pairs(source, columns=columns).table
        assert found.to_pylist() == read_public_pairs(as_table(battles)).table.to_pylist()
    roles = lg.inspect(as_table(renamed), columns=columns).roles
    assert [role.column for role in roles if role.role == "label"] == ["best"]
    options = StagingOptions(Reading({"winner": "bets"}), "")
    with pytest.raises(InvalidLabels, match=r"not there .of another name: --columns winner=NAME"):
        stage(as_table(renamed), tmp_path / "staged", KeyRing.public(), options)
    with pytest.raises(InvalidLabels, match=r"no column 'judge' \(given for labeler_id\)"):
        read_public_pairs(as_table(renamed), columns={"winner": "judge", "labeler_id": "judge"})
    with pytest.raises(InvalidLabels, match="or name it: --columns winner=best"):
        read_public_pairs(as_table(renamed), columns={"label": "best"})


def test_who_labeled_is_asked_for_by_the_files_own_columns():
    shown = "question_id, model_a, model_b, winner, anno, conversation_a, conversation_b"
    for name, near in (("annotator", " (did you mean 'annotator'?)"), ("anno", "")):
        battles = [
            {(name if k == "judge" else k): v for k, v in row.items()}
            for row in rows("arena", ["a", "b"])
        ]
        with pytest.raises(InvalidLabels) as refused:
            read_public_pairs(as_table(battles))
        assert f"no column labeler_id{near};" in str(refused.value)
        assert f"found: {shown.replace('anno', name)}" in str(refused.value)


def test_what_a_format_makes_cannot_be_named():
    source = as_table(rows("arena", ["a", "b"]))
    with pytest.raises(InvalidLabels, match="format arena makes response_a of conversation_a"):
        read_public_pairs(source, columns={"response_a": "conversation_b"})
    with pytest.raises(InvalidLabels, match="format hh-rlhf makes prompt of chosen or rejected"):
        columns = {"prompt": "labeler_id"}
        read_public_pairs(as_table(dialogues("a", "b")), columns=columns, format="hh-rlhf")


def test_columns_of_a_format_may_be_renamed_and_a_named_labeler_goes_first():
    dialogues = rows("hh-rlhf", ["a", "b"])
    renamed = [
        {"won": row["chosen"], "lost": row["rejected"], "worker": row["labeler_id"]}
        for row in dialogues
    ]
    columns = {"chosen": "won", "rejected": "lost", "labeler_id": "worker"}
    found = read_public_pairs(as_table(renamed), columns=columns)
    assert found.table.equals(read_public_pairs(as_table(dialogues)).table)
    battles = [
        row | {"judge": "the same", "worker": row["judge"]} for row in rows("arena", ["a"] * 3)
    ]
    assert read_public_pairs(as_table(battles)).rows.units == 1
    assert read_public_pairs(as_table(battles), columns={"labeler_id": "worker"}).rows.units == 3


def test_conversations_of_other_names_are_read_as_arena():
    battles = rows("arena", ["a", "b"])
    sides = {"conversation_a": "conversation a", "conversation_b": "conversation b"}
    renamed = [{sides.get(name, name): row[name] for name in row} for row in battles]
    found = read_public_pairs(as_table(renamed), columns=sides)
    assert found.table.equals(read_public_pairs(as_table(battles)).table)
    with pytest.raises(InvalidLabels, match="no column 'conversation c'"):
        read_public_pairs(as_table(renamed), columns={**sides, "conversation_b": "conversation c"})


def test_a_wrong_column_is_told_with_those_of_the_file():
    def refusal(source):
        with pytest.raises(InvalidLabels) as refused:
            read_public_pairs(source, columns={"labeler_id": "worker"})
        return str(refused.value)

    columns = "question_id, model_a, model_b, winner, judge, conversation_a, conversation_b, turn, "
    assert refusal(as_table(rows("arena", ["a", "b"]))) == (
        "table: no column 'worker' (given for labeler_id); as arena its labelers are in 'judge': "
        f"leave the option out; found: {columns}anony, language, tstamp"
    )


@pytest.mark.quick("hh-rlhf")
@pytest.mark.parametrize("shape", ["hh-rlhf", "helpsteer", "arena"])
def test_who_labeled_is_asked_for_and_item_is_explained_and_never_chosen(shape):
    labeler = SHAPES[shape].labeler
    nameless = [{k: v for k, v in row.items() if k != labeler} for row in rows(shape, ["a"])]
    with pytest.raises(InvalidLabels) as caught:
        read_public_pairs(as_table(nameless))
    message = str(caught.value)
    assert "--labeler-column NAME" in message and "\n" not in message
    assert "--unit item protects each pair that was compared instead of each person" in message
    assert read_public_pairs(as_table(nameless), unit="item").table.num_rows == 1


@pytest.mark.parametrize("name", ["question", "Query", "instruction", "input", "conversations"])
def test_sides_are_no_whole_dialogues_where_another_column_is_evidently_the_prompt(name):
    found = as_table(dialogues("It is 5.", "It is 6.", **{name: "2 + 3?"}))
    with pytest.raises(InvalidLabels, match=f"column {name} may be the prompt: .* prompt={name}"):
        read_public_pairs(found)
    named = read_public_pairs(found, columns={"prompt": name}).table
    assert named["prompt"].to_pylist() == ["2 + 3?"]
    said = as_table(dialogues(f"q{TURN} 5", f"q{TURN} 6", **{name: "2 + 3?"}))
    assert read_public_pairs(said, format="hh-rlhf").table["prompt"].to_pylist() == [f"q{TURN}"]


def test_a_format_that_is_named_must_fit(tmp_path):
    source = as_table(rows("pairs", ["a"]))
    with pytest.raises(InvalidLabels, match="table: not of format helpsteer"):
        read_public_pairs(source, format="helpsteer")
    with pytest.raises(InvalidLabels, match=r"unknown format 'arenas' \(did you mean 'arena'\?\)"):
        read_public_pairs(source, format="arenas")
    bare = [{k: v for k, v in row.items() if k != "winner"} for row in rows("arena", ["a"])]
    options = StagingOptions(Reading({}), "files")
    with pytest.raises(InvalidLabels, match="arena reads labels from column winner, which is not"):
        stage(as_table(bare), tmp_path, KeyRing.public(), options)
