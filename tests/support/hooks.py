"""A tool that tells of answers, and a hook that hears it: in this process, or in one of its own."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from support import doors

import labelguard
from labelguard.answers import connector
from labelguard.project.opening import OpenProject
from labelguard.project.project import CONFIG, find

SECRET = "swordfish-and-then-some"
# What no line may hold.
LABEL, PROMPT, LABELER = "the-left-one-is-better", "Shall-I-tell-you-a-secret", "Maria-Exampleova"

# What Python runs.
PROGRAM: tuple[str, ...] = ("-m", "labelguard")

TOOL = Path(__file__).with_name("heard_tool.py").read_text(encoding="utf-8")


def body(number, *, answer=None):
    """A delivery with one answer."""
    task = json.dumps({"prompt": PROMPT, "label": LABEL})
    own = {"id": f"a{number}", "version": number, "who": LABELER, "task": task}
    return json.dumps({"answers": [{**own, **(answer or {})}]}).encode()


def headers(secret=SECRET):
    """Those that prove a delivery."""
    return {"x-labelguard-secret": secret, "content-type": "application/json"}


def project(directory, patch, config="", *, name="clinic"):
    """A project whose labelguard.toml names a connector to this tool, with its secret."""
    doors.install(directory / "packages", connector.DOOR, "tool", TOOL, patch)
    made = labelguard.init(directory / "project")
    table = f'[connectors.{name}]\nkind = "tool"\nhook = {{ scheme = "shared-secret" }}\n'
    path = made.state / CONFIG
    path.write_text(f"{path.read_text()}\n{table}{config}")
    patch.setenv(f"LABELGUARD_{name.upper()}_HOOK_SECRET", SECRET)
    return find(made.state.parent)


def stored(made):
    """How many events wait of each answer, by the answer's id."""

    found: dict[str, int] = {}
    with contextlib.closing(OpenProject.open(made).answers.open_inbox()) as inbox:
        for name in inbox.list_connectors():
            inbox.claim_events(name, "looked at", 1_000_000)
        for event in inbox.read_claimed("looked at"):
            for answer in event.answers:
                found[answer.record] = found.get(answer.record, 0) + 1
        inbox.finish_claims(())
    return found


class Server:
    """`labelguard serve` in a process of its own; `lines` are what it logged, as they come, and
    `printed` what it said on standard output."""

    def __init__(self, made, *options):
        port = () if "--port" in options else ("--port", "0")
        arguments = ("serve", *port, *options, "--project", str(made.state))
        self.process = subprocess.Popen(
            [sys.executable, *PROGRAM, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self.lines: list[str] = []
        for line in self.process.stderr:
            self.lines.append(line)
            if "Application startup complete" in line:
                break
        else:
            raise AssertionError(self.lines)
        self.port = int(re.findall(r"http://127\.0\.0\.1:(\d+)", "".join(self.lines))[0])
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        self.lines.extend(self.process.stderr)

    @contextlib.contextmanager
    def running(self):
        """The server, which is gone afterwards."""
        try:
            yield self
        finally:
            if self.process.poll() is None:
                self.kill()

    def kill(self):
        """As a power cut does."""
        self.process.kill()
        self._end()

    def _end(self):
        code = self.process.wait(60)
        self._reader.join(10)
        self.printed = self.process.stdout.read()
        for pipe in (self.process.stdout, self.process.stderr):
            pipe.close()
        return code

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def connect(self):
        """A connection to it."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def stop(self):
        """As `docker stop` does; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._end()


@contextlib.contextmanager
def serving(made, *options):
    """A server that is gone afterwards."""
    with Server(made, *options).running() as server:
        yield server
