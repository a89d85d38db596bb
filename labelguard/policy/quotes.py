"""The quote of a policy: what its allowances cost, alone and together; computed once and kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from labelguard._version import __version__
from labelguard.policy import pricing
from labelguard.policy.policy import Policy, Priced

if TYPE_CHECKING:
    from labelguard.accounting.joint import Component

Prices = Mapping[Priced, Mapping[int, int]]
"""For each kind of event, the price of a place by k (see `labelguard.pricing.prices`)."""


def quote(policy: Policy) -> tuple[dict[str, Any], Prices]:
    """The quote of a policy, as the ledger keeps it, and the prices in it.

    A policy whose places follow labelers' own numbers of labels (`places` None) is priced for each
    number when it first occurs; its quote says ε and δ, and no more.
    """
    versions = {"labelguard": __version__}
    versions |= {name: version(name) for name in ("numpy", "scipy")}
    common: dict[str, Any] = {"versions": versions, "adjacency": "replace_labels"}
    if policy.allowances[0].places is None:
        accountant = "exact composition, for each number of labels when it occurs"
        return common | {"accountant": accountant, "epsilon": policy.epsilon}, {}
    prices: Prices = {
        allowance.event: pricing.prices(policy, allowance.event, np.array([allowance.places]))
        for allowance in policy.allowances
    }
    every = components(policy, prices)
    points = [_point(policy, prices, number) for number in range(1, policy.closing_points + 1)]
    return (
        common
        | {
            "accountant": _accountant(policy),
            "epsilon": points[-1]["epsilon"],
            "slack": policy.epsilon - points[-1]["epsilon"],
            "delta_at_points": policy.delta_at_points,
            "delta_for_grids": policy.delta_at_points - pricing.continuous_delta(policy),
            "events": [_event(policy, part, event) for event, part in every.items()],
            "points": points,
        },
        prices,
    )


def components(policy: Policy, prices: Prices, point: int | None = None) -> dict[Any, Component]:
    """All events that a policy pays for, or those up to a closing point, by kind."""
    caps = policy.caps(point or policy.closing_points)
    return {
        event: pricing.component(policy, event, next(iter(prices[event].values())), places)
        for event, places in caps.items()
    }


def _accountant(policy: Policy) -> str:
    parts = {"rr": "binomial", "statistic": "Gaussian"}
    if policy.ties == "ternary":
        parts["rr"] = "trinomial"
    kinds = " × ".join(parts[event] for event in policy.events)
    return f"exact privacy loss in closed form: {kinds}"


def _point(policy: Policy, prices: Prices, number: int) -> dict[str, Any]:
    """The price of what can have been used at a closing point."""
    from labelguard.accounting import joint

    used = list(components(policy, prices, number).values())
    # Prices are rounded in the labelers' favour; the search's upper end may lie above again.
    epsilon = min(joint.epsilon(used, pricing.continuous_delta(policy)), policy.epsilon)
    return {"point": number, "used": policy.caps(number), "epsilon": epsilon}


def _event(policy: Policy, part: Component, event: Priced) -> dict[str, Any]:
    """One allowance: its parameter, how often, and what it costs by itself."""
    from labelguard.accounting import gaussian, joint

    delta = pricing.continuous_delta(policy)
    row = {"event": event, "places": part.count, "epsilon_alone": joint.epsilon([part], delta)}
    if isinstance(part, joint.Gaussians):
        return row | {"noise_multiplier": gaussian.noise_multiplier_of(part.units)}
    return row | {"flip_probability": pricing.flip_probability(policy, part.threshold)}


def upper_bounds(policy: Policy, prices: Prices) -> dict[str, float | None]:
    """What looser theorems say of a policy, for comparison; None where one says nothing."""
    from labelguard.accounting import upper_bounds

    parts, delta = list(components(policy, prices).values()), pricing.continuous_delta(policy)
    found = {
        "pure": upper_bounds.pure(parts),
        "basic": upper_bounds.basic(parts, delta),
        "advanced": upper_bounds.advanced(parts, delta) if delta else math.inf,
        "rdp": upper_bounds.rdp(parts, delta) if delta else math.inf,
    }
    return {name: value if math.isfinite(value) else None for name, value in found.items()}
