"""Nothing from a file, a name or a card commands the terminal that shows it.

What stands in files, and looks like a page, does nothing in a notebook; nor does a label show.

Cards are HTML that a notebook puts into its page, where scripts, pictures from elsewhere and
formulas (MathJax has links) would run with the rights of whoever opened it.
"""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner
from support.codings import NUMBERS, OPTION
from support.commands import PRIVATIZE
from support.preferences import STATISTIC, TABLE
from support.releases import make_release

import labelguard as lg
from labelguard.cli.main import main
from labelguard.project.project import Project

# Escape sequences, their one-character forms, overrides of direction, a line of its own.
HOSTILE = "a\x1b]0;b\x07\x1b[2J\x9b31m\u202egpj\u2066\nlabelguard: all is well"


def _privatize(path, content, *more):
    path.write_text(content)
    return [*PRIVATIZE, str(path), "--epsilon", "3", "--delta", "1e-5", *more]


def _same_columns(directory):
    row = {"labeler_id": "u", "prompt": "p", HOSTILE: 1, HOSTILE.upper(): 2}
    return _privatize(directory / "labels.jsonl", json.dumps(row, ensure_ascii=False) + "\n")


def _csv_header(directory):
    name = HOSTILE.partition("\n")[0]
    return _privatize(directory / "labels.csv", f"labeler_id,{name},{name}\n1,2,3\n")


def _output(directory):
    (directory / HOSTILE).write_text("x")
    where = ("-o", str(directory / HOSTILE))
    return _privatize(directory / "labels.csv", "labeler_id,prompt\n1,2\n", *where)


ERRORS: dict[str, Callable[[Path], list[str]]] = {
    "columns of one name": _same_columns,
    "header": _csv_header,
    "file name": lambda directory: _privatize(directory / f"{HOSTILE}.txt", "x"),
    "--columns": lambda directory: _privatize(
        directory / "labels.csv", "labeler_id,prompt\n1,2\n", "--columns", f"prompt={HOSTILE}"
    ),
    "output": _output,
    "policy": lambda _: ["policy", "show", HOSTILE],
    "release": lambda _: ["release", "show", HOSTILE],
    "score": lambda _: ["score", HOSTILE, "x", "-o", "y"],
}


def run(project, *arguments):
    return CliRunner().invoke(main, [*arguments, "--project", str(project.state)])


def harmless(text):
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.quick("columns of one name", "file name", "policy")
@pytest.mark.parametrize("case", ERRORS)
def test_errors_show_what_is_hostile_escaped_in_one_line(project, tmp_path, case):
    seen = run(project, *ERRORS[case](tmp_path))
    assert seen.exit_code == 1
    assert harmless(seen.output)
    assert seen.output.count("\n") == 1


@pytest.mark.quick("arguments0")
@pytest.mark.parametrize("arguments", [(HOSTILE,), ("policy", HOSTILE), ("demo", "x", HOSTILE)])
def test_usage_errors_are_harmless(arguments):
    seen = CliRunner().invoke(main, list(arguments))
    assert seen.exit_code == 2
    assert harmless(seen.output)


def test_a_card_is_shown_harmlessly_and_its_json_is_the_same(project):
    release = make_release(TABLE, epsilon=3, delta=1e-5, project=project, **STATISTIC)
    path = project.releases / release.id / "card.json"
    whole = json.loads(path.read_text())
    for place in ("features", "question", "release", "kind"):
        card = whole | ({} if place == "features" else {place: HOSTILE})
        if place == "features":
            card["statistic"] = whole["statistic"] | {"features": HOSTILE}
        path.write_text(json.dumps(card, ensure_ascii=False))
        seen = run(project, "release", "show", release.id)
        assert seen.exit_code == 0 and harmless(seen.output)
        as_json = run(project, "release", "show", release.id, "--json")
        assert harmless(as_json.output) and json.loads(as_json.output) == card
    card = whole | {"statistic": whole["statistic"] | {"features": "columns:[bold]a[/bold]"}}
    path.write_text(json.dumps(card))  # squared brackets are no markup
    assert "[bold]a[/bold]" in run(project, "release", "show", release.id).output


def test_notes_and_tables_are_harmless(project, tmp_path):
    moved = project.state.parent.rename(tmp_path / HOSTILE.replace("/", ""))
    home = Project(moved / ".labelguard")
    bad = TABLE.slice(0, 1).set_column(TABLE.schema.get_field_index("prompt"), "prompt", [[""]])
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.concat_tables([TABLE, bad]), tmp_path / "labels.parquet")
    price = ("--epsilon", "3", "--delta", "1e-5", "--bad-rows", "quarantine")
    for arguments in (
        (*PRIVATIZE, *OPTION, str(tmp_path / "labels.parquet"), *price),
        ("release", "list"),
        ("doctor",),
        ("budget", "show"),
    ):
        seen = run(home, *arguments)
        assert seen.exit_code == 0, seen.output
        assert harmless(seen.output)


def test_names_in_any_script_are_shown_as_they_are(tmp_path):
    name = "Größe-名前-идентификатор"
    seen = CliRunner().invoke(main, ["doctor", "--project", os.fspath(tmp_path / name)])
    assert name in seen.output


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


READING: dict[str, Any] = {
    "columns": {"labeler_id": "who", "prompt": COLUMN},
    "label_values": NUMBERS,
}


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


PLAIN = {"div", "p", "strong", "table", "tr", "th", "td", "span", "img"}


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
    """Of everything that has a card, and of what has a repr alone, one about hostile data."""
    project = lg.init(tmp_path_factory.mktemp("notebook"))
    asked: dict[str, Any] = {"mechanism": "rr", "epsilon": 3, "delta": 1e-5, "project": project}
    release = make_release(table(), **asked, **READING)
    cards = [
        lg.plan(table(), epsilons=[8], features="length", **READING),
        release,
        replace(release, card={**release.card, "mechanism": EVIL}, notes=(EVIL,) * 30),
    ]
    return cards, [lg.inspect(table(), **READING), lg.policies.show(project=project)]


def test_a_card_of_hostile_data_is_text_in_a_frame(results):
    for one in results[0]:
        check(one._repr_html_())
    assert "secret-" not in "".join(one._repr_html_() for one in results[0])


def test_the_check_finds_what_is_not_escaped(results):
    card = results[0][0]._repr_html_()
    for planted in ("<script>1</script>", "<b onclick=x>", "$x$", "<img src=http://a alt=b>"):
        with pytest.raises(AssertionError):
            check(card.replace("</div>", f"{planted}</div>"))


def test_a_repr_is_one_short_line_without_texts(results):
    cards, others = results
    for one in (*cards[:2], *others):
        assert "\n" not in repr(one) and len(repr(one)) < 200, repr(one)
        assert "evil" not in repr(one) and "secret-" not in repr(one)


def test_reprs_and_cards_are_the_same_whatever_labels_are():
    def shown(flipped):
        made = table(flipped)
        looked = [repr(lg.inspect(one, **READING)) for one in (made, [made], made.to_pylist())]
        planned = lg.plan([made], epsilons=[8], features="length", **READING)
        return [*looked, repr(planned), planned._repr_html_()]

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
