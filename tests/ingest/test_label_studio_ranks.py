"""Rankings and ratings of Label Studio are read as the preferences that they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support.exports import plain, read, write

from labelguard.errors import InvalidLabels
from labelguard.ingest import formats, scan, sources
from labelguard.ingest.layouts import Reading
from labelguard.terms import LABEL_SKIP

ITEMS = ("b", "c", "a")
ORDERS = [dict(zip(ITEMS, ranks, strict=True)) for ranks in permutations((1, 2, 3))]
TAG = "best"
Said = Callable[[Mapping[str, int]], Any]


def text(item: str, task: int) -> str:
    return f"response {item} of {task}"


def ordered(ranks: Mapping[str, int]) -> list[str]:
    return sorted(ranks, key=lambda item: ranks[item])


def annotation(number: int, result: Sequence[Any] | None) -> dict[str, Any]:
    """Of another labeler each; cancelled where there is no result."""
    return {
        "id": number + 1,
        "completed_by": number,
        "updated_at": "2026-11-22T07:00:00Z",
        "was_cancelled": result is None,
        "ground_truth": False,
        "result": result or [],
    }


def region(name: str, kind: str, value: Any, about: str = "answers") -> dict[str, Any]:
    return {"from_name": name, "to_name": about, "type": kind, "value": {kind: value}}


def ranked(said: Said, orders: Sequence[Mapping[str, int] | None] = ORDERS) -> list[dict[str, Any]]:
    """A task for each order, with a list of items, and what a <Ranker> says."""
    return [
        {
            "id": number,
            "data": {
                "prompt": f"question {number}",
                "items": [{"id": i, "title": "model", "body": text(i, number)} for i in ITEMS],
                "source": "unit",
            },
            "annotations": [
                annotation(number, None if order is None else [region(TAG, "ranker", said(order))])
            ],
        }
        for number, order in enumerate(orders)
    ]


def plain_rankings(orders: Sequence[Mapping[str, int] | None] = ORDERS) -> Any:
    return plain(
        [
            {
                "prompt": f"question {number}",
                "responses": [text(item, number) for item in ITEMS],
                "ranks": None if order is None else [float(order[item]) for item in ITEMS],
                "labeler_id": str(number),
            }
            for number, order in enumerate(orders)
        ]
    )


LISTS: dict[str, Said] = {
    "a list": ordered,
    "under the tag's name": lambda order: {TAG: ordered(order)},
}


def as_rankings(
    tmp_path: Path, orders: Sequence[Mapping[str, int] | None] = ORDERS
) -> pl.DataFrame:
    return read(plain_rankings(orders), tmp_path)


@pytest.mark.quick(".json-a list", ".json-under the tag's name")
@pytest.mark.parametrize("form", LISTS)
@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_a_ranker_of_a_list_is_a_ranking(form: str, suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"export{suffix}", ranked(LISTS[form]))
    given = as_rankings(tmp_path)
    assert read(path, tmp_path).select(given.columns).equals(given)
    assert len(given) == len(ORDERS) * 3


def test_a_cancelled_ranking_is_a_skip(tmp_path: Path) -> None:
    orders = [None, *ORDERS]
    path = write(tmp_path / "export.json", ranked(ordered, orders))
    found = read(path, tmp_path)
    given = as_rankings(tmp_path, orders)
    assert found.select(given.columns).equals(given)
    assert found.filter(pl.col("label") == LABEL_SKIP).height == 3


@pytest.mark.parametrize("form", LISTS)
def test_how_a_ranking_is_read_does_not_depend_on_it(form: str, tmp_path: Path) -> None:
    seen = []
    for folder, orders in (("one", ORDERS), ("other", ORDERS[::-1])):
        (tmp_path / folder).mkdir()
        path = write(tmp_path / folder / "export.json", ranked(LISTS[form], orders))
        (part,) = sources.parts(path)
        found = formats.understood(part, scan.connect(tmp_path), Reading({}))
        public = read(part.name, tmp_path, labelled=False)
        seen.append((found.format, found.reading, found.names, public.to_dicts()))
    assert seen[0] == seen[1]


@pytest.mark.quick("said0", "said3", "7")
@pytest.mark.parametrize(
    "said",
    [
        *(["b", "a"], ["b", "a", "x"], [], {}, {TAG: "b"}, "b", 7, [["b"], "c", "a"]),
        [{"id": "b"}, "c", "a"],
    ],
)
def test_a_ranking_of_something_else_is_a_bad_label_and_no_other_format(
    said: Any, tmp_path: Path
) -> None:
    one = as_rankings(tmp_path)
    tasks = ranked(ordered)
    tasks[0]["annotations"][0]["result"][0]["value"]["ranker"] = said
    other = read(write(tmp_path / "export.json", tasks), tmp_path)
    others = other.filter(pl.col("prompt") != "question 0").select(one.columns)
    assert others.equals(one.filter(pl.col("prompt") != "question 0"))
    # As in a plain table whose ranks are not one number for each response.
    table = plain_rankings().to_pylist()
    table[0]["ranks"] = [1.0, None, None]
    assert set(other["label"]) == set(read(plain(table), tmp_path)["label"])


def test_two_items_of_one_id_cannot_be_told_apart(tmp_path: Path) -> None:
    tasks = ranked(ordered)
    for item in tasks[0]["data"]["items"]:
        item["id"] = "b"
    found = read(write(tmp_path / "export.json", tasks), tmp_path)
    bad = found.filter(pl.col("prompt") == "question 0")
    good = found.filter(pl.col("prompt") != "question 0")
    assert not set(bad["label"]) & set(good["label"])


def test_ids_may_be_numbers(tmp_path: Path) -> None:
    tasks = ranked(lambda order: [ITEMS.index(item) for item in ordered(order)])
    for task in tasks:
        for number, item in enumerate(task["data"]["items"]):
            item["id"] = number
    given = as_rankings(tmp_path)
    found = read(write(tmp_path / "export.json", tasks), tmp_path)
    assert found.select(given.columns).equals(given)


@pytest.mark.quick("html")
@pytest.mark.parametrize("member", ["html", "text", "content", "title"])
def test_the_text_of_an_item_may_be_called_otherwise(member: str, tmp_path: Path) -> None:
    tasks = ranked(ordered)
    for task in tasks:
        for item in task["data"]["items"]:
            del item["title"]
            item[member] = item.pop("body")
    given = as_rankings(tmp_path)
    found = read(write(tmp_path / "export.json", tasks), tmp_path)
    assert found.select(given.columns).equals(given)


def test_of_several_lists_one_is_named(tmp_path: Path) -> None:
    tasks = ranked(ordered)
    for task in tasks:
        task["data"]["sources"] = [{"id": "s", "body": "where it is from"}]
    path = write(tmp_path / "export.json", tasks)
    with pytest.raises(InvalidLabels, match=r'columns={"responses": NAME}'):
        read(path, tmp_path)
    given = as_rankings(tmp_path)
    found = read(path, tmp_path, columns={"responses": "items"})
    assert found.select(given.columns).equals(given)
    with pytest.raises(InvalidLabels, match="no field 'source' that is a list of items"):
        read(path, tmp_path, columns={"responses": "source"})


def test_what_was_sorted_into_buckets_is_a_bad_label_whatever_they_are_called(
    tmp_path: Path,
) -> None:
    found = []
    for full, empty in (("good", "poor"), ("poor", "good")):
        tasks = ranked(lambda order, f=full, e=empty: {f: ordered(order), e: [], "_": []})
        found.append(read(write(tmp_path / "export.json", tasks), tmp_path))
    assert found[0].equals(found[1])
    assert set(found[0]["label"]) == {103}


def test_where_blanks_are_ties_the_ranker_is_named_beforehand(tmp_path: Path) -> None:
    orders = [None, *ORDERS]
    path = write(tmp_path / "export.json", ranked(ordered, orders))
    with pytest.raises(InvalidLabels, match="name the control tag"):
        read(path, tmp_path, skips="tie")
    found = read(path, tmp_path, skips="tie", question=TAG)
    given = as_rankings(tmp_path, orders)
    assert (
        found.drop("label")
        .select(c for c in given.columns if c != "label")
        .equals(given.drop("label"))
    )


RATINGS = {"a": [(5, 1), (1, 5), (3, 3)], "b": [(5, 1, 3), (1, 5, 3), (2, 2, 4)]}


def rated(ratings: Sequence[Sequence[Any]], *others: Any) -> list[dict[str, Any]]:
    """A task for each of these ratings, with a response for each of its numbers."""
    return [
        {
            "id": number,
            "data": {
                "prompt": f"question {number}",
                **{f"answer{n + 1}": text(str(n), number) for n in range(len(said))},
            },
            "annotations": [
                annotation(
                    number,
                    [
                        region(f"stars {n}", "rating", one, f"answer{n + 1}")
                        for n, one in enumerate(said)
                        if one is not None
                    ]
                    + [*others],
                )
            ],
        }
        for number, said in enumerate(ratings)
    ]


def test_ratings_of_two_responses_prefer_the_higher_one(tmp_path: Path) -> None:
    rows = [
        {
            "prompt": f"question {number}",
            "labeler_id": str(number),
            "response_a": text("0", number),
            "response_b": text("1", number),
            "label": label,
        }
        for number, label in enumerate((1, 0, 0.5))
    ]
    given = read(plain(rows), tmp_path)
    found = read(write(tmp_path / "export.json", rated(RATINGS["a"])), tmp_path)
    assert found.select(given.columns).equals(given)


def test_ratings_of_more_responses_rank_them(tmp_path: Path) -> None:
    rows = [
        {
            "prompt": f"question {number}",
            "labeler_id": str(number),
            "responses": [text(str(n), number) for n in range(3)],
            "ranks": [-float(one) for one in said],
        }
        for number, said in enumerate(RATINGS["b"])
    ]
    given = read(plain(rows), tmp_path)
    found = read(write(tmp_path / "export.json", rated(RATINGS["b"])), tmp_path)
    assert found.select(given.columns).equals(given)


@pytest.mark.parametrize("kind", RATINGS)
def test_where_a_rating_lacks_nothing_is_said(kind: str, tmp_path: Path) -> None:
    said = [*RATINGS[kind], [None, *RATINGS[kind][0][1:]]]
    found = read(write(tmp_path / "export.json", rated(said)), tmp_path)
    blank = found.filter(pl.col("prompt") == f"question {len(said) - 1}")
    assert set(blank["label"]) == {LABEL_SKIP}


@pytest.mark.quick("a-many", "a-junk4", "b-inf")
@pytest.mark.parametrize("junk", ["many", "nan", "inf", [5], {"stars": 5}, True])
@pytest.mark.parametrize("kind", RATINGS)
def test_a_rating_that_is_no_number_is_a_bad_label(kind: str, junk: object, tmp_path: Path) -> None:
    good = read(write(tmp_path / "good.json", rated(RATINGS[kind])), tmp_path)
    said = [[junk, *RATINGS[kind][0][1:]], *RATINGS[kind][1:]]
    found = read(write(tmp_path / "export.json", rated(said)), tmp_path)
    assert found.drop("label").equals(good.drop("label"))
    bad = found.filter(pl.col("prompt") == "question 0")
    assert not set(bad["label"]) & set(good["label"])


def test_ratings_that_leave_a_doubt_are_refused(tmp_path: Path) -> None:
    again = region("other stars", "rating", 1, "answer1")
    path = write(tmp_path / "export.json", rated(RATINGS["a"], again))
    with pytest.raises(InvalidLabels, match=r"one control tag Rating.* answer1 has not"):
        read(path, tmp_path)
    tasks = rated(RATINGS["a"])
    for task in tasks:
        del task["annotations"][0]["result"][1]
    with pytest.raises(InvalidLabels, match=r"one control tag Rating.* answer2 has not"):
        read(write(tmp_path / "export.json", tasks), tmp_path)


def test_a_preference_counts_more_than_ratings_beside_it(tmp_path: Path) -> None:
    left = {"from_name": TAG, "to_name": "answer1", "type": "pairwise"}
    path = write(
        tmp_path / "export.json", rated(RATINGS["a"], {**left, "value": {"selected": "left"}})
    )
    found = read(path, tmp_path)
    firsts = {row["first"] == text("0", n) for n, row in enumerate(found.to_dicts())}
    assert len(set(found["label"])) == 1 and firsts == {True}


def test_how_ratings_are_read_does_not_depend_on_them(tmp_path: Path) -> None:
    seen = []
    for folder, said in (("one", RATINGS["a"]), ("other", [(1, 1), (4, 2), (2, 4)])):
        (tmp_path / folder).mkdir()
        (part,) = sources.parts(write(tmp_path / folder / "export.json", rated(said)))
        found = formats.understood(part, scan.connect(tmp_path), Reading({}))
        public = read(part.name, tmp_path, labelled=False)
        seen.append((found.format, found.reading, found.names, public.to_dicts()))
    assert seen[0] == seen[1]
