"""Prompts that contain answers stop an input, are left out, or are declared."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.codings import choose_coding

import labelguard as lg
from labelguard.errors import InvalidLabels, PolicyError
from labelguard.inputs import turns
from labelguard.inputs.turns import FILE, LATER_TURN
from labelguard.project.backup import backup
from labelguard.project.opening import OpenProject
from labelguard.project.restore import restore

MARKED = "\n\nHuman: {0}\n\nAssistant:"
STYLES: dict[str, tuple[str, str]] = {
    # The first prompt, and the next one: {0} is a question, {1} a response, {2} the next question.
    "turns": (MARKED, MARKED + " {1}\n\nHuman: {2}\n\nAssistant:"),
    "a name before the first": ("{0}", "User: {0}\nAssistant: {1}\nUser: {2}"),
    "other names": (
        "### Instruction:\n{0}",
        "### Instruction:\n{0}\n### Response:\n{1}\n### Instruction:\n{2}",
    ),
    "chat markup": (
        "<|im_start|>user\n{0}<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>user\n{0}<|im_end|>\n<|im_start|>assistant\n{1}<|im_end|>\n"
        "<|im_start|>user\n{2}<|im_end|>\n<|im_start|>assistant\n",
    ),
    "lines": ("{0}", "{0}\n{1}\n{2}"),
    "one line": ("{0}", "{0} {1} {2}"),
    "blanks of no keyboard": ("{0}", "{0}\u00a0{1}\u2003{2}"),
    "more white space": ("{0}\n", "{0}\n\n\n {1}\n\n"),
    "nothing after it": ("{0}", "{0}\n{1}"),
    "after a colon": ("Q: {0} A:", "Q: {0} A:{1}\nQ: {2} A:"),
}


def row(prompt, number, first="", second="", who=0, **more) -> dict[str, Any]:
    sides = {"response_a": first or f"yes {number}, indeed", "response_b": second or f"no {number}"}
    return {"labeler_id": f"w{who}", "prompt": prompt, **sides, "label": number % 2, **more}


def conversations(style, turns=range(12)):
    """First turns, and the next ones, which go on with the response that was chosen."""
    first, later = STYLES[style]
    rows = []
    for n in turns:
        opening = row(first.format(f"Is {n} odd?"), n, who=n % 4)
        chosen = opening["response_a" if opening["label"] else "response_b"]
        text = later.format(f"Is {n} odd?", chosen, f"Why {n}?")
        rows += [opening, row(text, n, f"because of {n}", f"it just is, {n}", who=n % 4)]
    return rows


def as_chat(text):
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": part} for n, part in enumerate(text.split("\n"))]


def as_chats(rows, parts=False):
    def write_message(message):
        content = [{"type": "text", "text": message["content"]}] if parts else message["content"]
        return message | {"content": content}

    return [
        one
        | {"prompt": [write_message(m) for m in as_chat(one["prompt"])]}
        | {
            s: [write_message({"role": "assistant", "content": one[s]})]
            for s in ("response_a", "response_b")
        }
        for one in rows
    ]


def as_rankings(rows):
    names = ("labeler_id", "prompt")
    return [
        {name: one[name] for name in names}
        | {"responses": [one["response_a"], "a third one", one["response_b"]]}
        | {"ranks": [1 - one["label"], 2, one["label"]]}
        for one in rows
    ]


def problems(rows):
    return " ".join(lg.inspect(rows, label_values=choose_coding(rows)).problems)


@pytest.mark.parametrize("style", STYLES)
def test_a_text_that_goes_on_with_a_response_is_a_problem(style):
    rows = conversations(style)
    assert "12 items with a prompt that begins" in problems(rows)
    swapped = [
        {**one, "response_a": one["response_b"], "response_b": one["response_a"]} for one in rows
    ]
    assert "12 items with a prompt that begins" in problems(swapped)


@pytest.mark.parametrize(
    "shaped",
    [as_chats, lambda rows: as_chats(rows, parts=True), as_rankings],
    ids=["chats", "chats of parts", "rankings"],
)
def test_chats_and_rankings_are_looked_at_too(shaped):
    rows = conversations("lines")
    assert "12 items" in problems(shaped(rows))
    assert not problems(shaped(rows[::2]))
    assert not problems(shaped(rows[1::2]))


def test_longer_conversations_are_found_by_their_first_turn_and_by_any_other():
    rows = conversations("turns", range(3))
    later = MARKED.format("Is 0 odd?") + " {}\n\nHuman: Why 0?\n\nAssistant: {}\n\nHuman: So?"
    rows += [row(later.format("no 0", "because of 0"), 50)]
    assert "4 items" in problems(rows)
    assert "1 item with" in problems([rows[1], rows[-1]])


def test_prompts_that_only_begin_alike_are_no_problem():
    alike = [
        row("Write a poem", 0, "Roses", "Violets"),
        row("Write a poem about Roses", 1),
        row("Write a poem. Make it short", 2),
        row("2", 3, "3", "4"),
        row("23 and 4", 4),
        row("A chat\nYes!", 5, "No", "Maybe"),
        row("A chat", 6, "Yes", "No, never"),
        row("", 7, "White", "Black"),
    ]
    assert not problems(alike)
    assert not problems(as_chats(alike[:-1]))


def test_a_prompt_that_goes_on_with_something_else_in_a_chat_is_no_problem():
    rows = as_chats([row("a", 0, "Sure!", "No"), row("a\nSure! But why?\nb", 1)])
    assert not problems(rows)


def release(rows, project, **options):
    more = {"uses": 4} if "epsilon" in options else {}
    terms = {"mechanism": "rr", "accept_little_use": True, "accept_delta": True}
    more["label_values"] = choose_coding(rows)
    return lg.privatize(rows, project=project, **terms, **more, **options)


def prompts(made):
    return set(lg.load(made)["prompt"])


def releases(project):
    return OpenProject.open(project).ledger.releases.all()


FIRST, INDEPENDENT = ({"epsilon": 3, "turns": one} for one in ("first", "independent"))


def test_every_command_stops_before_anything_is_charged(tmp_path):
    project, rows = lg.init(tmp_path), conversations("turns")
    for run in (
        lambda: release(rows, project, epsilon=3),
        lambda: lg.plan(rows, label_values=choose_coding(rows)),
    ):
        with pytest.raises(InvalidLabels, match=r"12 items.*--turns first.*--turns independent"):
            run()
    assert not releases(project)
    assert lg.plan(rows, turns="first", features="length").counts.pairs == 12
    assert lg.plan(rows, turns="independent", features="length").counts.pairs == 24


def test_first_leaves_later_turns_out_and_is_remembered(tmp_path):
    project, rows = lg.init(tmp_path), conversations("turns")
    made = release(rows, project, **FIRST)
    assert prompts(made) == {one["prompt"] for one in rows[::2]}
    assert made.card["counts"]["left_out"] == {LATER_TURN: 12}
    assert made.card["privacy"]["turns"] == "first"
    assert release(rows, project, **FIRST).reused
    more = rows + conversations("turns", range(20, 26))
    assert prompts(release(more, project)) == {one["prompt"] for one in more[::2]}
    with pytest.raises(PolicyError, match="--turns = first"):
        release(more, project, turns="independent")


def test_first_may_come_later_and_is_remembered_without_a_policy_of_it(tmp_path):
    project, rows = lg.init(tmp_path), conversations("turns")
    more = rows + conversations("turns", range(20, 26))
    release(rows[::2], project, epsilon=3)
    with pytest.raises(InvalidLabels, match="12 items"):
        release(rows, project)
    assert release(rows, project, turns="first").card["privacy"]["turns"] == "first"
    assert prompts(release(more, project)) == {one["prompt"] for one in more[::2]}


def test_a_declaration_is_part_of_the_policy_and_stands_on_the_card(tmp_path):
    project, rows = lg.init(tmp_path), conversations("turns")
    made = release(rows, project, **INDEPENDENT)
    assert len(lg.load(made)) == 24
    assert "--turns independent" in (made.path / "CARD.md").read_text()
    assert any("--turns independent" in line for line in made.card["not_protected"])
    release(rows + conversations("turns", range(20, 26)), project)
    allowed = {"epsilon": 1, "delta": 1e-6, "allow": ["rr:uses=2"], "project": project}
    lg.policies.new("next", **allowed)
    with pytest.raises(PolicyError, match="--turns independent"):
        lg.policies.activate("next", project=project)
    lg.policies.new("another", **allowed, turns="independent")
    lg.policies.activate("another", project=project)


@pytest.mark.quick("turns", "chats")
@pytest.mark.parametrize("style", ["turns", "a name before the first", "lines", "chats"])
def test_earlier_releases_are_looked_at_in_both_directions(style, tmp_path):
    rows = as_chats(conversations("lines")) if style == "chats" else conversations(style)
    for name, first, second, left in (
        (
            "prompts that contain released responses",
            rows[::2],
            rows[1::2],
            "12 items with a prompt",
        ),
        ("responses in released prompts", rows[1::2], rows[::2], "12 items with a response"),
    ):
        project = lg.init(tmp_path / name)
        release(first, project, epsilon=3)
        with pytest.raises(InvalidLabels, match=left):
            release(second, project)
        assert len(releases(project)) == 1
        others = conversations("turns", [50])[:1] if style != "chats" else as_chats([row("x", 50)])
        assert len(lg.load(release(second + others, project, turns="first"))) == 1
        with pytest.raises(InvalidLabels, match="leaves nothing"):
            release(second, project, turns="first")


def test_digests_of_earlier_releases_are_restored_and_tell_nothing_without_the_key(tmp_path):
    project, other = (lg.init(tmp_path / name) for name in ("one", "other"))
    rows = conversations("turns")
    for home in (project, other):
        release(rows[::2], home, epsilon=3)
    files = [next(home.private_maps.glob(f"*/{FILE}")) for home in (project, other)]
    one, two = (np.load(file) for file in files)
    assert len(one["responses"]) == 24
    assert not np.isin(one["responses"], two["responses"]).any()
    backup(tmp_path / "all.tar.zst", project=project)
    restored = restore(
        tmp_path / "all.tar.zst", tmp_path / "again", keys=project.keys, nothing_since=True
    )
    with pytest.raises(InvalidLabels, match="12 items"):
        release(rows[1::2], tmp_path / "again")
    assert restored


def test_prompts_without_a_word_are_released_and_known(project):
    rows = [row("", n, who=n % 4) for n in range(8)]
    assert not problems(rows)
    assert prompts(release(rows, project, epsilon=1)) == {""}
    assert prompts(release([*rows, row(" ", 9)], project)) == {"", " "}


def test_a_prompt_without_a_word_stands_anywhere_among_others():
    """Contents decide the order: of several tables, some have the empty prompt last."""
    for number in range(12):
        assert not problems([row("", number), row(f"What of {number}?", number, who=1)])


def test_beginnings_are_those_that_every_pair_of_texts_shows():
    rng = np.random.default_rng(0)
    for _ in range(300):
        texts = ["".join(rng.choice(list("abé "), rng.integers(6))) for _ in range(9)]
        shown = turns._find_beginnings(pa.chunked_array([texts[:4], texts[4:]]))
        assert shown.tolist() == [
            any(other != text and other.startswith(text) for other in texts) for text in texts
        ]
        begun = turns._begin_with(pa.chunked_array([texts]), pa.chunked_array([["a", "b ", "éa"]]))
        assert begun.tolist() == [text.startswith(("a", "b ", "éa")) for text in texts]
