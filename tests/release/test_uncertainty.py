"""CoefficientErrors of released coefficients: what they are made of, and how they are kept."""

from __future__ import annotations

import numpy as np
import pytest

from labelguard.mechanisms.tails import ReleasedNoise
from labelguard.release.head_summary import CoefficientErrors, normal_draws, simultaneous_factor

EYE = np.eye(2)


def errors(**more):
    nothing = np.zeros((2, 2))
    known = {
        "gain": EYE,
        "scatter": nothing,
        "bound": nothing,
        "prior": nothing,
        "drift": np.zeros(2),
        "radius": 100.0,
        "noises": (),
    }
    return CoefficientErrors(**(known | more))  # type: ignore[arg-type]


def test_errors_have_the_covariance_of_their_parts():
    gain = np.array([[2.0, 0.0], [1.0, 1.0]])
    scatter, prior = np.array([[2.0, 0.5], [0.5, 1.0]]), np.diag([0.5, 0.0])
    made = errors(
        gain=gain,
        scatter=scatter,
        prior=prior,
        drift=np.array([0.3, 0.0]),
        noises=(ReleasedNoise("gaussian", 1.5), ReleasedNoise("ball", 2.0)),
    )
    expected = gain @ (scatter + (1.5**2 + 2.0**2) * EYE) @ gain.T + prior + np.diag([0.09, 0])
    # 20,000 draws: a standard error of a variance is 1 to 2 %.
    assert np.cov(made.draws().T) == pytest.approx(expected, rel=0.08, abs=0.1)
    assert np.array_equal(made.draws(), made.draws())


def test_the_bound_never_exceeds_what_the_clip_allows():
    wide = errors(bound=1e6 * EYE, radius=2.0)
    narrow = errors(bound=EYE, radius=2.0)
    assert wide.cluster_bound(EYE) == pytest.approx(1.96 * 2.0, rel=1e-3)
    assert narrow.cluster_bound(EYE) == pytest.approx(1.96, rel=1e-3)


def test_differences_are_covered_together():
    drawn = normal_draws(np.eye(6))
    factor, spread = simultaneous_factor(drawn)
    assert spread[0, 1] == pytest.approx(np.sqrt(2), rel=0.03)
    assert 2.7 < factor < 3.0  # Tukey's range of six, 4.03, over √2


def test_errors_are_kept_as_arrays():
    made = errors(noises=(ReleasedNoise("ball", 2.0, 4),), drift=np.array([0.1, 0.2]))
    again = CoefficientErrors.of_arrays(made.arrays("here/"), "here/", 2)
    assert again is not None and again.noises == made.noises and again.radius == made.radius
    assert np.array_equal(again.draws(), made.draws())
    assert CoefficientErrors.of_arrays({}, "here/", 2) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("gain", np.eye(3)), ("drift", np.full(2, np.nan)), ("kinds", np.array(["laplace"]))],
)
def test_damaged_errors_are_refused(name, value):
    arrays = errors(noises=(ReleasedNoise("ball", 2.0, 4),)).arrays("") | {name: value}
    with pytest.raises(ValueError, match=r"shape|kind|broadcast|finite|found"):
        CoefficientErrors.of_arrays(arrays, "", 2)
