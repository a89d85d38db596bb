"""A label outside the domain, or none at all, must not decide which rows are released.

Worlds differ in labels only. What was set aside, dropped or merely counted by what a label says
published it.
"""

import json
from typing import Any

import pyarrow as pa
import pytest
from support.releases import make_release

import labelguard
from labelguard.budget.label_values import LabelValues
from labelguard.errors import InvalidLabels, LabelguardError, PolicyError
from labelguard.inputs.pairs import read_public_pairs
from labelguard.project import policies
from labelguard.report import overview

PRICE = {"epsilon": 3, "delta": 1e-5}


def table_of(count, labelers=1, **columns):
    who = [f"x{n % 3}" if labelers == 3 else "x" for n in range(count)]
    return pa.table({"labeler_id": who, "prompt": [f"p{n}" for n in range(count)], **columns})


def pairs(labels, **more):
    count = len(labels)
    sides = {"response_a": ["a"] * count, "response_b": ["b"] * count}
    return table_of(count, 3, **sides, label=labels, **more)


def rankings(ranks):
    return table_of(len(ranks), responses=[["a", "b"]] * len(ranks), ranks=ranks)


def chosen(ties):
    return table_of(len(ties), chosen=["a"] * len(ties), rejected=["b"] * len(ties), tie=ties)


def privatize(project, source, **options):
    return make_release(source, **{**PRICE, "mechanism": "rr", "project": project, **options})


def rows(made):
    """The prompts of a release."""
    return set(labelguard.load(made)["prompt"])


OUTSIDE: dict[str, pa.Table] = {
    "coded 1 and 2": pairs([1, 2, 2, 1]),
    "words": pairs(["a", "b", "b", "first"]),
    "an odd tie": pairs([1, 1, 0, 0], tie=["no", "maybe", "no", "no"]),
    "an odd tie of chosen": chosen(["no", "maybe", "no"]),
    "a word as rank": rankings([["1", "2"], ["1", "best"], ["2", "1"]]),
}


@pytest.mark.quick("coded 1 and 2", "words")
@pytest.mark.parametrize("bad_rows", ["stop", "quarantine"])
@pytest.mark.parametrize("case", OUTSIDE)
def test_a_label_outside_its_domain_stops_the_run(case, bad_rows, project):
    """Set aside, the row would tell its label: of labels coded 1 and 2, every 2 was missing."""
    with pytest.raises(InvalidLabels, match=r"table row [1-4]: column (label|tie|ranks)") as caught:
        privatize(project, OUTSIDE[case], mechanism="rr", bad_rows=bad_rows)
    assert caught.value.exit_code == 1
    assert "quarantine" not in str(caught.value)
    assert not overview.list_releases(project.state)
    assert not list(project.quarantine.iterdir())


def test_rows_are_set_aside_for_public_reasons_beside_labels_of_any_kind(project):
    table = pairs(["x", "y", "", "y", "z"])
    table = table.set_column(1, "prompt", pa.array(["p0", None, "p2", "p3", "p4"]))
    made = privatize(
        project, table, mechanism="rr", bad_rows="quarantine", label_values="a=x,b=y,tie=z"
    )
    assert rows(made) == {"p0", "p3", "p4"}
    counts = made.card["counts"]
    assert (counts["rows_read"], counts["set_aside"], counts["skipped"]) == (5, 1, 1)


def test_named_values_are_read_as_they_are_named(tmp_path):
    project = labelguard.init(tmp_path, max_epsilon=40)
    named = "skip=n/a, b=2|right, a=1|left, tie=both bad|same"
    labels = ["1.0", "right", " left ", "2", "n/a", "", None]
    made = privatize(
        project, pairs(labels), mechanism="rr", epsilon=40, delta=0, unit="item", label_values=named
    )
    read = dict(labelguard.load(made).select("prompt", "chosen").rows())
    assert read == {"p0": "a", "p1": "b", "p2": "a", "p3": "b"}
    assert made.card["counts"]["skipped"] == 3 and "left out: 3 (skip)" in made.notes
    for other in ("Left", "0", "true", "both", "0.5"):
        with pytest.raises(InvalidLabels, match="outside the domain"):
            privatize(
                project,
                pairs([*labels, other]),
                mechanism="rr",
                epsilon=40,
                delta=0,
                label_values=None,
            )


def test_values_have_one_text_however_they_are_named():
    one = LabelValues.parse("b=2,a=1|left,tie=same")
    assert LabelValues.parse(" tie = same , a=left|1,b= 2") == one
    assert LabelValues.parse(str(one)) == one
    assert str(LabelValues.parse("")) == ""
    for wrong in (
        "a=1",
        "a=1,b=1.0",
        "a=1,b=",
        "a=1,b=2,c=3",
        "a=1,a=2,b=3",
        "left,right",
        "a-b,a=1",
        "b-a",
        "3..3",
        "a=@one,b=2",
    ):
        with pytest.raises(InvalidLabels, match="--label-values"):
            LabelValues.parse(wrong)


@pytest.mark.parametrize(
    ("coding", "named"),
    [
        ("left-right", "a=LEFT|Left|left,b=RIGHT|Right|right,tie=TIE|Tie|tie"),
        ("1-2, tie=3, skip=9", "a=1,b=2,tie=3,skip=9"),
        ("True-False", "a=TRUE|True|true,b=FALSE|False|false,tie=TIE|Tie|tie"),
        ("1-0", "a=1|TRUE|True|true,b=0|FALSE|False|false,tie=0.5"),
        ("3..-3", "a=3|2|1,b=-1|-2|-3,tie=0"),
    ],
)
def test_a_coding_by_name_is_the_domain_that_its_values_name(coding, named):
    meant = LabelValues.parse(named)
    assert LabelValues.parse(coding) == meant
    assert LabelValues.parse(str(meant)) == meant


def test_labels_in_an_undeclared_coding_are_refused_alike_whatever_they_are(project):
    said = set()
    for labels in (["one", "other"], ["left", "right"], ["1", "draw"]):
        with pytest.raises(InvalidLabels) as refused:
            privatize(project, pairs(labels), mechanism="rr", label_values=None)
        said.add(str(refused.value))
    assert len(said) == 1 and "left-right" in said.pop()
    read = labelguard.load(
        privatize(project, pairs(["right", "left"]), mechanism="rr", label_values="left-right")
    )
    assert read.height == 2


def test_another_domain_or_rule_than_the_policys_is_refused(project):
    table = pairs(["x", "y", "", "y"])
    made = privatize(project, table, mechanism="rr", label_values="a=x,b=y", skips="tie")
    assert rows(made) == {"p0", "p1", "p2", "p3"}
    assert made.card["privacy"]["skip_status"] == "protected"
    for options, said in (
        (
            {"label_values": "a=y,b=x"},
            "differs in label values: was 'a=x,b=y', found 'a=y,b=x'; .*--label-values a=x,b=y",
        ),
        ({"label_values": ""}, "differs in label values: was 'a=x,b=y', found ''"),
        ({"skips": "public"}, "skips = tie, .*requested: public"),
        ({"assignment_reactive": True}, "assignment-reactive = False, .*requested: True"),
    ):
        with pytest.raises(PolicyError, match=said):
            privatize(project, table, **options)
    later = privatize(project, pairs(["y", "y", "x", "y", "x"]), mechanism="rr", exhausted="drop")
    assert later.card["counts"]["released_before"] == 4


def test_skips_are_left_out_before_anything_is_counted(project):
    labels = [1, None, 0, None, 1, 0]
    table = pairs(labels, tie=[None, True, False, False, None, None])
    made = privatize(project, table)
    assert rows(made) == {"p0", "p1", "p2", "p4", "p5"}
    assert made.card["counts"]["skipped"] == 1
    assert made.card["privacy"]["skip_status"] == "public"
    assert any("skipped" in line for line in made.card["not_protected"])
    assert "skip status is public" in (made.path / "CARD.md").read_text()
    with pytest.raises(InvalidLabels, match="skipped"):
        privatize(project, pairs([None, None]))


@pytest.mark.slow
def test_skipped_rankings_count_once(project):
    made = privatize(project, rankings([[1, 2], None, [2, 1]]))
    assert (rows(made), made.card["counts"]["skipped"]) == ({"p0", "p2"}, 1)


@pytest.mark.quick("table-pairs")
@pytest.mark.parametrize("kind", ["pairs", "rankings"])
@pytest.mark.parametrize("suffix", ["table", "jsonl"])
def test_hidden_skips_leave_no_trace_even_if_all_labels_are_blank(kind, suffix, tmp_path):
    """A column without any value has another type: that must not stop the run either."""
    worlds = {
        "pairs": ([1, 0, 1], [None, 0, None], [None, None, None]),
        "rankings": ([[1, 2], [2, 1]], [None, [1, 1]], [None, None]),
    }
    found = []
    for number, labels in enumerate(worlds[kind]):
        source: Any = (pairs if kind == "pairs" else rankings)(labels)
        project = labelguard.init(tmp_path / str(number))
        if suffix == "jsonl":
            path = tmp_path / f"{number}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in source.to_pylist()))
            source = path
        made = privatize(project, source, mechanism="rr", skips="tie")
        found.append((rows(made), made.card["counts"], made.card["privacy"]))
    assert found == found[:1] * 3


def test_hidden_skips_do_not_go_with_public_ties(project):
    with pytest.raises(PolicyError, match="--skips tie"):
        privatize(
            project, pairs([1, 0]), mechanism="rr", skips="tie", ties="drop", tie_status_public=True
        )


def test_plans_look_at_no_label(project):
    make_release(pairs(["x", "y", "x"]), **PRICE, label_values="a=x,b=y", project=project)
    for labels in (["x", "y", "x"], [None, "z", "1"]):
        assert len(read_public_pairs(pairs(labels)).table) == 3


def test_later_policies_keep_the_rule_of_skips_and_the_condition(project):
    privatize(project, pairs([1, 0]), mechanism="rr", assignment_reactive=True)
    for options, said in (
        ({"skips": "tie", "assignment_reactive": True}, "another treatment of skips"),
        ({}, "--assignment-reactive"),
    ):
        name = f"p{len(options)}"
        policies.new(name, **PRICE, allow=["rr:uses=1"], project=project, **options)
        with pytest.raises(PolicyError, match=said):
            policies.activate(name, project)


def test_errors_of_labels_show_no_value(project):
    with pytest.raises(LabelguardError) as caught:
        privatize(project, pairs(["SECRET", "a", "SECRET"]))
    assert "SECRET" not in str(caught.value)
    assert "(1 more such row)" in str(caught.value)
