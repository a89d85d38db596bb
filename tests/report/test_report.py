"""The report: what it says of projects of all kinds, and that nothing in them can spoil it."""

import base64
import hashlib
import json
import re
from dataclasses import asdict
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.commands import run
from support.leaving import PRICE, WHO, labels_table
from support.lives import put_into_force
from support.pages import DOCS, ROOT
from support.preferences import STATISTIC, TABLE
from support.releases import make_release
from support.reports import HOSTILE, section
from support.times import simulate_time

import labelguard as lg
from labelguard.answers.connector import Answer
from labelguard.answers.inbox import Event, Inbox
from labelguard.configuration.project_file import OrganisationTable
from labelguard.errors import LabelguardError, LedgerError, ProjectError
from labelguard.project import erasure, linking, policies
from labelguard.project.attempts import HISTORY, JobRun
from labelguard.project.opening import OpenProject
from labelguard.project.project import find
from labelguard.release.sections import Section, Table
from labelguard.report import overview
from labelguard.report.facts import format_best_guess_accuracy
from labelguard.report.page import report, write_report
from labelguard.report.render import Report, render_html, render_json, render_markdown

BUDGET: dict[str, Any] = {"epsilon": 3, "delta": 1e-5, "mechanism": "rr"}
STATEMENTS = list(OrganisationTable.model_fields)
RENDERERS = (render_html, render_markdown, render_json)
# Templates that have the columns of the report's tables.
WORDS = [
    ROOT / "labelguard" / name for name in ("report/words.j2", "release/mechanisms/sections.j2")
]


@pytest.fixture
def project(tmp_path):
    return lg.init(tmp_path)


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A project with one release, which nothing changes; labelers have ten labels each to use."""
    project = lg.init(tmp_path_factory.mktemp("released"))
    options = BUDGET | {"max_labels_per_labeler": 10, "block": 1}
    return project, make_release(TABLE, project=project, **options)


def words(document):
    return json.dumps(asdict(document), ensure_ascii=False)


# ---------------------------------------------------------------- what it says


def test_the_page_on_releases_names_every_column_of_the_report():
    page = (DOCS / "releases.md").read_text(encoding="utf-8").partition("## The report")[2]
    words = "".join(path.read_text(encoding="utf-8") for path in WORDS)
    captions = re.findall(r"^= (.+)$", words, re.MULTILINE)
    columns = {name for line in captions for name in line.split(" | ")[1:] if "{" not in name}
    assert {"ties and skips", "linked ids still active", "budget"} <= columns
    assert [name for name in sorted(columns) if name not in page] == []


def test_an_empty_project_promises_nothing_yet(project):
    document = report(project=project)
    assert "Nothing was promised yet" in section(document, "guarantee").text[0]
    assert dict(document.summary)["promised so far"] == "nothing" and document.ok
    assert section(document, "releases").text == ("No release was made yet.",)
    for render in RENDERERS:
        assert render(document)
    with pytest.raises(LedgerError, match="no committed release 'r0001'"):
        report("r0001", project)


def test_what_needs_doing_stands_first_and_nothing_is_said_where_nothing_does(project):
    document = report(project=project)
    assert document.sections[0] == section(document, "to-do")
    assert "not stated in labelguard.toml: controller" in document.sections[0].points[0]
    with (project.state / "labelguard.toml").open("a") as file:
        file.write("\n[organisation]\n" + "".join(f'{n} = "x"\n' for n in STATEMENTS))
    project = find(project.state)
    assert section(report(project=project), "to-do").text == ("Nothing to do.",)
    make_release(TABLE, project=project, **BUDGET)
    policies.new("next", epsilon=1, delta=1e-5, allow=["rr:uses=9,block=1"], project=project)
    said = " ".join(section(report(project=project), "to-do").points)
    everybody = len(set(TABLE["labeler_id"].to_pylist()))
    assert f"{everybody} labelers have no randomized blocks left: their new labels" in said
    assert "next is a draft" in said
    erasure.remove_labeler("worker 1", "retired", project)
    said = " ".join(section(report(project=project), "to-do").points)
    assert f"{everybody - 1} labelers have no randomized blocks left" in said
    policies.close(project=project)
    assert "No policy is in force" in " ".join(section(report(project=project), "to-do").points)


def test_time_that_runs_backwards_is_reported_and_the_period_is_in_order(project):
    for year, table in ((2031, TABLE), (2030, TABLE.slice(0, 9))):
        with simulate_time(datetime(year, 5, 1, tzinfo=UTC)):
            make_release(table, project=project, **BUDGET)
    found = overview.verify(project)
    assert found.ok and "2030-05-01T00:00:00Z" in str(found.backwards)
    document = report(project=project)
    assert dict(document.summary)["period"] == "2030-05-01 to 2031-05-01"
    assert "Time ran backwards" in " ".join(section(document, "verification").text)
    assert "time ran backwards" in run("budget", "verify", project=project).stderr


def test_the_report_names_the_project_whom_to_ask_and_its_period(project):
    with (project.state / "labelguard.toml").open("a") as file:
        file.write('\n[project]\nname = "<b>Clinic</b>"\ncontact = "privacy@clinic.example"\n')
    make_release(TABLE, project=find(project.state), **BUDGET)
    document = report(project=find(project.state))
    assert document.title == "<b>Clinic</b>: labels under differential privacy"
    facts = dict(document.summary)
    assert facts["contact"] == "privacy@clinic.example" and len(facts["project id"]) == 16
    assert facts["period"] == overview.list_releases(project)[0].created_at[:10]
    page = render_html(document)
    assert "&lt;b&gt;Clinic&lt;/b&gt;" in page and "<b>Clinic" not in page


def test_the_promise_of_several_policies_is_their_sum(project):
    make_release(TABLE, project=project, **BUDGET)
    put_into_force(project, "second", "rr:uses=50,block=1", epsilon=2)
    document = report(project=project)
    promise = " ".join(section(document, "guarantee").text)
    assert "ε = 5, δ = 2e-5" in promise and "at most 149 times as likely" in promise
    assert "right in at most 99.34% of cases" in promise
    who = len(set(TABLE["labeler_id"].to_pylist()))
    assert f"{who} labelers charged so far" in str(section(document, "processing").facts)
    assert len(section(document, "policies").table.rows) == 2  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("epsilon", "right"),
    [(1.0, "73.2%"), (3.0, "95.3%"), (10.0, "99.9955%"), (2000.0, "all but 100%")],
)
def test_how_often_a_guess_is_right_is_rounded_up(epsilon, right):
    assert format_best_guess_accuracy(epsilon, 1e-5) == right
    if epsilon < 100:
        bound = (np.exp(epsilon) + 1e-5) / (np.exp(epsilon) + 1)
        assert bound <= float(right[:-1]) / 100 < bound + 0.001


def test_the_hook_is_told_in_counts(project):
    make_release(TABLE, project=project, **BUDGET)
    assert not [one for one in report(project=project).sections if one.id == "hook"]
    opened = OpenProject.open(project)
    inbox = Inbox.open(project.state, project.ledger_url, opened.keys)
    inbox.store_events([Event("desk", (Answer("1", 1), Answer("2", 1)))])
    inbox.store_dead_letter("desk", b"secret words", "no JSON")
    inbox.close()
    worker = {"reconciled": {"desk": "2026-01-05"}, "releases": {"files": "r0001"}}
    (project.state / "worker.json").write_text(json.dumps(worker))
    document = report(project=project)
    hook = section(document, "hook")
    assert dict(hook.facts) == {"waiting in the inbox": "2", "dead letters": "1"}
    assert hook.table and ("desk", "reconciled", "2026-01-05") in hook.table.rows
    assert "secret words" not in words(document)
    assert any(one.startswith("1 dead letter waits") for one in section(document, "to-do").points)
    (project.state / "worker.json").write_text("{")
    assert "cannot be read" in section(report(project=project), "hook").alert


@pytest.mark.parametrize(
    ("unit", "word", "whose"), [("item", "Each content", "an item's"), ("labeler", "Each", "a")]
)
def test_it_says_who_is_protected(project, unit, word, whose):
    put_into_force(project, "p", "rr:uses=50,block=1", unit=unit)
    make_release(TABLE, project=project, mechanism="rr", exhausted="drop")
    document = report(project=project)
    said = section(document, "guarantee").text
    assert said[0].startswith(word) and f"what {whose}" in said[1]
    assert "unless the ceiling is raised" in said[-1]
    assert dict(document.summary)["protected as a whole"] == f"each {unit}"


def test_of_one_release_its_card_comes_first(released):
    project, first = released
    document = report(first.id[:5], project)
    assert document.title == f"Release {first.id}" and document.sections[0].id == "release"
    card = (first.path / "CARD.md").read_text()
    assert all(f"| {name} | {value} |" in card for name, value in document.sections[0].facts)


def test_no_text_of_a_pair_is_in_it(released):
    document = words(report(project=released[0]))
    for column in ("prompt", "response_a", "response_b"):
        assert not [text for text in set(TABLE[column].to_pylist()) if f'"{text}"' in document]


# ---------------------------------------------------------------- verification


def test_a_kept_anchor_is_looked_for_in_the_journal(project, tmp_path):
    kept, page = overview.verify(project).anchor, tmp_path / "report.md"
    make_release(TABLE.slice(0, 9), project=project, **BUDGET)
    proof = section(report(project=project), "verification")
    assert overview.verify(project).anchor in proof.lines
    assert write_report(page, project=project, anchor=kept).ok
    assert f"holds entry {kept.split(':')[2]} as the anchor" in page.read_text()
    forged = kept[:-1] + ("0" if kept[-1] != "0" else "1")
    document = write_report(page, project=project, anchor=forged)
    assert not document.ok and "it was cut or changed" in page.read_text()
    assert "as the anchor that was kept" not in page.read_text()


def test_who_left_is_told_by_pseudonym(project):
    make_release(TABLE, project=project, **BUDGET)
    assert not [one for one in report(project=project).sections if one.id == "people"]
    retired = erasure.remove_labeler("worker 1", "retired", project).labeler
    erased = erasure.remove_labeler("worker 2", "erased", project).labeler
    linking.link_two_ids("worker 3", "a newcomer", project)
    document = report(project=project)
    gone = section(document, "people")
    kinds = {(retired, "retired"), (erased, "erased")}
    assert gone.table and {row[:2] for row in gone.table.rows} == kinds
    assert dict(gone.facts)["ids that share a budget with others"] == "2"
    assert "worker 1" not in words(document) and "worker 2" not in words(document)


def test_who_left_under_one_of_two_ids_is_told_with_the_other(project):
    make_release(TABLE, project=project, **BUDGET)
    linking.add_source("tool", "known", project)
    linking.link_two_ids("worker 1", "tool:7", project)
    left = erasure.remove_labeler("worker 1", "erased", project)
    gone = section(report(project=project), "people")
    assert dict(gone.facts)["left while a linked id is still active"] == "1"
    assert gone.table and gone.table.rows[0][3] == left.linked[0]
    erasure.remove_labeler("tool:7", "erased", project)
    gone = section(report(project=project), "people")
    assert dict(gone.facts)["left while a linked id is still active"] == "0"
    assert gone.table and {row[3] for row in gone.table.rows} == {""}


def test_the_report_says_what_is_secret_and_from_what_to_what_the_ceiling_was_raised(project):
    make_release(TABLE, project=project, **BUDGET)
    for ceiling in (20, 30):
        run("project", "ceiling", "--raise", f"{ceiling},1e-4", "--yes", project=project)
    part = section(report(project=project), "policies")
    raised = dict(part.facts)["ceiling raised"]
    assert "from ε = 10, δ = 0.0001 to ε = 20, δ = 0.0001; " in raised
    assert raised.endswith("from ε = 20, δ = 0.0001 to ε = 30, δ = 0.0001")
    assert part.table and "ties protected, skips public" in part.table.rows[0]


def test_what_a_begun_record_of_processing_lacks_needs_doing(project):
    with (project.state / "labelguard.toml").open("a") as file:
        file.write('\n[organisation]\ncontroller = "Clinic"\nretention = "a year"\n')
    [point] = section(report(project=find(project.state)), "to-do").points
    assert point.endswith(
        "not stated in labelguard.toml: contact, purpose, legal basis, recipients, transfers, "
        "measures."
    )


@pytest.mark.parametrize("name", ["data.parquet", "card.json"])
def test_a_fault_is_told_first_and_the_report_is_made(project, name, tmp_path):
    release = make_release(TABLE, project=project, **BUDGET)
    file = release.path / name
    file.write_bytes(file.read_bytes().replace(b"rr", b"xx") + b" ")
    made = run("report", release.id, "-o", tmp_path / "r.html", project=project, code=1)
    assert f"{name} was altered" in made.output
    page = (tmp_path / "r.html").read_text()
    assert re.search(r'<p class="alert">FAULT: release r0001.* was altered', page)
    assert "<dt>verification</dt><dd>FAULT</dd>" in page and str(tmp_path) not in page
    assert "labelguard-anchor:" not in page and "Keep the last anchor" in page
    promised = page.partition("What is promised</h2>")[2].partition("</section>")[0]
    assert "cannot be stated" in promised and "95.3%" not in page and "signature" not in page
    document = report(release.id, project)
    assert not document.ok and document.sections[0].id == "fault"
    if name == "card.json":  # what somebody else wrote into it is repeated nowhere
        assert "missing or was altered" in section(document, "release").alert
        assert not [one for one in document.sections if one.id == "flips"]


# ---------------------------------------------------------------- how it is written


def hostile():
    """A report in which every text is hostile."""
    from labelguard.release.sections import Chart, Series

    chart = Chart(HOSTILE, HOSTILE, "bars", (HOSTILE,), HOSTILE, HOSTILE, (Series(HOSTILE, (1,)),))
    table = Table(HOSTILE, (HOSTILE, ""), ((HOSTILE, 1), (None, 2.5)))
    named, texts = ((HOSTILE, HOSTILE),), (HOSTILE, "1. one")
    part = Section("a", HOSTILE, texts, table, chart, named, (HOSTILE,), (HOSTILE,), HOSTILE)
    return Report(HOSTILE, "2026-01-05T00:00:00Z", "0", False, ((HOSTILE, HOSTILE),), (part,))


class Tags(HTMLParser):
    """The tags of a page with their attributes."""

    def __init__(self, page):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_no_name_becomes_markup_of_the_page():
    page = render_html(hostile())
    tags = Tags(page).found
    assert not {"script", "iframe", "object", "link", "base", "form"} & {tag for tag, _ in tags}
    for _, attributes in tags:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        for name in ("src", "srcset", "href"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:image/svg+xml;base64,"))
    assert "\u202e" not in page and "\x1b" not in page and "\\u202e" in page and "{{7*7}}" in page


def test_no_name_becomes_markup_of_the_markdown():
    text = render_markdown(hostile())
    assert "\u202e" not in text and "\x1b" not in text
    outside = [line for line in text.splitlines() if not line.startswith("    ")]
    for line in outside:
        assert not re.search(r"(?<!\\)<|(?<!\\)`|(?<!\\)!\[|(?<!\\):(?=//)", line), line
        if line.startswith("|") and "---" not in line:
            assert len(re.findall(r"(?<!\\)\|", line)) == 3, line
    assert sum(line.startswith("#") for line in outside) == 2
    assert "1\\. one" in outside
    command = Section("b", "B", lines=("labelguard plan my_dir/*.csv --x 'a & $b'",))
    document = render_markdown(Report("T", "", "0", True, (), (command,)))
    assert f"\n    {command.lines[0]}\n" in document  # to be typed as it stands


def test_no_name_becomes_markup_of_the_json():
    text = render_json(hostile())
    assert text.isascii() and json.loads(text)["title"] == HOSTILE


def test_hostile_names_of_sources_and_features_are_escaped(tmp_path):
    project = lg.init(tmp_path)
    name = "<b onclick=x>&|`"
    column = f"{name}_x"
    table = TABLE
    for side in "ab":
        sizes = pc.utf8_length(TABLE[f"response_{side}"]).cast(pa.float64())
        table = table.append_column(f"{column}_{side}", sizes)
    options = STATISTIC | {"features": f"columns:{column}", "public_columns": [column]}
    make_release(table, project=project, epsilon=3, delta=1e-5, **options)
    remember(project, ran(1, why=HOSTILE, model=HOSTILE, outcome=f"  - {HOSTILE}"))
    document = report(project=project)
    assert name in words(document)
    page, text = render_html(document), render_markdown(document)
    assert "<b onclick" not in page and "<script>alert" not in page and "\u202e" not in page + text
    assert "&lt;b onclick=x&gt;" in page and "\\<b onclick" in text


def test_the_policy_of_the_page_allows_its_style_and_nothing_else(released):
    page = render_html(report(project=released[0]))
    style = page.split("<style>")[1].split("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    allowed = f"default-src &#39;none&#39;; img-src data:; style-src &#39;sha256-{digest}&#39;"
    assert f'http-equiv="Content-Security-Policy" content="{allowed}"' in page
    assert "url(" not in style and "@import" not in style


def test_the_name_of_the_file_says_the_format(project, tmp_path):
    assert write_report(tmp_path / "a.md", project=project).format == "md"
    assert write_report(tmp_path / "a.json", project=project).format == "json"
    assert write_report(tmp_path / "a", project=project).format == "html"
    assert write_report(tmp_path / "b.md", project=project, format="json").format == "json"
    with pytest.raises(LabelguardError, match=r"found m\.pdf; for a PDF, print the page"):
        write_report(tmp_path / "m.pdf", project=project)
    overview.export_ledger(tmp_path / "ledger.json", project)
    for name in ("a.md", "a", "ledger.json"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert find(tmp_path).state == project.state


# What the report tells of jobs: runs, how models were judged, and how the newest one learnt.


def test_jobs_and_how_their_models_learnt(tmp_path):
    project = lg.init(tmp_path)
    runs = [
        ran(1),
        ran(2, outcome="rejected", model=None),
        ran(3, outcome="failed", why="disk full"),
    ]
    remember(project, *runs)
    document = {one.id: one for one in report(project=project).sections}
    job, curve = document["job-nightly"], document["curve-nightly"]
    assert job.alert == "The newest run of nightly failed: disk full"
    assert [row[2] for row in job.table.rows] == ["failed", "rejected", "promoted"]  # type: ignore[union-attr]
    assert job.chart and job.chart.series[0].values == (0.61, 0.62, 0.63)
    assert curve.chart and curve.chart.series[0].values == (0.69, 0.5)
    assert curve.chart.message == "loss goes from 0.69 to 0.5 in 2 points."
    path = project.jobs / "nightly" / HISTORY
    path.write_text("{}\n" + path.read_text())
    [unread] = [one for one in report(project=project).sections if one.id == "jobs"]
    assert "line 1, is no run of a job" in unread.alert


# Runs of jobs that have ended, as a project remembers them.


def ran(number=1, **more):
    """A run of the job `nightly`, whose candidate was promoted."""
    facts: dict[str, Any] = {
        "job": "nightly",
        "run": number,
        "outcome": "promoted",
        "budget": "left",
        "started_at": "2026-01-05T00:00:00Z",
        "ended_at": f"2026-01-05T00:{number:02d}:00Z",
        "why": "the candidate is better",
        "release": "r0001",
        "mechanism": "rr",
        "new_labels": 5,
        "charged": 5,
        "model": f"{number:04d}",
        "judgement": {"measure": "accuracy", "candidate": 0.6 + number / 100}
        | {"current": None if number == 1 else 0.6},
        "curve": [{"step": 1, "loss": 0.69}, {"step": 2, "loss": 0.5}],
    }
    return JobRun(**facts | more)


def remember(project, *runs):
    """Write the history of the job."""
    directory = project.jobs / "nightly"
    directory.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(asdict(run)) + "\n" for run in runs)
    (directory / HISTORY).write_text(text)


# Sections of a report on a project as a whole: what its organisation states, who left.

STATED = 'controller = "Clinic"\npurpose = """training\nan assistant"""\n'


@pytest.fixture
def labelled(project):
    make_release(labels_table(), project=project, **PRICE)
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


def test_a_report_repeats_what_was_stated_beside_the_risk_that_is_left(labelled):
    keep = '\n[ingest]\nkeep = "90d"\n[project]\ncontact = "her@clinic.example"\n'
    part = section(report(project=state(labelled, STATED + keep)), "processing")
    facts = dict(part.facts)
    assert facts["purpose"] == "training an assistant"
    assert facts["contact"] == "her@clinic.example"
    assert facts["raw answers from tools"] == "90d after their release"
    assert "right in at most 95.3% of cases" in " ".join(part.text)


def test_a_statement_that_is_markup_is_shown_and_never_obeyed(labelled):
    hostile = "".join(f"{name} = {json.dumps(HOSTILE)}\n" for name in ("controller", "recipients"))
    document = report(project=state(labelled, hostile))
    assert dict(section(document, "processing").facts)["controller"].startswith("<script>")
    for render in (render_html, render_markdown):
        text = render(document)
        assert "<script" not in re.sub(r"\\.", "", text) and "\x1b" not in text


def test_a_statement_under_another_name_is_refused(labelled):
    with pytest.raises(ProjectError, match="organisation"):
        state(labelled, 'controler = "Clinic"\n')


@pytest.mark.parametrize("blank", ["", " ", "\\n"])
def test_a_blank_statement_is_not_stated(blank, labelled):
    document = report(project=state(labelled, f'retention = "{blank}"\n'))
    assert dict(section(document, "processing").facts)["retention"] == "not stated"


def test_a_misspelled_statement_is_told_with_the_right_name(labelled):
    with pytest.raises(ProjectError, match=r"transfer: unknown key \(did you mean 'transfers'\?\)"):
        state(labelled, 'transfer = "none"\n')


def test_who_compares_releases_around_a_departure_is_told_of(labelled):
    erasure.remove_labeler(WHO, "erased", labelled)
    again = make_release(labels_table(), project=labelled, mechanism="rr")
    assert any("1 labeler left since release r0001" in note for note in again.notes)
    text = " ".join(section(report(project=labelled), "not-protected").points)
    assert "whoever compares releases from before and after" in text
