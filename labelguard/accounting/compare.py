"""What budgets buy: composition theorems side by side, and the noise of statistics."""

from __future__ import annotations

from typing import Any, get_args

from labelguard.accounting import gaussian, upper_bounds
from labelguard.accounting import randomized_response as rr
from labelguard.accounting.joint import Gaussians
from labelguard.errors import PolicyError


def compositions(epsilon: float, delta: float, labels: int) -> dict[str, Any]:
    """ε0, flip probability and loss multiplier of each theorem, for `labels` coins of a labeler.

    Raises `PolicyError` for values that are no budget.
    """
    try:
        per_label = {
            name: rr.calibrate(epsilon, delta, labels, name) for name in get_args(rr.Composition)
        }
    except ValueError as error:
        raise PolicyError(str(error)) from None
    rows = {
        name: {
            "epsilon0": epsilon0,
            "flip_probability": rr.flip_probability(epsilon0),
            "loss_multiplier": rr.loss_multiplier(rr.flip_probability(epsilon0)),
        }
        for name, epsilon0 in per_label.items()
    }
    return {"epsilon": epsilon, "delta": delta, "labels": labels, "compositions": rows}


def statistic_noise(epsilon: float, delta: float, releases: int) -> dict[str, Any]:
    """The noise multiplier of each of `releases` statistics that cost (ε, δ) together.

    Beside it, what they cost by zero-concentrated composition, an upper bound, and what each would
    cost alone. Raises `PolicyError` for values that are no budget.
    """
    try:
        noise_multiplier = gaussian.calibrate(epsilon, delta, releases)
        return {
            "epsilon": epsilon,
            "delta": delta,
            "releases": releases,
            "noise_multiplier": noise_multiplier,
            "epsilon_of_one": gaussian.epsilon(noise_multiplier, delta),
            "epsilon_zcdp": upper_bounds.rdp([Gaussians(noise_multiplier, releases)], delta),
        }
    except ValueError as error:
        raise PolicyError(str(error)) from None
