"""A real Argilla server for tests: on SQLite and Redis, with its webhooks, without Elasticsearch.

It has a virtual environment of its own, `labelguard-integration/argilla` in the user's cache, which
is made when it is missing, and one of the numbered databases of the Redis server at REDIS_URL.
"""

import contextlib
import os
import socket
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import filelock
import httpx
from integration.servers import CACHE, free_port, installed, wait_for

APP = Path(__file__).parent / "argilla_app"
REDIS = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")
REDIS_DATABASES = range(6, 16)
WORKSPACE = "labelers"
START_SECONDS = 120
_OURS = "labelguard-tests"


@dataclass(frozen=True)
class User:
    """Somebody who can log in: the id and the key that Argilla gave."""

    id: str
    name: str
    api_key: str


@dataclass(frozen=True)
class Dataset:
    """A published data set, and the ids of its records in the order in which they were given."""

    id: str
    name: str
    records: tuple[str, ...]


@dataclass(frozen=True)
class Server:
    """A running server; every method acts as a person would, through Argilla's interface."""

    url: str
    owner: User

    def users(self, *names, role="annotator"):
        """New members of the workspace."""
        workspace = self.workspace()
        made = []
        for name in names:
            asked = {"first_name": name, "username": name, "role": role}
            told = self.call("POST", "/users", {**asked, "password": uuid.uuid4().hex})
            self.call("POST", f"/workspaces/{workspace}/users", {"user_id": told["id"]})
            made.append(User(told["id"], name, told["api_key"]))
        return made

    def workspace(self):
        """The id of the workspace that there is from the beginning."""
        found = self.call("GET", "/me/workspaces")["items"]
        return str(next(one["id"] for one in found if one["name"] == WORKSPACE))

    def dataset(self, name, questions, records):
        """A published data set whose `records` have these fields: texts, or chats."""
        made = self.call("POST", "/datasets", {"name": name, "workspace_id": self.workspace()})
        path = f"/datasets/{made['id']}"
        for field, content in records[0].items():
            kind = {"type": "text" if isinstance(content, str) else "chat", "use_markdown": False}
            described = {"name": field, "title": field, "required": True, "settings": kind}
            self.call("POST", f"{path}/fields", described)
        for question in questions:
            self.call("POST", f"{path}/questions", question)
        self.call("PUT", f"{path}/publish")
        return Dataset(made["id"], name, tuple(self.add(made["id"], records)))

    def add(self, dataset, records):
        """More records for a data set (id); their ids."""
        items = [{"fields": record, "external_id": uuid.uuid4().hex} for record in records]
        made = self.call("POST", f"/datasets/{dataset}/records/bulk", {"items": items})
        return [one["id"] for one in made["items"]]

    def answer(self, user, record, **values):
        """Submit an answer to each question named; the response's id."""
        return self._respond(user, record, "submitted", values)

    def discard(self, user, record, **values):
        """Skip a record; the response's id."""
        return self._respond(user, record, "discarded", values)

    def draft(self, user, record, **values):
        """Begin an answer; the response's id."""
        return self._respond(user, record, "draft", values)

    def update(self, user, response, status="submitted", **values):
        """Change a response."""
        said = {"status": status, "values": _values(values)}
        self.call("PUT", f"/responses/{response}", said, user)

    def delete(self, user, response):
        """Take a response back."""
        self.call("DELETE", f"/responses/{response}", user=user)

    def add_webhook(self, url, events=()):
        """Send events there, by default those of responses; the secret that signs them."""
        wanted = events or [f"response.{what}" for what in ("created", "updated", "deleted")]
        made = self.call("POST", "/webhooks", {"url": url, "events": [*wanted]})
        return str(made["secret"])

    def call(self, method, path, body=None, user=None):
        """What the REST interface answers the owner, or another user."""
        headers = {"X-Argilla-Api-Key": (user or self.owner).api_key}
        address = f"{self.url}/api/v1{path}"
        response = httpx.request(method, address, headers=headers, json=body, timeout=30)
        if not response.is_success:
            raise RuntimeError(f"{method} {path}: HTTP {response.status_code}: {response.text}")
        return response.json() if response.content else None

    def _respond(self, user, record, status, values):
        said = {"status": status, "values": _values(values)}
        return str(self.call("POST", f"/records/{record}/responses", said, user)["id"])


def _values(values):
    return {name: {"value": value} for name, value in values.items()}


def choice(name, *options):
    """A question for one of several labels."""
    labels = [{"value": option, "text": option} for option in options]
    return _question(name, {"type": "label_selection", "options": labels})


def ranking(name, *options):
    """A question for an order, with ties, of several."""
    ranked = [{"value": option, "text": option} for option in options]
    return _question(name, {"type": "ranking", "options": ranked})


def rating(name, best=5):
    """A question for a number from 1."""
    numbers = [{"value": number} for number in range(1, best + 1)]
    return _question(name, {"type": "rating", "options": numbers})


def text(name):
    """A question for a text."""
    return _question(name, {"type": "text", "use_markdown": False})


def _question(name, settings):
    # One question at least must be required; those after the first are told apart by this name.
    return {"name": name, "title": name, "required": name == "preference", "settings": settings}


@contextlib.contextmanager
def running(directory):
    """A server whose data are in an empty directory; it ends, and what it keeps in Redis is gone,
    when the context is left. Raises `RuntimeError` where it does not start.
    """
    python = installed("argilla", "uvicorn", "argilla-server", "click<8.2") / "python"
    with _redis() as redis, contextlib.ExitStack() as stack:
        database = f"sqlite+aiosqlite:///{directory / 'argilla.db'}?check_same_thread=False"
        environment = {
            **os.environ,
            "PYTHONPATH": str(APP),
            "ARGILLA_HOME_PATH": str(directory),
            "ARGILLA_DATABASE_URL": database,
            "ARGILLA_REDIS_URL": redis,
            "ARGILLA_SEARCH_ENGINE": "database",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_OFFLINE": "1",
        }
        log = stack.enter_context((directory / "server.log").open("w"))
        shared: dict[str, Any] = {"cwd": APP, "env": environment, "stdout": log, "stderr": log}

        def command(*words):
            return [str(python), "-m", *words]

        owner, password = uuid.uuid4().hex, uuid.uuid4().hex
        create = ["--first-name", "Owner", "--username", "owner", "--role", "owner"]
        create += ["--password", password, "--api-key", owner, "--workspace", WORKSPACE]
        admin = command("argilla_server", "database")
        try:
            subprocess.run([*admin, "migrate"], check=True, **shared)
            subprocess.run([*admin, "users", "create", *create], check=True, **shared)
        except subprocess.CalledProcessError:
            raise RuntimeError(f"Argilla: see {directory / 'server.log'}") from None
        port = free_port()
        serve = command("uvicorn", "app:app", "--host", "127.0.0.1", "--port", str(port))
        server = stack.enter_context(_process(serve, shared))
        stack.enter_context(_process([str(python), "worker.py"], shared))
        url = f"http://127.0.0.1:{port}"
        wait_for(f"{url}/api/v1/version", server, directory / "server.log", START_SECONDS)
        me = Server(url, User("", "owner", owner)).call("GET", "/me")
        yield Server(url, User(me["id"], "owner", owner))


@contextlib.contextmanager
def _process(command, options):
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _redis():
    """The URL of a numbered database that is empty, and that no other test of this user has."""
    for number in REDIS_DATABASES:
        lock = filelock.FileLock(CACHE / f"redis-{number}.lock")
        try:
            lock.acquire(blocking=False)
        except filelock.Timeout:
            continue
        with lock:
            # One that another program keeps things in is not ours to empty.
            if _command(number, "DBSIZE") != ":0" and _command(number, f"EXISTS {_OURS}") != ":1":
                continue
            _command(number, "FLUSHDB")
            _command(number, f"SET {_OURS} 1")
            try:
                yield f"{REDIS}/{number}"
            finally:
                _command(number, "FLUSHDB")
            return
    raise RuntimeError(f"no database {REDIS_DATABASES} of {REDIS} is free")


def _command(number, words):
    """What Redis answers to a command in one of its databases, in its own one-line notation."""
    where = urlsplit(REDIS)
    address = (where.hostname or "127.0.0.1", where.port or 6379)
    with socket.create_connection(address, timeout=5) as connection:
        connection.sendall(f"SELECT {number}\r\n{words}\r\n".encode())
        answers = connection.makefile("r", newline="\r\n")
        answers.readline()
        return answers.readline().strip()
