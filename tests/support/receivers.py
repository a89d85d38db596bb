"""A receiver of webhooks on a free port, which answers as it is told and keeps what it is sent."""

import json
from contextlib import contextmanager
from dataclasses import dataclass, field

from standardwebhooks.webhooks import Webhook
from support.replies import Quiet, listen

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
    class Handler(Quiet):
        def respond(self):
            headers = {name.lower(): value for name, value in self.headers.items()}
            found.requests.append((self.path, headers, self.read_body()))
            status = found.statuses.pop(0) if found.statuses else 204
            moved = status in (301, 302, 307, 308)
            self.answer(status, {"Location": f"{found.url}/elsewhere"} if moved else {})

    with listen(Handler) as url:
        found = Receiver(f"{url}/hook")
        yield found


def as_text(message):
    """A message as one reads it."""
    return json.dumps(message, ensure_ascii=False)
