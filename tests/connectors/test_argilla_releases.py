"""Which pairs of a release Argilla is given, and which chats it is not."""

import polars as pl
import pytest
from labelguard_connectors.argilla import Argilla
from labelguard_connectors.argilla.publishing import argilla_pairs

from labelguard.answers.connector import Settings
from labelguard.errors import ConnectorError
from labelguard.text import no_progress

DATASET = "00000000-0000-4000-8000-000000000000"


def push(release, name):
    """Push to an address where nobody listens: whoever asks anything there is told so."""
    options = {"url": "http://127.0.0.1:1", "dataset": DATASET}
    Argilla(Settings.of("argilla", options)).push(release, name, no_progress)


def chat(*messages):
    return list(messages)


def said(text="text", role="user"):
    return {"role": role, "content": text}


def released(prompt, chosen, rejected):
    return pl.DataFrame(
        {
            "prompt": prompt,
            "chosen": chosen,
            "rejected": rejected,
            "item_id": [f"item {text}" for text in prompt],
            "label_probability": pl.Series([None] * len(prompt), dtype=pl.Float64),
        }
    )


def test_a_pair_is_one_record_whichever_side_was_chosen_how_often():
    frame = released(["p", "p", "p", "q", "q"], [*"bab", *"cd"], [*"aba", *"dc"])
    assert argilla_pairs(frame).rows() == [
        ("item p", "p", "a", "b", pytest.approx(1 / 3)),
        ("item q", "q", "c", "d", 0.5),
    ]


def test_what_a_teacher_says_is_its_probability():
    frame = released(["p", "q"], ["b", "c"], ["a", "d"])
    frame = frame.with_columns(pl.Series("label_probability", [0.75, 0.75]))
    assert argilla_pairs(frame)["share"].to_list() == [0.25, 0.75]


def test_one_pair_under_two_questions_is_two_records():
    frame = released(["p", "p"], ["a", "b"], ["b", "a"])
    frame = frame.with_columns(pl.Series("question", ["helpful", "harmless"]))
    rows = argilla_pairs(frame).select("question", "share").rows()
    assert rows == [("helpful", 1), ("harmless", 0)]


def test_chats_have_an_order_of_their_own():
    one, other = chat(said("a", "assistant")), chat(said("b", "assistant"))
    frames = [
        released([chat(said())] * 2, [one, other], [other, one]),
        released([chat(said())] * 2, [other, one], [one, other]),
    ]
    pairs = [argilla_pairs(frame) for frame in frames]
    assert pairs[0].equals(pairs[1])
    assert pairs[0]["response_a"].to_list() == [one] and pairs[0]["share"].to_list() == [0.5]


@pytest.mark.parametrize(
    "chosen",
    [
        chat(),
        chat(said("")),
        chat(said(None), said()),
        chat(said(role="")),
        chat(said(role="r" * 21)),
        chat(*[said()] * 501),
        chat({**said(), "name": "somebody"}),
        chat(said([{"type": "text", "text": "part"}])),
    ],
)
def test_chats_that_cannot_be_shown_are_refused_before_anything_is_made(chosen, tmp_path):
    frame = released([chat(said())], [chosen], [chat(said("other"))])
    if chosen == []:
        frame = frame.with_columns(pl.col("chosen").cast(frame.schema["prompt"]))
    frame.write_parquet(tmp_path / "data.parquet")
    with pytest.raises(ConnectorError, match=r"^chosen: Argilla shows no chat but of 1 to 500"):
        push(tmp_path, "name")


@pytest.mark.parametrize("name", ["", "n" * 201, "workspace/", "workspace/" + "n" * 201])
def test_names_that_argilla_does_not_take_are_refused(name, tmp_path):
    with pytest.raises(ConnectorError, match="1 to 200 characters"):
        push(tmp_path, name)
