"""What budgets buy: composition theorems side by side, and the noise of statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from labelguard.accounting import gaussian, upper_bounds
from labelguard.accounting import randomized_response as rr
from labelguard.accounting.joint import Gaussians
from labelguard.errors import PolicyError


@dataclass(frozen=True)
class Coin:
    """What one theorem makes of one label."""

    epsilon0: float
    """ε of one label"""
    flip_probability: float
    """how often it is flipped"""
    loss_multiplier: float
    """1/(1−2γ), by which a de-biased loss grows; null at γ = ½"""


@dataclass(frozen=True)
class Compositions:
    """The noise of randomized response, by composition theorem."""

    epsilon: float
    """ε of a labeler"""
    delta: float
    """δ of a labeler"""
    labels: int
    """labels of one labeler"""
    compositions: Mapping[str, Coin]
    """each theorem by name"""


@dataclass(frozen=True)
class StatisticNoise:
    """The noise of statistic releases that are priced together."""

    epsilon: float
    """ε of a labeler, all releases together"""
    delta: float
    """δ of a labeler"""
    releases: int
    """how many there are"""
    noise_multiplier: float
    """standard deviation of the noise in each, in sensitivities"""
    epsilon_of_one: float
    """ε of one alone at the same δ"""
    epsilon_zcdp: float
    """what all cost by zero-concentrated composition, an upper bound"""


def compositions(epsilon: float, delta: float, labels: int) -> Compositions:
    """ε0, flip probability and loss multiplier of each theorem, for `labels` coins of a labeler.

    Raises `PolicyError` for values that are no budget.
    """
    found = {}
    try:
        for name in get_args(rr.Composition):
            epsilon0 = rr.calibrate(epsilon, delta, labels, name)
            flip = rr.flip_probability(epsilon0)
            found[name] = Coin(epsilon0, flip, rr.loss_multiplier(flip))
    except ValueError as error:
        raise PolicyError(str(error)) from None
    return Compositions(epsilon, delta, labels, found)


def statistic_noise(epsilon: float, delta: float, releases: int) -> StatisticNoise:
    """The noise multiplier of each of `releases` statistics that cost (ε, δ) together.

    Beside it, what they cost by zero-concentrated composition, an upper bound, and what each would
    cost alone. Raises `PolicyError` for values that are no budget.
    """
    try:
        noise = gaussian.calibrate(epsilon, delta, releases)
        one = gaussian.epsilon(noise, delta)
        zcdp = upper_bounds.rdp([Gaussians(noise, releases)], delta)
    except ValueError as error:
        raise PolicyError(str(error)) from None
    return StatisticNoise(epsilon, delta, releases, noise, one, zcdp)
