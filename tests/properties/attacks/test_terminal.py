"""Nothing from a file, a name or a card commands the terminal that shows it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.commands import PRIVATIZE
from support.preferences import STATISTIC, TABLE

import labelguard
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
    release = labelguard.privatize(TABLE, epsilon=3, delta=1e-5, project=project, **STATISTIC)
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
        (*PRIVATIZE, str(tmp_path / "labels.parquet"), *price),
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
