"""The pages about annotation tools, followed to the letter before real servers."""

import contextlib
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import polars as pl
import pytest
from integration import argilla_server
from integration.servers import free_port
from support.hooks import Server
from support.pages import blocks, commands

from labelguard.project.project import CONFIG, STATE, find

pytestmark = pytest.mark.integration
PATIENCE = 120  # seconds until a delivery must have come; it takes one
FORM = '<View><Text name="prompt" value="$prompt"/>{}</View>'.format(
    '<Pairwise name="preference" toName="response_a,response_b"/>'
    '<Text name="response_a" value="$response_a"/><Text name="response_b" value="$response_b"/>'
)
PAIRS = [
    {"prompt": f"question {n}", "response_a": f"one {n}", "response_b": f"a second one {n}"}
    for n in range(4)
]


@dataclass
class Reader:
    """Somebody who follows a page in an empty directory.

    `replaced` are the page's examples and what they are here, `typed` is what goes into files that
    the page has one type, `given` happens in the tool before something is ingested.
    """

    here: Path
    replaced: Mapping[str, str]
    typed: str = field(repr=False)
    given: Callable[[], None]
    port: int
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    hook: Server | None = None
    printed: list[str] = field(default_factory=list)

    def follow(self, page):
        for language, block in blocks(page, "toml", "console"):
            if language == "toml":
                with (self.here / STATE / CONFIG).open("a") as file:
                    file.write(f"\n{self._here(block)}")
            else:
                for line in commands(block):
                    self._do(self._here(line))

    def _here(self, text):
        for example, real in self.replaced.items():
            text = text.replace(example, real)
        return text

    def _do(self, line):
        if line.startswith("pip install"):
            return
        if line == "labelguard ingest":
            self.given()
            self._wait_for_deliveries()
        if exported := re.fullmatch(r"export (\w+)=(.*)", line):
            value = self._run(["bash", "-c", f"echo {exported[2]}"])
            os.environ[exported[1]] = self.environment[exported[1]] = value.strip()
        elif line == "labelguard serve":
            options = ("--no-worker", "--port", str(self.port))
            self.hook = Server(find(self.here), *options)
        elif line.startswith("labelguard "):
            program = [sys.executable, "-m", "labelguard"]
            self.printed.append(self._run([*program, *shlex.split(line)[1:]]))
        else:
            self._run(["bash", "-c", line])

    def _run(self, command):
        done = subprocess.run(
            command,
            cwd=self.here,
            env=self.environment,
            input=self.typed,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command[-1]}: {done.stderr}"
        return done.stdout

    def _wait_for_deliveries(self):
        assert self.hook
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            with urlopen(f"{self.hook.url}/metrics") as answer:
                if re.search(rb"(?m)^labelguard_hook_events_total 1\.0$", answer.read()):
                    return
            time.sleep(0.1)
        raise AssertionError("nothing was delivered")


@contextlib.contextmanager
def reading(reader, patch):
    """A reader whose hook is stopped and whose variables are forgotten afterwards."""
    for name in list(os.environ):
        if name.startswith("LABELGUARD_"):
            patch.delenv(name)
            reader.environment.pop(name, None)
    with pytest.MonkeyPatch.context() as own:
        for name in ("API_KEY_FILE", "HOOK_SECRET_FILE"):
            for tool in ("LABEL_STUDIO", "ARGILLA"):
                own.setenv(f"LABELGUARD_{tool}_{name}", "")
        try:
            yield reader
        finally:
            if reader.hook:
                assert reader.hook.stop() == 0


@pytest.fixture
def port():
    return free_port()


def _count_labels(reader):
    """How many labels each release holds, in their order."""
    found = sorted((reader.here / STATE / "releases").glob("r*/data.parquet"))
    return [pl.read_parquet(path).height for path in found]


def test_label_studio(label_studio, port, tmp_path, monkeypatch):
    server = label_studio
    users = [server.user(f"reader-{n}@example.com") for n in range(3)]
    number = server.project(PAIRS, FORM)
    tasks = [int(task["id"]) for task in server.tasks(number)]
    for user in users:
        for task in tasks[:3]:
            server.submit(user, task, _choose_left())

    def given():
        # The form is filled by a person in test_label_studio_page.py.
        secret = (tmp_path / "hook-secret.txt").read_text().strip()
        url = f"http://127.0.0.1:{port}/hooks/label-studio"
        server.add_webhook(number, url, {"X-Labelguard-Secret": secret})
        server.submit(users[0], tasks[3], _choose_left())

    replaced = {
        "https://label-studio.example.com": server.url,
        "project = 1": f"project = {number}",
    }
    with reading(Reader(tmp_path, replaced, server.api_key, given, port), monkeypatch) as reader:
        reader.follow("label-studio.md")
    assert _count_labels(reader) == [9, 10]
    assert "new  1 answer" in reader.printed[-3]
    assert (tmp_path / "api-key.txt").stat().st_mode & 0o077 == 0


def _choose_left():
    region = {"from_name": "preference", "to_name": "response_a", "type": "pairwise"}
    return {"result": [{**region, "value": {"selected": "left"}}]}


def test_argilla(port, tmp_path, monkeypatch):
    home, here = tmp_path / "argilla", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    with argilla_server.running(home) as server:
        users = server.users(*(f"reader-{n}" for n in range(3)))
        asked = [argilla_server.choice("preference", "response_a", "response_b", "tie")]
        dataset = server.dataset("pairs", asked, PAIRS)
        for user in users:
            for record in dataset.records[:3]:
                server.answer(user, record, preference="response_a")

        def given():
            server.answer(users[0], dataset.records[3], preference="response_b")

        replaced = {
            "https://argilla.example.com": server.url,
            "https://hook.example.com": f"http://127.0.0.1:{port}",
        }
        key = server.owner.api_key
        with reading(Reader(here, replaced, key, given, port), monkeypatch) as reader:
            reader.follow("argilla.md")
    assert _count_labels(reader) == [9, 10]
    assert "new  1 answer" in reader.printed[-3]
    assert (here / "hook-secret.txt").stat().st_mode & 0o077 == 0
