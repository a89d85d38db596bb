"""`--mechanism auto`: what `labelguard plan` marks with *, or what the project's policy prices.

The forecast reads public columns only, so the choice tells nothing about labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from labelguard.errors import PolicyError
from labelguard.ingest.staged import Staged
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.policies import PolicyRecord
from labelguard.planner import components, tuning
from labelguard.planner.advice import FEWEST, worth_it
from labelguard.planner.components import Directions
from labelguard.planner.flips import bounds_for
from labelguard.planner.outcomes import Sizing, best
from labelguard.planner.prior import Prior
from labelguard.policy.events import RANDOMIZED_LABELS
from labelguard.release.featured import Featured
from labelguard.release.methods.options import FeatureOptions
from labelguard.terms import Progress

_FEW_DRAWS = 6


def named(terms: Mapping[str, Any]) -> str | None:
    """The mechanism that options of a policy mean, if they are of one alone."""
    if terms.get("ties") == "zero":
        return "statistic"
    return "rr" if terms.get(RANDOMIZED_LABELS.option) else None


def standing(ledger: Ledger, record: PolicyRecord) -> str | None:
    """The mechanism of the newest release that the policy in force could pay for, or its only one.

    None where it pays for several and nothing was released.
    """
    payable = record.policy.events
    made = [
        r
        for r in ledger.releases()
        if r.state != "refunded" and r.event in payable and r.part == "training"
    ]
    if made:
        return str(made[-1].settings["mechanism"])
    return payable[0] if len(payable) == 1 else None


def size(
    featured: Featured,
    epsilon: float,
    delta: float,
    options: FeatureOptions,
    progress: Progress,
    *,
    mechanism: str | None = None,
    periods: int = 1,
) -> Sizing:
    """What serves best at this price, or what this `mechanism` gives, and what it has to be
    allowed for so many releases like this one.

    Raises `PolicyError` where randomized response serves best and further pairs want a head.
    """
    x, rows = featured.x, featured.compared
    prior = Prior(options.agreement)
    progress("comparing mechanisms on simulated labels", None)

    def simulate(draws: int, mechanism: str | None, bound: int | None) -> Sizing:
        found = tuning.forecast(
            *(x, rows, [epsilon], delta, prior),
            draws=draws,
            bounds=(bound,),
            periods=periods,
            growth=False,
            progress=progress,
        )
        own = [one for one in found if mechanism in (None, one.mechanism)]
        return Sizing.of(best(own, epsilon), periods)

    # One bound that lets in the labels of all periods: a lower one would be used up early.
    every = bounds_for(np.bincount(rows.unit), periods)[0]
    if mechanism is None and periods == 1 and not rows.choices:
        sizing = tuning.recommend(x, rows, epsilon, delta, prior, progress=progress)
    else:
        sizing = simulate(_FEW_DRAWS, mechanism, every)
    found = sizing.forecast
    if rows.units >= FEWEST and not worth_it(found, rows.units):
        # Few worlds are not enough to call a release of little use.
        sizing = simulate(tuning.DRAWS, found.mechanism, found.max_labels_per_labeler or every)
    if mechanism is None and sizing.mechanism == "rr" and options.also is not None:
        raise PolicyError("auto chose rr, which has no head to label --also; leave it out")
    return sizing


def ball(featured: Featured, epsilon: float, delta: float, options: FeatureOptions) -> int | None:
    """The fewest components that a first policy's ball noise is for; None: Gaussian noise is less.

    From public columns alone, and before anything is released: a shape of noise that were chosen
    later would not be covered by the price. Components that are asked for count up to the number of
    directions: noise for more would be paid for nothing, for the life of the policy.
    """
    tuning.check_budgets([epsilon], delta)
    noises = components.cheapest(epsilon, delta)
    directions = Directions.of_features(featured.x, featured.compared)
    asked = options.components
    noise = noises(directions.best(noises) if asked is None else min(asked, directions.rank))
    return noise.least if noise.kind == "ball" else None


def room(staged: Staged, periods: int) -> int:
    """Labels of a labeler that so many inputs like this one bring, for policies of coins."""
    bound = bounds_for(staged.labels_of_units(), periods)[0]
    assert bound is not None  # of several periods nobody knows everybody's own number
    return bound
