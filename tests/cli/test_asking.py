"""The first release on the command line: what is said, what is asked, and who may answer."""

import json
import os
import pty
import re
import select
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.codings import OPTION
from support.surveys import survey

import labelguard as lg
from labelguard.cli.main import main
from labelguard.report import overview

ASKED = ("privatize", "labels.parquet", "--mechanism", "rr", *OPTION)
FIRST = ("--once", "--accept-little-use")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("LABELGUARD_PROJECT", "LABELGUARD_KEYS", "LABELGUARD_LEDGER_URL"):
        monkeypatch.delenv(name, raising=False)
    survey(labelers=12, per_labeler=5, items=20).write_parquet("labels.parquet")
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def on_a_terminal(answers, *arguments):
    """Run a command whose input and output are a terminal at which somebody types `answers`."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "labelguard", *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        os.write(ours, answers.encode())
        said = b""
        while select.select([ours], [], [], 60)[0]:
            try:
                said += os.read(ours, 4096)
            except OSError:  # nobody holds the other end any more
                break
        code = process.wait(60)
    os.close(ours)
    return code, said.decode()


def releases():
    return len(overview.list_releases(None))


def test_without_a_terminal_and_without_yes_nothing_is_charged():
    lg.init(Path())
    result = run(*ASKED, *FIRST)
    assert result.exit_code == 2 and not result.stdout and not releases()
    assert "for the life of the project" in result.stderr
    assert "ε = 3, δ = 1e-5" in result.stderr and "--yes" in result.stderr
    assert run(*ASKED, *FIRST, "--yes").exit_code == 0
    assert releases() == 1


def test_labels_drawn_again_are_charged_after_a_question_as_the_first_were():
    lg.init(Path())
    for uses in ("--uses", "3"), ("--uses", "3", "--again"):
        asked = (*ASKED, *uses, "--accept-little-use")
        before = releases()
        result = run(*asked)
        assert result.exit_code == 2 and releases() == before
        assert "charges" in result.stderr and "left for later files" in result.stderr
        assert run(*asked, "--yes").exit_code == 0
        assert releases() == before + 1
    assert "allowance left then" in run(*ASKED, "--uses", "3", "--accept-little-use").stdout


def test_an_input_that_cannot_be_read_is_a_notice_of_doctor():
    lg.init(Path())
    assert run(*ASKED, *FIRST, "--yes", "--columns", "prompt=nowhere").exit_code == 1
    result = run("doctor")
    assert result.exit_code == 0 and "no release succeeded" in result.stdout


def test_a_first_release_says_how_often_or_is_refused():
    lg.init(Path())
    result = run(*ASKED, "--yes", "--accept-little-use")
    assert result.exit_code == 2 and not releases()
    assert all(option in result.stderr for option in ("--once", "--uses K", "--recurring weekly"))
    assert "as for --once" in run(*ASKED, "--dry-run").stderr


def test_a_release_that_is_not_recommended_takes_more_than_a_yes():
    lg.init(Path())
    result = run(*ASKED, "--once", "--yes")
    assert result.exit_code == 2 and not releases()
    assert "nothing is recommended for 12 labelers" in result.stderr
    assert "--accept-little-use" in result.stderr
    assert run(*ASKED, *FIRST, "--yes").exit_code == 0
    run("report", "-o", "report.md")
    assert "nothing is recommended for 12 labelers" in Path("report.md").read_text()


def test_once_reserves_no_labels():
    lg.init(Path())
    made = json.loads(run(*ASKED, *FIRST, "--yes", "--json").stdout)
    assert made["card"]["budget"]["left"]["max"] == 0


@pytest.mark.parametrize("mechanism", ["rr", "statistic"])
def test_the_commands_that_a_refusal_names_help_at_the_price_that_it_names(mechanism):
    lg.init(Path())
    asked = ("privatize", "labels.parquet", "--mechanism", mechanism)
    head = () if mechanism == "rr" else ("--features", "length", "--components", "1")
    assert run(*asked, *OPTION, *FIRST, "--yes", *head).exit_code == 0
    survey(labelers=12, per_labeler=7, items=40, seed=3).write_parquet("labels.parquet")
    refused = run(*asked)
    assert refused.exit_code == 3 and "12 of 12 labelers" in refused.stderr
    for command in re.findall(r"labelguard (policy (?:new|activate) [^,;]*)", refused.stderr):
        assert run(*shlex.split(command), *["--yes"] * ("activate" in command)).exit_code == 0
    [epsilon] = re.findall(r"the project costs ε = (\d+)", refused.stderr)
    assert overview.read_budget(None).lifetime.epsilon == float(epsilon) == 6
    assert run(*asked).exit_code == 0


def test_a_project_that_has_a_policy_is_not_asked_again():
    lg.init(Path())
    run(*ASKED, *FIRST[1:], "--uses", "2", "--yes")
    survey(labelers=12, per_labeler=2, items=9, seed=3).write_parquet("labels.parquet")
    later = run(*ASKED)
    assert later.exit_code == 0 and "for the life of the project" not in later.stderr


@pytest.mark.parametrize(
    ("command", "otherwise"),
    [
        ("policy activate clinic", "--yes"),
        ("policy close", "--yes"),
        ("project ceiling --raise 20,1e-4", "--yes"),
        ("labeler erase nobody --never-seen", "--yes"),
        ("labeler retire nobody --never-seen", "--yes"),
        ("source add tool", "--people"),
    ],
)
def test_where_no_answer_can_come_a_question_names_the_option_that_answers_it(command, otherwise):
    lg.init(Path())
    new = "policy new clinic --epsilon 3 --delta 1e-5 --allow rr:uses=5"
    assert run(*new.split()).exit_code == 0
    result = run(*command.split())
    assert result.exit_code == 2 and "no terminal to ask at" in result.stderr
    assert otherwise in result.stderr and len(overview.read_journal(None)) == 2


@pytest.mark.parametrize("more", [("--yes",), ()])
def test_a_project_is_never_made_for_a_script(more):
    result = run(*ASKED, *more)
    assert result.exit_code == 1 and "labelguard init" in result.stderr
    assert not Path(".labelguard").exists()


@pytest.mark.slow
def test_at_a_terminal_a_project_is_offered_and_the_release_asked_for():
    code, said = on_a_terminal("n\n", *ASKED)
    assert code == 2 and "No project here or above" in said and not Path(".labelguard").exists()
    code, said = on_a_terminal("y\nonce\nn\n", *ASKED)
    assert code == 2 and "nothing was charged or released" in said and not releases()
    code, said = on_a_terminal("regularly\n\n3w\ny\n", *ASKED)
    assert code == 0 and "No project here or above" not in said and releases() == 1
    assert "nothing is recommended for 12 labelers" in said
    code, said = on_a_terminal("", "privatize", "labels.parquet", "--yes")
    assert code == 0 and "newly charged" not in said and "made before" in said


def test_a_dry_run_says_it_all_and_leaves_nothing(here):
    result = run(*ASKED, "--dry-run", "--json")
    assert result.exit_code == 0
    shown = json.loads(result.stdout)
    assert shown["first"] and (shown["charged"], shown["labels"]) == (12, 60)
    assert sorted(path.name for path in here.iterdir()) == ["labels.parquet"]


def test_notes_are_in_json_and_not_beside_it():
    lg.init(Path())
    made = run(*ASKED, *FIRST, "--yes", "--json", "--epsilon", "0.5")
    notes = json.loads(made.stdout)["notes"]
    assert any("released labels will differ" in note for note in notes)
    assert "labelguard: note" not in made.stderr


@pytest.mark.quick("arguments0")
@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (("privatize", "nowhere.parquet", "--json", "--yes", "--once"), 1, "InvalidLabels"),
        (("privatize", "labels.parquet", "--epsilon", "x", "--json"), 2, "UsageError"),
        (("release", "show", "--json"), 1, "LedgerError"),
    ],
)
def test_errors_are_json_where_json_was_asked_for(arguments, code, kind):
    lg.init(Path())
    result = run(*arguments)
    said = json.loads(result.stdout)
    assert (said["exit_code"], said["error"]) == (code, kind) and result.exit_code == code
    assert said["message"] in result.stderr


def test_who_stops_a_command_is_told_how_to_finish_it(monkeypatch):
    lg.init(Path())

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr("labelguard.release.drawn.DrawnRelease.finish_and_write", stop)
        result = CliRunner().invoke(main, [*ASKED, *FIRST, "--yes"])
    assert result.exit_code == 130
    again = f"labelguard {' '.join(ASKED)} {' '.join(FIRST)} --yes"
    assert result.stderr.endswith(f"run it again: {again}\n")
    finished = run(*again.split()[1:])
    assert finished.exit_code == 0 and releases() == 1
