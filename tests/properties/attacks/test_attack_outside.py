"""Attacks by one annotator on everybody's releases: answers with any value that a tool takes.

None stops a release, and nothing public tells that there was one.
"""

import contextlib
import json
from typing import Any

import polars as pl
import pytest
from labelguard_connectors.label_studio import answers as events
from support.releases import make_release

import labelguard as lg
from labelguard.answers.inbox import Event
from labelguard.errors import InvalidLabels
from labelguard.project import ingestion
from labelguard.project.opening import OpenProject
from labelguard.project.project import CONFIG, find

TABLE = '\n[connectors.label-studio]\nurl = "http://127.0.0.1"\nproject = 1\n'
HONEST = 6
PAIRWISE = {"pref": {"type": "Pairwise", "to_name": ["answer1", "answer2"]}}
RATINGS = {name: {"type": "Rating", "to_name": [f"answer{name[-1]}"]} for name in ("q1", "q2")}


def region(kind, name, about, **value):
    return {"type": kind, "from_name": name, "to_name": about, "value": value}


def left(**value):
    return [region("pairwise", "pref", "answer1", **(value or {"selected": "left"}))]


def ratings(first, second):
    return [region("rating", f"q{n}", f"answer{n}", rating=r) for n, r in ((1, first), (2, second))]


OUTSIDE = {
    "a word of none": left(selected="neither of them"),
    "a number": left(selected=7),
    "an object": left(selected={"left": ["right"]}),
    "choices": left(selected=["left", "right"]),
    "two words": [region("choices", "pref", "answer1", choices=["left"]), *left(selected="both")],
    "text that ends SQL": left(selected="'); DROP TABLE part; --"),
}
UNASKED = {
    "a tag of its own": [*left(), region("choices", "mine", "answer1", choices=["left"])],
    "a tag of its own alone": [region("pairwise", "mine", "answer1", selected="left")],
    "a list that was never ranked": [*left(), region("ranker", "mine", "list", ranker=["1"])],
    "ratings": [*left(), *ratings(1, 5)],
    "an object of its own": [region("pairwise", "pref", "elsewhere", selected="left")],
}


def hear(made, number, result, asked):
    """Put what Label Studio tells of annotation `number` into the inbox."""
    data = {"prompt": f"prompt {number}", "answer1": f"a {number}", "answer2": f"b {number}"}
    event = {
        "action": "ANNOTATION_CREATED",
        "project": {"id": 1, "parsed_label_config": asked},
        "task": {"id": 100 + number, "data": data},
        "annotation": {
            "id": number,
            "task": 100 + number,
            "completed_by": number % 3 + 1,
            "updated_at": "2026-11-21T08:29:20.150969Z",
            "result": result,
        },
    }
    answers = events.parse_event(json.loads(json.dumps(event)), 1)
    with contextlib.closing(OpenProject.open(made).answers.open_inbox()) as inbox:
        inbox.store_events([Event("label-studio", tuple(answers))])


def create_project(directory, hostile, honest, asked, **options):
    """A project with answers of three people, one of whom also sent what is hostile."""
    made = lg.init(directory, **options)
    path = made.state / CONFIG
    path.write_text(path.read_text() + TABLE)
    made = find(made.state.parent)
    for number, result in enumerate([honest] * HONEST + list(hostile), 1):
        hear(made, number, result, asked)
    ingestion.ingest(made)
    return made


def listed(made):
    return [json.loads(line) for line in made.outside.read_text().splitlines()]


@pytest.mark.parametrize("ties", ["coin", "drop"])
def test_labels_outside_the_domain_are_released_as_ties_and_listed(ties, tmp_path):
    made = create_project(tmp_path / "p", list(OUTSIDE.values()), left(), PAIRWISE)
    release = make_release(
        project=made,
        mechanism="rr",
        epsilon=1,
        delta=1e-5,
        ties=ties,
        tie_status_public=ties == "drop",
        workers=1,
    )
    assert len(lg.load(release)) == HONEST + len(OUTSIDE)
    numbers = range(HONEST + 1, HONEST + len(OUTSIDE) + 1)
    assert {(one["answer"], one["task"]) for one in listed(made)} == {
        (str(number), str(100 + number)) for number in numbers
    }
    assert made.outside.stat().st_mode & 0o777 == 0o600


FLAG = {"flag": {"type": "Choices", "to_name": ["answer1"]}}
FLAGGED = [[region("choices", "flag", "answer1", choices=["left"])]]
ASKED: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "pairwise": (left(), PAIRWISE, {}),
    "ratings": (ratings(2, 1), RATINGS, {}),
    "ratings, skips hidden": (ratings(2, 1), RATINGS, {"question": "q1", "skips": "tie"}),
    "pairwise or a flag": (left(), PAIRWISE | FLAG, {"question": "pref"}),
    "ratings or a flag": (ratings(2, 1), RATINGS | FLAG, {"question": "q1"}),
}


@pytest.mark.quick("ratings, skips hidden", "pairwise or a flag")
@pytest.mark.parametrize("asked", ASKED)
def test_what_one_answers_does_not_decide_which_question_is_read(asked, tmp_path):
    honest, tags, options = ASKED[asked]
    price: dict[str, Any] = {"epsilon": 2000.0, "delta": 0.0, "accept_delta": True, "workers": 1}
    shares = []
    for name, hostile in (
        ("alone", []),
        ("not", [*UNASKED.values(), *FLAGGED, ratings("x", None)]),
    ):
        made = create_project(tmp_path / name, hostile, honest, tags, max_epsilon=10_000.0)
        release = make_release(project=made, mechanism="rr", **price, **options)
        rows = lg.load(release).filter(pl.col("prompt").is_in([f"prompt {n}" for n in range(1, 7)]))
        shares.append(rows["chosen"].str.starts_with("a ").sum())
    assert shares == [HONEST, HONEST]


def test_where_several_things_are_asked_none_is_taken_for_the_one_that_was_answered(tmp_path):
    made = create_project(tmp_path / "p", [], left(), PAIRWISE | FLAG)
    with pytest.raises(InvalidLabels, match="flag, pref"):
        make_release(project=made, mechanism="rr", epsilon=1, delta=1e-5, workers=1)


def test_nothing_public_tells_that_there_was_one(tmp_path):
    facts = []
    for name, said in (("tie", "tie"), ("outside", "a word of none")):
        made = create_project(tmp_path / name, [left(selected=said)] * 2, left(), PAIRWISE)
        release = make_release(project=made, mechanism="rr", epsilon=1, delta=1e-5, workers=1)
        files = [one for one in made.state.rglob("*") if made.labels not in one.parents]
        names = {one.name.split("-")[0] for one in files if made.private_maps not in one.parents}
        facts.append((release.card["counts"], release.notes, names))
    assert facts[0] == facts[1]
