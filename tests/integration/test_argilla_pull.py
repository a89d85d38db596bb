"""A real Argilla: what three annotators did is what is pulled; a release is there to be seen."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pytest
from integration.argilla_server import Dataset, User, choice, ranking, rating, running, text
from labelguard_connectors.argilla import Argilla, publishing
from support.releases import make_release

import labelguard
from labelguard.answers.connector import Settings
from labelguard.errors import ConnectorError
from labelguard.text import no_progress

pytestmark = pytest.mark.integration

SIDES = ("response_a", "response_b")
QUESTIONS = [
    choice("preference", *SIDES, "tie"),
    ranking("order", *SIDES),
    rating("confidence"),
    text("reason"),
]
RECORDS = [
    {"prompt": f"question {n}", **{side: f"{side} to {n}" for side in SIDES}} for n in range(10)
]
SDK = """
import sys
import argilla as rg
url, key, dataset, record, user = sys.argv[1:]
found = rg.Argilla(api_url=url, api_key=key).datasets(id=dataset)
found.settings.get()
answer = rg.Response("preference", "tie", user_id=user, status="submitted")
fields = {"prompt": "question", "response_a": "one", "response_b": "other"}
found.records.log([rg.Record(id=record, fields=fields, responses=[answer])])
"""


@dataclass
class Annotated:
    """A data set, and what should be known of it: status and values by labeler and record."""

    dataset: Dataset
    people: list[User]
    expected: dict[tuple[str, str], tuple[str, dict[str, Any]]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(tmp_path_factory.mktemp("argilla")) as started:
        yield started


@pytest.fixture
def key(server, monkeypatch):
    monkeypatch.setenv("LABELGUARD_ARGILLA_API_KEY", server.owner.api_key)
    return server.owner.api_key


@pytest.fixture(scope="module")
def annotated(server):
    """Three people's work, with second thoughts; and a fourth's, who was deleted."""
    people = server.users("ann", "bob", "cat", "dan")
    ann, bob, cat, dan = people
    dataset = server.dataset("prefs", QUESTIONS, RECORDS)
    found = Annotated(dataset, people)
    rank = [{"value": SIDES[1], "rank": 1}, {"value": SIDES[0], "rank": 1}]
    for number, record in enumerate(dataset.records):
        said = {"preference": (*SIDES, "tie")[number % 3], "order": rank, "confidence": 3}
        for person in (ann, bob):
            server.answer(person, record, **said, reason="nobody is to know")
            found.expected[person.id, record] = ("submitted", said)
    first, second, third, fourth, fifth = dataset.records[:5]
    one = server.discard(cat, first, preference="tie")
    found.expected[cat.id, first] = ("discarded", {})
    drafted = server.draft(cat, second, preference="tie")
    found.expected[cat.id, second] = ("draft", {})
    taken_back = server.answer(cat, third, preference="tie")
    server.delete(cat, taken_back)
    again = server.answer(cat, fourth, preference="tie")
    server.update(cat, again, preference="response_b")
    found.expected[cat.id, fourth] = ("submitted", {"preference": "response_b"})
    once = server.answer(cat, fifth, preference="tie")
    server.update(cat, once, status="draft", preference="tie")
    found.expected[cat.id, fifth] = ("draft", {})
    assert len({one, drafted, taken_back, again, once}) == 5
    server.answer(dan, first, preference="tie")
    server.call("DELETE", f"/users/{dan.id}")
    return found


def argilla(server, **options):
    table = {"url": server.url, "dataset": "prefs", "workspace": "labelers"}
    return Argilla(Settings.from_table("argilla", {**table, **options}))


def pull_answers(connector, cursor=""):
    found = list(connector.pull(cursor))
    assert {page.cursor for page in found} <= {""}
    return [answer for page in found for answer in page.answers]


def states(answers):
    """Status and values by labeler and record."""
    told = {}
    for answer in answers:
        body = json.loads(answer.body)
        (response,) = body["responses"]
        values = {name: value["value"] for name, value in response["values"].items()}
        told[answer.labeler, body["id"]] = (response["status"], values)
    return told


@pytest.mark.usefixtures("key")
def test_what_was_annotated_is_pulled_nothing_missing_and_nothing_doubled(server, annotated):
    answers = pull_answers(argilla(server))
    assert states(answers) == annotated.expected
    assert len({answer.record for answer in answers}) == len(answers) == len(annotated.expected)
    assert not any(answer.is_deleted for answer in answers)


def test_responses_that_the_sdk_logs_and_deletions_without_an_event_are_seen(server, key):
    (eve,) = server.users("eve")
    dataset = server.dataset("logged", QUESTIONS, RECORDS[:2])
    record = server.call("GET", f"/records/{dataset.records[0]}")["external_id"]
    logged = [server.url, key, dataset.id, record, eve.id]
    subprocess.run([sys.executable, "-c", SDK, *logged], check=True, capture_output=True)
    connector = argilla(server, dataset="logged")
    (first,) = pull_answers(connector)
    assert states([first])[eve.id, dataset.records[0]] == ("submitted", {"preference": "tie"})
    subprocess.run([sys.executable, "-c", SDK, *logged], check=True, capture_output=True)
    (again,) = pull_answers(connector)
    assert again.record == first.record and again.version > first.version
    server.call("DELETE", f"/records/{dataset.records[0]}")
    assert pull_answers(connector) == []


@pytest.mark.usefixtures("key", "annotated")
def test_a_data_set_is_completed_once_every_record_is(server):
    (gil,) = server.users("gil")
    dataset = server.dataset("completed", QUESTIONS, RECORDS[:2])
    connector = argilla(server, dataset="completed")
    said = []
    for record in dataset.records:
        said.append(connector.is_completed())
        server.answer(gil, record, preference="tie")
    assert [*said, connector.is_completed()] == [False, False, True]


@pytest.mark.parametrize("role", ["annotator", "admin", None])
def test_the_key_must_be_of_somebody_who_sees_all(server, annotated, monkeypatch, role):
    key = server.users(f"user-{role}", role=role)[0].api_key if role else "no-such-key"
    monkeypatch.setenv("LABELGUARD_ARGILLA_API_KEY", key)
    connector = argilla(server)
    if role == "admin":
        assert len(pull_answers(connector)) == len(annotated.expected)
        return
    status = {"annotator": "HTTP 403: the API key's user may not", None: "HTTP 401: the API key"}
    for use in (connector.about, lambda: pull_answers(connector)):
        with pytest.raises(ConnectorError, match=status[role]) as refused:
            use()
        assert key not in str(refused.value)


def _release(directory, chats):
    """A release of the answers of five labelers to six pairs."""

    def content(role, said):
        return [{"role": role, "content": said}] if chats else said

    rows = [
        {
            "labeler_id": f"labeler-{labeler}",
            "prompt": content("user", f"question {pair}"),
            "response_a": content("assistant", f"one {pair}"),
            "response_b": content("assistant", f"another {pair}"),
            "label": (labeler + pair) % 2,
        }
        for labeler in range(5)
        for pair in range(6)
    ]
    labelguard.init(directory)
    source = directory / "labels.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = make_release(source, epsilon=9, project=directory)
    return made.path, labelguard.load(made)


@pytest.mark.usefixtures("key", "annotated")
@pytest.mark.parametrize("chats", [False, True])
def test_a_release_is_a_data_set_of_pairs_without_labelers(server, tmp_path, chats):
    release, frame = _release(tmp_path / "project", chats)
    name = f"released {chats}"
    url = argilla(server).push(release, name, no_progress)
    identity = url.removeprefix(f"{server.url}/dataset/").removesuffix("/annotation-mode")
    shown = server.call(
        "GET", f"/datasets/{identity}/records?include=responses&include=suggestions&limit=100"
    )
    assert server.call("GET", f"/datasets/{identity}")["name"] == name
    assert shown["total"] == 6 == frame["item_id"].n_unique()
    for record in shown["items"]:
        released = frame.filter(pl.col("item_id") == record["external_id"])
        sides = [record["fields"][side] for side in SIDES]
        for row in released.iter_rows(named=True):
            assert row["prompt"] == record["fields"]["prompt"]
            assert sorted(map(str, sides)) == sorted([str(row["chosen"]), str(row["rejected"])])
        assert str(sides[0]) <= str(sides[1])  # nothing follows from the place
        chosen = sum(row == sides[0] for row in released["chosen"].to_list())
        majority = SIDES[0] if 2 * chosen > len(released) else SIDES[1]
        suggested = [one["value"] for one in record["suggestions"]]
        assert suggested == ([] if 2 * chosen == len(released) else [majority])
        certain = released["label_probability"].fill_null(1.0).to_list()
        first = [row == sides[0] for row in released["chosen"].to_list()]
        share = sum(p if a else 1 - p for p, a in zip(certain, first, strict=True)) / len(first)
        said = {"release": release.name, "probability": pytest.approx(share)}
        assert record["responses"] == [] and record["metadata"] == said
    assert "labeler-" not in json.dumps(shown)
    path = f"datasets/{identity}"
    kinds = {
        one["name"]: one["settings"]["type"]
        for what in (f"/{path}/fields", f"/{path}/questions", f"/me/{path}/metadata-properties")
        for one in server.call("GET", what)["items"]
    }
    kind = "chat" if chats else "text"
    asked = {"preference": "label_selection", "release": "terms", "probability": "float"}
    assert kinds == {"prompt": kind, **dict.fromkeys(SIDES, kind), **asked}
    assert argilla(server).push(release, name, no_progress) == url
    again = server.call(
        "GET", f"/datasets/{identity}/records?include=responses&include=suggestions&limit=100"
    )
    assert again == shown
    with pytest.raises(ConnectorError, match="choose another name"):
        argilla(server).push(release, "prefs", no_progress)


@pytest.mark.usefixtures("annotated", "key")
def test_a_release_is_published_in_a_workspace_that_is_named(server, tmp_path):
    release, _ = _release(tmp_path / "project", chats=False)
    other = server.call("POST", "/workspaces", {"name": "another"})["id"]
    config = tmp_path / "project" / ".labelguard" / "labelguard.toml"
    with config.open("a") as file:
        file.write(f'\n[connectors.argilla]\nurl = "{server.url}"\n')
        file.write('dataset = "prefs"\nworkspace = "labelers"\n')
    project = tmp_path / "project"
    where = labelguard.publish(release.name, "argilla:another/pairs", project=project).where
    identity = where.removeprefix(f"{server.url}/dataset/").removesuffix("/annotation-mode")
    assert server.call("GET", f"/datasets/{identity}")["workspace_id"] == other
    with pytest.raises(ConnectorError, match="no workspace of that name"):
        labelguard.publish(release.name, "argilla:nowhere/pairs", project=project)


@pytest.mark.usefixtures("annotated", "key")
def test_a_data_set_that_was_not_filled_is_completed(server, tmp_path, monkeypatch):
    release, frame = _release(tmp_path / "project", chats=False)
    monkeypatch.setattr(publishing, "_RECORDS", 4)
    shares = []

    def stop(step, share):
        shares.append(share)
        if len(shares) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        argilla(server).push(release, "stopped", stop)
    where = argilla(server).push(release, "stopped", no_progress)
    identity = where.removeprefix(f"{server.url}/dataset/").removesuffix("/annotation-mode")
    told = server.call("GET", f"/datasets/{identity}/records?limit=100")
    assert {one["external_id"] for one in told["items"]} == set(frame["item_id"])
    assert told["total"] == 6
