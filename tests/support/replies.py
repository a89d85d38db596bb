"""A REST server on a free port that answers what a test says, in the place of a tool."""

import json
import threading
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

# Status, headers and body (text, or what becomes JSON); None hangs up.
Reply: TypeAlias = tuple[int, Mapping[str, str], Any] | None


class Quiet(BaseHTTPRequestHandler):
    """A handler that prints nothing on the terminal; `respond` answers every request."""

    def respond(self):
        raise NotImplementedError

    def read_body(self):
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status, headers, body=""):
        data = body.encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass

    def _respond(self):
        self.respond()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _respond  # noqa: N815 (http.server calls them so)


@contextmanager
def listen(handler):
    """Let it answer on a free port; the address is yielded."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@dataclass
class Server:
    """Answers from a list in turn; what was asked, and with which headers."""

    url: str = ""
    replies: list[Reply] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)

    def reply(self, method, path):
        """The next answer."""
        return self.replies.pop(0)


@contextmanager
def serving(server):
    """Let a server answer."""

    class Handler(Quiet):
        def respond(self):
            self.read_body()
            server.asked.append((self.command, self.path))
            server.headers.append(dict(self.headers))
            if (reply := server.reply(self.command, self.path)) is None:
                self.close_connection = True
                return
            status, headers, body = reply
            self.answer(status, headers, body if isinstance(body, str) else json.dumps(body))

    with listen(Handler) as server.url:
        yield
