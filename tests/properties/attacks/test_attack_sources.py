"""Attacks by whoever knows which system wrote the chosen response, and which the rejected one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from support.preferences import STATISTIC

import labelguard as lg
from labelguard.errors import InvalidLabels
from labelguard.ingest import pairs, query
from labelguard.ingest.pairs import read_pairs
from labelguard.release.head import Head

ITEMS = 40
OPTIONS = STATISTIC | {
    "features": "source:model,by=topic",
    "public_columns": ["model", "topic"],
    "components": 2,
}


def survey(hypothesis: int) -> pl.DataFrame:
    """An export sorted by what was chosen; three labels are those that `hypothesis` spells."""
    rng = np.random.default_rng(0)
    item = np.tile(np.arange(ITEMS), 2)
    label = rng.integers(0, 2, len(item))
    for bit in range(3):
        label[3 + bit] = hypothesis >> bit & 1
    texts = [f"answer {i}" for i in item], [f"reply {i}" for i in item]
    models = [f"model {i % 4}" for i in item], [f"model {i % 3}" for i in item]
    return pl.DataFrame(
        {
            "labeler_id": np.repeat(["worker 1", "worker 2"], ITEMS),
            "prompt": [f"question {i}" for i in item],
            "topic": [f"topic {i % 5 % 2}" for i in item],
            "chosen": np.where(label == 1, *texts),
            "rejected": np.where(label == 1, *texts[::-1]),
            "model_chosen": np.where(label == 1, *models),
            "model_rejected": np.where(label == 1, *models[::-1]),
        }
    ).sort("model_chosen", "model_rejected", "chosen")


def published(hypothesis: int, project: Path) -> tuple[object, ...]:
    """What a release tells beside its noisy sum: names, coordinates, card, ids."""
    lg.init(project)
    release = lg.privatize(survey(hypothesis), project=project, epsilon=0.1, delta=1e-5, **OPTIONS)
    head = Head.load(release.path)
    state = [head.state[name].tobytes() for name in sorted(head.state)]
    arrays = [head.basis.projection.tobytes(), head.basis.metric.tobytes()]
    card = {**release.card["statistic"], "clip": repr(release.card["statistic"]["clip"])}
    rows = sorted(lg.load(release, "polars")["item_id"])
    return (*state, *arrays, str(card), *rows)


def test_sources_of_chosen_and_rejected_tell_no_label(tmp_path: Path) -> None:
    found = {published(hypothesis, tmp_path / str(hypothesis)) for hypothesis in (0, 3, 5, 7)}
    assert len(found) == 1


@pytest.mark.slow
def test_sources_that_do_not_turn_with_the_sides_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: with the file's order of sides, coordinates tell who was chosen."""
    turned: Callable[..., dict[str, str]] = query._of_pair
    monkeypatch.setattr(query, "_turned", turned)
    monkeypatch.setattr(pairs, "refuse_several", lambda *found: None)
    found = {published(hypothesis, tmp_path / str(hypothesis)) for hypothesis in (0, 7)}
    assert len(found) == 2


def test_one_side_alone_is_no_stratum(tmp_path: Path) -> None:
    """What wrote the chosen response, as a stratum, would be published with its pair."""
    lg.init(tmp_path / "project")
    features = {"features": "source:model,by=model_chosen"}
    with pytest.raises(InvalidLabels, match="column model_chosen tells of the text that was"):
        lg.privatize(
            survey(0), project=tmp_path / "project", epsilon=1, delta=1e-5, **OPTIONS | features
        )


TAKEN = {
    "labeler_id": "worker",
    "prompt": "asked",
    "response_a": "left",
    "response_b": "right",
    "item_id": "item",
    "record_id": "record",
    "submitted_at": "at",
}
"""Columns that have a role, under the names that `--columns` gives them."""


def compared(renamed: bool) -> pl.DataFrame:
    rows = {role: [f"{role} {n}" for n in range(4)] for role in TAKEN}
    rows |= {"submitted_at": ["2024-01-01"] * 4, "model_a": ["m"] * 4, "model_b": ["n"] * 4}
    table = pl.DataFrame(rows | {"label": [0, 1, 0, 1], "height": [1, 2, 3, 4]})
    return table.rename(TAKEN) if renamed else table


@pytest.mark.quick("labeler_id-False", "response_b-True")
@pytest.mark.parametrize("renamed", [False, True])
@pytest.mark.parametrize("role", TAKEN)
def test_who_labelled_what_and_when_is_no_feature(role: str, renamed: bool) -> None:
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
            read_pairs(
                compared(renamed),
                columns={**columns, **named},
                features=features,
                public_columns=["model", "height", column],
            )
    named = {"columns": columns, "features": "source:model", "public_columns": "model"}
    assert read_pairs(compared(renamed), **named).table.num_rows
