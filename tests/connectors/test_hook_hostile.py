"""Thousands of ugly requests: none is answered with 500, and none leaves part of a row."""

import asyncio
import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from labelguard_connectors.hook.app import application
from labelguard_connectors.hook.delivery import Hook
from labelguard_connectors.hook.limits import Limits
from labelguard_connectors.hook.serving import Endpoints
from starlette.types import ASGIApp
from support import hooks
from support.hostile import paths, replaced, without

from labelguard.answers.inbox import Inbox
from labelguard.project import ingestion
from labelguard.project.opening import OpenProject
from labelguard.project.project import Project

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
        inbox = stack.enter_context(contextlib.closing(opened.answers.inbox()))
        loop = stack.enter_context(asyncio.Runner())
        hook = Hook(Endpoints.of(made).served, inbox, Limits(body_bytes=20_000))

        async def start():
            hook.writer.start()

        loop.run(start())
        yield Running(made, inbox, application(hook), loop)
        loop.run(hook.writer.stop())


_HEARD = [json.loads(path.read_text()) for path in sorted(RECORDED.glob("*.json"))]
EVENTS = [json.loads(hooks.body(1)), ANNOTATED]
EVENTS += [one.get("body", one) for one in _HEARD if isinstance(one, dict)][:6]
"""Deliveries as tools send them."""


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
        before = running.inbox.waiting()
        status = running.status(*request)
        assert status in STATUSES
        if status != 200:
            assert running.inbox.waiting() == before
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
    assert running.inbox.fault() is None
    stored = running.inbox.waiting()
    assert stored
    taken = ingestion.ingest(running.made)
    assert taken.answers + taken.deleted + taken.known > 0
    assert running.inbox.waiting() == 0
