"""Attacks by whoever controls the order of an export, which may be sorted by its labels."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from support.preferences import STATISTIC

import labelguard as lg
from labelguard.release.head import Head

LABELERS, ITEMS = 6, 40


def survey(hypothesis: int, *, labelers: int = LABELERS, items: int = ITEMS) -> pl.DataFrame:
    """An export sorted by what was chosen; labeler 0 gave the labels that `hypothesis` spells out.

    Numbers are attached whose sums are rounded differently in every order.
    """
    rng = np.random.default_rng(0)
    labeler = np.repeat(np.arange(labelers), items)
    item = np.tile(np.arange(items), labelers)
    label = rng.integers(0, 2, len(item))
    for bit in range(3):
        label[bit] = hypothesis >> bit & 1
    sides = [f"answer {i} {'long' * (i % 5)}" for i in item], [f"reply {i}" for i in item]
    chosen = np.where(label == 1, *map(np.array, sides))
    rejected = np.where(label == 1, *map(np.array, sides[::-1]))
    scores = rng.normal(size=(2, items))[:, item]
    return pl.DataFrame(
        {
            "labeler_id": [f"worker {u}" for u in labeler],
            "prompt": [f"question {i}" for i in item],
            "chosen": chosen,
            "rejected": rejected,
            "score_chosen": np.where(label == 1, *scores),
            "score_rejected": np.where(label == 1, *scores[::-1]),
        }
    ).sort("chosen", "rejected", "labeler_id")


@pytest.fixture
def projects(tmp_path: Path) -> Any:
    """One fresh project after the other."""
    number = iter(range(1000))

    def make() -> Path:
        path = tmp_path / str(next(number))
        lg.init(path)
        return path

    return make


def test_the_bits_of_a_published_head_tell_no_label(projects: Any) -> None:
    published = set()
    for hypothesis in range(8):
        options = STATISTIC | {
            "features": "columns:score+length",
            "public_columns": ["score"],
            "components": 2,
        }
        release = lg.privatize(
            survey(hypothesis, labelers=2, items=600),
            project=projects(),
            epsilon=0.1,
            delta=1e-5,
            **options,
        )
        head = Head.load(release.path)
        card = release.card["statistic"] | {"clip": repr(release.card["statistic"]["clip"])}
        state = [head.basis.projection.tobytes(), head.basis.metric.tobytes(), str(card)]
        published.add(tuple(state + [head.state[name].tobytes() for name in sorted(head.state)]))
    assert len(published) == 1


def test_what_is_tuned_publicly_tells_no_label(projects: Any) -> None:
    """Tuning simulates labels on the rows: their order must not decide which row gets which."""
    shapes = {
        str(
            lg.privatize(
                survey(hypothesis),
                project=projects(),
                epsilon=1,
                delta=1e-5,
                mechanism="statistic",
                features="columns:score+length",
                public_columns=["score"],
            ).card["statistic"]
        )
        for hypothesis in range(2)
    }
    assert len(shapes) == 1


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["rr", "statistic"])
def test_an_export_sorted_by_labels_is_the_same_request_whichever_labels_it_has(
    mechanism: str, projects: Any
) -> None:
    project = projects()
    options: dict[str, Any] = {"project": project, "epsilon": 3, "delta": 1e-5}
    if mechanism == "statistic":
        options |= STATISTIC
    first = lg.privatize(survey(0), **options)
    unchanged = lg.privatize(survey(0), **options)
    changed = lg.privatize(survey(1), **options)
    shuffled = lg.privatize(survey(2).sample(fraction=1, shuffle=True, seed=1), **options)
    assert {unchanged.id, changed.id, shuffled.id} == {first.id}


@pytest.mark.slow
def test_a_plan_tells_no_label(tmp_path: Path) -> None:
    from labelguard.planner.forecast import plan

    options: dict[str, Any] = {
        "epsilons": (1.0,),
        "features": "columns:score+length",
        "public_columns": ["score"],
    }
    plans = {str(asdict(plan(survey(hypothesis), **options))) for hypothesis in range(3)}
    assert len(plans) == 1
