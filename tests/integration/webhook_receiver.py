"""Where webhooks go: a server on a free port that keeps what it is sent."""

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Receiver:
    """What came in, in order: headers and parsed bodies."""

    url: str
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)

    def actions(self):
        """What Label Studio says happened."""
        return [body["action"] for body in self.bodies]


@contextmanager
def webhook_receiver():
    """A receiver that answers 200 to everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.headers.append(dict(self.headers.items()))
            receiver.bodies.append(json.loads(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            """Nothing on the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = Receiver(f"http://127.0.0.1:{server.server_port}/hook")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
