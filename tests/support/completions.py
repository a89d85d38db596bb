"""A server that speaks like OpenAI's: it answers with what it was asked, and keeps the requests."""

import contextlib
import json
from types import SimpleNamespace

from support.replies import Quiet, listen


def _complete(path, body):
    if path == "/v1/chat/completions":
        said = [f"{body['messages'][-1]['content']} {k}" for k in range(body["n"])]
        choices = [
            {"index": k, "message": {"role": "assistant", "content": text}}
            for k, text in enumerate(said)
        ]
        return {"object": "chat.completion", "choices": choices[::-1]}
    said = [f"{body['prompt']} {k}" for k in range(body["n"])]
    choices = [{"index": k, "text": text} for k, text in enumerate(said)]
    return {"object": "text_completion", "choices": choices[::-1]}


@contextlib.contextmanager
def serving(failures=(), most=99):
    """Yield the server, with `url`, and `requests` as they come.

    It answers both kinds of completion; `failures` are the statuses of the first answers, `most`
    how many texts it gives, whatever it is asked for.
    """
    found = SimpleNamespace(requests=[], failures=list(failures))

    class Completions(Quiet):
        def respond(self):
            body = json.loads(self.read_body())
            found.requests.append((self.path, dict(self.headers), body))
            status = found.failures.pop(0) if found.failures else 200
            content = (
                _complete(self.path, body | {"n": min(body["n"], most)})
                if status == 200
                else {"error": {"message": "no"}}
            )
            self.answer(status, {"Content-Type": "application/json"}, json.dumps(content))

    with listen(Completions) as found.url:
        yield found
