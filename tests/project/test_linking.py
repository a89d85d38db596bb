"""Who is who: sources, spellings, ids that are one person or two, and how long that holds."""

import contextlib
import json
import sqlite3
from collections import Counter
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import preferences, world
from support.codings import NUMBERS
from support.commands import PRIVATIZE, run
from support.deaths import killed_in
from support.preferences import ASKED, TABLE
from support.releases import make_release

import labelguard as lg
from labelguard.errors import BudgetExceeded, InvalidLabels, PolicyError
from labelguard.keys.identities import Identities, are_plainly_normal, normalize_id
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.records import Links
from labelguard.project import erasure, linking
from labelguard.project.linking import refuse_lookalikes
from labelguard.project.project import CONFIG, find
from labelguard.release.privatize import plan
from labelguard.report import overview
from labelguard.report.overview import read_labeler

PRICE: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "mechanism": "rr", "uses": 3}
# Twelve labels more of everybody, about other items.
OTHERS = preferences.pairs(
    preferences.Public(ASKED.labeler, ASKED.item + 100), preferences.opinions(len(ASKED), 2)
)


def rename_workers(table, names):
    """The table with some workers under other names."""
    who = table["labeler_id"]
    for old, new in names.items():
        who = pc.if_else(pc.equal(who, old), new, who)
    return table.set_column(table.schema.get_field_index("labeler_id"), "labeler_id", who)


def list_sources(project):
    return linking.list_people(project).sources


def count(project, labeler):
    return sum(one.used for one in read_labeler(labeler, project.state).allowances)


# ---------------------------------------------------------------- spellings


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("worker-7", "worker-7"),
        ("  Worker   7\t", "worker 7"),
        ("+007.000", "7"),
        ("7.5", "7.5"),
        ("-0", "0"),
        ("0x07", "0x07"),
        ("1" + "0" * 5000, "1" + "0" * 5000),
        ("\ufeffada", "ada"),
        ("ﬁ", "fi"),
    ],
)
def test_the_normal_form_of_an_id(name, form):
    assert normalize_id(name) == form


@given(st.text())
def test_a_normal_form_is_its_own(name):
    assert normalize_id(normalize_id(name)) == normalize_id(name)


@given(st.lists(st.text() | st.from_regex(r"[ -~]+", fullmatch=True), min_size=1))
def test_what_is_plain_is_in_normal_form(names):
    for name, is_plain in zip(names, are_plainly_normal(names).tolist(), strict=True):
        assert not is_plain or normalize_id(name) == name


def test_two_spellings_in_one_file_share_a_budget_once_they_are_linked(project):
    table = rename_workers(TABLE, {"worker 0": "José", "worker 1": "Jose\u0301"})
    with pytest.raises(InvalidLabels, match="labelguard people link ID ID"):
        make_release(table, **PRICE, project=project)
    linking.link_two_ids("José", "Jose\u0301", project)
    made = make_release(table, **PRICE, project=project)
    assert made.card["counts"]["charged"] == 6  # seven ids
    assert count(project, "José") == count(project, "Jose\u0301") == 1


def test_a_pseudonym_in_the_message_serves_as_an_id(project):
    make_release(TABLE, **PRICE, project=project)
    table = rename_workers(OTHERS, {"worker 0": "Worker 0"})
    with pytest.raises(InvalidLabels) as caught:
        make_release(table, mechanism="rr", project=project)
    [pseudonym] = [w for w in str(caught.value).replace(",", " ").split() if len(w) == 32]
    linking.link_two_ids("Worker 0", pseudonym, project)
    assert linking.link_two_ids(pseudonym, "Worker 0", project).linked == 0  # nothing is said twice
    make_release(table, mechanism="rr", exhausted="drop", project=project)
    assert count(project, "Worker 0") == count(project, "worker 0") == 2


# ---------------------------------------------------------------- one budget


def test_linked_ids_have_one_budget_whoever_comes_first(project):
    make_release(TABLE, **PRICE | {"uses": 1}, project=project)
    linking.add_source("tool", "known", project)
    done = linking.link_two_ids("tool:7", "worker 0", project)
    assert [who.known for who in done.ids] == [False, True]
    assert [who.source for who in done.ids] == ["tool", "files"]
    mine = OTHERS.filter(pc.equal(OTHERS["labeler_id"], "worker 0"))
    mine = rename_workers(mine, {"worker 0": "7"})
    with pytest.raises(PolicyError, match="source 'tool' is held"):
        make_release(mine, mechanism="rr", namespace="tool", project=project)
    linking.add_source("tool", "linked", project)
    with pytest.raises(BudgetExceeded):
        make_release(mine, mechanism="rr", namespace="tool", project=project)
    assert count(project, "tool:7") == count(project, "worker 0") == 1
    assert overview.verify(project.state).ok


def test_linking_moves_no_released_label(project, tmp_path):
    first = make_release(TABLE, **PRICE, project=project)
    linking.link_two_ids("worker 0", "somebody", project)
    again = make_release(TABLE.slice(0, len(TABLE) - 1), mechanism="rr", project=project)
    assert again.card["counts"]["charged"] == 0
    before = lg.load(first)
    after = lg.load(again)
    assert after.join(before, on=after.columns[:4], how="anti", nulls_equal=True).is_empty()


def test_who_was_charged_apart_stays_apart(project):
    make_release(TABLE, **PRICE, project=project)
    with pytest.raises(PolicyError, match="before the first charge of either"):
        linking.link_two_ids("worker 0", "worker 1", project)
    linking.link_two_ids("worker 0", "a", project)
    linking.link_two_ids("worker 1", "b", project)
    with pytest.raises(PolicyError, match="before the first charge of either"):
        linking.link_two_ids("a", "b", project)
    assert linking.link_two_ids("a", "worker 0", project).linked == 0
    assert [entry.kind for entry in overview.read_journal(project.state)].count("linked") == 2


@pytest.mark.parametrize("make", [make_release, plan])
@pytest.mark.parametrize("mechanism", ["rr", "props", "auto"])
def test_nothing_of_a_held_source_is_released_or_planned(make, mechanism, project):
    make_release(TABLE, **PRICE, project=project)
    linking.add_source("tool", "known", project)
    before = [entry.kind for entry in overview.read_journal(project.state)]
    features = {"features": "length"} if mechanism == "props" else {}
    named = {"namespace": "tool", "label_values": NUMBERS}
    with pytest.raises(PolicyError, match="source 'tool' is held"):
        make(OTHERS, mechanism=mechanism, **named, project=project, **features)
    assert [entry.kind for entry in overview.read_journal(project.state)] == before


@pytest.mark.parametrize(
    "table",
    [
        "labeler_id,same_as\ntool:7,tool:7\n",
        "labeler_id,same_as\ntool:7,tool:8\n",
        "tool,files\nnobody,nobody else\n",
        "labeler_id,same_as\n{one},{other}\n",
        "tool,files\n",
    ],
    ids=["itself", "its own", "of people who are unknown", "by pseudonyms", "nobody"],
)
def test_a_table_that_links_nobody_of_a_source_ends_no_hold(table, project, tmp_path):
    make_release(TABLE, **PRICE, project=project)
    linking.add_source("tool", "known", project)
    config = project.state / CONFIG
    config.write_text(config.read_text().replace('source = "files"', 'source = "tool"'))
    project = find(project.state.parent)
    # Of somebody whom a release met, and somebody whom it did not.
    one, other = (who.pseudonym for who in linking.link_two_ids("files:worker 0", "x", project).ids)
    (tmp_path / "people.csv").write_text(table.format(one=one, other=other))
    with contextlib.suppress(InvalidLabels):
        linking.link_table(tmp_path / "people.csv", project)
    assert {s.name: s.people for s in linking.list_people(project).sources}["tool"] == "known"


def test_a_table_links_whole_chains(project, tmp_path):
    make_release(TABLE, **PRICE, project=project)
    for name in ("one", "two"):
        linking.add_source(name, "known", project)
    path = tmp_path / "people.csv"
    path.write_text("labeler_id,same_as\none:1,two:1\ntwo:1,worker 0\nada,ben\nben,carl\n")
    assert asdict(linking.link_table(path, project)) == {"linked": 6, "pairs": 4}
    path.write_text("one,two\n8,9\n")
    assert asdict(linking.link_table(str(path), project)) == {"linked": 2, "pairs": 1}
    units = Counter(pair.unit for pair in linking.list_people(project).linked)
    assert sorted(units.values()) == [2, 3, 3]
    path.write_text("one,three\n8,9\n")
    with pytest.raises(InvalidLabels, match="no column labeler_id"):
        linking.link_table(path, project)
    path.write_text("labeler_id,same_as\nworker 0,worker 1\nx,y\n")
    with pytest.raises(PolicyError, match="nothing was written"):
        linking.link_table(path, project)
    assert sum(units.values()) == len(linking.list_people(project).linked)


def test_linked_people_are_one_unit_of_a_statistic(project):
    linking.link_two_ids("worker 0", "worker 1", project)
    made = make_release(TABLE, epsilon=1.0, delta=1e-5, project=project, **preferences.STATISTIC)
    assert made.card["counts"]["charged"] == 6  # seven ids


@pytest.mark.parametrize("pair", [("", "a"), ("a", " "), ("a", "a"), ("files:a", "a")])
def test_a_link_needs_two_ids(pair, project):
    with pytest.raises(InvalidLabels):
        linking.link_two_ids(*pair, project)


def test_units_of_which_one_was_charged_come_together(project):
    for pair in (("a", "b"), ("c", "d"), ("worker 0", "e")):
        linking.link_two_ids(*pair, project)
    assert linking.link_two_ids("b", "c", project).linked == 0
    make_release(TABLE, **PRICE, project=project)
    linking.link_two_ids("e", "d", project)
    [unit] = {pair.unit for pair in linking.list_people(project).linked}
    assert {count(project, name) for name in ("a", "b", "c", "d", "e", "worker 0")} == {1}
    assert len(linking.list_people(project).linked) == 6 and len(unit) == 32
    with pytest.raises(PolicyError, match="before the first charge of either"):
        linking.link_two_ids("a", "worker 1", project)
    assert overview.verify(project.state).ok


# ---------------------------------------------------------------- sources


def test_a_source_is_added_before_it_is_read(project):
    assert list_sources(project) == []
    make_release(TABLE, **PRICE, project=project)
    [first] = list_sources(project)
    assert (first.name, first.people) == ("files", "first")
    assert first.columns["labeler_id"] == "labeler_id"
    for act in (make_release, plan):
        with pytest.raises(PolicyError, match="labelguard source add tool"):
            act(TABLE, mechanism="rr", label_values=NUMBERS, namespace="tool", project=project)
    linking.add_source("tool", "new", project)
    made = make_release(TABLE, mechanism="rr", namespace="tool", project=project)
    assert made.card["counts"]["charged"] == 7
    with pytest.raises(PolicyError, match="already"):
        linking.add_source("tool", "new", project)
    for name in ("", " tool", "a\nb", "x" * 201):
        with pytest.raises(PolicyError, match="printable"):
            linking.add_source(name, "new", project)


def test_each_source_has_columns_of_its_own_and_new_roles_come_in(project):
    make_release(TABLE.slice(0, 40), **PRICE, project=project)
    timed = TABLE.slice(40).append_column("when", pa.array(range(len(TABLE) - 40)))
    make_release(timed, mechanism="rr", columns={"submitted_at": "when"}, project=project)
    assert list_sources(project)[0].columns["submitted_at"] == "when"
    told = [entry.body.get("columns", {}) for entry in overview.read_journal(project.state)]
    assert ["submitted_at" in columns for columns in told if columns] == [False, True]
    make_release(TABLE, mechanism="rr", project=project)  # it may be left out again
    again = timed.append_column("then", timed["when"])
    with pytest.raises(PolicyError, match="differs in submitted_at: was 'when', found 'then'"):
        make_release(again, mechanism="rr", columns={"submitted_at": "then"}, project=project)


def test_other_names_of_columns_are_refused_with_what_helps(project):
    before = {"labeler_id": "judge", "label": "vote"}
    earlier, half = TABLE.rename_columns(before), 40
    coded = {"label_values": NUMBERS}
    make_release(earlier.slice(0, half), **PRICE, **coded, columns=before, project=project)
    now = {"labeler_id": "annotator", "prompt": "task"}
    table = TABLE.rename_columns(now).slice(half)
    with pytest.raises(PolicyError) as refused:
        make_release(table, mechanism="rr", columns=now, project=project)
    assert "labeler_id: was 'judge', found 'annotator'" in str(refused.value)
    assert "(--columns labeler_id=judge,label=vote" in str(refused.value)
    linking.add_source("tool", "new", project)
    make_release(table, mechanism="rr", columns=now, namespace="tool", project=project)
    assert count(project, "tool:worker 0") > 0
    own = count(project, "worker 0")
    again = table.rename_columns({"annotator": "judge", "task": "prompt", "label": "vote"})
    as_before = {**before, "prompt": "prompt"}
    make_release(again, mechanism="rr", columns=as_before, **coded, project=project)
    assert count(project, "worker 0") == 2 > own


def test_every_question_has_columns_of_its_own(project):
    table = TABLE.append_column("safer", TABLE["label"])
    make_release(table, **PRICE, question="better", project=project)
    safer = {"columns": {"label": "safer"}, "question": "safer", "exhausted": "drop"}
    make_release(table, **safer, project=project)
    other = {"columns": {"label": "label"}, "question": "safer"}
    with pytest.raises(PolicyError, match="differs in label of safer"):
        make_release(table, mechanism="rr", **other, project=project)
    # It is remembered, and need not be said again.
    assert make_release(table, question="safer", exhausted="drop", project=project).reused
    with pytest.raises(PolicyError, match="its column 'response_b' was response_b"):
        columns = {"chosen": "response_b", "rejected": "response_a"}
        table = table.drop_columns(["label"])
        make_release(table, mechanism="rr", columns=columns, question="nicer", project=project)


def test_what_was_never_read_binds_nobody(project):
    """A job that crashes after its charge, before it may look at a label, fixes no column."""
    table = TABLE.append_column("who", TABLE["labeler_id"])
    with killed_in(Ledger, "mark_reading"):
        make_release(table, **PRICE, project=project)
    assert list_sources(project) == []
    make_release(table, **PRICE, columns={"labeler_id": "who"}, project=project)
    assert list_sources(project)[0].columns["labeler_id"] == "who"


# ---------------------------------------------------------------- it lasts


def prepare_people(project):
    """A project with sources and links, of two who look alike too."""
    make_release(rename_workers(TABLE, {"worker 0": "José"}), **PRICE, project=project)
    linking.add_source("tool", "known", project)
    linking.link_two_ids("tool:7", "worker 1", project)
    linking.link_two_ids("worker 2", "Worker 2", project)


def test_it_holds_on_each_database(project_on_each):
    project = project_on_each
    prepare_people(project)
    assert overview.verify(project.state).ok
    with pytest.raises(InvalidLabels, match=r"'JOS\\xc9'"):
        make_release(rename_workers(OTHERS, {"worker 0": "JOSÉ"}), mechanism="rr", project=project)
    assert count(project, "tool:7") == count(project, "worker 1")
    table = rename_workers(OTHERS, {"worker 0": "José", "worker 2": "Worker 2"})
    done = make_release(table, mechanism="rr", exhausted="drop", project=project)
    assert done.card["counts"]["charged"] == 7 and count(project, "Worker 2") == 2


@pytest.mark.quick(
    "UPDATE identities SET met = zeroblob(32)-identities",
    "UPDATE identities SET labelers = 99-identities",
    "DELETE FROM sources WHERE name = 'tool'-sources",
)
@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("UPDATE identities SET met = zeroblob(32)", "identities"),
        ("UPDATE identities SET labelers = 99", "identities"),
        ("UPDATE sources SET columns = replace(columns, 'labeler_id', 'x')", "sources"),
        ("DELETE FROM sources WHERE name = 'tool'", "sources"),
        ("DELETE FROM links WHERE unit != labeler", "links"),
    ],
)
def test_an_edit_is_noticed(statement, what, project):
    prepare_people(project)
    with sqlite3.connect(project.state / "ledger.sqlite3") as connection:
        connection.execute(statement)
    assert what in overview.verify(project.state).fault


def test_an_id_of_another_source_leaves_and_its_namesake_stays(project):
    linking.add_source("files", "new", project)
    linking.add_source("tool", "new", project)
    bad = TABLE.set_column(0, "prompt", pa.array([None] * 3 + TABLE["prompt"].to_pylist()[3:]))
    for source in ("files", "tool"):
        make_release(bad, **PRICE, bad_rows="quarantine", namespace=source, project=project)
    who = TABLE["labeler_id"][0].as_py()
    rows = TABLE["labeler_id"].to_pylist()[:3].count(who)
    gone = erasure.remove_labeler(f"tool:{who}", "erased", project)
    assert gone.known and gone.rows_set_aside == rows
    assert count(project, who) == count(project, f"tool:{who}")
    made = make_release(TABLE, mechanism="rr", namespace="tool", exhausted="drop", project=project)
    assert any("1 retired or erased labeler" in note for note in made.notes)
    made = make_release(TABLE, mechanism="rr", exhausted="drop", project=project)
    assert not any("retired or erased" in note for note in made.notes)
    assert erasure.remove_labeler(who, "erased", project).rows_set_aside == rows


# ---------------------------------------------------------------- labels change nothing


def test_who_leaves_is_shown_their_other_ids_that_are_still_active(project):
    linking.add_source("tool", "known", project)
    linking.link_two_ids("tool:7", "worker 0", project)
    one, other = (one.pseudonym for one in linking.link_two_ids("tool:7", "ada", project).ids)
    shown = erasure.preview_removal("tool:7", "retired", project)
    assert other in shown.linked and len(shown.linked) == 2 and one not in shown.linked
    shown = erasure.preview_removal("ada", "retired", project)
    assert erasure.remove_labeler("ada", "retired", project).linked == shown.linked
    assert len(erasure.remove_labeler("tool:7", "retired", project).linked) == 1
    assert erasure.remove_labeler("worker 0", "retired", project).linked == []


def test_which_ids_a_refusal_names_does_not_follow_from_labels(tmp_path, monkeypatch):
    world.fix_randomness(monkeypatch)
    names = {f"worker {n}": f"Worker {n}" for n in range(7)}
    both = pa.concat_tables([TABLE, rename_workers(OTHERS, names)])
    rng = np.random.default_rng(0)
    said = set()
    for number in range(4):
        labels = pa.array(rng.integers(0, 2, len(both)))
        table = both.drop_columns(["label", "tie"]).append_column("label", labels)
        table = table.sort_by([("label", "ascending"), ("labeler_id", "descending")])
        with pytest.raises(InvalidLabels) as caught:
            make_release(table, **PRICE, project=lg.init(tmp_path / str(number)))
        said.add(str(caught.value))
    assert len(said) == 1


# ---------------------------------------------------------------- commands


def test_the_commands_ask_and_answer(project, tmp_path):
    make_release(TABLE, **PRICE, project=project)
    preferences.write(OTHERS, tmp_path / "tool.parquet")

    own = {"project": project}
    run("source", "add", "tool", input="n\n", **own)  # not all of them are new
    run("people", "link", "tool:worker 0", "worker 0", **own)
    shown = json.loads(run("people", "list", "--json", **own).stdout)
    assert {one["people"] for one in shown["sources"]} == {"first", "known"}
    run("source", "add", "tool", "--people", "linked", **own)
    run(*PRIVATIZE, tmp_path / "tool.parquet", "--source", "tool", "--exhausted", "drop", **own)
    shown = json.loads(run("people", "list", "--json", **own).stdout)
    assert {one["people"] for one in shown["sources"]} == {"first", "linked"}
    assert len(shown["linked"]) == 2
    assert "takes from" in run("people", "list", **own).output and count(project, "worker 0") == 2
    run("people", "link", "a", "b", "c", code=2)


# Two ids of one form are refused, unless they are linked.


def keys(*numbers):
    return np.array([[number, 0] for number in numbers], np.uint64).reshape(-1, 2)


def people(**forms):
    """Labelers by name, each with a key of its own (one=1, …) and the form that is given."""
    own = [("one", "two", "three").index(name) + 1 for name in forms]
    return Identities(keys(*own), keys(*forms.values()), tuple(forms))


NOBODY = people()
NO_LINKS = Links(keys(), keys())


def test_two_of_one_form_are_refused_where_one_of_them_is_in_the_input():
    for found, known in (
        (people(one=9, two=9), NOBODY),
        (people(one=9), people(two=9)),
        (people(two=9), people(one=9, three=8)),
    ):
        with pytest.raises(InvalidLabels, match="differ only in how they are written"):
            refuse_lookalikes(found, known, NO_LINKS)
    refuse_lookalikes(people(one=9), people(one=9, two=8), NO_LINKS)
    refuse_lookalikes(people(three=8), people(one=9, two=9), NO_LINKS)


def test_who_shares_a_budget_is_not_refused():
    links = Links(keys(1, 2), keys(1, 1))
    refuse_lookalikes(people(one=9, two=9), NOBODY, links)
    refuse_lookalikes(people(two=9), people(one=9), links)
    with pytest.raises(InvalidLabels, match="'three'"):
        refuse_lookalikes(people(three=9), people(one=9), links)
