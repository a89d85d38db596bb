"""`labelguard serve` as people start it: with its worker, and with what it refuses."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest
from support import hooks, tools

from labelguard.project import policies
from labelguard.report import overview

RELEASE = """
[hook.release]
when = "every:6"
mechanism = "rr"
push = true
"""


@pytest.fixture
def clinic(project, tmp_path, monkeypatch):
    """A project with a policy, whose hook listens to a tool."""
    policies.new("clinic", project=project, epsilon=3, delta=1e-5, allow=["rr:uses=50,block=1"])
    policies.activate("clinic", project)
    monkeypatch.setenv("LABELGUARD_DESK_HOOK_SECRET", hooks.SECRET)
    return tools.connected(project, tmp_path, monkeypatch, RELEASE)


def children(process):
    """The processes that a process started."""
    threads = Path(f"/proc/{process}/task").glob("*/children")
    return sorted({int(one) for path in threads for one in path.read_text().split()})


def wait(what, seconds, done):
    """Until it is so; so many seconds are for machines that are busy."""
    for _ in range(seconds * 10):
        if done():
            return
        time.sleep(0.1)
    raise AssertionError(what)


def alive(process):
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@pytest.mark.parametrize("end", [pytest.param("told", marks=pytest.mark.slow), "killed"])
def test_what_a_tool_delivers_is_released_and_published_by_the_worker(clinic, end):
    made, desk = clinic
    told = [desk.answer(f"worker {n % 3}", n, "left" if n % 2 else "right") for n in range(1, 7)]
    with hooks.serving(made) as server:
        for event in told:
            body = json.dumps(event).encode()
            where = f"{server.url}/hooks/desk"
            assert httpx2.post(where, content=body, headers=hooks.headers()).status_code == 200
        wait(
            "no release", 60, lambda: [r for r in overview.releases(made) if r.state == "committed"]
        )
        (release,) = overview.releases(made)
        assert release.rows == 6
        wait("not published", 60, (desk.path.parent / release.id).exists)
        (worker,) = children(server.process.pid)
        if end == "told":
            assert server.stop() == 0
        else:
            server.kill()
        wait("the worker works on", 60, lambda: not alive(worker))
    lines = "".join(server.lines)
    assert "releases every 6 new answers by rr, under policy clinic" in lines
    for one in (hooks.SECRET, "worker 1", "prompt 1", '"left"'):
        assert one not in lines


@pytest.mark.slow
def test_a_worker_that_died_is_started_again(clinic):
    made, _ = clinic
    with hooks.serving(made) as server:
        wait("no worker", 30, lambda: children(server.process.pid))
        (worker,) = children(server.process.pid)
        os.kill(worker, signal.SIGKILL)
        wait("no other worker", 60, lambda: set(children(server.process.pid)) - {worker})
        assert httpx2.get(f"{server.url}/healthz").status_code == 200
        others = set(children(server.process.pid)) - {worker}
        assert server.stop() == 0
        wait("the worker works on", 60, lambda: not any(map(alive, others)))


def refused(made, *options):
    """What `labelguard serve` says before it ends with 1."""
    command = [sys.executable, "-m", "labelguard", "serve", "--port", "0", *options]
    ran = subprocess.run(
        [*command, "--project", str(made.state)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    return ran.stderr


@pytest.mark.slow
def test_without_a_policy_it_refuses_to_release_and_serves_without_a_worker(
    project, tmp_path, monkeypatch
):
    monkeypatch.setenv("LABELGUARD_DESK_HOOK_SECRET", hooks.SECRET)
    made, _ = tools.connected(project, tmp_path, monkeypatch, RELEASE)
    assert refused(made).startswith("labelguard: the hook releases under a policy in force")
    with hooks.serving(made, "--no-worker") as server:
        assert server.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--host", "192.0.2.1"), "cannot listen on 192.0.2.1"),
        (("--host", "no such host"), "cannot listen on no such host"),
    ],
)
def test_an_address_that_cannot_be_had_is_said_in_one_line(clinic, options, said):
    error = refused(clinic[0], "--no-worker", *options)
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_a_project_without_connectors_is_not_served(project):
    assert "labelguard.toml has no [connectors.NAME]" in refused(project)
