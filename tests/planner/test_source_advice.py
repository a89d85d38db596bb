"""The public rule for features of sources: alone, or as one more group."""

import numpy as np
import pyarrow as pa
import pytest
from support.preferences import compared

from labelguard.learning.features import Group
from labelguard.mechanisms.statistic import Rows
from labelguard.planner import components
from labelguard.planner.components import Directions, make_noise_chooser
from labelguard.planner.forecast import plan


def indicators(pairs, sources):
    x = np.zeros((len(pairs), sources), np.float32)
    for row, (one, other) in enumerate(pairs):
        x[row, one] += 1 / 3
        x[row, other] -= 1 / 3
    return x


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [([(0, 1), (1, 2), (2, 3)], 3), ([(0, 1), (2, 3)], 2), ([(0, 1), (1, 2), (2, 0), (3, 3)], 2)],
)
def test_directions_of_comparisons_are_sources_less_islands_of_them(pairs, expected):
    x = indicators(pairs, 4)
    assert components.count_directions(x) == expected
    assert np.linalg.matrix_rank(x.astype(np.float64)) == expected


def test_a_source_that_was_seen_once_among_many_is_a_direction():
    rng = np.random.default_rng(0)
    pairs = [tuple(rng.choice(40, 2, replace=False)) for _ in range(20_000)]
    assert components.count_directions(indicators([*pairs, (40, 0)], 41)) == 40


def test_each_epsilon_is_told_what_its_components_have_room_for():
    """Sources alone are counted, as a release on them would, whatever stands beside them."""
    rng = np.random.default_rng(0)
    pairs = [tuple(rng.choice(20, 2, replace=False)) for _ in range(2_000)]
    own = indicators([(int(a), int(b)) for a, b in pairs], 20)
    rows = Rows(np.arange(2_000), np.arange(2_000) % 100, 100)
    x = np.column_stack([rng.standard_normal((2_000, 6)), own]).astype(np.float32)
    groups = (Group("other", 0, 6, None, None), Group("source:model", 6, 26, None, None))
    buys = {epsilon: make_noise_chooser(epsilon, 1e-5) for epsilon in (0.1, 8.0)}
    (note,) = components.describe_room_for_sources(x, rows, groups, buys)
    few = Directions.of_features(own, rows).best_component_count(buys[0.1])
    assert few < 19
    assert "19 directions" in note and f" {few} at ε = 0.1, 19 at ε = 8" in note
    assert "at ε = 0.1: --features length+style+minilm+source:model" in note
    assert "style at ε = 8: --features style+source:model" in note
    assert (note,) == components.describe_room_for_sources(
        own, rows, (Group("source:model", 0, 20, None, None),), buys
    )
    assert components.describe_room_for_sources(x, rows, groups[:1], buys) == ()


def test_a_plan_says_it():
    rng = np.random.default_rng(1)
    first, second = rng.integers(0, 3, (2, 120))
    models = {"model_a": first.astype(str), "model_b": second.astype(str)}
    rows = compared(range(120), labeler_id=[f"worker {n % 30}" for n in range(120)], **models)
    found = plan(pa.table(rows), epsilons=(8.0,), features="source:model", public_columns=["model"])
    assert any("source:model has 2 directions" in note for note in found.notes)
