"""Exports of annotation tools: the answers that people submitted, and nothing else of them."""

import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support import exports
from support.exports import NAME, Export, Writer, answers, read, write
from support.releases import make_release

import labelguard as lg
from labelguard.budget.label_values import LabelValues
from labelguard.errors import InvalidLabels
from labelguard.inputs import formats, readers, sources
from labelguard.inputs.columns import Reading
from labelguard.text import LABEL_SKIP

ROWS = answers()
STRICT = [row for row in ROWS if row["label"] != 0.5]
SKIPPING = [
    row | {"label": None if number % 4 == 0 else row["label"]} for number, row in enumerate(STRICT)
]

CASES: dict[str, tuple[Writer, str, Export]] = {
    "argilla flattened": (exports.argilla_flat, ".jsonl", ROWS),
    "argilla Parquet": (exports.argilla_flat, ".parquet", ROWS),
    "argilla records": (exports.argilla_records, ".jsonl", ROWS),
    "argilla page": (exports.argilla_page, ".json", ROWS),
    "label-studio JSON": (exports.label_studio, ".json", STRICT),
    "label-studio choices": (lambda rows: exports.label_studio(rows, "choices"), ".jsonl", ROWS),
    "label-studio JSON_MIN": (exports.label_studio_rows, ".jsonl", STRICT),
    "label-studio CSV": (exports.label_studio_csv, ".csv", STRICT),
}
# Exports that do not tell questions from data.
NAMED = {"label-studio JSON_MIN", "label-studio CSV"}
KEEP_SKIPS = {name for name in CASES if name.startswith("argilla") or name.endswith("JSON")}


def question_of(name):
    return {"question": NAME} if name in NAMED else {}


@pytest.mark.quick("argilla flattened", "argilla records", "label-studio choices")
@pytest.mark.parametrize("name", CASES)
def test_an_export_holds_the_answers_that_were_given(name, tmp_path):
    writer, suffix, rows = CASES[name]
    path = write(tmp_path / f"export{suffix}", writer(rows))
    given = read(exports.plain(rows), tmp_path)
    found = read(path, tmp_path, **question_of(name))
    assert found.select(given.columns).equals(given)
    assert set(found["label"]) == set(given["label"]) and len(found) == len(rows)


@pytest.mark.quick("argilla Parquet", "argilla page")
@pytest.mark.parametrize("name", sorted(KEEP_SKIPS))
def test_a_discarded_or_cancelled_answer_is_a_skip(name, tmp_path):
    writer, suffix, _ = CASES[name]
    path = write(tmp_path / f"export{suffix}", writer(SKIPPING))
    found = read(path, tmp_path, **question_of(name))
    assert found.equals(read(exports.plain(SKIPPING), tmp_path))
    assert found.filter(pl.col("label") == LABEL_SKIP).height == len(SKIPPING[::4])


@pytest.mark.quick("argilla flattened", "argilla page", "label-studio CSV")
@pytest.mark.parametrize("name", CASES)
def test_how_an_export_is_read_does_not_depend_on_answers(name, tmp_path):
    writer, suffix, rows = CASES[name]
    others = [row | {"label": 1 if row["label"] != 1 else 0} for row in rows]
    seen = []
    for folder, said in (("one", rows), ("other", others)):
        (tmp_path / folder).mkdir()
        (part,) = sources.resolve_input(write(tmp_path / folder / f"export{suffix}", writer(said)))
        found = formats.apply_format(
            part, readers.connect(tmp_path), Reading({}, **question_of(name))
        )
        layout = found.find_layout(readers.connect(tmp_path))
        public = read(part.name, tmp_path, labelled=False, **question_of(name))
        seen.append((found.format, found.reading, layout.kind, layout.types, public.to_dicts()))
    assert seen[0] == seen[1]
    assert seen[0][0] == name.split()[0]


def test_nested_records_of_argilla_are_refused(tmp_path):
    path = write(tmp_path / "export.jsonl", exports.argilla_unflattened())
    with pytest.raises(InvalidLabels, match="do not tell the status"):
        read(path, tmp_path)


@pytest.mark.quick("7", "junk2")
@pytest.mark.parametrize("junk", [7, ["response_a"], {"word": "x"}, "neither", ""])
def test_an_answer_that_means_nothing_is_a_bad_label_not_another_format(junk, tmp_path):
    good, bad = exports.argilla_flat(ROWS), exports.argilla_flat(ROWS)
    bad[0][f"{NAME}.responses"][0] = junk
    one = read(write(tmp_path / "good.jsonl", good), tmp_path)
    other = read(write(tmp_path / "bad.jsonl", bad), tmp_path)
    assert other.drop("label").equals(one.drop("label"))
    assert other["label"].to_list() != one["label"].to_list()


def test_words_of_answers_mean_what_label_values_say(tmp_path):
    rows = exports.argilla_flat(ROWS)
    for record in rows:
        said = {"response_a": "first", "response_b": "second", "tie": "same"}
        record[f"{NAME}.responses"] = [said[word] for word in record[f"{NAME}.responses"]]
    path = write(tmp_path / "export.jsonl", rows)
    values = LabelValues.parse("a=first,b=second,tie=same")
    assert read(path, tmp_path, values=values).equals(read(exports.plain(ROWS), tmp_path))
    assert set(read(path, tmp_path)["label"]) == {100}


def test_a_ranking_of_two_is_a_preference_with_ties_where_ranks_are_told(tmp_path):
    ranked = {"response_a": (1, 2), "response_b": (2, 1), "tie": (1, 1)}
    records = exports.argilla_records(ROWS)
    for response in (response for record in records for response in record["responses"]):
        ranks = zip(
            ("response_a", "response_b"), ranked[response["values"][NAME]["value"]], strict=True
        )
        said = [{"value": name, "rank": rank} for name, rank in ranks]
        response["values"][NAME]["value"] = sorted(said, key=lambda one: one["rank"])
    found = read(write(tmp_path / "export.jsonl", records), tmp_path)
    assert found.equals(read(exports.plain(ROWS), tmp_path))


def test_a_ranking_of_more_responses_is_all_its_pairs(tmp_path):
    record = {
        "prompt": "why",
        **{f"response_{place}": f"text {place}" for place in (1, 2, 3)},
        "order.responses": [["response_3", "response_1", "response_2"], ["response_2"]],
        "order.responses.users": ["ann", "bob"],
        "order.responses.status": ["submitted", "discarded"],
    }
    found = read(write(tmp_path / "export.jsonl", [record]), tmp_path)
    ranking = {
        "labeler_id": ["ann", "bob"],
        "prompt": ["why"] * 2,
        "responses": [["text 1", "text 2", "text 3"]] * 2,
        "ranks": [[2, 3, 1], None],
    }
    assert found.equals(read(pl.DataFrame(ranking, strict=False), tmp_path))


def test_chats_within_records_stay_chats(tmp_path):
    records = exports.argilla_records(ROWS)
    for record in records:
        words = record["fields"].items()
        record["fields"] = {
            name: [{"role": "user" if name == "prompt" else "assistant", "content": text}]
            for name, text in words
        }
    found = read(write(tmp_path / "export.jsonl", records), tmp_path)
    assert found["fault"].to_list() == [0] * len(ROWS)
    assert found["prompt"][0][0]["content"].startswith("question")


def test_other_names_of_fields_are_understood_or_named(tmp_path):
    def rename_fields(**names):
        tasks = exports.label_studio(STRICT)
        for task in tasks:
            task["data"] = {names.get(name, name): text for name, text in task["data"].items()}
        return write(tmp_path / "export.jsonl", tasks)

    given = read(exports.plain(STRICT), tmp_path)
    usual = rename_fields(prompt="instruction", response_a="answer1", response_b="answer2")
    assert read(usual, tmp_path).equals(given)
    own = rename_fields(prompt="task", response_a="p", response_b="q")
    with pytest.raises(
        InvalidLabels, match="no two fields are responses; name them with --columns response_a="
    ):
        read(own, tmp_path)
    columns = {"prompt": "task", "response_a": "p", "response_b": "q"}
    assert read(own, tmp_path, columns=columns).equals(given)
    with pytest.raises(InvalidLabels, match=r"no field 'r' \(given for response_b\); found: "):
        read(own, tmp_path, columns={**columns, "response_b": "r"})


def test_the_left_text_is_the_one_that_the_tool_shows_there(tmp_path):
    tasks = exports.label_studio(STRICT)
    for task in tasks:
        for annotation in task["annotations"]:
            for region in annotation["result"]:
                region["to_name"] = "response_b"
    path = write(tmp_path / "export.jsonl", tasks)
    found = read(path, tmp_path)
    flipped = [row | {"label": 1 - row["label"]} for row in STRICT]
    expected = read(write(tmp_path / "flipped.jsonl", exports.label_studio(flipped)), tmp_path)
    assert found.equals(expected)
    sides = {"response_a": "response_a", "response_b": "response_b"}  # whoever names them is right
    named = read(path, tmp_path, columns=sides)
    given = read(write(tmp_path / "given.jsonl", exports.label_studio(STRICT)), tmp_path)
    assert named.equals(given)


FLAT = exports.argilla_flat(ROWS)
REPLIES = [{k.replace("response_", "reply_"): v for k, v in row.items()} for row in FLAT]
SPARE = {"answer1": "x", "answer2": "y", "response_a2": "z"}
REFUSED: dict[str, tuple[Export, dict[str, Any]]] = {
    r"several questions \(other, preference\); pick one with --question NAME": (
        [row | {"other.responses.users": [], "other.responses.status": []} for row in FLAT],
        {},
    ),
    r"no question 'preferences' was answered \(did you mean": (FLAT, {"question": "preferences"}),
    r"several control tags \(external_id, preference\); pick": (
        exports.label_studio_rows(STRICT),
        {},
    ),
    r"no control tag 'preferences' was answered \(did you mean 'preference'\?\); found: ext": (
        exports.label_studio_rows(STRICT),
        {"question": "preferences"},
    ),
    "names labeler_id, which an export of": (FLAT, {"columns": {"labeler_id": "source"}}),
    r"fields \(answer1, answer2\) or \(reply_a, reply_b\) may": ([r | SPARE for r in REPLIES], {}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_read_rightly_is_refused_with_what_to_do(message, tmp_path):
    rows, reading = REFUSED[message]
    with pytest.raises(InvalidLabels, match=message):
        read(write(tmp_path / "export.jsonl", rows), tmp_path, **reading)


def _truths(rows):
    one, other, *tasks = exports.label_studio(rows)
    one["annotations"] = [said | {"ground_truth": True} for said in one["annotations"]]
    return [one, other | {"drafts": [{"id": 1}, {"id": 2}]}, *tasks]


def _drafts(rows, flat=False):
    records = exports.argilla_flat(rows) if flat else exports.argilla_records(rows)
    for record in records:
        if flat:
            record[f"{NAME}.responses.status"][0] = "draft"
        else:
            record["responses"][0]["status"] = "draft"
    return records


LEFT_OUT: dict[str, tuple[Writer, dict[str, int]]] = {
    "label-studio": (_truths, {"ground truth": 2, "draft": 2}),
    "argilla": (_drafts, {"draft": 5}),
    "argilla flattened": (lambda rows: _drafts(rows, flat=True), {"draft": 5}),
}


@pytest.mark.quick("label-studio", "argilla")
@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_out_is_counted_by_public_reasons_whatever_was_answered(name, tmp_path):
    writer, expected = LEFT_OUT[name]
    said = (1, 0, None)
    for shift in range(len(said)):
        rows = [row | {"label": said[(n + shift) % len(said)]} for n, row in enumerate(STRICT)]
        path = write(tmp_path / f"{shift}.jsonl", writer(rows))
        assert lg.inspect(path).left_out == expected
    if name == "label-studio":
        alone = write(tmp_path / "imported.json", writer(rows)[:1])
        with pytest.raises(InvalidLabels, match=r'\(ground truth\).*"ground_truth": false'):
            make_release(alone, project=lg.init(tmp_path / "p"))


SHARED = Path(
    os.environ.get("LABELGUARD_SHARED_DATA")
    or Path(__file__).resolve().parents[2] / "../shared/data"
)
# Answers and skips of exports as real servers wrote them.
RECORDED = {
    "argilla/export_to_list_flatten.json": (12, 1),
    "argilla/export_to_datasets.parquet": (12, 1),
    "argilla/api_records.json": (12, 1),
    "label_studio/export_JSON.json": (3, 1),
    "label_studio/export_JSON_MIN.json": (3, 0),
    "label_studio/export_CSV.csv": (3, 0),
}


@pytest.mark.shared_data
@pytest.mark.skipif(not SHARED.is_dir(), reason="LABELGUARD_SHARED_DATA names no directory")
@pytest.mark.parametrize("name", RECORDED)
def test_exports_of_real_servers_are_read(name, tmp_path):
    path = SHARED.parent / "payloads" / name
    question = "preference" if name.startswith("argilla") else "pref"
    label = read(path, tmp_path, question=question)["label"]
    submitted, skipped = RECORDED[name]
    assert (label < LABEL_SKIP).sum() == submitted
    assert (label == LABEL_SKIP).sum() == skipped


@pytest.mark.quick("7-users", "submitted-status")
@pytest.mark.parametrize("end", ["users", "status"])
@pytest.mark.parametrize("wrong", [7, "submitted", {"one": "two"}])
def test_what_is_no_list_of_responses_is_named(end, wrong, tmp_path):
    rows = exports.argilla_flat(ROWS)
    rows[1][f"{NAME}.responses.{end}"] = wrong
    for found in (rows, rows[1:2]):
        with pytest.raises(InvalidLabels, match=rf"column {NAME}.responses.{end}: expected a list"):
            read(write(tmp_path / "export.jsonl", found), tmp_path)
