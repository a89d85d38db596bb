"""Whoever answers in a tool, replays what it told, or swaps sealed files resets nothing.

What goes on in a tool decides nothing that is seen of ingestion, and stops it for nobody.
"""

import contextlib
import json
import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import permutations
from threading import Barrier
from typing import Any

import duckdb
import pytest
from labelguard_connectors.label_studio.answers import Annotation, TaskData, to_answer
from support import databases
from support.releases import make_release
from support.times import simulate_time
from support.tools import connected, deliver

import labelguard as lg
from labelguard.answers.inbox import Inbox
from labelguard.answers.segments import AnswerRows, Segments
from labelguard.answers.store import StoredAnswers
from labelguard.errors import ConnectorError, InvalidLabels, ProjectError
from labelguard.inputs import canonical
from labelguard.keys.keyring import KeyRing
from labelguard.ledger import sources
from labelguard.project import erasure, ingestion
from labelguard.project.opening import OpenProject
from labelguard.project.project import CONFIG, find
from labelguard.report import overview

HALF: dict[str, Any] = {"mechanism": "rr", "epsilon": 1.0, "delta": 1e-5, "workers": 1}
HALF |= {"uses": 2}


@pytest.fixture
def tool(tmp_path, monkeypatch):
    return connected(lg.init(tmp_path / "p"), tmp_path, monkeypatch)


def values(project):
    """What was released last: rows without their ids."""
    found = lg.load(make_release(project=project, **HALF))
    return sorted(found.select("prompt", "chosen").iter_rows())


def uses(project, who):
    """How many uses a labeler was charged."""
    opened = OpenProject.open(project)
    table = opened.ledger.releases.labelers("rr")
    return int(table.find_usage(opened.keys.hash_labelers("desk", [who]))[1][0])


@pytest.mark.quick("changed")
@pytest.mark.parametrize("again", ["changed", "deleted and recreated", "skipped and unskipped"])
def test_answering_again_draws_no_new_coin(again, tool):
    project, desk = tool
    for task in range(30):
        deliver(project, desk.answer("maria", task, "left"))
    ingestion.ingest(project)
    before = values(project)
    spent = uses(project, "maria")
    for number in range(1, 31):
        if again == "changed":
            deliver(project, desk.change(str(number), "left"))
        elif again == "deleted and recreated":
            deliver(project, desk.delete(str(number)), desk.answer("maria", number - 1, "left"))
        else:
            deliver(project, desk.change(str(number), None), desk.change(str(number), "left"))
    deliver(project, desk.answer("otto", 99, "left"))
    ingestion.ingest(project)
    after = values(project)
    assert [row for row in after if row[0] != "prompt 99"] == before
    assert uses(project, "maria") == spent == 1


def test_an_old_event_that_comes_again_turns_nothing_back(tool, monkeypatch):
    project, desk = tool
    first = desk.answer("maria", 1, "left")
    deliver(project, first)
    ingestion.ingest(project)
    skipped = desk.change("1", None)
    deliver(project, skipped)
    ingestion.ingest(project)
    assert deliver(project, first) == 0
    # A week later it is no longer known as a delivery: its version tells.
    week = time.time() + 8 * 86_400
    monkeypatch.setattr(time, "time", lambda: week)
    ingestion.ingest(project)
    assert deliver(project, first) == 1
    assert ingestion.ingest(project).known == 1
    with pytest.raises(InvalidLabels, match="answers of desk: no control tag was answered"):
        make_release(project=project, **HALF)


def test_a_segment_of_another_project_or_from_before_an_erasure_is_refused(tool, tmp_path):
    project, desk = tool
    deliver(project, *(desk.answer(who, 1, "left") for who in ("maria", "otto")))
    ingestion.ingest(project)
    [path] = project.labels.iterdir()
    before = tmp_path / "before"
    shutil.copy(path, before)
    erasure.remove_labeler("desk:maria", "erased", project)
    shutil.copy(before, path)  # whoever kept a copy puts Maria's labels back
    assert "not the one that the ledger lists" in (overview.verify(project).fault or "")
    with pytest.raises(ProjectError, match="not the one that the ledger lists"):
        make_release(project=project, **HALF)


def test_tables_cannot_change_places_within_or_between_segments(tool):
    project, desk = tool
    for task in range(2):
        deliver(project, desk.answer(f"worker {task}", task, "left"))
        ingestion.ingest(project)
    opened = OpenProject.open(project)
    held = Segments(project.labels, opened.keys)
    with opened.ledger.snapshot() as connection:
        one, other = sources.read_segments(connection)
    shutil.copy(project.labels / f"{one.name}.segment", project.labels / f"{other.name}.segment")
    with pytest.raises(ProjectError, match="not the one"):
        held.read(other)


def test_the_size_of_a_segment_does_not_follow_its_labels(tool):
    project, desk = tool
    for task in range(40):
        desk.answer("maria", task, "left" if task % 3 else "right")
    ingestion.pull("desk", project)
    for task in range(40):  # the same pairs; what is said of them compresses otherwise
        desk.answer("otto", task, "left")
    ingestion.pull("desk", project)
    sizes = {path.stat().st_size for path in project.labels.iterdir()}
    assert len(sizes) == 1


@pytest.mark.slow
def test_the_size_of_a_table_of_answers_follows_no_label_at_any_length_of_its_prompt(tmp_path):
    """Labelers may choose what the pair says: at a step of the padding one byte would tell."""
    held = Segments(tmp_path, KeyRing.create(tmp_path / "keys"))
    inbox = Inbox.open(tmp_path, f"sqlite:///{tmp_path / 'ledger'}", held._keys)

    def answer(side, prompt, number):
        region = {"from_name": "q", "to_name": "a", "type": "pairwise"}
        regions = [] if side is None else [region | {"value": {"selected": side}}]
        annotation = Annotation.model_validate(
            {
                "id": number,
                "completed_by": 3,
                "updated_at": "2026-11-22T08:00:00.000001Z",
                "was_cancelled": side is None,
                "result": regions,
            }
        )
        task = TaskData(id=1, data={"prompt": prompt})
        told = to_answer(task, annotation, {"q": ("pairwise", ("a",))}, "")
        assert told is not None
        return told

    def sizes(side, length):
        prompt = "".join(random.Random(length).choices("abcdef ", k=length))
        answers = [answer(side, prompt, number) for number in range(10, 14)]
        rows = AnswerRows.from_answers(answers, "tool", "tool", held._keys)
        sealed = [held._seal_table("name", *table) for table in rows.split_by_place().items()]
        return [len(data) for data in (*sealed, inbox._seal_event(answers[:1], "tool", b"name"))]

    for length in range(900, 1930, 4):  # four prompts and their padding: more than a step
        assert len({tuple(sizes(side, length)) for side in ("left", "right", "é", None)}) == 1
    inbox.close()


OPEN: dict[str, Any] = {
    "mechanism": "rr",
    "epsilon": 2000.0,
    "delta": 0.0,
    "uses": 16,
    "accept_delta": True,
    "workers": 1,
}
KEEP = '\n[ingest]\nkeep = "0d"\n'
NAMED = 'question = "helpful"\ncolumns = { response_a = "answer1", response_b = "answer2" }\n'


def connect_tool(directory, patch, more=""):
    project = lg.init(directory / "p", max_epsilon=10_000.0, max_delta=0.5)
    return connected(project, directory, patch, more)


@pytest.fixture
def released(tmp_path, monkeypatch):
    """A project that forgets at once what was released, and has released one answer of a tool."""
    project, desk = connect_tool(tmp_path, monkeypatch, KEEP)
    deliver(project, desk.answer("maria", 1, "left"))
    ingestion.ingest(project)
    make_release(project=project, **OPEN)
    return project, desk


def configure(project, old, new):
    """The project with its labelguard.toml changed."""
    path = project.state / CONFIG
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return find(project.state.parent)


@pytest.mark.quick("left")
@pytest.mark.parametrize("side", ["left", "right", None])
def test_whether_an_answer_is_a_private_skip_does_not_stop_its_forgetting(
    side, tmp_path, monkeypatch
):
    project, desk = connect_tool(tmp_path, monkeypatch, NAMED + KEEP)
    deliver(project, desk.answer("maria", 1, side))
    ingestion.ingest(project)
    make_release(project=project, skips="tie", **OPEN)
    assert ingestion.ingest(project) == ingestion.IngestionResult(0, 0, 0, 0, 1)


@pytest.mark.slow
def test_what_was_only_skipped_does_not_stop_ingestion_once_the_rest_is_forgotten(
    tmp_path, monkeypatch
):
    project, desk = connect_tool(tmp_path, monkeypatch, KEEP)
    deliver(project, desk.answer("maria", 1, "left", harmless="left"), desk.answer("otto", 1, None))
    ingestion.ingest(project)
    for question in ("helpful", "harmless"):
        make_release(project=project, question=question, **OPEN)
    assert ingestion.ingest(project).forgotten == 1
    assert ingestion.ingest(project).forgotten == 0
    # Nor does an answer to one question alone, where two were asked.
    deliver(project, desk.answer("zoe", 1, "left"))
    assert ingestion.ingest(project).answers == 1
    assert ingestion.ingest(project).forgotten == 0


def test_answers_of_a_connector_that_was_renamed_are_forgotten_like_others(released):
    project, _ = released
    renamed = '[connectors.table]\nsource = "desk"'
    project = configure(project, "[connectors.desk]", renamed)
    assert ingestion.ingest(project).forgotten == 1
    project = configure(project, renamed, "[connectors.table]")
    assert ingestion.ingest(project) == ingestion.IngestionResult(0, 0, 0, 0, 0)


@pytest.mark.slow
def test_answers_from_before_a_source_was_renamed_are_forgotten_like_others(released):
    project, desk = released
    project = configure(project, "[connectors.desk]", '[connectors.desk]\nsource = "crowd"')
    deliver(project, desk.answer("otto", 1, "left"))
    assert ingestion.ingest(project) == ingestion.IngestionResult(1, 0, 0, 0, 1)


def test_events_of_a_connector_that_is_gone_hold_up_no_others(tmp_path, monkeypatch):
    project, desk = connect_tool(tmp_path, monkeypatch)
    deliver(project, desk.answer("maria", 1, "left"), name="a connector that is gone")
    deliver(project, desk.answer("otto", 1, "left"))
    with pytest.raises(ConnectorError, match="a connector that is gone"):
        ingestion.ingest(project)
    assert OpenProject.open(project).answers.count_stored() == StoredAnswers(1, 1, 1)


def test_what_somebody_said_after_a_release_is_kept_as_long_as_what_was_released(
    tmp_path, monkeypatch
):
    project, desk = connect_tool(tmp_path, monkeypatch, KEEP.replace("0d", "5d"))
    deliver(project, desk.answer("maria", 1, "left"), desk.answer("otto", 1, "left"))
    ingestion.ingest(project)
    make_release(project=project, **OPEN)
    deliver(project, desk.change("1", "right"))
    with simulate_time(datetime.now(UTC) + timedelta(days=6)):
        assert ingestion.ingest(project).forgotten == 1
    rows = lg.load(make_release(project=project, again=True, **OPEN))
    assert rows["chosen"].to_list() == ["right 1"]


def test_finding_the_fields_of_tasks_takes_no_memory_that_grows_with_them():
    document = "json_object('prompt', repeat('x', 1000), 'n', i)"
    with duckdb.connect(config={"memory_limit": "60MB", "threads": 1}) as connection:
        rows = f"SELECT {document} AS data FROM range(150000) t(i)"
        [(found,)] = connection.sql(canonical.structure_sql("data", rows)).fetchall()
    assert json.loads(found) == {"prompt": "VARCHAR", "n": "UBIGINT"}


def test_what_fields_are_found_does_not_follow_the_order_of_tasks():
    tasks = ['{"a": "x"}', '{"b": [1, "y"], "a": null}', '{"c": {"d": 1}}']
    with duckdb.connect() as connection:
        found = set()
        for order in permutations(tasks):
            rows = " UNION ALL ".join(f"SELECT '{task}'::JSON AS data" for task in order)
            found |= set(connection.sql(canonical.structure_sql("data", rows)).fetchall())
    assert len(found) == 1


@pytest.mark.parametrize("kind", databases.EACH)
def test_an_inbox_can_be_made_by_several_at_once(kind, tmp_path):
    keys = KeyRing.create(tmp_path / "keys")
    with databases.fresh(kind, tmp_path) as url, ThreadPoolExecutor(8) as threads:
        start = Barrier(8)

        def make(_):
            start.wait()
            with contextlib.closing(Inbox.open(tmp_path, url, keys)) as inbox:
                return inbox.count_waiting()

        assert list(threads.map(make, range(8))) == [0] * 8
