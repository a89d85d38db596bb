"""`labelguard serve` on a socket: what clients may do to it, and what a crash may not."""

import contextlib
import itertools
import json
import socket
import threading
import time

import httpx2
import pytest
from labelguard_connectors.hook.limits import Limits
from labelguard_connectors.hook.serving import dead_letters
from support import hooks
from support.hooks import Server
from support.rounds import MORE_ROUNDS
from support.sockets import answer, head, post, run_with


@pytest.fixture
def made(tmp_path, monkeypatch):
    return hooks.project(tmp_path, monkeypatch)


@pytest.fixture
def own(made):
    """A server that the test may end."""
    with hooks.serving(made, "--no-worker") as found:
        yield found


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One server for all tests that leave it as it was."""
    with pytest.MonkeyPatch.context() as patch:
        served = hooks.project(tmp_path_factory.mktemp("served"), patch)
        with hooks.serving(served, "--no-worker") as found:
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
