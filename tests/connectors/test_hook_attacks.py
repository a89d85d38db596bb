"""What attackers may try on a hook: on its socket, and from inside the annotation tool."""

import contextlib
import itertools
import json
import socket
import threading
import time

import httpx2
import pytest
from labelguard_connectors.hook import delivery
from labelguard_connectors.hook.limits import Limits
from labelguard_connectors.hook.serving import dead_letters, parse_delivery
from support import hooks
from support.clients import client
from support.clients import post as deliver
from support.hooks import Server
from support.rounds import MORE_ROUNDS

from labelguard.answers import inbox as inboxes
from labelguard.answers.connector import Settings, open_connector
from labelguard.answers.inbox import Inbox
from labelguard.errors import ConnectorError

LISTED = '[connectors.listed]\nkind = "tool"\n[connectors.listed.hook]\nscheme = "shared-secret"\n'


def make_project(directory, patch):
    """A project with a connector for anybody, and one for an address alone."""
    patch.setenv("LABELGUARD_LISTED_HOOK_SECRET", hooks.SECRET)
    return hooks.project(directory, patch, f'{LISTED}addresses = ["10.9.9.9"]\n')


@pytest.fixture
def made(tmp_path, monkeypatch):
    return make_project(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One server for all tests that leave it as it was."""
    with pytest.MonkeyPatch.context() as patch:
        served = make_project(tmp_path_factory.mktemp("served"), patch)
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


def annotate(*regions):
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
    return open_connector(
        Settings.from_table("label-studio", {"url": "http://127.0.0.1", "project": 1})
    )


def nest(levels):
    return json.loads("[" * levels + "]" * levels)


@pytest.mark.quick("value0")
@pytest.mark.parametrize("value", [{"selected": nest(300)}, ["left"], "left", 1, None])
def test_a_labeler_whose_answer_is_none_stops_nobody_else(value):
    region = {"type": "pairwise", "from_name": "pref", "to_name": "a", "value": value}
    (found,) = parse_delivery(label_studio(), told({"prompt": "?"}, annotate(region)))
    (kept,) = json.loads(found.body)["annotations"][0]["result"]
    outside = {"selected": "a label that cannot be stored"}
    assert kept["value"] == (outside if isinstance(value, dict) else {})


def test_a_task_that_no_reader_of_files_takes_is_a_dead_letter():
    parse_delivery(label_studio(), told({"prompt": nest(90)}, annotate()))
    with pytest.raises(ConnectorError, match="expected valid JSON"):
        parse_delivery(label_studio(), told({"prompt": nest(120)}, annotate()))


def test_a_small_body_does_not_become_very_many_large_answers():
    body = told({"prompt": "x" * 100_000}, *[annotate()] * 1_000)
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

    monkeypatch.setattr(Inbox, "count_waiting", wait)
    monkeypatch.setattr(Inbox, "check_writable", wait)
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
        assert [letter.bytes for letter in inbox.list_dead_letters()] == [16_384] * 3


# `labelguard serve` on a socket: what clients may do to it, and what a crash may not.


@pytest.fixture
def own(made):
    """A server that the test may end."""
    with hooks.serving(made, "--no-worker") as found:
        yield found


@pytest.mark.slow
def test_told_to_end_it_stores_what_it_accepted_and_ends_well(own, made):
    body = hooks.body(1)
    with own.connect() as connection:
        connection.sendall(head(len(body)) + body[:10])
        _wait_for(own, "/healthz")  # it has read the first half by now
        ended: list[int] = []
        stopping = threading.Thread(target=lambda: ended.append(own.stop()))
        stopping.start()
        _until_refused(own)
        connection.sendall(body[10:])
        assert answer(connection).startswith(b"HTTP/1.1 200")
        stopping.join()
    assert ended == [0]
    assert hooks.stored(made) == {"a1": 1}


def _wait_for(server, path):
    assert httpx2.get(server.url + path).status_code == 200


def _until_refused(server):
    """Until nobody listens any more."""
    for _ in range(600):
        try:
            server.connect().close()
        except ConnectionRefusedError:
            return
        time.sleep(0.05)
    raise AssertionError("it still listens")


@pytest.mark.slow
def test_a_thousand_connections_that_say_nothing_stop_nobody(server):
    idle = [server.connect() for _ in range(1_000)]
    try:
        for number, connection in enumerate(idle[:500]):
            connection.sendall(b"POST /hooks/clinic HTTP/1.1\r\nX-Half: " + str(number).encode())
        assert post(server, 1) == 200
    finally:
        for connection in idle:
            connection.close()
    assert post(server, 2) == 200


@pytest.mark.slow
def test_headers_and_bodies_that_never_end_are_given_up(made, monkeypatch):
    server = run_with(made, monkeypatch, "header_seconds=0.5, body_seconds=0.5")
    try:
        with server.connect() as silent, server.connect() as headers, server.connect() as body:
            headers.sendall(b"POST /hooks/clinic HTTP/1.1\r\nX-Slow: ")
            body.sendall(head(100) + b"{")
            dripping = threading.Thread(target=_drip, args=(headers,))
            dripping.start()
            assert answer(silent) == b""
            assert answer(headers) == b""
            assert answer(body).startswith(b"HTTP/1.1 408")
            dripping.join()
        with server.connect() as again:  # one that is kept open after an answer, then is slow
            told = hooks.body(1)
            again.sendall(head(len(told)) + told)
            assert again.recv(65_536).startswith(b"HTTP/1.1 200")
            again.sendall(b"POST /hooks/clinic HTTP/1.1\r\nX-Slow: ")
            assert answer(again) == b""
    finally:
        assert server.stop() == 0
    assert hooks.stored(made) == {"a1": 1}


def _drip(connection):
    """A byte now and then, until the other side has had enough."""
    try:
        for _ in range(600):
            connection.sendall(b"x")
            time.sleep(0.05)
    except OSError:
        pass


@pytest.mark.slow
def test_of_too_many_connections_the_longest_waiting_makes_room(made, monkeypatch):
    server = run_with(made, monkeypatch, "connections=20")
    try:
        with server.connect() as first:
            others = [server.connect() for _ in range(40)]
            assert answer(first) == b""
            assert post(server, 1) == 200
            for connection in others:
                connection.close()
    finally:
        server.stop()


def test_headers_without_end_and_bodies_too_large_are_refused(server):
    with server.connect() as connection:
        connection.sendall(head(4 * Limits().body_bytes + 1))
        assert answer(connection).startswith(b"HTTP/1.1 413")
    with server.connect() as connection:
        with contextlib.suppress(OSError):
            connection.sendall(b"GET / HTTP/1.1\r\n" + b"X-Long: 12345678\r\n" * 10_000)
        assert answer(connection) == b""
    assert post(server, 1) == 200


@pytest.mark.slow
def test_bodies_in_chunks_are_bodies_and_large_ones_are_refused(server):
    told = hooks.body(1)
    start = head(0).replace(
        b"Content-Length: 0", b"Transfer-Encoding: chunked\r\nConnection: close"
    )
    with server.connect() as connection:
        chunks = [b"1\r\n%c\r\n" % byte for byte in told]
        connection.sendall(start + b"".join(chunks) + b"0\r\n\r\n")
        assert answer(connection).startswith(b"HTTP/1.1 200")
    with server.connect() as connection:
        chunk = b"8000\r\n" + bytes(0x8000) + b"\r\n"
        connection.sendall(start + chunk * 80 + b"0\r\n\r\n")
        assert answer(connection).startswith(b"HTTP/1.1 413")
    assert post(server, 2) == 200


def test_no_line_of_a_log_holds_a_label_a_prompt_a_name_or_a_secret(own, made):
    said = (hooks.LABEL, hooks.PROMPT, hooks.LABELER, hooks.SECRET, "another-wrong-secret")
    url, body, right = own.url, hooks.body(1), hooks.headers()
    ugly = json.dumps({"answers": [{hooks.PROMPT: hooks.LABEL, "id": hooks.LABELER}]}).encode()
    for path, content, headers in (
        ("/hooks/clinic", body, right),
        ("/hooks/clinic", body, right),
        ("/hooks/clinic", body, hooks.headers("another-wrong-secret")),
        ("/hooks/clinic", ugly, right),
        ("/hooks/clinic", hooks.LABEL.encode(), right),
        ("/hooks/clinic", body * 40_000, right),
        (f"/hooks/{hooks.LABELER}", body, right),
        (f"/hooks/clinic?key={hooks.SECRET}&q={hooks.PROMPT}", ugly, right),
        (f"/{hooks.LABEL}?{hooks.PROMPT}", body, right),
    ):
        with contextlib.suppress(httpx2.TransportError):  # some are cut off
            httpx2.post(url + path, content=content, headers=headers)
    with own.connect() as connection:
        connection.sendall(f"{hooks.LABEL} {hooks.PROMPT} {hooks.SECRET}\r\n\r\n".encode())
        answer(connection)
    shown = httpx2.get(url + "/metrics").text + repr(dead_letters(made))
    assert own.stop() == 0
    lines = "".join(own.lines)
    assert '"status": 401' in lines
    assert '"status": 404' in lines
    assert '"status": 422' in lines
    assert all(json.loads(line) for line in own.lines)
    for one in said:
        assert one not in lines + shown
    assert len(dead_letters(made)) == 3


def _hammer(port, numbers, known, turn):
    """Deliver until nobody answers; `known` are those that were answered with 200."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            while True:
                with turn:
                    number = next(numbers)
                body = hooks.body(number)
                connection.sendall(head(len(body)) + body)
                if not connection.recv(65_536).startswith(b"HTTP/1.1 200"):
                    return
                known.append(number)
    except OSError:
        return


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [4 * MORE_ROUNDS])
def test_every_event_that_was_answered_for_is_there_after_a_power_cut(made, rounds):
    known: list[int] = []
    numbers, turn = itertools.count(1), threading.Lock()
    for round_ in range(rounds):
        server = Server(made, "--no-worker")
        threads = [
            threading.Thread(target=_hammer, args=(server.port, numbers, known, turn))
            for _ in range(8)
        ]
        before = len(known)
        for thread in threads:
            thread.start()
        while len(known) < before + 20 + 37 * (round_ % 7):  # under load, and not at its start
            time.sleep(0.001)
        server.kill()
        for thread in threads:
            thread.join()
    found = hooks.stored(made)
    assert {f"a{number}" for number in known} <= set(found)
    assert set(found.values()) == {1}


# What is said to a hook over a socket, and a hook with other limits.


def post(server, number, name="clinic"):
    """The status that a delivery is answered with."""
    where = f"{server.url}/hooks/{name}"
    return httpx2.post(where, content=hooks.body(number), headers=hooks.headers()).status_code


def head(length, path="/hooks/clinic"):
    """The headers of a delivery."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: here\r\nX-Labelguard-Secret: {hooks.SECRET}\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def answer(connection):
    """All that comes until the other side closes, or nothing if it just does."""
    found = b""
    try:
        while part := connection.recv(65_536):
            found += part
    except ConnectionResetError:
        pass
    return found


def run_with(made, monkeypatch, limits):
    """A server with other limits: they are constants of the product."""
    code = (
        "import sys\nfrom labelguard_connectors.hook import server\n"
        "from labelguard_connectors.hook.limits import Limits\n"
        "given = server.serve\n"
        f"server.serve = lambda *a, **o: given(*a, **{{**o, 'bounds': Limits({limits})}})\n"
        "from labelguard.cli.main import main\nmain()\n"
    )
    monkeypatch.setattr(hooks, "PROGRAM", ("-c", code))
    return Server(made, "--no-worker")
