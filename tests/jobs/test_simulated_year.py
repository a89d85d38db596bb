"""The example examples/simulate_year.py: models follow preferences that drift."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import polars as pl
import pytest

from labelguard.report import overview

EXAMPLE = Path(__file__).parents[2] / "examples" / "simulate_year.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("simulate_year", EXAMPLE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def follows(weeks: pl.DataFrame) -> bool:
    """Whether the models in use keep up with the preferences in the last quarter."""
    last = weeks.tail(max(2, len(weeks) // 4))
    return bool((last["at best"] - last["in use"]).mean() < 0.1)  # type: ignore[operator]


@pytest.mark.slow  # a run of `retrain` a week, each in a process of its own
def test_models_follow_the_drift_and_the_project_holds(example: ModuleType, tmp_path: Path) -> None:
    weeks = example.simulate_year(tmp_path / "year", 16)
    assert follows(weeks)
    last = weeks.tail(4)
    assert (last["in use"] - last["of half-time"]).mean() > 0.04  # type: ignore[operator]
    assert overview.verify(tmp_path / "year").ok
    assert overview.budget(tmp_path / "year").lifetime.epsilon == pytest.approx(4)


@pytest.mark.slow
def test_a_gate_that_promotes_nothing_does_not_follow_it(
    example: ModuleType, tmp_path: Path
) -> None:
    assert not follows(example.simulate_year(tmp_path / "year", 6, confidence=1 - 1e-12))


def test_weights_turn_by_120_degrees_and_keep_their_length(example: ModuleType) -> None:
    first, last = example.weights(0.0), example.weights(1.0)
    cosine = first @ last / np.linalg.norm(first) / np.linalg.norm(last)
    assert np.degrees(np.arccos(cosine)) == pytest.approx(120)
    assert np.linalg.norm(first) == pytest.approx(np.linalg.norm(last))


@pytest.mark.slow
def test_two_labelers_agree_as_often_as_the_page_says(example: ModuleType) -> None:
    rng = np.random.default_rng(0)
    _, contrast = example.draw_pairs(20_000, 0, rng)
    own = example.SCALE * example.DEVIATION * rng.standard_normal((2, len(contrast), 5))
    first, second = 1 / (1 + np.exp(-np.einsum("nq,unq->un", contrast, example.weights(0) + own)))
    agreement = np.mean(first * second + (1 - first) * (1 - second))
    assert agreement == pytest.approx(0.73, abs=0.01)
