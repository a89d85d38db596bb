"""What is told of a model's quality, and from what."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from labelguard_trainer.training.evaluate import WinTieLoss, accuracy, evaluate, win_tie_loss
from labelguard_trainer.training.holdout import held_out

from labelguard.errors import LabelguardError

FALSE_FAILURES = 1e-6
"""How often a statistical test below may fail by chance: 4.9 standard errors."""


def _said(rows: int, value: float = math.nan) -> np.ndarray:
    return np.full(rows, value)


@pytest.mark.parametrize("error", [0.1, 0.3])
def test_accuracy_on_flipped_rows_is_that_on_true_labels(error: float) -> None:
    draw = np.random.default_rng(3)
    rows, gamma = 200_000, draw.choice([0.1, 0.4], 200_000)
    right = draw.random(rows) >= error
    kept = draw.random(rows) >= gamma  # the released label is the true one
    z = np.where(right == kept, 1.0, -1.0) * draw.exponential(size=rows)
    found = evaluate(z, flip_probability=gamma, label_probability=_said(rows)).flipped
    assert found is not None and not found.uninformative
    assert abs(found.accuracy - (1 - error)) < 4.9 * found.standard_error < 0.02
    uncorrected = float((z > 0).mean())
    assert abs(uncorrected - (1 - error)) > 0.05  # the negative control


def test_each_kind_of_row_is_measured_in_its_own_way() -> None:
    gamma = np.array([0.1, math.nan, math.nan, math.nan])
    target = np.array([math.nan, 0.9, 0.2, math.nan])
    z = np.array([1.0, 2.0, 1.0, -1.0])
    found = evaluate(z, flip_probability=gamma, label_probability=target, probes=[1.0, 0.0])
    assert found.flipped and found.teacher and found.labels and found.probes
    assert (found.flipped.rows, found.teacher.rows, found.labels.rows) == (1, 2, 1)
    assert found.teacher.agreement == 0.5 and found.labels.agreement == 0
    assert found.probes.accuracy == 0.75  # z = 0 is half a vote
    log_loss = [0.9 * math.log1p(math.exp(-2)) + 0.1 * math.log1p(math.exp(2))]
    log_loss += [0.2 * math.log1p(math.exp(-1)) + 0.8 * math.log1p(math.exp(1))]
    assert found.teacher.log_loss == pytest.approx(sum(log_loss) / 2)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_no_margin_has_less_log_loss_than_the_teacher(probabilities: list[float]) -> None:
    target = np.array(probabilities)
    clipped = np.clip(target, 1e-12, 1 - 1e-12)
    z = np.log(clipped) - np.log1p(-clipped)
    own = evaluate(z, flip_probability=_said(len(z)), label_probability=target).teacher
    other = evaluate(z + 0.3, flip_probability=_said(len(z)), label_probability=target).teacher
    assert own and other
    assert own.log_loss == pytest.approx(own.least_log_loss, abs=1e-9)
    assert other.log_loss >= own.least_log_loss - 1e-12


def test_few_rows_at_much_noise_are_called_uninformative() -> None:
    found = evaluate(np.ones(30), flip_probability=_said(30, 0.45), label_probability=_said(30))
    assert found.flipped and found.flipped.uninformative


def test_agreement_on_every_row_is_no_certainty() -> None:
    assert accuracy(np.ones(10)).standard_error > 0.05


def test_a_judge_that_favours_a_position_decides_nothing() -> None:
    assert win_tie_loss([1, 1, -1, 1], [-1, -1, 1, -1]) == WinTieLoss(0, 4, 0)
    assert win_tie_loss([1, -1, 0, 2], [2, -3, 0, 0]) == WinTieLoss(1, 2, 1)


def test_rows_of_an_item_are_held_out_together_and_again_in_the_next_release() -> None:
    items = [f"item-{row % 5_000}" for row in range(20_000)]
    out = held_out(items, 0.1)
    assert (out == held_out(items[:5_000], 0.1)[[row % 5_000 for row in range(20_000)]]).all()
    assert abs(out[:5_000].mean() - 0.1) < 4.9 * math.sqrt(0.09 / 5_000)
    assert (out <= held_out(items, 0.2)).all()
    assert not held_out(items, 0).any()


@pytest.mark.parametrize("share", [-0.1, 1.0, math.nan])
def test_a_share_outside_its_range_is_refused(share: float) -> None:
    with pytest.raises(LabelguardError, match="holdout"):
        held_out(["a"], share)
