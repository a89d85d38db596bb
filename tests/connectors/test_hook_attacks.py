"""What attackers may try on a hook: on its socket, and from inside the annotation tool."""

import contextlib
import json
import threading
import time

import pytest
from labelguard_connectors.hook import delivery
from labelguard_connectors.hook.serving import parse_delivery
from support import hooks
from support.clients import client
from support.clients import post as deliver
from support.sockets import answer, head, post, run_with

from labelguard.answers import inbox as inboxes
from labelguard.answers.connector import Settings, connector
from labelguard.answers.inbox import Inbox
from labelguard.errors import ConnectorError

LISTED = '[connectors.listed]\nkind = "tool"\n[connectors.listed.hook]\nscheme = "shared-secret"\n'


def listed(directory, patch):
    """A project with a connector for anybody, and one for an address alone."""
    patch.setenv("LABELGUARD_LISTED_HOOK_SECRET", hooks.SECRET)
    return hooks.project(directory, patch, f'{LISTED}addresses = ["10.9.9.9"]\n')


@pytest.fixture
def made(tmp_path, monkeypatch):
    return listed(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One server for all tests that leave it as it was."""
    with pytest.MonkeyPatch.context() as patch:
        served = listed(tmp_path_factory.mktemp("served"), patch)
        with hooks.serving(served, "--no-worker") as found:
            yield found


@pytest.mark.parametrize(
    ("name", "before", "after", "status"),
    [
        ("listed", f"X-Labelguard-Secret: {hooks.SECRET}", "X-Forwarded-For: 10.9.9.9", b"401"),
        ("clinic", "X-Some: thing", f"X-Labelguard-Secret: {hooks.SECRET}", b"401"),
        ("clinic", f"X-Labelguard-Secret: {hooks.SECRET}", "X-Some: thing", b"200"),
    ],
)
def test_what_comes_after_a_body_is_no_header(server, name, before, after, status):
    body = hooks.body(1)
    request = (
        f"POST /hooks/{name} HTTP/1.1\r\nHost: here\r\nX-Forwarded-For: 203.0.113.9\r\n{before}\r\n"
        f"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n{body.decode()}"
        f"\r\n0\r\n{after}\r\n\r\n"
    )
    with server.connect() as connection:
        connection.sendall(request.encode())
        assert answer(connection).startswith(b"HTTP/1.1 " + status)


def test_requests_that_wait_for_no_answer_take_no_memory(server):
    with server.connect() as connection:
        connection.settimeout(30)
        with contextlib.suppress(OSError):
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100_000)
        assert answer(connection).count(b"HTTP/1.1 404") < 1_000
    assert post(server, 1) == 200


@pytest.mark.slow
def test_two_requests_at_once_are_two_answers(server):
    one, two = hooks.body(1), hooks.body(2)
    with server.connect() as connection:
        connection.sendall(head(len(one)) + one + head(len(two)) + two)
        found = b""
        while found.count(b"HTTP/1.1 200") < 2:
            part = connection.recv(65_536)
            assert part
            found += part


def slow_bodies(server, count, sent):
    """Connections on which so much of a body came, and no more will; the server has read it."""
    found = []
    for _ in range(count):
        connection = server.connect()
        connection.sendall(head(len(sent) + 1, "/hooks/nobody") + sent)
        found.append(connection)
    time.sleep(0.5)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "count", "sent"),
    [("connections=20", 40, b"{"), ("bodies_bytes=992_000", 8, bytes(124_000))],
    ids=["many", "large"],
)
def test_bodies_that_never_end_do_not_keep_others_out(limit, count, sent, made, monkeypatch):
    server = run_with(made, monkeypatch, limit)
    slow = slow_bodies(server, count, sent)
    try:
        assert post(server, 1) == 200
    finally:
        for connection in slow:
            connection.close()
        server.stop()


def annotated(*regions):
    """An annotation of task 1."""
    return {
        "id": 1,
        "task": 1,
        "completed_by": 2,
        "updated_at": "2026-11-21T08:29:20Z",
        "result": regions,
    }


def told(data, *annotations):
    """An event of Label Studio about task 1."""
    event = {"action": "ANNOTATIONS_CREATED", "project": 1, "task": [{"id": 1, "data": data}]}
    return json.dumps({**event, "annotation": annotations}).encode()


def label_studio():
    return connector(Settings.of("label-studio", {"url": "http://127.0.0.1", "project": 1}))


def nested(levels):
    return json.loads("[" * levels + "]" * levels)


@pytest.mark.quick("value0")
@pytest.mark.parametrize("value", [{"selected": nested(300)}, ["left"], "left", 1, None])
def test_a_labeler_whose_answer_is_none_stops_nobody_else(value):
    region = {"type": "pairwise", "from_name": "pref", "to_name": "a", "value": value}
    (found,) = parse_delivery(label_studio(), told({"prompt": "?"}, annotated(region)))
    (kept,) = json.loads(found.body)["annotations"][0]["result"]
    assert kept["value"] == {}


def test_a_task_that_no_reader_of_files_takes_is_a_dead_letter():
    parse_delivery(label_studio(), told({"prompt": nested(90)}, annotated()))
    with pytest.raises(ConnectorError, match="expected valid JSON"):
        parse_delivery(label_studio(), told({"prompt": nested(120)}, annotated()))


def test_a_small_body_does_not_become_very_many_large_answers():
    body = told({"prompt": "x" * 100_000}, *[annotated()] * 1_000)
    with pytest.raises(ConnectorError, match="annotation: expected at most 33,554,432 characters"):
        parse_delivery(label_studio(), body)


@pytest.mark.slow
def test_a_database_that_does_not_answer_is_not_ready(made, monkeypatch):
    answers = threading.Event()
    asked: list[int] = []

    def wait(_):
        asked.append(1)
        answers.wait(60)
        return 0

    monkeypatch.setattr(Inbox, "waiting", wait)
    monkeypatch.setattr(Inbox, "check", wait)
    monkeypatch.setattr(delivery, "_CHECK_SECONDS", 0.1)
    with client(made) as (tool, _):
        assert [tool.get("/readyz").status_code for _ in range(20)] == [503] * 20
        assert [tool.get("/metrics").status_code for _ in range(5)] == [200] * 5
        answers.set()
    assert len(asked) == 2


@pytest.mark.slow
def test_dead_letters_do_not_fill_the_disk_and_answers_come_in_all_the_same(made, monkeypatch):
    monkeypatch.setattr(inboxes, "LETTERS", 3)
    monkeypatch.setattr(inboxes, "LETTERS_BYTES", 3 * 16_384)
    with client(made) as (tool, inbox):
        sent = [b"x" * 900, b"y" * 40_000, b"1x", b"2x", b"3x", hooks.body(1)]
        assert [deliver(tool, one)[0] for one in sent] == [422, 503, 422, 422, 503, 200]
        assert [letter.bytes for letter in inbox.letters()] == [16_384] * 3
