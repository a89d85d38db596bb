"""Attacks that make a person somebody else, so that their labels get a fresh budget.

Each one charged everybody (or one person) again, or turned every label around, without a word.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.preferences import ASKED, TABLE, dump
from support.releases import make_release

import labelguard as lg
from labelguard.errors import InvalidLabels, LabelguardError, PolicyError
from labelguard.project.erasure import remove_labeler
from labelguard.project.linking import link_table, link_two_ids, list_people
from labelguard.project.opening import OpenProject
from labelguard.report import overview

PRICE: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "max_labels_per_labeler": 12}
WHO = TABLE["labeler_id"]

JOSE, JOSE_APART = "Jos\u00e9", "Jose\u0301"
SPELLINGS = [
    (JOSE, JOSE_APART),
    ("worker 0", "worker 0 "),
    ("worker 0", "\u200bworker 0"),
    ("worker 0", "Worker 0"),
    ("worker 0", "worker\u00a00"),
    ("stra\u00dfe", "STRASSE"),
    ("7", "07"),
    ("7", "7.0"),
    ("7", "7.00"),
    ("0", ".0"),
    ("7", "+7"),
    ("7", "\uff17"),
    ("7", "\u0667"),
    ("-7", "-007"),
    ("-7", "\u22127"),
    ("100", "1e2"),
    ("7.5", "7.50"),
    # What cannot be seen, and what keeps an accent from its letter.
    (JOSE, "Jose\u200d\u0301"),
    ("\uac00", "\u1100\u200b\u1161"),
    ("worker 0", "worker 0\ufe0f"),
    ("worker 0", "wor\u034fker 0"),
    ("worker 0", "worker 0\u3164"),
    ("worker 0", "worker\u28000"),
    ("worker 0", "worker 0\ue000"),
    ("worker 0", "worker 0\U000e0100"),
]


def rename(name):
    """The table with worker 0 under another name."""
    return _with("labeler_id", pc.if_else(pc.equal(WHO, "worker 0"), name, WHO))


def _with(column, values):
    return TABLE.set_column(TABLE.schema.get_field_index(column), column, values)


def read_refusal(project, table, match, **options):
    """What the refusal says; nothing was charged and nothing released."""
    before = dump(project.state)
    try:
        made = make_release(table, **options, project=project)
    except LabelguardError as error:
        assert error.exit_code == 1
        assert match in str(error), str(error)
        found = dump(project.state)
        assert {n: t for n, t in found.items() if n != "meta"} == {
            n: t for n, t in before.items() if n != "meta"
        }
        return str(error)
    charged = overview.read_budget(project.state).allowances[0].used
    pytest.fail(f"{made.card['counts']['charged']} labels were charged afresh, {charged} in all")


# ---------------------------------------------------------------- another spelling


@pytest.mark.quick("worker 0")
@pytest.mark.parametrize(
    ("one", "other"),
    [  # in one file every spelling is tried in every run
        *SPELLINGS[:9],
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in SPELLINGS[9:]),
    ],
)
def test_a_second_spelling_in_a_later_file_buys_nothing(one, other, project):
    make_release(rename(one), **PRICE, project=project)
    said = read_refusal(project, rename(other), "differ only in how they are written", **PRICE)
    ring = OpenProject.open(project.state).keys
    pseudonym = ring.hash_labelers("files", [one]).astype(">u8").tobytes().hex()
    assert pseudonym in said  # of this input the id, of what the ledger knows only a pseudonym
    assert not any(name in said for name in ("worker 1", "worker 2"))


@pytest.mark.quick("Jos\\xe9-Jose\\u0301", "worker 0-Worker 0")
@pytest.mark.parametrize(("one", "other"), SPELLINGS)
def test_two_spellings_in_one_file_are_two_budgets_of_nobody(one, other, project):
    half = [
        other if name == "worker 0" and row % 2 else one if name == "worker 0" else name
        for row, name in enumerate(WHO.to_pylist())
    ]
    table = _with("labeler_id", pa.array(half))
    said = read_refusal(project, table, "differ only in how they are written", **PRICE)
    assert "labelguard people link" in said and "Never rename an id that was charged" in said
    assert "worker 3" not in said


@pytest.mark.quick(".0", "nan")
@pytest.mark.parametrize("name", [".0", "7.0", "1.5", "1e2", "nan", "v1.0"])
def test_an_id_is_text_whatever_number_it_looks_like(name, project):
    """And what a column of floating-point numbers makes of ids is no id: 7 would come as 7.0."""
    assert make_release(rename(name), **PRICE, project=project).card["counts"]["labelers"] > 1
    numbers = _with("labeler_id", pa.array([7.0] * len(TABLE)))
    read_refusal(project, numbers, "expected text or whole numbers, found type DOUBLE", **PRICE)


@pytest.mark.parametrize(("one", "other"), [("7", "7.0"), ("07", "7"), ("Worker 0", "worker 0")])
def test_who_was_linked_under_another_spelling_is_not_outside_it(one, other, tmp_path, project):
    """A list that a spreadsheet wrote with 7.0 would link nobody."""
    links = tmp_path / "links.csv"
    links.write_text(f"labeler_id,same_as\n{one},worker 1\n")
    link_table(links, project)
    read_refusal(project, rename(other), "differ only in how they are written", **PRICE)


def test_a_link_of_another_spelling_of_somebody_is_refused(project):
    link_two_ids("7", "8", project)
    with pytest.raises(InvalidLabels, match="differ only in how they are written"):
        link_two_ids("7.0", "9", project)
    assert len(list_people(project).linked) == 2
    link_two_ids("7", "7.0", project)
    assert link_two_ids("7.0", "9", project).linked == 1


def test_spellings_that_look_alike_are_told_apart_in_the_message(project):
    table = pa.concat_tables([rename(JOSE), rename(JOSE_APART)])
    with pytest.raises(InvalidLabels, match=r"'Jose\\u0301' and 'Jos\\xe9'"):
        make_release(table, **PRICE, project=project)


# ---------------------------------------------------------------- another source


@pytest.mark.parametrize("unit", ["labeler", "item"])
def test_another_labeler_column_is_refused(unit, project):
    table = TABLE.append_column("account", pc.binary_join_element_wise("account of", WHO, " "))
    make_release(table, **PRICE, unit=unit, project=project)
    said = read_refusal(
        project,
        table,
        "differs in labeler_id",
        **PRICE,
        unit=unit,
        columns={"labeler_id": "account"},
    )
    assert "was 'labeler_id', found 'account'" in said


@pytest.mark.slow
def test_another_namespace_in_the_configuration_is_refused(project):
    make_release(TABLE, **PRICE, project=project)
    config = project.state / "labelguard.toml"
    config.write_text(config.read_text().replace('source = "files"', 'source = "tool"'))
    renamed = lg.find(project.state)
    assert renamed.namespace == "tool"
    read_refusal(renamed, TABLE, "labelguard source add tool", **PRICE)


def test_dropping_the_labeler_column_is_refused(project):
    make_release(TABLE, **PRICE, unit="item", project=project)
    said = read_refusal(
        project, TABLE.drop_columns(["labeler_id"]), "differs in labeler_id", **PRICE, unit="item"
    )
    assert "found none" in said


def test_swapped_responses_turn_no_label_around(project):
    half = len(TABLE) // 2
    make_release(TABLE.slice(0, half), **PRICE, project=project)
    swapped = {"response_a": "response_b", "response_b": "response_a"}
    read_refusal(project, TABLE.slice(half), "differs in response_a", **PRICE, columns=swapped)


@pytest.mark.slow
def test_nor_do_responses_that_change_their_part_with_another_layout(project):
    make_release(TABLE, **PRICE, project=project)
    columns = {"chosen": "response_b", "rejected": "response_a"}
    table = TABLE.drop_columns(["label"])
    read_refusal(project, table, "differs in chosen", **PRICE, columns=columns)


def test_item_ids_cannot_be_renamed_or_dropped(project, tmp_path):
    items = pa.array([f"i{n}" for n in ASKED.item])
    table = TABLE.append_column("item_id", items).append_column("other", items)
    make_release(table, **PRICE, project=project)
    read_refusal(project, table, "differs in item_id", **PRICE, columns={"item_id": "other"})
    read_refusal(project, TABLE, "differs in item_id", **PRICE)


# ---------------------------------------------------------------- who has left


def test_whoever_left_does_not_come_back_as_one_person_with_another_id(project):
    make_release(TABLE, **PRICE, project=project)
    remove_labeler("worker 0", "erased", project)
    read_refusal(project, rename("Worker 0"), "differ only in how they are written", **PRICE)
    with pytest.raises(PolicyError, match="has left"):
        link_two_ids("worker 0", "Worker 0", project)


@pytest.mark.slow
def test_nor_does_whoever_left_before_any_release(project):
    remove_labeler("worker 0", "erased", project, never_seen=True)
    read_refusal(project, rename("Worker 0"), "differ only in how they are written", **PRICE)


# ---------------------------------------------------------------- a household


def test_a_member_of_a_household_is_none_alone_in_another_spelling(project):
    """The uses of the household stayed unused, and each of its members had their own."""
    link_two_ids("worker 0", "worker 1", project)
    read_refusal(project, rename("Worker 0"), "differ only in how they are written", **PRICE)
