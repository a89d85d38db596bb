"""Sections of a report on a project as a whole: what its organisation states, who left."""

import json
import re

import pytest
from support.leaving import PRICE, WHO, labels_table
from support.reports import HOSTILE, section

import labelguard as lg
from labelguard.errors import ProjectError
from labelguard.project import erasure
from labelguard.project.project import find
from labelguard.report.page import report
from labelguard.report.render import render_html, render_markdown

STATED = 'controller = "Clinic"\npurpose = """training\nan assistant"""\n'


@pytest.fixture
def released(project):
    lg.privatize(labels_table(), project=project, **PRICE)
    return project


def state(project, text):
    with (project.state / "labelguard.toml").open("a", encoding="utf-8") as file:
        file.write(f"\n[organisation]\n{text}")
    return find(project.state)


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


@pytest.mark.parametrize("blank", ["", " ", "\\n"])
def test_a_blank_statement_is_not_stated(blank, released):
    document = report(project=state(released, f'retention = "{blank}"\n'))
    assert dict(section(document, "processing").facts)["retention"] == "not stated"


def test_a_misspelled_statement_is_told_with_the_right_name(released):
    with pytest.raises(ProjectError, match=r"transfer: unknown key \(did you mean 'transfers'\?\)"):
        state(released, 'transfer = "none"\n')


def test_who_compares_releases_around_a_departure_is_told_of(released):
    erasure.remove_labeler(WHO, "erased", released)
    again = lg.privatize(labels_table(), project=released, mechanism="rr")
    assert any("1 labeler left since release r0001" in note for note in again.notes)
    text = " ".join(section(report(project=released), "not-protected").points)
    assert "whoever compares releases from before and after" in text
