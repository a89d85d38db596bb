"""Attacks on the clip by public features of very unequal size.

The square of a number below 2.6e-23 vanishes in single precision. Where a clip took its norm from
such squares, a gradient of many small coordinates passed as it was, dozens of clip norms long, and
the head told its labeler's labels at any ε.
"""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from labelguard_trainer.gradient import heads, loop
from labelguard_trainer.gradient.heads import ComparisonRecords, HeadProblem
from labelguard_trainer.gradient.loop import Checkpoints, NoisyRun
from support.releases import make_release

import labelguard as lg
from labelguard.accounting import gaussian
from labelguard.mechanisms import geometry
from labelguard.mechanisms.statistic import Rows
from labelguard.release.head import Head

D, LABELS, OTHERS = 64, 100, 20
# A sum of a hundred of them over its root: that square is 0 in single precision.
TINY = np.float32(4.5e-24)
# Its square is the smallest number there is in single precision.
SMALL = np.float32(8e-23)
EPSILON, DELTA = 0.5, 1e-5


def features():
    """D large pairs, one a direction; LABELS tiny ones; one small pair, the rest zeros.

    With a mean square of 1, as those of a release have.
    """
    large = np.diag(np.linspace(1, 1.1, D))  # unlike, so that principal axes are the columns
    large *= math.sqrt((D + 2 * LABELS) / np.square(large).sum())
    small = np.zeros((LABELS, D))
    small[0, 0] = SMALL
    return np.concatenate([large, np.full((LABELS, D), TINY), small]).astype(np.float32)


def rows():
    """The victim, unit 0, has the tiny pairs, one labeler the large ones, all others the rest."""
    pair = [np.arange(D, D + LABELS), np.arange(D)]
    pair += [np.arange(D + LABELS, D + 2 * LABELS) for _ in range(OTHERS)]
    unit = np.repeat(np.arange(len(pair)), [len(part) for part in pair])
    return Rows(np.concatenate(pair), unit, len(pair))


def problem():
    """And its clip norm."""
    z, asked = features(), rows()
    records = ComparisonRecords.of(z, asked)
    weight = records.weigh_by_unit("root")
    clip = heads.choose_clip_norm(records, weight)
    return HeadProblem(records, weight, np.ones(D), clip), clip


def labels(victims, seed=0):
    found = np.random.default_rng(seed).integers(0, 2, len(rows())).astype(float)
    found[rows().unit == 0] = victims
    return found


def test_a_labeler_of_tiny_features_moves_a_sum_by_two_clip_norms_at_most():
    made, clip = problem()
    sums = [made.clipped_sum(np.arange(OTHERS + 2), labels(y), clip) for y in (0.0, 1.0)]
    assert 0 < np.linalg.norm((sums[0] - sums[1]) / clip) <= 2


def test_a_norm_that_vanishes_lets_nobody_through(monkeypatch):
    """The bound is that of whole numbers: it holds even if every norm is taken for 0."""
    made, clip = problem()
    monkeypatch.setattr(geometry, "bound_norms", lambda vectors: np.zeros(len(vectors)))
    for y in (0.0, 1.0):
        alone = made.clipped_sum(np.array([0]), labels(y), clip)
        assert np.linalg.norm(alone / clip) <= 1


def right_guesses(released, worlds=40):
    """In how many worlds the sign of the sum of coefficients is that of the victim's labels.

    At ε = .5 a guess is right with a probability of at most .6225: 38 of 40 once in 10^6.
    """
    coins = np.random.default_rng(7).integers(0, 2, worlds)
    return sum(
        (released(float(coin), world).sum() > 0) == bool(coin) for world, coin in enumerate(coins)
    )


def test_a_run_at_half_a_nat_does_not_tell_a_label(tmp_path):
    """Everybody in each of five steps, whose price is in closed form."""
    steps = 5

    def released(victims, world):
        made, clip = problem()
        noise = 2 * gaussian.calibrate(EPSILON, DELTA, steps)
        price = {"noise_multiplier": noise, "sampling_probability": 1.0, "steps": steps}
        course = NoisyRun.from_price(price, clip, OTHERS + 2)
        kept = Checkpoints(tmp_path / "none", steps + 1, lambda data: bytes(32))
        loop.train(made, labels(victims, world), course, kept, lambda share: None)
        return made.theta / clip

    assert right_guesses(released) < 38


@pytest.mark.slow
def test_a_released_head_at_half_a_nat_does_not_tell_a_label(tmp_path):
    """The same through files, policy and release: 40 of 40 before norms were taken in double."""

    def released(victims, world):
        made = lg.init(tmp_path / str(world))
        options: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA, "components": D}
        names = ",".join(f"f{column}" for column in range(D))
        release = make_release(
            _table(labels(victims, world)),
            project=made,
            mechanism="uls",
            features=f"columns:{names}",
            public_columns=names.split(","),
            sampling_probability=1.0,
            steps=5,
            **options,
        )
        return Head.load(release.path).coefficients

    assert right_guesses(released) < 38


def _table(given):
    asked, x = rows(), features()
    first = {f"f{column}_a": x[asked.pair, column] for column in range(D)}
    second = {f"f{column}_b": np.zeros(len(asked), np.float32) for column in range(D)}
    return pa.table(
        {
            "prompt": [f"question {pair}" for pair in asked.pair],
            "response_a": [f"a {pair}" for pair in asked.pair],
            "response_b": [f"b {pair}" for pair in asked.pair],
            "label": given,
            "labeler_id": [f"worker {unit}" for unit in asked.unit],
            **first,
            **second,
        }
    )
