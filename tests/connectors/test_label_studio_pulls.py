"""How the connector of Label Studio asks: patiently, page by page, and silent about what it heard.

The server here answers what a test says; the real one is in tests/integration.
"""

import json
import logging
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from labelguard_connectors import http
from labelguard_connectors.label_studio import LabelStudio
from labelguard_connectors.label_studio import rest as label_studio_rest
from support.replies import Server, serving
from tenacity import wait_none

import labelguard
from labelguard.answers.connector import Answer, Page, Settings
from labelguard.errors import ConnectorError
from labelguard.project import ingestion
from labelguard.project.project import CONFIG, find
from labelguard.report.doctor import check_connector
from labelguard.text import OTHER_CONTROLS

RECORDINGS = Path(__file__).parent / "recordings/label_studio"
TASKS = json.loads((RECORDINGS / "tasks.json").read_text("utf-8"))
EVENTS = json.loads((RECORDINGS / "events.json").read_text("utf-8"))
PROJECT = EVENTS[0]["project"]["id"]
KEY = "key-that-nobody-may-see"
SECRET = "what-the-server-said"


class Tool(Server):
    """Answers from a list, its last answer for ever; else as Label Studio, of recorded tasks."""

    tasks = TASKS

    def reply(self, method, path):
        if self.replies:
            return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if urlsplit(path).path.endswith(f"/api/projects/{PROJECT}/"):
            return 200, {}, EVENTS[0]["project"]
        asked = parse_qs(urlsplit(path).query)
        query = json.loads(asked["query"][0])
        bounds = {one["filter"]: one["value"] for one in query["filters"]["items"]}
        after = bounds.get("filter:tasks:id", 0)
        order = query["ordering"][0].removeprefix("-").removeprefix("tasks:")
        tasks = sorted(
            self.tasks, key=lambda task: task[order], reverse=query["ordering"][0].startswith("-")
        )
        found = [task for task in tasks if task["id"] > after][: int(asked["page_size"][0])]
        return 200, {}, {"tasks": found, "total": len(found)}


@pytest.fixture
def server(monkeypatch):
    """A server, and the key for it in the environment; nobody waits between tries."""
    monkeypatch.setenv("LABELGUARD_PAIRS_API_KEY", KEY)
    monkeypatch.setattr(http, "backoff", wait_none())
    found = Tool()
    with serving(found):
        yield found


def here(server):
    return LabelStudio(Settings.from_table("pairs", {"url": server.url, "project": PROJECT}))


def keys(server):
    return [sent.get("Authorization", "") for sent in server.headers]


def pull_answers(connector, cursor=""):
    return [answer for page in connector.pull(cursor) for answer in page.answers]


def test_recorded_tasks_tell_what_recorded_events_told_in_the_end(server):
    latest: dict[str, Answer] = {}
    for event in EVENTS:
        for answer in here(server).parse_event(event):
            latest[answer.record] = answer
    wanted = {record: answer.body for record, answer in latest.items() if not answer.is_deleted}
    assert {answer.record: answer.body for answer in pull_answers(here(server))} == wanted
    assert not any("example.com" in body for body in wanted.values())


@pytest.mark.quick("1-1", "2-1")
@pytest.mark.parametrize("tasks", [1, 2, 3])
@pytest.mark.parametrize("answers", [1, 2])
def test_from_every_page_a_pull_goes_on_without_a_gap(server, tasks, answers, monkeypatch):
    whole = pull_answers(here(server))
    monkeypatch.setattr(label_studio_rest, "_TASKS", tasks)
    monkeypatch.setattr(label_studio_rest, "_ANSWERS", answers)
    pages = list(here(server).pull())
    assert [one for page in pages for one in page.answers] == whole
    assert max(len(page.answers) for page in pages) <= answers
    stored: list[Answer] = []
    for page in pages[:-1]:
        stored += page.answers
        rest = [one for later in here(server).pull(page.cursor) for one in later.answers]
        assert {one.record for one in (*stored, *rest)} == {one.record for one in whole}


def test_a_later_pull_asks_for_what_changed_ten_minutes_before_the_last_one_began(server):
    *_, last = here(server).pull()
    newest = max(task["updated_at"] for task in TASKS)
    server.asked.clear()
    pull_answers(here(server), last.cursor)
    (asked,) = {
        one["value"]
        for _, path in server.asked[1:]
        for one in json.loads(parse_qs(urlsplit(path).query)["query"][0])["filters"]["items"]
        if one["filter"] == "filter:tasks:updated_at"
    }
    minutes = [int(time[14:16]) for time in (newest, asked)]
    assert (minutes[0] - minutes[1]) % 60 == 10 and asked[16:] == newest[16:]


def test_a_clock_that_is_ahead_does_not_hide_what_changes_until_then(server):
    ahead = [{"id": 1, "updated_at": "2999-01-01T00:00:00Z", "annotations": [], "data": {}}]
    server.replies = [(200, {}, {"tasks": ahead}), (200, {}, {"tasks": []})]
    *_, last = here(server).pull()
    assert json.loads(last.cursor)["since"] < 4_000_000_000_000_000  # before 2097


def test_of_an_empty_project_the_next_pull_tells_everything(server):
    server.replies = [(200, {}, {"tasks": []})]
    (page,) = here(server).pull()
    server.replies = []
    assert pull_answers(here(server), page.cursor) == pull_answers(here(server))


@pytest.mark.parametrize("cursor", ["[]", "{}x", '{"until": true}', '{"other": 1}'])
def test_a_cursor_of_something_else_is_refused(server, cursor):
    with pytest.raises(ConnectorError, match="no cursor of a Label Studio connector"):
        pull_answers(here(server), cursor)


@pytest.mark.parametrize(
    "body",
    [
        *("", SECRET, {"tasks": SECRET}, {"tasks": [SECRET]}, {"tasks": [{"id": SECRET}]}),
        {"tasks": [{"id": 1, "updated_at": "2026-11-22T07:00:00Z", "annotations": [SECRET]}]},
        {"tasks": [{"id": 1, "updated_at": "2026-11-22T07:00:00Z", "annotations": [{"id": 1}]}]},
    ],
)
def test_something_else_than_label_studio_is_refused_and_not_shown(server, body):
    server.replies = [(200, {}, body)]
    with pytest.raises(ConnectorError) as refused:
        pull_answers(here(server))
    assert_silent(refused.value)


def test_a_personal_token_is_exchanged_again_when_its_time_is_over(server, monkeypatch):
    monkeypatch.setenv("LABELGUARD_PAIRS_API_KEY", "personal.access.token")
    page = (200, {}, {"tasks": TASKS})
    server.replies = [
        *((200, {}, {"access": "first"}), (200, {}, EVENTS[0]["project"]), page),
        *((401, {}, {}), (200, {}, {"access": "second"}), page, (200, {}, {"tasks": []})),
    ]
    assert len(pull_answers(here(server))) == 4
    refreshes = [path for method, path in server.asked if method == "POST"]
    assert refreshes == ["/api/token/refresh/"] * 2
    used = [key for key in keys(server) if key]
    assert used == ["Bearer first"] * 3 + ["Bearer second"] * 2
    assert not any("personal.access.token" in key for key in keys(server))


def test_a_personal_token_that_is_refused_is_said_to_be(server, monkeypatch):
    monkeypatch.setenv("LABELGUARD_PAIRS_API_KEY", "personal.access.token")
    server.replies = [(401, {}, {"detail": SECRET})]
    with pytest.raises(ConnectorError, match="the API key is not accepted") as refused:
        here(server).about()
    assert_silent(refused.value)
    assert server.asked == [("POST", "/api/token/refresh/")]


def test_an_address_may_have_a_path(server):
    below = {"url": f"{server.url}/tools/label-studio/", "project": PROJECT}
    connector = LabelStudio(Settings.from_table("pairs", below))
    pull_answers(connector)
    assert all(path.startswith("/tools/label-studio/api/") for _, path in server.asked)


def test_the_key_is_read_when_it_is_needed(monkeypatch):
    monkeypatch.delenv("LABELGUARD_PAIRS_API_KEY", raising=False)
    connector = LabelStudio(
        Settings.from_table("pairs", {"url": "http://127.0.0.1:9", "project": PROJECT})
    )
    assert connector.parse_event(EVENTS[1])
    with pytest.raises(ConnectorError, match="LABELGUARD_PAIRS_API_KEY"):
        connector.about()


def test_neither_logs_nor_reprs_hold_key_or_answers(server, caplog):
    caplog.set_level(logging.DEBUG)
    connector = here(server)
    pages: list[Page] = list(connector.pull())
    assert all(KEY in key for key in keys(server))
    shown = caplog.text + repr(connector) + repr(pages) + repr(connector._client)
    assert KEY not in shown
    assert not any(answer.body in shown for page in pages for answer in page.answers)


def assert_silent(error):
    """No key, no word of the server, no query, in the error and what it would show."""
    shown = f"{error}{error!r}{error.__cause__}"
    assert KEY not in shown and SECRET not in shown and "query" not in shown
    assert "\n" not in str(error)
    assert error.__suppress_context__ or error.__context__ is None


def test_results_for_other_controls_are_told_as_such_and_not_as_skips(server, tmp_path):
    """Answers that were sent by REST name sides that the project's interface does not have."""
    sent = json.loads(json.dumps(TASKS))
    for task in sent:
        task["data"]["prompt"] = "question"
    regions = [
        region
        for task in sent
        for annotation in task["annotations"]
        for region in annotation["result"]
    ]
    for region in regions:
        region["to_name"] = "text"
    project = labelguard.init(tmp_path / "p")
    with (project.state / CONFIG).open("a") as file:
        file.write(f'\n[connectors.pairs]\nkind = "label-studio"\nurl = "{server.url}"\n')
        file.write(f'project = {PROJECT}\nquestion = "better"\n')
    server.tasks = sent
    found = check_connector("pairs", find(project.state.parent))
    reasons = [reason for reason in found.left_out if reason.startswith(OTHER_CONTROLS)]
    assert reasons and all("of text" in one and "project has better of" in one for one in reasons)
    assert not found.comparisons
    assert found.skipped + sum(found.left_out.values()) == found.answers
    pulled = ingestion.pull("pairs", find(project.state.parent))
    assert all(pulled.left_out[reason] >= found.left_out[reason] for reason in reasons)
