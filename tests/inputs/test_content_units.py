"""A content is one unit in every dress, and other words are another unit."""

import tempfile
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from labelguard.inputs import canonical, chats
from labelguard.inputs.chats import TEXT, Content, NotContent
from labelguard.inputs.columns import Reading
from labelguard.inputs.staging import StagingOptions, stage
from labelguard.keys.keyring import KeyRing
from labelguard.storage import blocks, buckets

SPACES = " \t\n\r\u00a0\u2003\u2028\u3000"
INVISIBLE = "\x00\u00ad\u034f\u115f\u180b\u200b\u200d\u2066\u2800\u3164\ufe0f\ufeff\U000e0101"
FULL_WIDTH = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}


def _orderly(text):
    """Without the iota below a letter, which capitals write beside it: marks change places."""
    return "\u0345" not in unicodedata.normalize("NFKD", text)


# Characters that only newer versions of Unicode know may have no case or form here, but one there.
texts = st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=12).filter(_orderly)
words = st.text("abcdefghijklmnopqrstuvwxyz0123456789.,?!-", min_size=1, max_size=8)


def form(text):
    [found] = canonical.normalize_words(pa.array([text], pa.string())).to_pylist()
    assert isinstance(found, str)
    return found


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.characters(exclude_categories=["Cs", "Cn"]), st.text(SPACES + INVISIBLE, max_size=2)
        )
    )
)
def test_nothing_that_cannot_be_seen_makes_another_unit(parts):
    plain = "".join(character for character, _ in parts)
    assert form("".join(map("".join, parts))) == form(plain)


@pytest.mark.quick("NFKC")
@pytest.mark.parametrize("kind", ["NFC", "NFD", "NFKC", "NFKD"])
@settings(deadline=None, max_examples=200)
@given(text=texts)
def test_no_compatibility_form_makes_another_unit(kind, text):
    assert form(unicodedata.normalize(kind, text)) == form(text)
    assert form(text.translate(FULL_WIDTH)) == form(text)


CASES: list[Callable[[str], str]] = [str.upper, str.lower, str.casefold, str.swapcase, str.title]


@pytest.mark.quick("casefold")
@pytest.mark.parametrize("case", CASES)
@settings(deadline=None, max_examples=200)
@given(text=texts)
def test_no_case_makes_another_unit(case, text):
    composed = unicodedata.normalize("NFKC", text)
    assert form(case(composed)) == form(composed)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("STRASSE", "Straße"),
        ("STRAẞE", "Straße"),
        ("ΌΣΟΣ", "όσος"),
        ("ﬁne", "FINE"),
        ("①", "1"),
        ("a\u00a8", "ä"),  # NFKC writes ¨ as a space and a mark
    ],
)
def test_two_ways_to_write_it_are_one(one, other):
    assert form(one) == form(other)


@settings(deadline=None)
@given(st.lists(words, unique=True, min_size=2, max_size=20))
def test_other_words_have_another_form(different):
    assert len(set(map(form, different))) == len(different)


# ---------------------------------------------------------------- units of rows

Row = dict[str, Any]
contents = st.lists(
    st.lists(words, unique=True, min_size=3, max_size=3), unique_by=tuple, min_size=1, max_size=12
)


def units(rows, **columns):
    """The unit of every row, in the order of the input, pairs of one ranking once."""
    with tempfile.TemporaryDirectory() as scratch:
        reading = Reading(columns, "item", labelled=False)
        ring = KeyRing.public()
        staged = stage(
            pa.Table.from_pylist(rows), Path(scratch) / "s", ring, StagingOptions(reading, "")
        )
        tables = (buckets.read_bucket(staged.rows_directory, n) for n in range(buckets.BUCKETS))
        table = pa.concat_tables([table for table in tables if table is not None])
        table = table.take(pa.array(np.argsort(table["row"].to_numpy())))
        return [blocks.to_hex(unit) for unit in buckets.read_blocks(table, "unit")]


def plain(prompt, a, b):
    return {"prompt": prompt, "response_a": a, "response_b": b}


def chat(role, content):
    return [{"role": role, "content": content}]


def as_chat(prompt, a, b):
    sides = {"response_a": chat("assistant", a), "response_b": chat("bot", b)}
    return {"prompt": chat("user", prompt)} | sides


def in_parts(prompt, a, b):
    def parts(text):
        halves = text[:3], text[3:]
        return chat("user", [{"type": "text", "text": half} for half in halves])

    return {"prompt": parts(prompt), "response_a": parts(a), "response_b": parts(b)}


def of_two_messages(prompt, a, b):
    spoken = chat("system", prompt[:2]) + chat("user", prompt[2:])
    return {"prompt": spoken, "response_a": chat("x", a), "response_b": chat("x", b)}


def shifted(prompt, a, b):
    """The prompt ends after its first character."""
    return plain(prompt[0], prompt[1:] + a, prompt[1:] + b)


DRESSES: dict[str, Callable[[str, str, str], Row]] = {
    "a chat": as_chat,
    "a chat in parts": in_parts,
    "two messages": of_two_messages,
    "where the prompt ends": shifted,
    "other sides": lambda p, a, b: plain(p, b, a),
    "a ranking": lambda p, a, b: {"prompt": p, "responses": [b, a], "ranks": [1, 2]},
    "capitals and spaces": lambda p, a, b: plain(p.upper(), f" {a}\u200b", f"{b}\n"),
    "an id": lambda p, a, b: plain(p, a, b) | {"item_id": f"{p} {a} {b}"},
    "a record": lambda p, a, b: plain(p, a, b) | {"record_id": p},
    "a labeler": lambda p, a, b: plain(p, a, b) | {"labeler_id": a},
    "an attached column": lambda p, a, b: plain(p, a, b) | {"score_a": 1.0, "score_b": 2.0},
}


@pytest.mark.quick("a chat in parts", "where the prompt ends", "other sides", "a ranking")
@pytest.mark.parametrize("dress", DRESSES)
@settings(deadline=None, max_examples=4)
@given(compared=contents)
@example(compared=[["0", ".0", "7.0"]])  # of ids that look like numbers none is refused
def test_a_content_is_one_unit_in_every_dress(dress, compared):
    expected = units([plain(*content) for content in compared])
    assert units([DRESSES[dress](*content) for content in compared]) == expected


@settings(deadline=None, max_examples=8)
@given(compared=contents)
def test_a_question_makes_no_other_unit(compared):
    expected = units([plain(*content) for content in compared])
    asked = [plain(*content) | {"question": f"{n} better?"} for n, content in enumerate(compared)]
    assert units(asked, question="question") == expected


@settings(deadline=None, max_examples=8)
@given(st.lists(words, unique=True, min_size=3, max_size=12))
def test_other_responses_are_another_unit(different):
    """Of any length, under one prompt."""
    rows = [plain("Which?", different[0], other) for other in different[1:]]
    assert len(set(units(rows))) == len(rows)


def test_a_form_that_keeps_what_cannot_be_seen_is_found(monkeypatch):
    monkeypatch.setattr(canonical, "_INVISIBLE", r"[\s\p{Z}]")
    with pytest.raises(AssertionError):
        test_nothing_that_cannot_be_seen_makes_another_unit()


# Content is text or a chat, and everything in a chat is text.


T = "VARCHAR"
PLAIN = {"role": T, "content": T}


def messages(**members):
    return [PLAIN | members]


def part(**members):
    return messages(content=[{"type": T, **members}])


@pytest.mark.parametrize(
    ("structures", "content"),
    [
        ([T, "NULL"], TEXT),
        ([messages()], Content(True, False)),
        ([messages(content="NULL")], Content(True)),
        (
            [messages(name=T), messages(tool_calls=T)],
            Content(True, False, frozenset({"name", "tool_calls"})),
        ),
        (
            [messages(tool_calls=[{"id": "UBIGINT"}])],
            Content(True, False, frozenset({"tool_calls"})),
        ),
        ([part(text=T), part(url=T)], Content(True, True, frozenset({"url"}))),
        ([messages(), part(text=T)], Content(True, True, strings=True)),
        ([messages()[0]], Content(True, False)),
        ([[{"from": T, "value": T}]], Content(True, False)),
        ([part(image_url={"url": T, "detail": T})], Content(True, True, frozenset({"url"}))),
        ([part(image=T), part(path=T)], Content(True, True, frozenset({"url"}))),
    ],
)
def test_texts_and_chats_of_texts_are_content(structures, content):
    assert chats.find_content_of_structures(structures) == content


@pytest.mark.parametrize(
    "structures",
    [
        ["UBIGINT"],
        [T, messages()],
        [part(image={"bytes": T})],
        [messages(role="UBIGINT")],
        [messages(content="UBIGINT")],
        [messages(name="BOOLEAN")],
        [messages(weight=T)],
        [[{"content": T}]],
        [part(text="DOUBLE")],
        [part(url="UBIGINT")],
        [part(text=T, score=T)],
        [messages(content=[{"text": T}])],
    ],
)
def test_a_number_another_member_or_two_kinds_at_once_are_none(structures):
    with pytest.raises(NotContent):
        chats.find_content_of_structures(structures)
