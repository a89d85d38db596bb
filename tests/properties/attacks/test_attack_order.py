"""Attacks by whoever controls the order of an export, which may be sorted by its labels, or knows
which system wrote the chosen response, or puts one pair into two rankings.
"""

from dataclasses import asdict
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from support import world
from support.preferences import STATISTIC
from support.releases import make_release

import labelguard as lg
from labelguard.errors import InvalidLabels
from labelguard.inputs import pairs, query
from labelguard.planner.forecast import plan
from labelguard.release.head import Head

NUMBERS: dict[str, Any] = {"features": "columns:score+length", "public_columns": ["score"]}
MODELS: dict[str, Any] = {
    "features": "source:model,by=topic",
    "public_columns": ["model", "topic"],
    "components": 2,
}


def survey(hypothesis, labelers=6, items=40):
    """An export sorted by what was chosen; labeler 0 gave the labels that `hypothesis` spells out.

    Numbers are attached whose sums are rounded differently in every order.
    """
    rng = np.random.default_rng(0)
    item = np.tile(np.arange(items), labelers)
    label = rng.integers(0, 2, len(item))
    for bit in range(3):
        label[3 + bit] = hypothesis >> bit & 1
    texts = [f"answer {i} {'long' * (i % 5)}" for i in item], [f"reply {i}" for i in item]
    models = [f"model {i % 4}" for i in item], [f"model {i % 3}" for i in item]
    columns: dict[str, Any] = {
        "labeler_id": [f"worker {u}" for u in np.repeat(np.arange(labelers), items)],
        "prompt": [f"question {i}" for i in item],
        "topic": [f"topic {i % 5 % 2}" for i in item],
    }
    scores = rng.normal(size=(2, items))[:, item]
    for prefix, sides in (("", texts), ("model_", models), ("score_", scores)):
        columns[f"{prefix}chosen"] = np.where(label == 1, *map(np.array, sides))
        columns[f"{prefix}rejected"] = np.where(label == 1, *map(np.array, sides[::-1]))
    return pl.DataFrame(columns).sort("model_chosen", "chosen", "rejected", "labeler_id")


def release_facts(hypothesis, here, options, items):
    """What a release tells beside its noisy sum: names, coordinates, card, ids."""
    home = lg.init(here / str(hypothesis))
    asked = STATISTIC | options | {"components": 2}
    raw = survey(hypothesis, 2, items)
    release = make_release(raw, project=home, epsilon=0.1, delta=1e-5, **asked)
    head = Head.load(release.path)
    card = release.card["statistic"] | {"clip": repr(release.card["statistic"]["clip"])}
    state = [head.basis.projection.tobytes(), head.basis.metric.tobytes(), str(card)]
    rows = sorted(lg.load(release, "polars")["item_id"])
    return (*state, *(head.state[name].tobytes() for name in sorted(head.state)), *rows)


@pytest.mark.parametrize(
    ("options", "items"), [(NUMBERS, 600), (MODELS, 40)], ids=["numbers", "models"]
)
def test_the_bits_of_a_published_head_tell_no_label(options, items, tmp_path):
    assert len({release_facts(number, tmp_path, options, items) for number in (0, 7)}) == 1


@pytest.mark.slow
def test_sources_that_do_not_turn_with_the_sides_would(tmp_path, monkeypatch):
    """The control: with the file's order of sides, coordinates tell who was chosen."""
    monkeypatch.setattr(query, "_ordered_feature_sql", query._pair_feature_sql)
    monkeypatch.setattr(pairs, "refuse_conflicting_features", lambda *found: None)
    assert len({release_facts(hypothesis, tmp_path, MODELS, 40) for hypothesis in (0, 7)}) == 2


def test_one_side_alone_is_no_stratum(tmp_path):
    """What wrote the chosen response, as a stratum, would be published with its pair."""
    options = STATISTIC | MODELS | {"features": "source:model,by=model_chosen"}
    with pytest.raises(InvalidLabels, match="column model_chosen tells of the text that was"):
        make_release(survey(0), project=lg.init(tmp_path), epsilon=1, delta=1e-5, **options)


def test_what_is_tuned_publicly_tells_no_label(tmp_path):
    """Tuning simulates labels on the rows: their order must not decide which row gets which."""
    options = NUMBERS | {"mechanism": "statistic", "epsilon": 1, "delta": 1e-5}
    shapes = {
        str(
            make_release(survey(n), project=lg.init(tmp_path / str(n)), **options).card["statistic"]
        )
        for n in (0, 5)
    }
    assert len(shapes) == 1


@pytest.mark.slow
def test_a_plan_tells_no_label():
    assert len({str(asdict(plan(survey(n), epsilons=(1.0,), **NUMBERS))) for n in (0, 3, 5)}) == 1


@pytest.mark.quick("record_id-rr")
@pytest.mark.parametrize("mechanism", ["rr", "statistic"])
@pytest.mark.parametrize("column", ["record_id", "submitted_at", None])
def test_an_export_sorted_by_labels_is_the_same_request_whichever_labels_it_has(
    column, mechanism, tmp_path
):
    """Where ids number its rows, one changed label renumbers them."""
    lg.init(tmp_path)
    tables = [survey(0), survey(5), survey(2).sample(fraction=1, shuffle=True, seed=1), survey(0)]
    if column:
        tables = [table.with_row_index(column) for table in tables]
    options: dict[str, Any] = STATISTIC if mechanism == "statistic" else {"mechanism": "rr"}
    made = [make_release(t, project=tmp_path, epsilon=3, delta=1e-5, **options) for t in tables]
    assert {release.id for release in made} == {made[0].id}


def rankings(label):
    """Everybody compares X in two rankings, the second time the other way round."""
    rows = [
        {
            "labeler_id": f"worker {labeler}",
            "ranking_id": f"{ranking} of {labeler}",
            "prompt": f"question {item}",
            "response_a": "yes",
            "response_b": "no",
            "label": said if item == "X" else 1,
        }
        for labeler in range(40)
        for ranking, items, said in (("one", "XAB", label), ("two", "XCDE", 1 - label))
        for item in items
    ]
    return pa.Table.from_pylist(rows)


def test_which_of_two_rankings_a_pair_counts_in_does_not_depend_on_its_label(tmp_path, monkeypatch):
    """Rankings are kept or dropped whole: which of the two has room depends on where it counts."""
    world.fix_randomness(monkeypatch)
    options = {"mechanism": "rr", "epsilon": 3, "delta": 1e-5, "max_labels_per_labeler": 3}
    kept = []
    for label in (0, 1):
        home = lg.init(tmp_path / str(label))
        release = make_release(rankings(label), project=home, **options)
        kept.append(sorted(lg.load(release)["item_id"]))
    assert kept[0] == kept[1]
