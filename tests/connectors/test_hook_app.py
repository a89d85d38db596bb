"""The hook's answers: 200 is on disk, and whatever is refused leaves no row."""

import asyncio
import contextlib
import json
import sqlite3
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from labelguard_connectors.hook.app import application
from labelguard_connectors.hook.delivery import Hook
from labelguard_connectors.hook.limits import Limits
from labelguard_connectors.hook.served import ServedProject
from labelguard_connectors.hook.serving import Endpoints
from starlette.testclient import TestClient
from starlette.types import ASGIApp
from support import databases, hooks
from support.clients import client, post
from support.commands import run
from support.hostile import paths, replaced, without

from labelguard.answers.inbox import FILE, Inbox
from labelguard.errors import ConnectorError
from labelguard.project import attempts, ingestion
from labelguard.project.backup import backup
from labelguard.project.opening import OpenProject
from labelguard.project.project import Project, find
from labelguard.project.restore import restore


@pytest.fixture
def made(tmp_path, monkeypatch):
    return hooks.project(tmp_path, monkeypatch)


def test_what_is_answered_with_200_is_in_the_inbox_once(made):
    with client(made) as (tool, inbox):
        for number in (1, 2, 1, 1):
            answer = tool.post("/hooks/clinic", content=hooks.body(number), headers=hooks.headers())
            assert (answer.status_code, answer.content) == (200, b"")
        assert inbox.count_waiting() == 2
    with client(made) as (tool, inbox):  # and after a restart
        tool.post("/hooks/clinic", content=hooks.body(1), headers=hooks.headers())
        assert inbox.count_waiting() == 2
        metrics = tool.get("/metrics").text
    assert "labelguard_hook_repeated_events_total 1.0" in metrics
    assert "labelguard_hook_waiting_events 2.0" in metrics
    assert hooks.stored(made) == {"a1": 1, "a2": 1}


def test_the_number_of_events_that_wait_is_of_now(made):
    with client(made) as (tool, _):
        for number in (1, 2):
            post(tool, hooks.body(number))
            assert f"labelguard_hook_waiting_events {number}.0" in tool.get("/metrics").text
        ingestion.ingest(made)
        assert "labelguard_hook_waiting_events 0.0" in tool.get("/metrics").text


def test_events_about_something_else_are_answered_and_not_stored(made):
    with client(made) as (tool, inbox):
        answer = tool.post("/hooks/clinic", content=b'{"type": "other"}', headers=hooks.headers())
        assert (answer.status_code, answer.content) == (200, b"")
        assert inbox.count_waiting() == 0


def test_a_busy_inbox_is_503_and_the_delivery_is_taken_later(made):
    with client(made, Limits(commit_seconds=0.2)) as (tool, _):
        other = sqlite3.connect(made.state / FILE)
        other.execute("BEGIN IMMEDIATE")
        status, headers = post(tool, hooks.body(1))
        assert (status, headers["retry-after"]) == (503, "10")
        other.rollback()
        other.close()
        assert post(tool, hooks.body(1))[0] == 200
        assert post(tool, hooks.body(2))[0] == 200
    assert hooks.stored(made) == {"a1": 1, "a2": 1}


def test_a_full_disk_is_503_and_not_ready(made):
    with client(made) as (tool, inbox):
        _forbid(inbox, "INSERT")
        status, headers = post(tool, hooks.body(1))
        assert (status, headers["retry-after"]) == (503, "10")
        assert post(tool, b"{")[0] == 503  # nor can it be kept as a dead letter
        assert inbox.list_dead_letters() == []
        assert tool.get("/readyz").status_code == 503
        assert tool.get("/healthz").status_code == 200


def _forbid(inbox, verb):
    """Let the database say that its disk is full, at every statement that begins so."""
    from sqlalchemy import event

    @event.listens_for(inbox._engine, "before_cursor_execute")
    def full(_, __, statement, *___):
        if statement.startswith(verb):
            raise sqlite3.OperationalError("database or disk is full")


@pytest.mark.parametrize("fate", ["deleted", "restored"])
def test_nothing_is_accepted_for_a_project_that_is_gone_or_was_restored(made, fate, tmp_path):
    attempts.record_success(made)
    attempts.record_failure(made, ConnectorError("the tool is away"))
    moved = made.state.with_name("moved")
    with client(made) as (tool, _):
        assert post(tool, hooks.body(1))[0] == tool.get("/readyz").status_code == 200
        assert "1 attempt failed" in tool.get("/status").json()["releases"]
        backup(tmp_path / "backup.tar.zst", project=made)
        made.state.rename(moved)
        if fate == "restored":
            restore(tmp_path / "backup.tar.zst", made.state.parent, keys=moved / "keys")
        assert post(tool, hooks.body(2))[0] == post(tool, b"{")[0] == 503
        assert "the project directory is gone" in tool.get("/status").json()["releases"]
        assert 'labelguard_releases_failed_total{reason="tool"} 1.0' in tool.get("/metrics").text
    with client(find(moved)) as (tool, inbox):
        assert tool.get("/readyz").status_code == 200
        assert (inbox.count_waiting(), inbox.list_dead_letters()) == (1, [])


def test_a_project_that_is_gone_is_not_ready(made):
    with client(made) as (tool, _):
        made.state.rename(made.state.with_name("moved"))
        assert tool.get("/readyz").status_code == 503


def test_more_than_may_wait_for_the_disk_is_503(made):
    class Slow:
        """An inbox whose disk does not answer."""

        def __init__(self):
            self.answers = threading.Event()

        def put(self, events):
            self.answers.wait(30)
            return len(events)

        def waiting(self):
            return 0

        def check(self):
            self.answers.wait(30)

    slow = Slow()
    limits = Limits(commit_seconds=0.02)
    hook = Hook(Endpoints.of(made).served, slow, limits, ServedProject(made))  # type: ignore[arg-type]
    with TestClient(application({"": hook})) as tool:
        large = hooks.body(1, answer={"task": "x" * 1_900_000})
        found = [post(tool, large.replace(b"a1", b"a%d" % number))[0] for number in range(40)]
        assert set(found) == {503}
        page = tool.get("/metrics").text
        queued = next(
            line for line in page.splitlines() if line.startswith("labelguard_hook_queued")
        )
        assert float(queued.split()[1]) * len(large) <= 64 << 20
        slow.answers.set()


def test_every_delivery_that_is_not_understood_is_a_dead_letter_that_may_be_read_again(made):
    ugly = [b"{", b"[]", b'{"answers": [{"id": "a7"}]}', hooks.body(1, answer={"version": "x"})]
    ugly += [
        hooks.body(1, answer={"version": True}),
        hooks.body(1, answer={"id": ""}),
        hooks.body(1, answer={"version": 1 << 63}),
    ]
    ugly += [hooks.body(1, answer={"who": "\ud800"}), b"[" * 100_000]
    ugly += [hooks.body(1, answer={"version": int((time.time() + 90_000) * 1e6)})]
    with client(made) as (tool, inbox):
        for content in [*ugly, *ugly]:
            assert tool.get("/readyz").status_code == 200
            answer = tool.post("/hooks/clinic", content=content, headers=hooks.headers())
            assert answer.status_code == 422
            assert hooks.LABEL not in answer.text
        assert inbox.count_waiting() == 0
        assert tool.get("/status").json()["dead_letters"] == len(ugly) * 2
        assert f"labelguard_hook_dead_letters {len(ugly) * 2}.0" in tool.get("/metrics").text
        kept = [
            inbox.read_dead_letter(letter.number).rstrip() for letter in inbox.list_dead_letters()
        ]
        assert kept == [*ugly, *ugly]
        assert [letter.bytes for letter in inbox.list_dead_letters()[:9]] == [16_384] * 8 + [
            7 * 16_384
        ]
    listed = " ".join(command(made).split())  # whatever the width of the terminal
    assert "the event is not an object" in listed
    assert "KeyError" in listed
    assert "its time is more than a day ahead of this" in listed
    assert listed.count("is not an object") == 1  # those of one cause together
    assert hooks.LABEL not in listed and hooks.LABELER not in listed


def command(made, *arguments, code=0):
    """What `labelguard hook dead-letters …` prints."""
    return run("hook", "dead-letters", *arguments, project=made, code=code).output


def test_dead_letters_are_tried_again_when_the_connector_can_read_them(made, monkeypatch):
    assert command(made) == "No dead letter: every delivery was understood.\n"
    with client(made) as (tool, _):
        for content in (b"[1]", b"{", hooks.body(3, answer={"version": None})):
            assert post(tool, content)[0] == 422
    assert "can be read now; 3 left." in command(made, "--retry", code=1)
    tool_class = Endpoints.of(made).served["clinic"].connector.__class__
    parse = tool_class.parse_event

    def lenient(self, event):
        if not isinstance(event, dict):
            return ()  # about something else
        for one in event["answers"]:
            one["version"] = one["version"] or 0
        return parse(self, event)  # type: ignore[arg-type]

    monkeypatch.setattr(tool_class, "parse_event", lenient)
    assert "there is no dead letter 9" in command(made, "--retry", "9", code=1)
    assert "can be read now; 0 left." in command(made, "--retry", "1")
    found = json.loads(command(made, "--retry", "--json", code=1))
    assert (found["understood"], [one["number"] for one in found["left"]]) == (1, [2])
    assert hooks.stored(made) == {"a3": 1}


def test_connectors_without_a_secret_are_not_served(tmp_path, monkeypatch):
    other = '[connectors.other]\nkind = "tool"\nhook = { scheme = "hmac-sha256" }\n'
    made = hooks.project(tmp_path, monkeypatch, other)
    found = Endpoints.of(made)
    assert list(found.served) == ["clinic"]
    assert found.left_out["other"].startswith("connector other: no hook_secret; set it in")
    with client(made) as (tool, _):
        for name in ("other", "nobody", "clinic/more", ""):
            assert tool.post(f"/hooks/{name}", content=b"{}").status_code == 404
    monkeypatch.delenv("LABELGUARD_CLINIC_HOOK_SECRET")
    with pytest.raises(ConnectorError, match="there is no connector to serve: connector clinic"):
        Endpoints.of(made)


def test_a_secret_is_in_no_repr(made):
    assert hooks.SECRET not in repr(Endpoints.of(made))


def test_deliveries_are_posts_and_other_pages_say_nothing_of_what_was_asked(made):
    with client(made) as (tool, _):
        found = tool.get("/hooks/clinic")
        assert (found.status_code, found.headers["allow"]) == (405, "POST")
        missing = tool.get("/Maria-Exampleova?secret=swordfish")
        assert (missing.status_code, missing.json()) == (404, {"error": "no such page"})
        assert tool.post("/metrics").status_code == 405


@pytest.mark.parametrize("kind", databases.EACH)
def test_the_inbox_is_where_the_ledger_is(kind, tmp_path, monkeypatch):
    with databases.on(kind, tmp_path, monkeypatch):
        made = hooks.project(tmp_path, monkeypatch)
        with client(made) as (tool, _):
            assert [post(tool, hooks.body(number))[0] for number in (1, 2, 1)] == [200] * 3
            assert tool.get("/readyz").status_code == 200
        assert hooks.stored(made) == {"a1": 1, "a2": 1}
        assert (made.state / FILE).exists() == (kind == "sqlite")


# Thousands of ugly requests: none is answered with 500, and none leaves part of a row.


TOOLS = """
[connectors.argilla]
url = "http://127.0.0.1"
dataset = "prefs"
workspace = "labelers"
hook = { scheme = "shared-secret" }

[connectors.label-studio]
url = "http://127.0.0.1"
project = 1
"""
RECORDED = Path(__file__).with_name("recordings") / "argilla"
REGION = {"type": "pairwise", "from_name": "pref", "to_name": "answer1"}
ANNOTATED = {
    "action": "ANNOTATION_CREATED",
    "annotation": {
        "id": 1,
        "task": 1,
        "completed_by": 2,
        "updated_at": "2026-11-21T08:29:20.150969Z",
        "result": [{**REGION, "value": {"selected": "left"}}],
    },
    "project": {"id": 1},
    "task": {"id": 1, "data": {"prompt": "?", "answer1": "0", "answer2": "1"}},
}
STATUSES = {200, 401, 404, 405, 408, 413, 422}


@dataclass(frozen=True)
class Running:
    """The application in this process, with its inbox."""

    made: Project
    inbox: Inbox
    app: ASGIApp
    loop: asyncio.Runner

    def status(self, scope, parts):
        """What a request is answered with; a part that is None ends the connection."""
        return self.loop.run(self._ask(scope, list(parts)))

    async def _ask(self, scope, parts):
        statuses: list[int] = []

        async def receive():
            part = parts.pop(0) if parts else None
            if part is None:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": part, "more_body": bool(parts)}

        async def send(message):
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await self.app(scope, receive, send)
        (status,) = statuses
        return status


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        for name in ("ARGILLA", "LABEL_STUDIO"):
            patch.setenv(f"LABELGUARD_{name}_HOOK_SECRET", hooks.SECRET)
        made = hooks.project(tmp_path_factory.mktemp("hostile"), patch, TOOLS)
        opened = OpenProject.open(made)
        inbox = stack.enter_context(contextlib.closing(opened.answers.open_inbox()))
        loop = stack.enter_context(asyncio.Runner())
        hook = Hook(
            Endpoints.of(made).served, inbox, Limits(body_bytes=20_000), ServedProject(made)
        )

        async def start():
            hook.writer.start()

        loop.run(start())
        yield Running(made, inbox, application({"": hook}), loop)
        loop.run(hook.writer.stop())


_HEARD = [json.loads(path.read_text()) for path in sorted(RECORDED.glob("*.json"))]
EVENTS = [json.loads(hooks.body(1)), ANNOTATED]
# Deliveries as tools send them.
EVENTS += [one.get("body", one) for one in _HEARD if isinstance(one, dict)][:6]


UGLY = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**30, -1, 2**63, float("nan"), float("inf")]),
    st.text(max_size=8),
    st.sampled_from(["\ud800", "\x00", "left", "2026-11-21T08:29:20Z", "9" * 5_000]),
    st.lists(st.none(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.none(), max_size=2),
)


@st.composite
def bodies(draw):
    """A tool's event with some of its values exchanged or gone; or bytes of any kind."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.binary(max_size=200))
    if kind == 1:
        return draw(st.sampled_from([b"", b"[" * 9_999, b"{" * 5, b"\xff\xfe[", b"1" * 6_000]))
    if kind == 2:
        return draw(st.sampled_from([b" " * 20_001, b'"' + b"x" * 19_990 + b'"']))
    event = draw(st.sampled_from(EVENTS))
    for _ in range(draw(st.integers(0, 3))):
        path = draw(st.sampled_from(list(paths(event))))
        gone = path and not draw(st.integers(0, 5))
        event = without(event, path) if gone else replaced(event, path, draw(UGLY))
    text = json.dumps(event).encode()
    cut = draw(st.integers(0, len(text))) if kind == 3 else len(text)
    return text[:cut]


PATHS = st.one_of(
    st.sampled_from([f"/hooks/{name}" for name in ("clinic", "argilla", "label-studio")]),
    st.sampled_from(["/healthz", "/readyz", "/metrics", "/openapi.json", "/hooks/"]),
    st.text(max_size=8).map("/hooks/{}".format),
    st.text(max_size=8).map("/{}".format),
)
HEADERS = st.lists(
    st.tuples(
        st.sampled_from([b"content-length", b"x-labelguard-secret", b"webhook-id", b"x"]),
        st.one_of(st.binary(max_size=8), st.sampled_from([b"-1", b"1e9", b"9" * 40, b"20001"])),
    ),
    max_size=2,
)


@st.composite
def requests(draw):
    """A scope, and the parts of a body."""
    path, body = draw(PATHS), draw(bodies())
    headers = draw(HEADERS)
    if draw(st.integers(0, 9)):
        headers = [(b"x-labelguard-secret", hooks.SECRET.encode()), *headers]
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": draw(st.sampled_from(["POST"] * 9 + ["GET", "PUT", "HEAD", "OPTIONS", "X"])),
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(errors="replace"),
        "root_path": "",
        "query_string": draw(st.binary(max_size=8)),
        "headers": headers,
        "client": draw(st.sampled_from([("127.0.0.1", 1), None])),
        "server": ("127.0.0.1", 8410),
        "state": {},
    }
    middle = draw(st.integers(0, len(body)))
    parts: list[bytes | None] = [body[:middle], body[middle:]]
    if not draw(st.integers(0, 19)):
        parts[1] = None
    return scope, parts


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_an_ugly_request_is_refused_and_what_is_accepted_can_be_used(running, count):
    seen: dict[int, int] = {}

    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    @given(requests())
    def ask(request):
        before = running.inbox.count_waiting()
        status = running.status(*request)
        assert status in STATUSES
        if status != 200:
            assert running.inbox.count_waiting() == before
        seen[status] = seen.get(status, 0) + 1

    ask()
    right = {
        "type": "http",
        "method": "POST",
        "path": "/hooks/clinic",
        "headers": [(b"x-labelguard-secret", hooks.SECRET.encode())],
    }
    assert running.status(right, [hooks.body(count)]) == 200  # and it serves as before
    assert set(seen) == STATUSES, seen
    assert running.inbox.find_fault() is None
    stored = running.inbox.count_waiting()
    assert stored
    taken = ingestion.ingest(running.made)
    assert taken.answers + taken.deleted + taken.known > 0
    assert running.inbox.count_waiting() == 0


def test_who_asks_for_status_or_metrics_must_give_the_token(made):
    token = "token-of-the-monitoring"
    with client(made, token=token) as (tool, _):
        for page in ("/status", "/metrics"):
            for wrong in ({}, {"authorization": token}, {"authorization": "Bearer ü"}):
                refused = tool.get(page, headers={k: v.encode() for k, v in wrong.items()})
                assert (refused.status_code, refused.json()) == (401, {"error": "not allowed here"})
            given = {"authorization": f"Bearer {token}"}
            assert tool.get(page, headers=given).status_code == 200
        for page in ("/healthz", "/readyz", "/openapi.json"):
            assert tool.get(page).status_code == 200
        assert post(tool, hooks.body(1))[0] == 200
