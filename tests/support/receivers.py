"""A receiver of webhooks on a free port, which answers as it is told and keeps what it is sent."""

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks.webhooks import Webhook

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@dataclass
class Receiver:
    """Requests in order: path, headers in lower case, body as it came."""

    url: str
    # What it answers next; 204 when there is none left.
    statuses: list[int] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    @property
    def ids(self):
        return [headers["webhook-id"] for _, headers, _ in self.requests]

    @property
    def bodies(self):
        return [json.loads(body) for _, _, body in self.requests]

    def messages(self):
        """What was sent, each verified by its signature."""
        verifier = Webhook(SECRET)
        return [verifier.verify(body, headers) for _, headers, body in self.requests]


@contextmanager
def receiver():
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            found.requests.append((self.path, headers, body))
            status = found.statuses.pop(0) if found.statuses else 204
            self.send_response(status)
            if status in (301, 302, 307, 308):
                self.send_header("Location", f"{found.url}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            """Nothing on the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Receiver(f"http://127.0.0.1:{server.server_port}/hook")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def as_text(message):
    """A message as one reads it."""
    return json.dumps(message, ensure_ascii=False)
