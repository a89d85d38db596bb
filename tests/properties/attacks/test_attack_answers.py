"""Attacks by columns that were made from answers, named as features or as the label.

Who won, a mean rating, a gold answer: such a column is the same for all labels of a pair, so that
no look at public columns tells it from the name of a system.
"""

import json
from typing import Any

import numpy as np
import polars as pl
import pytest
from support.codings import NUMBERS
from support.commands import run
from support.preferences import STATISTIC, compared
from support.releases import make_release

import labelguard as lg
from labelguard.errors import InvalidLabels, PolicyError
from labelguard.inputs.pairs import read_public_pairs
from labelguard.release.head import Head
from labelguard.release.privatize import plan

PAIRS = 60
ANSWERS = ("winner_model", "score", "rating", "vote", "rank", "is_better", "thumb", "grade")
OPTIONS = {"epsilon": 3, "delta": 1e-5, **STATISTIC, "components": 1}


def verdicts(seed, name="verdict"):
    """One label of each pair, and in two columns what it says of each side, in words."""
    label = np.random.default_rng(seed).choice([0, 0.5, 1], PAIRS)
    words = np.array(["lost", "tied", "won"])
    who = [f"worker {i % 12}" for i in range(PAIRS)]
    sides = {f"{name}_a": words[(2 * label).astype(int)]}
    sides[f"{name}_b"] = words[(2 - 2 * label).astype(int)]
    return pl.DataFrame(compared(range(PAIRS), labeler_id=who, label=label, **sides))


def public(head):
    """What a head holds beside its noisy sum: names, and the geometry of its coordinates."""
    state = [head.state[name].tobytes() for name in sorted(head.state)]
    return b"".join([*state, head.basis.projection.tobytes(), head.basis.metric.tobytes()])


@pytest.mark.quick("score", "winner_model", "verdict")
@pytest.mark.parametrize("name", [*ANSWERS, "verdict"])
def test_no_column_becomes_a_source_by_its_name_alone(name, tmp_path):
    """Two columns of who won gave away the exact numbers of wins and ties, at any ε."""
    found = set()
    for seed in (0, 1):
        lg.init(tmp_path / str(seed))
        options: dict[str, Any] = OPTIONS | {"features": f"source:{name}"}
        try:
            made = make_release(verdicts(seed, name), project=tmp_path / str(seed), **options)
            found.add(public(Head.load(made.path)))
        except InvalidLabels as error:
            found.add(str(error).encode())
    assert len(found) == 1


@pytest.mark.parametrize("name", ANSWERS)
def test_plans_take_no_column_of_answers(name):
    numbers = verdicts(0, name).with_columns(
        pl.col(f"{name}_{side}").replace_strict({"lost": 0, "tied": 1, "won": 2})
        for side in ("a", "b")
    )
    for table, features in ((verdicts(0, name), f"source:{name}"), (numbers, f"columns:{name}")):
        with pytest.raises(InvalidLabels, match=f"{name}_a"):
            lg.plan(table, epsilons=3, delta=1e-5, features=features, format="pairs")


def test_an_inspection_suggests_no_such_column():
    table = verdicts(0, "winner_model")
    found = lg.inspect(table)
    assert not [line for line in found.next if "winner" in line]


def battle(label=1, **more):
    """A battle with its winner in three columns."""
    return {
        "labeler_id": "u",
        "prompt": "p",
        "response_a": "x",
        "response_b": "y",
        "winner_model_a": int(label == 1),
        "winner_model_b": int(label == 0),
        "winner_tie": int(label == 0.5),
        **more,
    }


@pytest.mark.quick("label", "item_id-winner_tie-auto", "model_a-winner_model_a-pairs")
@pytest.mark.parametrize("named", ["auto", "pairs"])
@pytest.mark.parametrize("winner", ["winner_model_a", "winner_tie"])
@pytest.mark.parametrize("role", ["label", "item_id", "model_a"])
def test_who_won_can_be_nothing_else(role, winner, named, tmp_path):
    """As the label, one column of three would count ties as losses."""
    lg.init(tmp_path)
    columns = {role: winner} | ({"model_b": winner} if role == "model_a" else {})
    options = {"mechanism": "rr", "epsilon": 1, "format": named, "project": tmp_path}
    for row in (battle(), battle() | {"label": 1}):
        with pytest.raises(InvalidLabels, match=winner):
            make_release([row], columns=columns, **options)


@pytest.mark.parametrize("table", [[battle()], [battle() | {"label": 1}]])
def test_who_won_is_no_feature_even_if_it_is_declared(table):
    for features in ("source:winner_model", "columns:winner_model", "source:model,by=winner_tie"):
        more = {"model_a": "m", "model_b": "n"}
        named = {"features": features, "public_columns": ["winner_model", "winner_tie", "model"]}
        with pytest.raises(InvalidLabels, match="says who won"):
            lg.plan([row | more for row in table], epsilons=3, **named)


def test_half_an_answer_is_no_label(tmp_path):
    """`--columns label=NAME`, as a missing label has it, led to ties that count as losses."""
    lg.init(tmp_path)
    row = {"labeler_id": "u", "prompt": "p", "response_a": "x", "response_b": "y"}
    for end in ("a", "b"):
        with pytest.raises(InvalidLabels, match=f"won_{end} tells of one side"):
            rows = [row | {"won_a": 1, "won_b": 0}]
            make_release(rows, columns={"label": f"won_{end}"}, project=tmp_path)


def test_a_declaration_belongs_to_the_policy(tmp_path):
    """It is made before a label is read, is never another one, and stands on the card."""
    lg.init(tmp_path)
    options = OPTIONS | {"features": "source:verdict", "project": tmp_path, "uses": 3}
    options["label_values"] = NUMBERS
    last = pl.col("response_a").str.slice(-1)
    words = verdicts(0).with_columns(
        verdict_a=pl.format("system {}", last), verdict_b=pl.lit("other")
    )
    with pytest.raises(InvalidLabels, match="column verdict_a"):
        plan(words, **options)
    seen = plan(words, **options, public_columns=["verdict"]).preview
    assert list(seen.public_columns) == ["verdict"]
    made = make_release(words, **options, public_columns="verdict")
    assert made.card["privacy"]["public_columns"] == ["verdict"]
    assert "`verdict`: declared public" in (made.path / "CARD.md").read_text()
    assert make_release(words, **options).reused
    assert make_release(words, **options, public_columns=["verdict", "verdict"]).reused
    for other in (["verdict", "more"], [], ["more"]):
        with pytest.raises(PolicyError, match="--public-column"):
            plan(words, **options, public_columns=other)
    assert lg.policies.show(project=tmp_path).public_columns == ("verdict",)
    assert lg.score(made, words).height == PAIRS
    kept = {"epsilon": 3, "delta": 1e-5, "allow": ["statistic:releases=1"], "project": tmp_path}
    lg.policies.new("without", **kept)
    with pytest.raises(PolicyError, match="declared verdict public"):
        lg.policies.activate("without", tmp_path)


@pytest.mark.parametrize("names", [[""], [" "], ["a\nb"], [3]])
def test_what_is_no_name_declares_nothing(names):
    with pytest.raises(PolicyError, match="name of a column"):
        lg.plan(verdicts(0), epsilons=3, features="source:verdict", public_columns=names)


def test_the_option_is_typed_and_proposed(tmp_path):
    path = tmp_path / "labels.parquet"
    verdicts(0).with_columns(verdict_a=pl.lit("one"), verdict_b=pl.lit("two")).write_parquet(path)
    features = ["plan", str(path), "--features", "source:verdict", "--epsilons", "8"]
    run(*features, code=1)
    run(*features, "--public-column", "verdict", "--json")
    looked = run("inspect", path, "--public-column", "verdict", "--json")
    assert "--public-column verdict" in json.loads(looked.stdout)["next"][0]


# Columns that have a role, under the names that `--columns` gives them.
TAKEN = {
    "labeler_id": "worker",
    "prompt": "asked",
    "response_a": "left",
    "response_b": "right",
    "item_id": "item",
    "record_id": "record",
    "submitted_at": "at",
}


def compare(renamed):
    rows = {role: [f"{role} {n}" for n in range(4)] for role in TAKEN}
    rows |= {"submitted_at": ["2024-01-01"] * 4, "model_a": ["m"] * 4, "model_b": ["n"] * 4}
    table = pl.DataFrame(rows | {"label": [0, 1, 0, 1], "height": [1, 2, 3, 4]})
    return table.rename(TAKEN) if renamed else table


@pytest.mark.quick("labeler_id-False", "response_b-True")
@pytest.mark.parametrize("renamed", [False, True])
@pytest.mark.parametrize("role", TAKEN)
def test_who_labelled_what_and_when_is_no_feature(role, renamed):
    """Names of sources and strata are in a head: ids of labelers would be published in clear."""
    columns = TAKEN if renamed else {}
    column = columns.get(role, role)
    sides = {"height_a": column, "height_b": "height"}
    asked = [
        (f"source:model,by={column}", {}),
        ("source:height", {"height_a": column, "height_b": column}),
        ("columns:height", sides),
    ]
    for features, named in asked:
        with pytest.raises(InvalidLabels, match=f"column {column} is {role}: a column with a role"):
            read_public_pairs(
                compare(renamed),
                label_values=NUMBERS,
                columns={**columns, **named},
                features=features,
                public_columns=["model", "height", column],
            )
    named = {"columns": columns, "features": "source:model", "public_columns": "model"}
    named["label_values"] = NUMBERS
    assert read_public_pairs(compare(renamed), **named).table.num_rows
