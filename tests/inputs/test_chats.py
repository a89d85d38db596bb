"""Content is text or a chat, and everything in a chat is text."""

import pytest

from labelguard.inputs import canonical
from labelguard.inputs.canonical import TEXT, Content, NotContent

T = "VARCHAR"
PLAIN = {"role": T, "content": T}


def chat(**members):
    return [PLAIN | members]


def part(**members):
    return chat(content=[{"type": T, **members}])


@pytest.mark.parametrize(
    ("structures", "content"),
    [
        ([T, "NULL"], TEXT),
        ([chat()], Content(True, False)),
        ([chat(content="NULL")], Content(True)),
        (
            [chat(name=T), chat(tool_calls=T)],
            Content(True, False, frozenset({"name", "tool_calls"})),
        ),
        ([chat(tool_calls=[{"id": "UBIGINT"}])], Content(True, False, frozenset({"tool_calls"}))),
        ([part(text=T), part(url=T)], Content(True, True, frozenset({"url"}))),
    ],
)
def test_texts_and_chats_of_texts_are_content(structures, content):
    assert canonical.content_of_structures(structures) == content


@pytest.mark.parametrize(
    "structures",
    [
        ["UBIGINT"],
        [T, chat()],
        [chat(), part(text=T)],
        [chat(role="UBIGINT")],
        [chat(content="UBIGINT")],
        [chat(name="BOOLEAN")],
        [chat(weight=T)],
        [[{"content": T}]],
        [part(text="DOUBLE")],
        [part(url="UBIGINT")],
        [part(text=T, score=T)],
        [chat(content=[{"text": T}])],
    ],
)
def test_a_number_another_member_or_two_kinds_at_once_are_none(structures):
    with pytest.raises(NotContent):
        canonical.content_of_structures(structures)
