"""By which mechanism and under which policy a run releases: what the ledger fixes, what was asked,
and, at a project's first release, what public columns recommend: for `--mechanism auto` what
`labelguard plan` marks with *. The forecast reads public columns only, so the choice tells nothing
about labels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard.budget import events
from labelguard.budget.events import RANDOMIZED_LABELS, STATISTIC_RELEASES
from labelguard.budget.policy import Allowance, Policy, rounded_bound
from labelguard.budget.request import PolicyRequest
from labelguard.errors import PolicyError
from labelguard.inputs.sources import Input
from labelguard.inputs.staged import Staged
from labelguard.learning.carried import Carried
from labelguard.learning.features import Wait, check_features, column_features
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.policies import PolicyRecord
from labelguard.planner import components, tuning
from labelguard.planner.advice import FEWEST, worth_it
from labelguard.planner.components import Directions
from labelguard.planner.flips import bounds_for
from labelguard.planner.outcomes import Forecast, Sizing, best
from labelguard.planner.prior import Prior
from labelguard.project import policies
from labelguard.project.opening import OpenProject
from labelguard.release.choices import fewest
from labelguard.release.mechanisms import AUTO, names, options_of
from labelguard.release.mechanisms.options import FeatureOptions
from labelguard.release.protocol import Featured, Mechanism
from labelguard.release.request import ReleaseRequest
from labelguard.text import Progress

FORECAST = ("statistic", "props")
"""Mechanisms of whose heads, on features, a forecast says what they give; rr's noise is known."""


@dataclass(frozen=True)
class Terms:
    """What a run is, as far as it is known.

    `policy_id` is None until a first policy is stored. Before the input is read, `mechanism` may
    be open, and of a first `policy` δ is provisional, which decides nothing about how rows are
    read.
    """

    request: ReleaseRequest
    policy_id: int | None
    policy: Policy
    asked: PolicyRequest
    mechanism: Mechanism[Any] | None
    features: str | None
    forecast: Forecast | None = None
    featured: Featured | None = None

    @property
    def first(self) -> bool:
        """Whether the release makes the project's first policy."""
        return self.policy_id is None

    @property
    def event(self) -> str:
        """The kind of event; while the mechanism is open, one that the policy pays for."""
        return self.mechanism.priced if self.mechanism else self.policy.events[0]

    @property
    def columns(self) -> tuple[Carried, ...]:
        """Public columns that are read for features."""
        if self.mechanism and self.request.mechanism != AUTO:
            return self.mechanism.features
        return column_features(self.request.head(self.features).features)

    @property
    def also(self) -> Input | None:
        """Further pairs to label."""
        return self.mechanism.also if self.mechanism else self.request.head().also


def begin(request: ReleaseRequest, opened: OpenProject) -> Terms:
    """What is known before the input is read.

    Raises `PolicyError` if what is asked contradicts the policy in force, or itself.
    """
    ledger = opened.ledger
    record = policies.in_force(ledger)
    name: str | None = request.mechanism
    if name == AUTO:
        standing = standing_mechanism(ledger, record) if record else None
        name = standing or implied_mechanism(request.terms)
    features = _recorded_features(ledger)
    mechanism = request.opened(name, features) if name else None
    if name is None or "features" in names(options_of(name)):
        check_features(request.head(features).features)
    if mechanism and mechanism.part == "held-out":
        _check_held_out(mechanism, record.policy if record else None)
    mechanism = mechanism.within(opened) if mechanism else None
    event = mechanism.priced if mechanism else RANDOMIZED_LABELS.name
    if record and not mechanism:
        event = record.policy.events[0]
    fixed = mechanism.first(np.ones(1, np.int64)) if mechanism and record is None else {}
    uses = request.uses if record and event == STATISTIC_RELEASES.name else None
    asked = PolicyRequest(**request.terms, **fixed, event=event, uses=uses)
    if record is None:
        return Terms(request, None, policies.first(ledger, asked, 1), asked, mechanism, features)
    return Terms(request, record.id, asked.under(record.policy), asked, mechanism, features)


def _check_held_out(mechanism: Mechanism[Any], policy: Policy | None) -> None:
    """Raise `PolicyError` unless somebody is held out for a mechanism that takes nobody else."""
    make = (
        f"labelguard policy new NAME --held-out 0.1 --allow {mechanism.priced}:releases=N, with "
        "what trains beside it"
    )
    if policy is None:
        raise PolicyError(
            f"{mechanism.name} takes labels of held-out labelers, and a policy fixes who they are "
            f"before the first release: {make}"
        )
    if not policy.held_out:
        raise PolicyError(
            f"{mechanism.name} takes labels of held-out labelers, and this project's policy holds "
            f"nobody out, which is fixed for its life: use another project, and there {make}"
        )


def settle(
    terms: Terms,
    ledger: Ledger,
    staged: Staged,
    progress: Progress,
    wait: Wait | None,
    *,
    forecast: bool,
) -> Terms:
    """The same with all that public columns decide: the mechanism, and a first policy's numbers.

    `forecast`: what the mechanism may be expected to give is wanted at a first release; features
    are computed for it, and `wait` hears how long that takes.
    """
    request, named = terms.request, terms.mechanism
    if not terms.first and named is not None:
        return terms
    periods = request.periods if terms.first else 1
    if periods > 1 and terms.policy.unit == "item":
        raise PolicyError("a content is labeled once: leave out --uses and --recurring")
    if named is not None and not (named.name in FORECAST and "features" in named.settings()):
        return _first(terms, ledger, staged, _room(named, staged, periods))
    if terms.first:
        terms = _first(terms, ledger, staged, {})
    options = request.head(terms.features)
    featured = cache(lambda: Featured.of(staged, options.features, progress, wait))
    allowed: dict[str, int | None] = {}
    if named is None or forecast or (periods > 1 and named.priced == RANDOMIZED_LABELS.name):
        terms, allowed = _sized(terms, featured(), options, periods, progress)
    elif terms.first:
        allowed |= _room(named, staged, periods)
    if not terms.first:
        assert terms.mechanism is not None
        asked = PolicyRequest(**request.terms, event=terms.mechanism.priced)
        terms = replace(terms, asked=asked, policy=asked.under(terms.policy))
    else:
        # Of one statistic release the noise may be of a ball.
        if terms.event == STATISTIC_RELEASES.name and (allowed.get("uses") or 1) == 1:
            budget = terms.policy.epsilon, terms.policy.delta
            allowed["ball"] = fewest_components(featured(), *budget, options)
        terms = _first(terms, ledger, staged, allowed)
    made = featured.cache_info().currsize
    return replace(terms, featured=featured() if made else None)


def _sized(
    terms: Terms, featured: Featured, options: FeatureOptions, periods: int, progress: Progress
) -> tuple[Terms, dict[str, int | None]]:
    """With a mechanism and its forecast; and what a first policy has to allow, if that is open."""
    named = terms.mechanism
    sizing = size_release(
        *(featured, terms.policy.epsilon, terms.policy.delta, options, progress),
        mechanism=named.name if named else None,
        periods=periods,
    )
    mechanism = named or terms.request.opened(sizing.mechanism, terms.features)
    own = {"uses": sizing.releases, "max_labels_per_labeler": sizing.max_labels_per_labeler}
    wanted = named is None or periods > 1
    return replace(terms, mechanism=mechanism, forecast=sizing.forecast), own if wanted else {}


def others(terms: Terms, ledger: Ledger) -> Iterator[Terms]:
    """The same request by other mechanisms that releases of the policy in force were made by,
    newest first; none unless the mechanism is open.
    """
    request = terms.request
    if request.mechanism != AUTO or terms.first or terms.mechanism is None:
        return
    tried = {terms.mechanism.name}
    for record in reversed(ledger.releases()):
        name = str(record.settings["mechanism"])
        if record.event not in terms.policy.events or name in tried or record.part != "training":
            continue
        tried.add(name)
        with contextlib.suppress(PolicyError):  # it was not made by what is asked now
            mechanism = request.opened(name, record.settings["choices"].get("features"))
            asked = PolicyRequest(**request.terms, event=mechanism.priced)
            policy = asked.under(terms.policy)
            yield replace(terms, mechanism=mechanism, asked=asked, policy=policy)


def _room(mechanism: Mechanism[Any], staged: Staged, periods: int) -> dict[str, int]:
    """What so many releases like this one have to be allowed, whatever they are worth."""
    if periods == 1:
        return {}
    if mechanism.priced == RANDOMIZED_LABELS.name:
        bound = bounds_for(staged.labels_of_units(), periods)[0]
        assert bound is not None  # of several periods nobody knows everybody's own number
        return {"max_labels_per_labeler": bound}
    if mechanism.priced == STATISTIC_RELEASES.name:
        return {"uses": periods}
    once = events.kind(mechanism.priced).first(None, None)
    one = Allowance(mechanism.priced, once, **mechanism.first(staged.labels_of_units()))
    raise PolicyError(
        f"a first release makes a policy of one {one.kind.noun}; make one of several: labelguard "
        f"policy new NAME --allow {events.write(replace(one, allowed=periods))}"
    )


def _first(
    terms: Terms, ledger: Ledger, staged: Staged, allowed: Mapping[str, int | None]
) -> Terms:
    """With a first policy for the units of an input; it allows so much, or what was asked for."""
    given = {name: uses for name, uses in allowed.items() if uses is not None}
    counts = staged.labels_of_units()
    fixed = terms.mechanism.first(counts) if terms.mechanism else {}
    if terms.event == RANDOMIZED_LABELS.name and terms.request.once and not staged.choices:
        given = _without_reserve(counts, terms.policy.unit) | given
    if terms.event == RANDOMIZED_LABELS.name and staged.choices:
        given["choices"] = fewest(staged)
    asked = PolicyRequest(**{**given, **terms.request.terms, **fixed}, event=terms.event)
    return replace(terms, asked=asked, policy=policies.first(ledger, asked, len(counts)))


def _without_reserve(counts: NDArray[np.int64], unit: str) -> dict[str, int]:
    """Bound labels by the largest number, where rounding would reserve more for everybody.

    Where own numbers are rounded to several bounds, one for all would cost those with few labels.
    """
    alike = len(np.unique(rounded_bound(counts))) == 1
    return {"max_labels_per_labeler": int(counts.max())} if alike and unit != "item" else {}


def _recorded_features(ledger: Ledger) -> str | None:
    """What heads of this project learn from, as its last release with one has it."""
    for record in reversed(ledger.releases()):
        if features := record.settings["choices"].get("features"):
            return str(features)
    return None


_FEW_DRAWS = 6


def implied_mechanism(terms: Mapping[str, Any]) -> str | None:
    """The mechanism that options of a policy mean, if they are of one alone."""
    if terms.get("ties") == "zero":
        return "statistic"
    return "rr" if terms.get(RANDOMIZED_LABELS.option) else None


def standing_mechanism(ledger: Ledger, record: PolicyRecord) -> str | None:
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


def size_release(
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


def fewest_components(
    featured: Featured, epsilon: float, delta: float, options: FeatureOptions
) -> int | None:
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
