"""The report in a real browser: it opens without a word, loads nothing, and everybody can read it.

axe-core, from the npm registry, judges accessibility; `make test-browser` fetches it, and
LABELGUARD_AXE names it elsewhere. `docs/generate_screenshots.py` makes the pictures of the docs.
"""

import json
import os
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.lives import put_into_force
from support.preferences import STATISTIC
from support.releases import make_release
from support.times import simulate_time

import labelguard as lg
from labelguard import clock
from labelguard.answers.connector import Answer
from labelguard.answers.inbox import Event, Inbox
from labelguard.project.attempts import HISTORY, JobRun
from labelguard.project.opening import OpenProject
from labelguard.report.page import write_report
from labelguard.simulation import simulate

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]
AXE = Path(os.environ.get("LABELGUARD_AXE", ROOT / ".venv/axe/node_modules/axe-core/axe.min.js"))
MONDAY = datetime(2026, 1, 5, tzinfo=UTC)
HOSTILE = "<img src=x onerror=alert(1)> \u202e{{7*7}} <script>alert(2)</script>"
WIDTHS, MODES = (1280, 390), ("light", "dark")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Reports: of a project with everything in it, of one of its releases, and of an empty one."""
    here = tmp_path_factory.mktemp("report")
    empty = lg.init(here / "empty")
    project = lg.init(here / "full")
    table = simulate(labelers=40, labels=1_200, items=4_000)
    runs = []
    with simulate_time(MONDAY):
        put_into_force(project, "clinic", "rr:uses=40,block=1", "statistic:releases=12")
    for week in range(4):
        with simulate_time(MONDAY + timedelta(weeks=week)):
            part = table.slice(300 * week, 300)
            made = make_release(part, project=project, mechanism="rr", exhausted="drop")
            runs.append(run(week, made.id))
    runs += [run(week, made.id) for week in range(4, 20)]
    length = {"features": "length", "components": 1}
    with simulate_time(MONDAY + timedelta(weeks=4)):
        make_release(table, project=project, exhausted="drop", **STATISTIC | length)
        make_release(table, project=project, exhausted="drop", mechanism="props", features="length")
        directory = project.jobs / "nightly"
        directory.mkdir(parents=True)
        (directory / HISTORY).write_text("".join(json.dumps(asdict(r)) + "\n" for r in runs))
        inbox = Inbox.open(project.state, project.ledger_url, OpenProject.open(project).keys)
        inbox.store_events([Event("desk", (Answer("1", 1),))])
        inbox.store_dead_letter("desk", b"x", HOSTILE)
        inbox.close()
        (project.state / "worker.json").write_text(json.dumps({"releases": {HOSTILE: made.id}}))
        write_report(here / "full.html", project=project)
        write_report(here / "release.html", made.id, project)
        write_report(here / "empty.html", project=empty)
        (made.path / "data.parquet").write_bytes(b"")
        write_report(here / "broken.html", project=project)
    names = ("full", "release", "empty", "broken")
    return {name: here / f"{name}.html" for name in names}


def run(week, release):
    at = clock.format_time(MONDAY + timedelta(weeks=week))
    judged = {"measure": "accuracy", "candidate": 0.6 + week / 50, "current": 0.6}
    curve = [{"step": n, "loss": 0.7 / (1 + n)} for n in range(30)]
    return JobRun(
        *("nightly", week + 1, at, at, "promoted", "left", HOSTILE, release, "rr", 300, 300),
        *(f"{week:04d}", judged, curve),
    )


def visit(browser, path, said, **options):
    """The page, which adds to `said` whatever the browser says, and whatever it asks for."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.on("request", lambda asked: said.append(asked.url))
    page.goto(path.as_uri())
    return page


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["full", "release", "empty", "broken"])
def test_it_opens_without_a_word_and_asks_for_nothing(browser, pages, name, mode, width):
    said: list[str] = []
    size = {"width": width, "height": 900}
    page = visit(browser, pages[name], said, viewport=size, color_scheme=mode)
    asked = [one for one in said if not one.startswith("data:image/svg+xml;base64,")]
    assert asked == [pages[name].as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    loaded = "[...document.images].map(i => i.complete && i.naturalWidth > 0)"
    drawn = page.evaluate(loaded)
    assert all(drawn) and len(drawn) >= (0 if name == "empty" else 4)
    wanted = "dark" if mode == "dark" else "light"
    background = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 29)"}[wanted]
    page.context.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["full", "empty", "broken"])
def test_axe_finds_nothing_to_object_to(browser, pages, name, mode):
    if not AXE.exists():
        pytest.skip("axe-core is not there (make test-browser fetches it)")
    for width in WIDTHS:
        size = {"width": width, "height": 900}
        page = visit(browser, pages[name], [], viewport=size, color_scheme=mode, bypass_csp=True)
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        page.evaluate(AXE.read_text())
        found = page.evaluate("axe.run({resultTypes: ['violations', 'incomplete']})")
        assert len(found["passes"]) > 20
        assert [one["id"] for one in found["violations"]] == []
        # Cells that are scrolled out of sight have no background that it could look at.
        assert {one["id"] for one in found["incomplete"]} <= {"color-contrast"}
        page.context.close()


def test_names_do_not_run(browser, pages):
    page = visit(browser, pages["full"], [])
    assert page.evaluate("document.scripts.length") == 0
    assert "<img src=x onerror=alert(1)>" in page.inner_text("main")
    assert "\u202e" not in page.inner_text("main")
    page.context.close()
