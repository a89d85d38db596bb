"""Nothing from a file, a name or a card commands the terminal that shows it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.commands import PRIVATIZE
from support.preferences import STATISTIC, opinions, pairs, public

import labelguard
from labelguard.cli.main import main
from labelguard.project.project import Project

HOSTILE = "a\x1b]0;b\x07\x1b[2J\x9b31m\u202egpj\u2066\nlabelguard: all is well"
"""Escape sequences, their one-character forms, overrides of direction, a line of its own."""
TABLE = pairs(public(labelers=3, per_labeler=4, items=6), opinions(12, 1))

Case = Callable[[Project, Path], list[str]]


def _same_columns(project: Project, directory: Path) -> list[str]:
    path = directory / "labels.jsonl"
    row = {"labeler_id": "u", "prompt": "p", HOSTILE: 1, HOSTILE.upper(): 2}
    path.write_text(json.dumps(row, ensure_ascii=False) + "\n")
    return [*PRIVATIZE, str(path), "--epsilon", "3", "--delta", "1e-5"]


def _csv_header(project: Project, directory: Path) -> list[str]:
    path, name = directory / "labels.csv", HOSTILE.partition("\n")[0]
    path.write_text(f"labeler_id,{name},{name}\n1,2,3\n")
    return [*PRIVATIZE, str(path), "--epsilon", "3", "--delta", "1e-5"]


def _file_name(project: Project, directory: Path) -> list[str]:
    path = directory / (HOSTILE + ".txt")
    path.write_text("x")
    return [*PRIVATIZE, str(path), "--epsilon", "3", "--delta", "1e-5"]


def _column_option(project: Project, directory: Path) -> list[str]:
    path = directory / "labels.csv"
    path.write_text("labeler_id,prompt\n1,2\n")
    columns = f"prompt={HOSTILE}"
    return [*PRIVATIZE, str(path), "--epsilon", "3", "--delta", "1e-5", "--columns", columns]


def _output(project: Project, directory: Path) -> list[str]:
    (directory / HOSTILE).write_text("x")
    path = directory / "labels.csv"
    path.write_text("labeler_id,prompt\n1,2\n")
    return [*PRIVATIZE, str(path), "-o", str(directory / HOSTILE)]


def _policy(project: Project, directory: Path) -> list[str]:
    return ["policy", "show", HOSTILE]


ERRORS: dict[str, Case] = {
    "columns of one name": _same_columns,
    "header": _csv_header,
    "file name": _file_name,
    "--columns": _column_option,
    "output": _output,
    "policy": _policy,
    "release": lambda project, directory: ["release", "show", HOSTILE],
    "score": lambda project, directory: ["score", HOSTILE, "x", "-o", "y"],
}


def run(project: Project, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--project", str(project.state)])


def harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.quick("columns of one name", "file name", "policy")
@pytest.mark.parametrize("case", ERRORS)
def test_errors_show_what_is_hostile_escaped_in_one_line(
    project: Project, tmp_path: Path, case: str
) -> None:
    seen = run(project, *ERRORS[case](project, tmp_path))
    assert seen.exit_code == 1
    assert harmless(seen.output)
    assert seen.output.count("\n") == 1


@pytest.mark.quick("arguments0")
@pytest.mark.parametrize("arguments", [(HOSTILE,), ("policy", HOSTILE), ("demo", "x", HOSTILE)])
def test_usage_errors_are_harmless(arguments: tuple[str, ...]) -> None:
    seen = CliRunner().invoke(main, list(arguments))
    assert seen.exit_code == 2
    assert harmless(seen.output)


@pytest.mark.quick("features")
@pytest.mark.parametrize("where", ["features", "question", "release", "kind"])
def test_a_card_is_shown_harmlessly_and_its_json_is_the_same(project: Project, where: str) -> None:
    release = labelguard.privatize(TABLE, epsilon=3, delta=1e-5, project=project, **STATISTIC)
    path = project.releases / release.id / "card.json"
    card = json.loads(path.read_text())
    if where == "features":
        card["statistic"]["features"] = HOSTILE
    else:
        card[where] = HOSTILE
    path.write_text(json.dumps(card, ensure_ascii=False))
    seen = run(project, "release", "show", release.id)
    assert seen.exit_code == 0
    assert harmless(seen.output)
    as_json = run(project, "release", "show", release.id, "--json")
    assert harmless(as_json.output)
    assert json.loads(as_json.output) == card


def test_notes_and_tables_are_harmless(project: Project, tmp_path: Path) -> None:
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


def test_squared_brackets_are_no_markup(project: Project) -> None:
    release = labelguard.privatize(TABLE, epsilon=3, delta=1e-5, project=project, **STATISTIC)
    path = project.releases / release.id / "card.json"
    card = json.loads(path.read_text())
    card["statistic"]["features"] = "columns:[bold]a[/bold]"
    path.write_text(json.dumps(card))
    assert "[bold]a[/bold]" in run(project, "release", "show", release.id).output


def test_names_in_any_script_are_shown_as_they_are(tmp_path: Path) -> None:
    name = "Größe-名前-идентификатор"
    seen = CliRunner().invoke(main, ["doctor", "--project", os.fspath(tmp_path / name)])
    assert name in seen.output
