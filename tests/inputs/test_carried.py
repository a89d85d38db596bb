"""Public columns of sources and strata: how they come along with pairs, and what is refused."""

import json

import polars as pl
import pytest
from support import exports
from support.codings import choose_coding

from labelguard.errors import InvalidLabels
from labelguard.inputs import pairs

ROW = {"prompt": "p", "response_a": "x", "response_b": "y", "label": 1, "labeler_id": "u"}
ROW |= {"model_a": "one", "model_b": "two", "language": "de"}
RANKED = {"prompt": "p", "responses": ["b", "a", "c"], "ranks": [1, 2, 3], "labeler_id": "u"}
RANKED |= {"model": ["of b", "of a", "of c"]}
PAIRS = [(*both, *(f"of {one}" for one in both)) for both in ("ab", "ac", "bc")]
SPEC = "source:model,by=language"
NAMES = ("source_model_first", "source_model_second", "stratum_language")
DECLARED = ("model", "language", "chosen", "topic", "score", "label")


def read_pairs(source, **options):
    """Pairs of a table whose columns were declared public, unless others are."""
    usual = {"public_columns": DECLARED, "label_values": choose_coding(source)}
    return pairs.read_public_pairs(source, **usual | options)


def feature_rows(read):
    """First and second side with what came along, sorted."""
    names = ["first", "second", *(name for name in NAMES if name in read.table.column_names)]
    return sorted(zip(*(read.table[name].to_pylist() for name in names), strict=True))


def swap_sides(row):
    """The same comparison, its sides called the other way round."""
    ends = {"_a": "_b", "_b": "_a"}
    turned = {name[:-2] + ends[name[-2:]]: row[name] for name in row if name[-2:] in ends}
    return {**row, **turned, "label": 1 - row["label"]}


def test_sources_turn_with_the_sides():
    rows = [ROW, swap_sides(ROW), {**ROW, "labeler_id": "v"}]
    read = read_pairs(pl.DataFrame(rows), features=SPEC)
    assert feature_rows(read) == [("x", "y", "one", "two", "de")]
    assert len(read.rows) == 2


def test_chosen_and_rejected_tell_no_order_of_sources():
    sides = {"chosen": "y", "rejected": "x", "model_chosen": "two", "model_rejected": "one"}
    row = {"prompt": "p", "labeler_id": "u", "language": "de"}
    other = {"chosen": "x", "rejected": "y", "model_chosen": "one", "model_rejected": "two"}
    for given in (sides, other):
        read = read_pairs(pl.DataFrame([row | given]), features=SPEC)
        assert feature_rows(read) == [("x", "y", "one", "two", "de")]


def test_one_response_has_one_source_and_one_pair_has_one_stratum():
    """What has several was not made of the response alone; what two systems said is of A+B."""
    elsewhere = {**ROW, "response_b": "z", "model_a": "three"}
    turned = {**ROW, "response_a": "y", "response_b": "x"}
    for other in ({**ROW, "model_a": "three"}, elsewhere, turned):
        for rows in ([ROW, other], [other, ROW]):
            with pytest.raises(InvalidLabels, match="source model: one response") as refused:
                read_pairs(pl.DataFrame(rows), features=SPEC)
            # Of a column that labels decide, what it says would be a label.
            assert "three" not in str(refused.value) and '"' not in str(refused.value)
    with pytest.raises(InvalidLabels, match="stratum language: one pair"):
        read_pairs(pl.DataFrame([ROW, {**ROW, "language": "en"}]), features=SPEC)
    both = [{**row, "model_a": "one+three"} for row in (ROW, elsewhere)]
    other_prompt = {**ROW, "prompt": "q", "model_a": "three"}
    assert len(feature_rows(read_pairs(pl.DataFrame([*both, other_prompt]), features=SPEC))) == 3


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_rankings_have_a_list_of_sources(suffix, tmp_path):
    path = tmp_path / f"ranked{suffix}"
    rows = [RANKED, {**RANKED, "labeler_id": "v"}]
    if suffix == ".parquet":
        pl.DataFrame(rows).write_parquet(path)
    else:
        # Names and numbers: JSON as it is.
        rows[1] = {**rows[1], "prompt": "q", "model": ["of b", 7, "of c"]}
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = feature_rows(read_pairs(path, features="source:model"))
    numbered = {("a", "b", "7", "of b"), ("a", "c", "7", "of c")}
    assert set(found) == {*PAIRS} | (numbered if suffix == ".jsonl" else set())


def test_equal_responses_of_two_sources_are_refused_in_either_order():
    """Which of two equal responses comes first tells nothing of who wrote which: it is refused."""
    one = RANKED | {"responses": ["aa", "aa", "c"], "model": ["m", "n", "o"]}
    two = RANKED | {"responses": ["aa", "aa", "c"], "model": ["n", "m", "o"]}
    said = set()
    for row in (one, two):
        with pytest.raises(InvalidLabels, match="source model: one response") as raised:
            read_pairs(pl.DataFrame([row]), features="source:model")
        said.add(str(raised.value))
    assert len(said) == 1


def test_columns_of_other_names_are_named_in_pairs():
    """It is the column that is declared, whatever features call it."""
    columns = {"system_a": "model_a", "system_b": "model_b"}
    for declared in ("system", "model_a", ()):
        with pytest.raises(InvalidLabels, match=r"column model_. becomes the source system only"):
            named = {"columns": columns, "public_columns": declared}
            read_pairs(pl.DataFrame([ROW]), features="source:system", **named)
    read = read_pairs(pl.DataFrame([ROW]), columns=columns, features="source:system")
    assert len(read.table["source_system_first"]) == 1
    assert len(read_pairs(pl.DataFrame([ROW]), columns=columns).ids) == 1  # and need not be read
    ranked = read_pairs(pl.DataFrame([RANKED]), columns={"by": "model"}, features="source:by")
    assert ranked.table["source_by_first"].to_pylist() == ["of a", "of a", "of b"]
    with pytest.raises(InvalidLabels, match="unknown role 'system_a'"):
        read_pairs(pl.DataFrame([ROW]), columns={"system_a": "model_a"})
    with pytest.raises(InvalidLabels, match=r"no column 'modl_a' \(given for system_a\)"):
        wrong = {"system_a": "modl_a", "system_b": "model_b"}
        read_pairs(pl.DataFrame([ROW]), columns=wrong, features="source:system")


@pytest.mark.parametrize("name", [None, "", "  "])
def test_a_side_without_a_source_is_a_bad_row(name):
    rows = [ROW, {**ROW, "model_b": name}, {**ROW, "model_a": name, "labeler_id": "v"}]
    table = pl.DataFrame(rows)
    missing = r"row 2: column model_a or model_b: expected the name .* \(1 more bad row\)"
    with pytest.raises(InvalidLabels, match=missing):
        read_pairs(table, features=SPEC)
    left = read_pairs(table, features=SPEC, bad_rows="quarantine")
    assert left.skipped == 2 and len(left.rows) == 1
    assert read_pairs(table).skipped == 0  # who does not ask for it need not have it


def test_a_row_without_a_stratum_and_lists_that_do_not_fit_are_bad():
    with pytest.raises(InvalidLabels, match="row 1: column language: expected a name"):
        read_pairs(pl.DataFrame([{**ROW, "language": None}, ROW]), features=SPEC)
    for models in (["of b", "of a"], ["of b", None, "of c"], None):
        rows = [RANKED, {**RANKED, "model": models}]
        with pytest.raises(InvalidLabels, match="row 2: column model: expected the name"):
            read_pairs(pl.DataFrame(rows), features="source:model")


def test_the_side_that_lacks_a_source_is_not_told():
    """Of chosen and rejected, which one it is would be the label."""
    row = {"prompt": "p", "labeler_id": "u", "chosen": "x", "rejected": "y"}
    said = set()
    for one, other in ((None, "two"), ("two", None)):
        rows = [row | {"model_chosen": one, "model_rejected": other}]
        table = pl.DataFrame(rows, schema_overrides=dict.fromkeys(row, pl.String))
        with pytest.raises(InvalidLabels) as raised:
            read_pairs(table, features="source:model")
        said.add(str(raised.value))
    assert len(said) == 1 and "model_chosen or model_rejected" in said.pop()


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ("source:mdel", "no column mdel_a and mdel_b for the source mdel .did"),
        ("source:model,by=lang", "no column lang for the stratum lang"),
        ("source:model,by=label", "no column label for"),
        ("source:model,by=chosen", "column chosen tells of the text that was chosen"),
        ("source:model,by=topic_chosen", "column topic_chosen tells of the text that was"),
        ("source:score", "source score: expected names"),
        ("source:system", "column topic_chosen tells of the text that was chosen"),
    ],
)
def test_columns_that_are_missing_private_or_no_names_are_refused(features, message):
    more = {"chosen": "x", "topic_chosen": "t", "score_a": 0.5, "score_b": 1.5}
    columns = {"system_a": "topic_chosen", "system_b": "model_b"} if "system" in features else {}
    with pytest.raises(InvalidLabels, match=message):
        read_pairs(pl.DataFrame([ROW | more]), columns=columns, features=features)


def strict_answers():
    """Answers without ties, which some tools do not have."""
    return [{**row, "label": int(row["label"] > 0)} for row in exports.answers()]


def with_models(task, number):
    """A task with the names of what wrote its responses, where its tool keeps such things."""
    names = {"model_a": f"model {number % 3}", "model_b": f"model {number % 2}"}
    if "metadata" in task:
        return {**task, "metadata": {**task["metadata"], **names}}
    return {**task, "data": {**task["data"], **names}} if "data" in task else {**task, **names}


@pytest.mark.quick("argilla_flat", "argilla_records")
@pytest.mark.parametrize(
    "tool",
    [
        *(exports.argilla_flat, exports.argilla_records),
        *(exports.label_studio, exports.label_studio_rows),
    ],
)
def test_exports_of_tools_have_their_names(tool, tmp_path):
    rows = strict_answers()
    prompts = sorted({row["prompt"] for row in rows})
    path = tmp_path / "export.jsonl"
    tasks = [one for p in prompts for one in tool([row for row in rows if row["prompt"] == p])]
    numbers = (next(n for n, p in enumerate(prompts) if p in str(task)) for task in tasks)
    made = [with_models(task, number) for task, number in zip(tasks, numbers, strict=True)]
    exports.write(path, made)
    question = {"question": exports.NAME} if tool is exports.label_studio_rows else {}
    read = read_pairs(path, features="source:model", **question)
    expected = {f"question {n}": (f"model {n % 2}", f"model {n % 3}") for n in range(5)}
    columns = ("prompt", "source_model_second", "source_model_first")
    found = zip(*(read.table[name].to_pylist() for name in columns), strict=True)
    # `another to` comes before `one answer to`: the sides are turned, and their names with them.
    assert {p: (first, second) for p, second, first in found} == expected


@pytest.mark.parametrize(
    ("tool", "answer"),
    [
        (exports.label_studio_rows, exports.NAME),
        (exports.argilla_flat, f"{exports.NAME}.responses"),
    ],
)
def test_what_was_answered_in_a_tool_is_no_stratum(tool, answer, tmp_path):
    path = exports.write(
        tmp_path / "export.jsonl", [with_models(task, 0) for task in tool(strict_answers())]
    )
    question = {"question": exports.NAME} if tool is exports.label_studio_rows else {}
    with pytest.raises(InvalidLabels, match="may be an answer, which is private"):
        read_pairs(path, features=f"source:model,by={answer}", **question)
