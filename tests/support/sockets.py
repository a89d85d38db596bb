"""What is said to a hook over a socket, and a hook with other limits."""

import httpx2
from support import hooks
from support.hooks import Server


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
