"""A server that speaks like OpenAI's: it answers with what it was asked, and keeps the requests."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Completions(BaseHTTPRequestHandler):
    """Answers both kinds of completion; `server.failures` are the statuses of the first answers."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, dict(self.headers), body))
        status = self.server.failures.pop(0) if self.server.failures else 200
        answer = self._answer(body) if status == 200 else {"error": {"message": "no"}}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _answer(self, body):
        if self.path == "/v1/chat/completions":
            said = [f"{body['messages'][-1]['content']} {k}" for k in range(body["n"])]
            choices = [
                {"index": k, "message": {"role": "assistant", "content": text}}
                for k, text in enumerate(said)
            ]
            return {"object": "chat.completion", "choices": choices[::-1]}
        said = [f"{body['prompt']} {k}" for k in range(body["n"])]
        choices = [{"index": k, "text": text} for k, text in enumerate(said)]
        return {"object": "text_completion", "choices": choices[::-1]}

    def log_message(self, *_):
        """Print nothing."""


@contextlib.contextmanager
def serving(failures=()):
    """Yield the server, with `url`, and `requests` as they come."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Completions)
    server.requests, server.failures = [], list(failures)
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
