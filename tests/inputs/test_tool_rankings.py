"""Rankings and ratings of annotation tools are read as the preferences that they are."""

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import polars as pl
import pytest
from support import exports
from support.exports import Export, plain, read, write

from labelguard.errors import InvalidLabels
from labelguard.inputs import formats, readers, sources
from labelguard.inputs.columns import Reading
from labelguard.text import LABEL_SKIP

ITEMS = ("b", "c", "a")
ORDERS = [dict(zip(ITEMS, ranks, strict=True)) for ranks in permutations((1, 2, 3))]
TAG, STAR = "best", "*-rating"


def text(item, task):
    return f"response {item} of {task}"


def sort_items(ranks):
    return sorted(ranks, key=lambda item: ranks[item])


def task(number, data, result):
    """A task that another labeler answered each; cancelled where there is no result."""
    annotation = {"id": number + 1, "completed_by": number, "updated_at": exports.NOON}
    annotation |= {"was_cancelled": result is None, "ground_truth": False, "result": result or []}
    data = {"prompt": f"question {number}", **data}
    return {"id": number, "data": data, "annotations": [annotation]}


def region(name, kind, value, about="answers"):
    return {"from_name": name, "to_name": about, "type": kind, "value": {kind: value}}


def ranking_tasks(said=sort_items, orders=ORDERS):
    """A task for each order, with a list of items, and what a <Ranker> says."""
    return [
        task(
            number,
            {
                "items": [{"id": i, "title": "model", "body": text(i, number)} for i in ITEMS],
                "source": "unit",
            },
            None if order is None else [region(TAG, "ranker", said(order))],
        )
        for number, order in enumerate(orders)
    ]


def plain_rankings(ranks, items=ITEMS):
    return [
        {
            "prompt": f"question {number}",
            "labeler_id": str(number),
            "ranks": one,
            "responses": [text(item, number) for item in items],
        }
        for number, one in enumerate(ranks)
    ]


def as_rankings(tmp_path, orders=ORDERS):
    ranks = [None if one is None else [float(one[item]) for item in ITEMS] for one in orders]
    return read(plain(plain_rankings(ranks)), tmp_path)


def read_tasks(tasks, tmp_path, **reading):
    return read(write(tmp_path / "export.json", tasks), tmp_path, **reading)


def same(one, given):
    return one.select(given.columns).equals(given)


def is_bad(one, good):
    """Whether the first task has labels that no sound one has."""
    return good.isdisjoint(one.filter(pl.col("prompt") == "question 0")["label"])


def tasks_with_member(member, value):
    """Tasks whose items have another member in place of `body`, or another id."""
    tasks = ranking_tasks(
        lambda order: [value(ITEMS.index(i), {"id": i})["id"] for i in sort_items(order)]
    )
    for one in tasks:
        items = [{k: v for k, v in item.items() if k != "title"} for item in one["data"]["items"]]
        one["data"]["items"] = [value(n, item) for n, item in enumerate(items)]
    return tasks


def rename_body(member):
    return lambda n, item: {member if k == "body" else k: v for k, v in item.items()}


FORMS: dict[str, list[dict[str, Any]]] = {
    "a list": ranking_tasks(),
    "under the tag's name": ranking_tasks(lambda order: {TAG: sort_items(order)}),
    "numbers as ids": tasks_with_member("body", lambda n, item: item | {"id": n}),
    **{
        member: tasks_with_member(member, rename_body(member))
        for member in ("html", "text", "title")
    },
}


@pytest.mark.quick("a list", "under the tag's name", "html")
@pytest.mark.parametrize("form", FORMS)
def test_a_ranker_of_a_list_is_a_ranking(form, tmp_path):
    given = as_rankings(tmp_path)
    assert same(read_tasks(FORMS[form], tmp_path), given) and len(given) == len(ORDERS) * 3
    lines = write(tmp_path / "export.jsonl", FORMS[form])
    assert same(read(lines, tmp_path), given)


def test_a_cancelled_ranking_is_a_skip_and_where_that_is_private_its_tag_is_named(tmp_path):
    tasks, given = ranking_tasks(orders=[None, *ORDERS]), as_rankings(tmp_path, [None, *ORDERS])
    one = read_tasks(tasks, tmp_path)
    assert same(one, given) and one.filter(pl.col("label") == LABEL_SKIP).height == 3
    with pytest.raises(InvalidLabels, match="name the control tag"):
        read_tasks(tasks, tmp_path, skips="tie")
    assert same(read_tasks(tasks, tmp_path, skips="tie", question=TAG), given.drop("label"))


@pytest.mark.quick("said0", "said3", "7")
@pytest.mark.parametrize(
    "said",
    [
        *(["b", "a"], ["b", "a", "x"], [], {}, {TAG: "b"}, "b", 7, [["b"], "c", "a"]),
        [{"id": "b"}, "c", "a"],
    ],
)
def test_a_ranking_of_something_else_is_a_bad_label_and_no_other_format(said, tmp_path):
    given = as_rankings(tmp_path)
    tasks = ranking_tasks()
    tasks[0]["annotations"][0]["result"][0]["value"]["ranker"] = said
    one, others = read_tasks(tasks, tmp_path), pl.col("prompt") != "question 0"
    assert same(one.filter(others), given.filter(others))
    assert is_bad(one, set(given["label"]))


def test_items_that_cannot_be_told_apart_and_buckets_are_bad_labels(tmp_path):
    tasks = ranking_tasks()
    for item in tasks[0]["data"]["items"]:
        item["id"] = "b"
    one = read_tasks(tasks, tmp_path)
    assert is_bad(one, set(one.filter(pl.col("prompt") != "question 0")["label"]))
    buckets = [
        read_tasks(
            ranking_tasks(lambda order, f=full, e=empty: {f: sort_items(order), e: [], "_": []}),
            tmp_path,
        )
        for full, empty in (("good", "poor"), ("poor", "good"))
    ]
    assert buckets[0].equals(buckets[1]) and set(buckets[0]["label"]) == {103}


def test_of_several_lists_one_is_named(tmp_path):
    tasks = ranking_tasks()
    for one in tasks:
        one["data"]["sources"] = [{"id": "s", "body": "where it is from"}]
    with pytest.raises(InvalidLabels, match="--columns responses=NAME"):
        read_tasks(tasks, tmp_path)
    assert same(read_tasks(tasks, tmp_path, columns={"responses": "items"}), as_rankings(tmp_path))
    with pytest.raises(InvalidLabels, match="no field 'source' that is a list of items"):
        read_tasks(tasks, tmp_path, columns={"responses": "source"})


# ---------------------------------------------------------------- ratings in Label Studio

RATINGS = {"a": [(5, 1), (1, 5), (3, 3)], "b": [(5, 1, 3), (1, 5, 3), (2, 2, 4)]}


def rating_tasks(ratings, *others):
    """A task for each of these ratings, with a response for each of its numbers."""
    return [
        task(
            number,
            {f"answer{n + 1}": text(n, number) for n in range(len(said))},
            [
                *(
                    region(f"stars {n}", "rating", one, f"answer{n + 1}")
                    for n, one in enumerate(said)
                    if one is not None
                ),
                *others,
            ],
        )
        for number, said in enumerate(ratings)
    ]


def test_the_higher_rating_is_preferred(tmp_path):
    rows = [
        {
            "prompt": f"question {number}",
            "labeler_id": str(number),
            "label": label,
            "response_a": text(0, number),
            "response_b": text(1, number),
        }
        for number, label in enumerate((1, 0, 0.5))
    ]
    assert same(read_tasks(rating_tasks(RATINGS["a"]), tmp_path), read(plain(rows), tmp_path))
    ranks = [[-float(one) for one in said] for said in RATINGS["b"]]
    given = read(plain(plain_rankings(ranks, range(3))), tmp_path)
    assert same(read_tasks(rating_tasks(RATINGS["b"]), tmp_path), given)


@pytest.mark.quick("a-many", "a-junk4", "b-inf", "b-None")
@pytest.mark.parametrize("junk", ["many", "nan", "inf", [5], {"stars": 5}, True, None])
@pytest.mark.parametrize("kind", RATINGS)
def test_a_rating_that_is_no_number_is_a_bad_label_and_none_is_a_skip(kind, junk, tmp_path):
    good = read_tasks(rating_tasks(RATINGS[kind]), tmp_path)
    one = read_tasks(rating_tasks([[junk, *RATINGS[kind][0][1:]], *RATINGS[kind][1:]]), tmp_path)
    assert one.drop("label").equals(good.drop("label")) and is_bad(one, set(good["label"]))
    assert (LABEL_SKIP in one["label"].to_list()) == (junk is None)


def test_ratings_that_leave_a_doubt_are_refused(tmp_path):
    again = region("other stars", "rating", 1, "answer1")
    with pytest.raises(InvalidLabels, match=r"one control tag Rating.* answer1 has not"):
        read_tasks(rating_tasks(RATINGS["a"], again), tmp_path)
    with pytest.raises(InvalidLabels, match=r"one control tag Rating.* answer2 has not"):
        read_tasks(rating_tasks([(5, None), (1, None)]), tmp_path)


def test_a_preference_counts_more_than_ratings_beside_it(tmp_path):
    left = {"from_name": TAG, "to_name": "answer1", "type": "pairwise"}
    one = read_tasks(rating_tasks(RATINGS["a"], {**left, "value": {"selected": "left"}}), tmp_path)
    firsts = {row["first"] == text("0", n) for n, row in enumerate(one.to_dicts())}
    assert len(set(one["label"])) == 1 and firsts == {True}


# ---------------------------------------------------------------- ratings in Argilla

ROWS = [
    row | {"label": None if n % 5 == 0 else row["label"]} for n, row in enumerate(exports.answers())
]
STARS: dict[float | None, dict[str, Any]] = {
    1: {"response_a": 5, "response_b": 2},
    0: {"response_a": 1, "response_b": 10},
    0.5: {"response_a": 3, "response_b": 3},
    None: {"response_b": 4},
}


def starred_records(rows=ROWS, name=STAR, others=None):
    """Records in which both responses were rated instead; a skip rates only one of them."""
    records = exports.argilla_records(rows)
    labels = {(row["prompt"], row["labeler_id"]): row["label"] for row in rows}
    for record in records:
        for response in record["responses"]:
            label = labels[record["fields"]["prompt"], response["user_id"]]
            said = STARS[label] if others is None else others
            values = {name.replace("*", one): {"value": value} for one, value in said.items()}
            response["values"] = values | {"confidence": {"value": 2}}
            response["status"] = "submitted"
    return records


@pytest.mark.parametrize("name", [STAR, "rating_*", "*"])
def test_the_higher_rating_of_a_question_each_is_preferred(name, tmp_path):
    records, given = starred_records(name=name), read(plain(ROWS), tmp_path)
    one = read_tasks(records, tmp_path, question=name)
    assert same(one, given) and one.filter(pl.col("label") == LABEL_SKIP).height == len(ROWS[::5])
    page = [{"items": records, "total": len(records)}]
    assert read_tasks(page, tmp_path, question=name).equals(one)


def with_three_responses(records):
    """The same records with three responses."""
    texts = {f"response_{place}": f"text {place}" for place in (1, 2, 3)}
    return [r | {"fields": {"prompt": r["fields"]["prompt"], **texts}} for r in records]


def test_ratings_of_more_responses_are_all_their_pairs(tmp_path):
    said = {"response_1": 1, "response_2": 5, "response_3": 5}
    one = read_tasks(
        with_three_responses(starred_records(ROWS[:3], others=said)), tmp_path, question=STAR
    )
    ranking = {
        "labeler_id": [row["labeler_id"] for row in ROWS[:3]],
        "prompt": [row["prompt"] for row in ROWS[:3]],
        "responses": [[f"text {place}" for place in (1, 2, 3)]] * 3,
        "ranks": [[2, 1, 1]] * 3,
    }
    assert same(one, read(pl.DataFrame(ranking), tmp_path))


@pytest.mark.parametrize("responses", [2, 3])
def test_answers_that_are_no_ratings_are_bad_rows(tmp_path, responses):
    names = ("response_a", "response_b") if responses == 2 else ("response_1", "response_2")
    said = dict.fromkeys(names, "a reason") | ({"response_3": 4} if responses == 3 else {})
    records = starred_records(ROWS[:3], others=said)
    one = read_tasks(
        with_three_responses(records) if responses == 3 else records, tmp_path, question=STAR
    )
    assert len(one) and set(one["label"]) & {100, 103} == set(one["label"])


def test_what_holds_no_rating_of_every_response_is_refused(tmp_path):
    with pytest.raises(InvalidLabels, match="no question 'response_b-rating' was answered"):
        read_tasks(starred_records(others={"response_a": 1}), tmp_path, question=STAR)
    with pytest.raises(InvalidLabels, match="take the REST interface"):
        read_tasks(exports.argilla_flat(exports.answers()), tmp_path, question=STAR)


SAID: dict[str, tuple[Sequence[Export], dict[str, Any]]] = {
    "a ranking": ((ranking_tasks(), ranking_tasks(orders=ORDERS[::-1])), {}),
    "ratings": ((rating_tasks(RATINGS["a"]), rating_tasks([(1, 1), (4, 2), (2, 4)])), {}),
    "ratings in Argilla": (
        [
            starred_records(others=said)
            for said in (STARS[1], STARS[0], {"response_a": 5}, dict[str, Any]())
        ],
        {"question": STAR, "skips": "tie"},
    ),
}


@pytest.mark.parametrize("case", SAID)
def test_how_answers_are_read_does_not_depend_on_them(case, tmp_path):
    seen = []
    path = tmp_path / "export.json"
    for tasks in SAID[case][0]:
        (part,) = sources.resolve_input(write(path, tasks))
        with readers.connect(tmp_path) as connection:
            one = formats.apply_format(part, connection, Reading({}, **SAID[case][1]))
            layout = one.find_layout(connection)
        public = read(path, tmp_path, labelled=False, **SAID[case][1])
        seen.append((one.format, one.reading, one.names, layout.columns, public.to_dicts()))
    assert seen == [seen[0]] * len(seen)
