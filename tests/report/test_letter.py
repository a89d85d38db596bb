"""The letter to a labeler, and the record of processing: what they say, to whom, and no mark."""

import json
import re
import sqlite3
from datetime import UTC, datetime
from typing import Any

import pytest
from support.commands import run
from support.leaving import PRICE, WHO, labels_table, pseudonym
from support.preferences import ASKED, opinions, pairs
from support.reports import HOSTILE, section
from support.times import simulate_time

import labelguard as lg
from labelguard.errors import LabelguardError, LedgerError, ProjectError
from labelguard.project import erasure, linking, policies
from labelguard.project.project import find
from labelguard.report.page import report
from labelguard.report.person import write_letter
from labelguard.report.render import render_html, render_markdown

COST: dict[str, Any] = {"epsilon": 3, "delta": 1e-5}
STATED = 'controller = "Clinic"\npurpose = """training\nan assistant"""\n'


@pytest.fixture
def released(project):
    lg.privatize(labels_table(), project=project, **PRICE)
    return project


def state(project, text):
    with (project.state / "labelguard.toml").open("a", encoding="utf-8") as file:
        file.write(f"\n[organisation]\n{text}")
    return find(project.state)


def test_a_letter_says_what_was_used_and_what_that_means(released):
    letter = write_letter(WHO, project=state(released, STATED))
    text = letter.text
    assert letter.labeler == pseudonym(released) and letter.path is None
    for part in (WHO, letter.labeler, "For 12 answers of yours", "1 randomized block.", "rr"):
        assert part in text
    assert "a factor of 20.1" in text and "95.3%" in text and "r0001" in text
    assert "| controller | Clinic |" in text and "| contact | not stated |" in text
    assert "| purpose | training an assistant |" in text
    assert letter.not_stated == [
        *("contact", "legal basis", "recipients", "transfers", "retention")
    ]
    assert "Each statistic release" not in text and "training run" not in text
    note = 'says "not stated" of contact, legal basis, recipients, transfers, retention'
    assert note in run("labeler", "letter", WHO, project=released).stderr
    assert write_letter(letter.labeler, project=released).text.count(WHO) == 0


@pytest.mark.parametrize(
    ("leave", "words"),
    [
        ("retired", "sees a flip probability that nobody else has"),
        ("erased", "read answers from files and kept none"),
    ],
)
def test_who_left_is_told_what_became_of_their_answers(leave, words, released):
    erasure.remove_labeler(WHO, leave, released)
    text = write_letter(WHO, project=released).text
    text = " ".join(text.split())
    assert words in text and "You left. This stays:" in text
    assert "which published answers are yours were removed" in text
    assert ("input files, and exports of your answers, deleted on" in text) == (leave == "erased")
    assert "of yours are in private files" not in text and "1 randomized block." in text


def test_a_letter_explains_the_releases_there_were_and_has_addresses_as_they_are(project):
    project = state(project, 'contact = "privacy@clinic.example, or @clinic"\n')
    sums = {"mechanism": "statistic", "features": "length", "epsilon": 3, "delta": 1e-5}
    lg.privatize(labels_table(), project=project, **sums)
    text = write_letter(WHO, project=project).text
    assert "Each statistic release adds" in text and "randomized block" not in text
    assert "published answers" not in text and "which answers of yours were used is removed" in text
    assert "privacy@clinic.example, or \\@clinic" in text


def test_who_left_before_any_label_came_gets_a_letter_too(released):
    erasure.remove_labeler("somebody", "erased", released, never_seen=True)
    text = write_letter("somebody", project=released).text
    assert "Nothing: no release has used" in text and "Which of two or more" not in text
    assert "the project has no answer of yours, and used none" in text


def test_an_answer_that_a_sum_used_as_well_counts_once_and_every_release_with_it_is_listed(project):
    policies.new("both", allow=["rr:uses=1", "statistic:releases=2"], project=project, **COST)
    policies.activate("both", project)
    sums = {"mechanism": "statistic", "features": "length", "project": project}
    first = lg.privatize(labels_table(), **sums)
    assert "what was published in place" not in write_letter(WHO, project=project).text
    for mechanism in ("rr", "props"):
        lg.privatize(labels_table(), mechanism=mechanism, project=project)
    text = write_letter(WHO, project=project).text
    assert "For 12 answers of yours" in text
    uses = [line.split(" | ")[2:4] for line in text.splitlines() if line.startswith("| r0")]
    assert uses == [["statistic", "1"], ["rr", "1"], ["props", "0"]]
    assert "0 means that answers already published" in text and first.id in text


def test_a_release_after_they_left_that_repeats_labels_of_others_is_none_of_theirs(released):
    erasure.remove_labeler(WHO, "retired", released)
    with simulate_time(datetime(2040, 1, 1, tzinfo=UTC)):
        lg.privatize(labels_table(), project=released, mechanism="props")
    text = write_letter(WHO, project=released).text
    assert "props" not in text and "0 means" not in text


def test_a_letter_is_a_page_or_markdown_as_the_name_of_the_file_says(released, tmp_path):
    page = tmp_path / "letter.html"
    write_letter(WHO, page, released)
    assert page.read_text().startswith("<!doctype html>")
    with pytest.raises(LabelguardError, match=r"\.md, \.txt or \.html; found letter\.pdf"):
        write_letter(WHO, tmp_path / "letter.pdf", released)
    assert not (tmp_path / "letter.pdf").exists()


@pytest.mark.parametrize("unknown", ["Weatherwax", WHO.upper(), f" {WHO}", "0" * 32])
def test_an_unknown_id_or_another_spelling_gets_no_letter_and_no_file(unknown, released, tmp_path):
    file = tmp_path / "letter.md"
    with pytest.raises(LedgerError, match="this id was never seen") as error:
        write_letter(unknown, file, released)
    assert unknown not in str(error.value) and not file.exists()


def test_a_letter_is_for_its_reader_alone(released, tmp_path):
    file = tmp_path / "letter.md"
    file.symlink_to(released.keys / "project.key")
    before = (released.keys / "project.key").read_bytes()
    assert run("labeler", "letter", WHO, "-o", str(file), project=released).exit_code == 0
    assert not file.is_symlink() and file.stat().st_mode & 0o777 == 0o600
    assert (released.keys / "project.key").read_bytes() == before
    printed = json.loads(run("labeler", "letter", WHO, "--json", project=released).stdout)
    assert set(printed) == {"labeler", "text", "path", "not_stated"}


def test_an_id_that_is_markdown_is_a_word_in_a_letter(project):
    who = HOSTILE.replace("\n", "")
    table = pairs(ASKED, opinions(len(ASKED), 1))
    ids = [who if u == 2 else f"worker {u}" for u in ASKED.labeler]
    at = table.column_names.index("labeler_id")
    lg.privatize(table.set_column(at, "labeler_id", [ids]), project=project, **PRICE)
    text = write_letter(who, project=project).text
    assert not re.search(r"(?<!\\)<|(?<!\\)\]\(|\x1b|\u202e|(?<!\\)`|(?m:^# \])", text)
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert len(headings) == 7
    assert all(line.count(" | ") == 1 for line in text.splitlines() if "to labeler" in line)


def test_where_contents_are_the_unit_nothing_is_said_of_persons_budgets(project):
    item = {name: PRICE[name] for name in ("epsilon", "delta", "mechanism")}
    lg.privatize(labels_table(), project=project, unit="item", **item)
    text = write_letter(WHO, project=project).text
    assert "Budgets are of contents here" in text and "each question by itself" in text
    assert "for all your answers" not in text


def test_a_report_states_nothing_that_nobody_stated(project):
    part = section(report(project=project), "processing")
    facts = dict(part.facts)
    assert facts["controller"] == facts["legal basis"] == "not stated"
    assert "nothing was released yet" in " ".join(part.text)
    assert set(facts) >= {"signature", "date", "decided by (name, role)"}


def test_a_report_repeats_what_was_stated_beside_the_risk_that_is_left(released):
    keep = '\n[ingest]\nkeep = "90d"\n[project]\ncontact = "her@clinic.example"\n'
    part = section(report(project=state(released, STATED + keep)), "processing")
    facts = dict(part.facts)
    assert facts["purpose"] == "training an assistant"
    assert facts["contact"] == "her@clinic.example"
    assert facts["raw answers from tools"] == "90d after their release"
    assert "right in at most 95.3% of cases" in " ".join(part.text)


def test_a_statement_that_is_markup_is_shown_and_never_obeyed(released):
    hostile = "".join(f"{name} = {json.dumps(HOSTILE)}\n" for name in ("controller", "recipients"))
    document = report(project=state(released, hostile))
    assert dict(section(document, "processing").facts)["controller"].startswith("<script>")
    for render in (render_html, render_markdown):
        text = render(document)
        assert "<script" not in re.sub(r"\\.", "", text) and "\x1b" not in text


def test_a_statement_under_another_name_is_refused(released):
    with pytest.raises(ProjectError, match="organisation"):
        state(released, 'controler = "Clinic"\n')


def test_who_left_under_one_of_two_ids_is_told_which_one_is_still_active(released):
    linking.add_source("tool", "known", released)
    linking.link_two_ids(WHO, "tool:7", released)
    [other] = erasure.remove_labeler(WHO, "erased", released).linked
    text = write_letter(WHO, project=released).text
    assert "no new answers under this id" in text and f"same budget: {other}." in text


@pytest.mark.parametrize("blank", ["", " ", "\\n"])
def test_a_blank_statement_is_not_stated(blank, released):
    document = report(project=state(released, f'retention = "{blank}"\n'))
    assert dict(section(document, "processing").facts)["retention"] == "not stated"


def test_a_misspelled_statement_is_told_with_the_right_name(released):
    with pytest.raises(ProjectError, match=r"transfer: unknown key \(did you mean 'transfers'\?\)"):
        state(released, 'transfer = "none"\n')


def test_a_letter_says_whom_to_ask_and_of_which_rights_after_that(released):
    text = write_letter(WHO, project=state(released, 'transfers = "none"\n')).text
    assert "| transfers | none |" in text
    rights = text.partition("Whom to write to")[2]
    for word in ("contact", "a copy", "corrected", "restrict", "object", "complain"):
        assert word in rights


def test_no_letter_is_written_from_a_ledger_that_does_not_hold(released):
    with sqlite3.connect(released.state / "ledger.sqlite3") as ledger:
        ledger.execute("UPDATE counters SET used = used - 1")
    with pytest.raises(LedgerError, match="a letter could be wrong"):
        write_letter(WHO, project=released)


def test_rows_that_leave_are_those_that_the_letter_counts(project):
    policies.new("both", allow=["rr:uses=1", "statistic:releases=2"], project=project, **COST)
    policies.activate("both", project)
    lg.privatize(labels_table(), mechanism="statistic", features="length", project=project)
    lg.privatize(labels_table(), mechanism="rr", project=project)
    text = write_letter(WHO, project=project).text
    rows = erasure.preview_removal(WHO, "erased", project).rows_remembered
    assert f"{rows} rows of yours are in private files" in text and rows == 24


def test_who_compares_releases_around_a_departure_is_told_of(released):
    erasure.remove_labeler(WHO, "erased", released)
    again = lg.privatize(labels_table(), project=released, mechanism="rr")
    assert any("1 labeler left since release r0001" in note for note in again.notes)
    text = " ".join(section(report(project=released), "not-protected").points)
    assert "whoever compares releases from before and after" in text
