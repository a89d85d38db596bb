"""What stands in files, and looks like a page, does nothing in a notebook; nor does a label show.

Cards are HTML that a notebook puts into its page, where scripts, pictures from elsewhere and
formulas (MathJax has links) would run with the rights of whoever opened it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import labelguard as lg
from labelguard.analysis.leaderboard import Board, Leaderboard, Standing

EVIL = (
    "<script>alert(1)</script><img src=https://evil.example/x onerror=alert(2)>"
    "$\\href{javascript:alert(3)}{x}$\\(y\\) \x1b[2J\u202eevil\" onload='alert(4)'"
)
COLUMN = "task <b onclick=alert(5)> $z$"
LABELERS, ITEMS = 30, 40


def table(flipped=False, evil=EVIL):
    """Every labeler on every item; prompts and names of columns are hostile."""
    rows = LABELERS * ITEMS
    label = [(row * 7919 % 13) % 2 for row in range(rows)]
    return pa.table(
        {
            "who": [f"secret-{row % LABELERS}" for row in range(rows)],
            COLUMN: [f"{evil}{row % ITEMS}" for row in range(rows)],
            "response_a": [f"{evil}yes {row % ITEMS}" for row in range(rows)],
            "response_b": [f"no {row % ITEMS}" for row in range(rows)],
            "label": pc.subtract(1, pa.array(label)) if flipped else pa.array(label),
        }
    )


READING: dict[str, Any] = {"columns": {"labeler_id": "who", "prompt": COLUMN}}


class Page(HTMLParser):
    """The tags of a page with their attributes, and its text, piece by piece."""

    def __init__(self, text):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)


PLAIN = {"div", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "span", "img"}


def check(card):
    """It has no tags but ours, no attribute that acts, no formula, no letter that commands."""
    page = Page(card)
    assert {tag for tag, _ in page.tags} <= PLAIN
    named = {name for _, attributes in page.tags for name in attributes}
    assert named <= {"style", "class", "scope", "alt", "src"}
    sources = [given["src"] for _, given in page.tags if "src" in given]
    assert all(re.fullmatch(r"data:image/png;base64,[\w+/=]+", str(one)) for one in sources)
    assert all(given["alt"] for tag, given in page.tags if tag == "img")
    assert all(text in ("$", "\\") for text in page.texts if "$" in text or "\\" in text)
    assert card.isprintable() and len(card) < 100_000


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Of everything that has a card, one about hostile data."""
    project = lg.init(tmp_path_factory.mktemp("notebook"))
    asked: dict[str, Any] = {"mechanism": "rr", "epsilon": 3, "delta": 1e-5, "project": project}
    release = lg.privatize(table(), **asked, **READING)
    return [
        lg.inspect(table(), **READING),
        lg.plan(table(), epsilons=[8], features="length", **READING),
        release,
        replace(release, card={**release.card, "mechanism": EVIL}, notes=(EVIL,) * 30),
        lg.policies.show(project=project),
        _board(),
    ]


def _board():
    """A leaderboard of sources with hostile names."""
    one = Standing(EVIL, 1, 1, 1000.0, 990.0, 1010.0, 20.0, 10)
    board = Board(EVIL, (one,) * 30, EVIL)
    return Leaderboard("source:model", 0.95, 1000.0, (board,) * 30, (EVIL,), (EVIL,))


def test_a_card_of_hostile_data_is_text_in_a_frame(results):
    for one in results:
        check(one._repr_html_())
    assert "secret-" not in "".join(one._repr_html_() for one in results)


def test_the_check_finds_what_is_not_escaped(results):
    card = results[0]._repr_html_()
    for planted in ("<script>1</script>", "<b onclick=x>", "$x$", "<img src=http://a alt=b>"):
        with pytest.raises(AssertionError):
            check(card.replace("</div>", f"{planted}</div>"))


def test_a_repr_is_one_short_line_without_texts(results):
    for one in [*results[:3], *results[4:]]:
        assert "\n" not in repr(one) and len(repr(one)) < 200, repr(one)
        assert "evil" not in repr(one) and "secret-" not in repr(one)


def test_reprs_and_cards_are_the_same_whatever_labels_are():
    def shown(flipped):
        made = table(flipped)
        found: list[Any] = [lg.inspect(one, **READING) for one in (made, [made], made.to_pylist())]
        found.append(lg.plan([made], epsilons=[8], features="length", **READING))
        return [(repr(one), one._repr_html_()) for one in found]

    assert shown(False) == shown(True)


def test_what_is_in_memory_is_never_written_into_a_command():
    """A table in a list was printed into the next command once, with its first labels."""
    rows = table(evil="").to_pylist()
    planned = lg.plan([table(evil="")], epsilons=[8], features="length", **READING)
    commands = [one.command for one in planned.recommended if one.command]
    assert commands
    for source in ([table(evil="")], rows, [table(evil=""), table(evil="")]):
        commands += lg.inspect(source, **READING).next
    commands = [text for text in commands if text != "labelguard init"]
    assert all(" INPUT " in text and "secret-" not in text for text in commands), commands
