"""An Argilla on this machine: the calls of its REST interface by which a release is published.

It keeps data sets and records in memory. A record that is sent again takes the place of that with
its `external_id`, as in Argilla; a name that is taken is answered with 409.
"""

import json
import re
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from support.replies import Quiet, listen

TIME = "2026-01-01T00:00:00"
WORKSPACE = {"id": str(uuid.uuid4()), "name": "labelers", "inserted_at": TIME, "updated_at": TIME}
_ITEM = re.compile(r"/api/v1/(me/)?(datasets|workspaces)/([^/]+)/?(.*)")


@dataclass
class FakeArgilla:
    """Data sets by id, what hangs on each, and what was written."""

    url: str = ""
    datasets: dict = field(default_factory=dict)
    parts: dict = field(default_factory=dict)
    writes: list = field(default_factory=list)

    def find(self, name):
        """The data set of this name."""
        (found,) = [one for one in self.datasets.values() if one["name"] == name]
        return found

    def records(self, name):
        """The records of the data set of this name, by their external id."""
        return {one["external_id"]: one for one in self.parts[self.find(name)["id"], "records"]}

    def make(self, name, status="ready", guidelines=None):
        """A data set that somebody made there."""
        made = {"id": str(uuid.uuid4()), "name": name, "workspace_id": WORKSPACE["id"]}
        made |= {"status": status, "guidelines": guidelines, "allow_extra_metadata": True}
        self.datasets[made["id"]] = made
        return made

    def answer(self, method, path, body):
        """Status and content of an answer."""
        if method != "GET":
            self.writes.append((method, path))
        if path == "/api/v1/me":
            return 200, {"id": str(uuid.uuid4()), "username": "owner", "role": "owner"}
        if path == "/api/v1/me/workspaces":
            return 200, {"items": [WORKSPACE]}
        if path == "/api/v1/me/datasets":
            return 200, {"items": list(self.datasets.values())}
        if path == "/api/v1/datasets":
            if any(one["name"] == body["name"] for one in self.datasets.values()):
                return 409, {"detail": "taken"}
            return 201, self.make(body["name"], "draft")
        _, kind, identity, rest = _ITEM.fullmatch(path).groups()
        return (200, WORKSPACE) if kind == "workspaces" else self._of(method, identity, rest, body)

    def _of(self, method, identity, rest, body):
        dataset = self.datasets[identity]
        if method == "DELETE":
            return 200, self.datasets.pop(identity)
        if rest in ("", "publish"):
            dataset |= (body or {}) if not rest else {"status": "ready"}
            return 200, dataset
        held = self.parts.setdefault((identity, rest.removesuffix("/bulk")), [])
        if method == "GET":
            return 200, {"items": held, "total": len(held)}
        new = body["items"] if rest == "records/bulk" else [body]
        for one in new:
            held[:] = [old for old in held if one.get("external_id", one) != old.get("external_id")]
            made = {"id": str(uuid.uuid4()), "inserted_at": TIME, "dataset_id": identity}
            held.append({**one, **made, "responses": [], "suggestions": []})
        added = held[-len(new) :]
        return 200, {"items": added} if rest == "records/bulk" else added[0]


@contextmanager
def serving_argilla():
    """Let one answer on a free port."""
    fake = FakeArgilla()

    class Handler(Quiet):
        def respond(self):
            data = self.read_body()
            body = json.loads(data) if data else None
            status, told = fake.answer(self.command, urlsplit(self.path).path, body)
            headers = {"Content-Type": "application/json"}
            self.answer(status, headers, json.dumps(told))

    with listen(Handler) as fake.url:
        yield fake
