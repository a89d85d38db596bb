"""The example examples/simulate_year.py: models follow preferences that drift."""

from pathlib import Path

import pytest
from support.pages import script

from labelguard.report import overview

EXAMPLE = Path(__file__).parents[2] / "examples" / "simulate_year.py"


@pytest.fixture(scope="module")
def example():
    return script(EXAMPLE)


def follows(weeks):
    """Whether the models in use keep up with the preferences in the last quarter."""
    last = weeks.tail(max(2, len(weeks) // 4))
    return bool((last["at best"] - last["in use"]).mean() < 0.1)  # type: ignore[operator]


@pytest.mark.slow  # a run of `retrain` a week, each in a process of its own
def test_models_follow_the_drift_and_the_project_holds(example, tmp_path):
    weeks = example.simulate_year(tmp_path / "year", 16)
    assert follows(weeks)
    last = weeks.tail(4)
    assert (last["in use"] - last["of half-time"]).mean() > 0.04  # type: ignore[operator]
    assert overview.verify(tmp_path / "year").ok
    assert overview.budget(tmp_path / "year").lifetime.epsilon == pytest.approx(4)


@pytest.mark.slow
def test_a_gate_that_promotes_nothing_does_not_follow_it(example, tmp_path):
    assert not follows(example.simulate_year(tmp_path / "year", 6, confidence=1 - 1e-12))
