"""One content has one digest, whichever way a tool spells its messages."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.copies import assistant, release_copy, rows_of, user

import labelguard as lg
from labelguard.errors import InvalidLabels
from labelguard.inputs.pairs import read_public_pairs
from labelguard.release.frameworks import FRAMEWORKS

CALLS = [{"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}]
IMAGE = {"type": "image_url", "url": "https://x/cat.png"}


def read(source, **options):
    """The pairs of an input, with the ids that their contents have."""
    pairs = read_public_pairs(source, unit="none", **options)
    return pairs.ids.to_pylist(), pairs.table.to_pylist()


def texts_of(source):
    return sorted(map(repr, read(source)[1]))


def row(prompt, chosen="yes", rejected="no", column="prompt"):
    sides = [side if isinstance(side, list | dict) else assistant(side)
             for side in (chosen, rejected)]  # fmt: skip
    return {column: prompt, "chosen": sides[0], "rejected": sides[1]}


@pytest.mark.parametrize("make", [list, pa.Table.from_pylist])
def test_one_message_is_a_list_of_one_and_from_and_value_are_role_and_content(make):
    plain = read(make([row(user("ask"))]))
    shared = row(
        [{"from": "human", "value": "ask"}],
        {"from": "gpt", "value": "yes"},
        {"from": "gpt", "value": "no"},
        "conversations",
    )
    assert read(make([shared])) == plain
    one = row(user("ask"), assistant("yes")[0], assistant("no")[0], "messages")
    assert read(make([one])) == plain
    assert read(make([one]), columns={"prompt": "messages"}) == plain


def test_messages_beside_dialogues_may_be_either_and_are_asked_about():
    with pytest.raises(InvalidLabels, match="--columns prompt=messages"):
        read([row(user("ask"), column="messages")])


def test_who_speaks_in_tools_of_llama_factory_has_its_role():
    said = [{"from": name, "value": name} for name in ("system", "human", "function_call",
                                                       "observation")]  # fmt: skip
    [pair] = read([row(said)])[1]
    roles = [message["role"] for message in pair["prompt"]]
    assert roles == ["system", "user", "assistant", "tool"]


@pytest.mark.parametrize("make", [list, pa.Table.from_pylist])
@pytest.mark.parametrize(
    "image",
    [
        {"type": "image_url", "image_url": {"url": IMAGE["url"], "detail": "low"}},
        {"type": "image_url", "image_url": IMAGE["url"]},
        {"type": "image", "image": IMAGE["url"]},
        {"type": "image", "url": IMAGE["url"]},
        {"type": "image", "path": IMAGE["url"]},
    ],
)
def test_an_image_is_one_however_it_is_spelled(make, image):
    text = {"type": "text", "text": "what is this?"}
    sides = ([{"role": "assistant", "content": [text]}] * 2)[0], assistant("no")
    sides = [{"role": "assistant", "content": [{"type": "text", "text": t}]} for t in "ab"]
    ours, theirs = (
        [row([{"role": "user", "content": [one, text]}], [sides[0]], [sides[1]])]
        for one in (IMAGE, image)
    )
    assert read(make(theirs)) == read(make(ours))


def test_text_beside_parts_keeps_the_digest_that_it_has_alone():
    text, parts = row(user("ask")), row(user("see"))
    spelled = row([{"role": "user", "content": [{"type": "text", "text": "ask"}]}])
    parts["prompt"] = [{"role": "user", "content": [IMAGE]}]
    alone = read([text])[0]
    assert set(alone) < set(read([text, parts])[0])
    assert read([text, parts])[0] == read([spelled, parts])[0]


def test_bytes_of_images_are_refused_by_what_they_are():
    image = {"type": "image", "image": {"bytes": b"PNG", "path": "cat.png"}}
    with pytest.raises(InvalidLabels, match="bytes of images"):
        read(pa.Table.from_pylist([row([{"role": "user", "content": [image]}])]))


@pytest.mark.parametrize("make", [list, pa.Table.from_pylist])
def test_tool_calls_are_the_text_of_their_json_from_lists_and_types(make):
    asks = [{"role": "assistant", "content": "", "tool_calls": CALLS}]
    answer = [{"role": "tool", "content": "found", "tool_call_id": "c1"}]
    ids, [pair] = read(make([row(user("ask") + asks + answer, asks)]))
    text = json.dumps(CALLS, separators=(",", ":"))
    assert pair["prompt"][1]["tool_calls"] == text
    assert pair["prompt"][2]["tool_call_id"] == "c1"
    spelled = [asks[0] | {"tool_calls": text}]
    assert read(make([row(user("ask") + spelled + answer, spelled)]))[0] == ids


def typed(*contents):
    """A table in which each column has a type of its own."""
    columns = zip(("prompt", "chosen", "rejected"), contents, strict=True)
    return pa.table({name: pa.array([content]) for name, content in columns})


def test_no_spelling_of_typed_members_tells_which_side_was_chosen():
    """The members of tool calls in another order, null ones, parts or text, one object or a list:
    each side has a spelling of its own, and the texts change places.
    """
    turned = dict(reversed(CALLS[0].items())) | {"index": None}
    found = []
    for one, other in (("a", "b"), ("b", "a")):
        parts = [{"type": "text", "text": other}]
        chosen = {"role": "assistant", "content": one, "tool_calls": CALLS}
        rejected = [{"from": "gpt", "content": parts, "tool_calls": [turned], "when": None}]
        found.append(read(typed(user("ask"), chosen, rejected)))
    assert found[0] == found[1]


def test_a_number_in_typed_tool_calls_is_refused_by_its_name():
    calls = [{"function": {"name": "find", "arguments": {"limit": 3}}}]
    with pytest.raises(InvalidLabels, match=r"tool_calls\[\].function.arguments.limit"):
        read(pa.Table.from_pylist([row(user("ask"), [assistant("x")[0] | {"tool_calls": calls}])]))


@pytest.mark.parametrize("make", [list, pa.Table.from_pylist])
@pytest.mark.parametrize("side", [0, 1])
def test_members_not_understood_are_named_alike_for_both_sides_and_can_be_dropped(make, side):
    more = {"timestamp": 7, "id": "m1"}
    sides = [assistant("yes"), assistant("no")]
    sides[side] = [sides[side][0] | more]
    source = make([row([user("ask")[0] | {"id": "m0"}], *sides)])
    with pytest.raises(InvalidLabels) as refused:
        read(source)
    assert "messages[].id, messages[].timestamp: drop them" in str(refused.value)
    assert "--drop-members id,timestamp" in str(refused.value)
    plain = read(make([row(user("ask"))]))
    assert read(source, drop_members=["timestamp,ID"]) == plain
    with pytest.raises(InvalidLabels, match="text is content"):
        read(source, drop_members=["text"])


@pytest.mark.parametrize("to", [name for name in FRAMEWORKS if name != "open-instruct"])
@pytest.mark.parametrize("chat", [False, True])
def test_what_is_exported_is_read_back_with_the_same_contents(to, chat, tmp_path):
    if to == "nemo-rl":
        pytest.skip("completions by rank are no pairs of columns")
    table = rows_of(3, chat=chat, flip_probability=0.2)
    release_copy(tmp_path / "copy", table)
    lg.export(tmp_path / "copy", tmp_path / "out", to=to)
    [file] = (tmp_path / "out").glob("pairs.*")
    assert texts_of(file) == texts_of(table.select(["prompt", "chosen", "rejected"]))


def test_exported_tool_calls_are_lists_again_and_are_read_back(tmp_path):
    text = json.dumps(CALLS, separators=(",", ":"))
    asks = [{"role": "assistant", "content": "", "tool_calls": text}]
    chats = {"prompt": [user("ask")], "chosen": [asks], "rejected": [assistant("no")]}
    table = rows_of(1, chat=True, flip_probability=0.2)
    for name, column in chats.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(column))
    release_copy(tmp_path / "copy", table)
    wanted = texts_of(table.select(list(chats)))
    for to in ("trl", "jsonl", "axolotl"):
        lg.export(tmp_path / "copy", tmp_path / to, to=to)
        [file] = (tmp_path / to).glob("pairs.*")
        assert texts_of(file) == wanted
    line = json.loads(Path(tmp_path / "jsonl" / "pairs.jsonl").read_text())
    assert line["chosen"][0]["tool_calls"] == CALLS
    kind = pq.read_schema(tmp_path / "trl" / "pairs.parquet").field("chosen").type.value_type
    assert kind.field("tool_calls").type == pa.json_()
