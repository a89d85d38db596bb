"""From a person's answers in a real tool to the rows of a release, with nobody typing a command."""

import time

import pytest
from integration.argilla_server import WORKSPACE, choice, running
from integration.servers import free_port
from support.hooks import serving
from support.lives import put_into_force

import labelguard as lg
from labelguard.project.project import CONFIG, find
from labelguard.report import overview

pytestmark = pytest.mark.integration
RECORDS = [
    {"prompt": f"question {n}", "response_a": f"one {n}", "response_b": f"two {n}"}
    for n in range(4)
]
# How long after the last click a release may take; more is a failure.
WITHIN_S = 60


def prepare_project(directory, table):
    """A project with a connector, and a policy by which the hook may release.

    It has so much ε that no label is flipped, whatever the coins.
    """
    made = lg.init(directory / "p", max_epsilon=10_000.0, max_delta=0.5)
    path = made.state / CONFIG
    schedule = '[hook.release]\nwhen = "every:3"\nmechanism = "rr"\n'
    path.write_text(f"{path.read_text()}\n{table}\n{schedule}")
    put_into_force(made, "open", "rr:uses=16,block=1", epsilon=2000, delta=0)
    return find(made.state.parent)


def rows(project):
    """Prompt and chosen response of every row of the newest release."""
    made = [one.id for one in overview.list_releases(project) if one.state == "committed"]
    if not made:
        return []
    found = lg.load(project.releases / made[-1])
    return sorted(found.select("prompt", "chosen").iter_rows())


def until(seen, expected):
    """Wait for it."""
    end = time.monotonic() + WITHIN_S
    while (found := seen()) != expected:
        assert time.monotonic() < end, found
        time.sleep(0.5)


@pytest.fixture(scope="module")
def argilla(tmp_path_factory):
    with running(tmp_path_factory.mktemp("argilla")) as server:
        yield server


def test_answers_in_argilla_are_released_and_so_is_what_it_does_not_announce(
    argilla, tmp_path, monkeypatch
):
    better = choice("better", "response_a", "response_b", "tie")
    made = argilla.dataset("pairs", [{**better, "required": True}], RECORDS)
    maria, otto = argilla.users("maria-of-this-test", "otto-of-this-test")
    table = f'[connectors.argilla]\nurl = "{argilla.url}"\ndataset = "pairs"\n'
    project = prepare_project(tmp_path, f'{table}workspace = "{WORKSPACE}"\n')
    port = free_port()
    secret = argilla.add_webhook(f"http://127.0.0.1:{port}/hooks/argilla")
    monkeypatch.setenv("LABELGUARD_ARGILLA_HOOK_SECRET", secret)
    monkeypatch.setenv("LABELGUARD_ARGILLA_API_KEY", argilla.owner.api_key)
    with serving(project, "--port", str(port)) as hook:
        first = argilla.answer(maria, made.records[0], better="response_a")
        argilla.update(maria, first, better="response_b")
        argilla.discard(maria, made.records[1])
        until(lambda: rows(project), [("question 0", "two 0")])
        logged = "".join(hook.lines)
        assert hook.stop() == 0
    for record in made.records[1:]:
        argilla.answer(otto, record, better="response_a")
    with serving(project, "--port", str(port)) as hook:
        missed = [(f"question {n}", f"one {n}") for n in (1, 2, 3)]
        until(lambda: rows(project), [("question 0", "two 0"), *missed])
        logged += "".join(hook.lines)
    for private in (secret, argilla.owner.api_key, "question", "one 1", "of-this-test"):
        assert private not in logged
    assert overview.verify(project).ok
