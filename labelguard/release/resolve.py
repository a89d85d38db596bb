"""By which mechanism and under which policy a run releases: what the ledger fixes, what was asked,
and, at a project's first release, what public columns recommend: for `--mechanism auto` what
`labelguard plan` marks with *. The forecast reads public columns only, so the choice tells nothing
about labels.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

import numpy as np

from labelguard.budget import events
from labelguard.budget.events import RANDOMIZED_LABELS, STATISTIC_RELEASES
from labelguard.budget.label_values import Turns
from labelguard.budget.policy import Allowance, Policy
from labelguard.budget.request import PolicyRequest
from labelguard.errors import PolicyError
from labelguard.inputs.sources import Input
from labelguard.inputs.staged import Staged
from labelguard.learning.columns import FeatureColumn, parse_feature_columns
from labelguard.learning.features import JUDGES
from labelguard.learning.providers import check_features
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.policies import PolicyRecord
from labelguard.ledger.records import ReleaseRecord
from labelguard.planner import components, tuning
from labelguard.planner.advice import FEWEST, is_worth_it
from labelguard.planner.components import Directions
from labelguard.planner.flips import choose_blocks
from labelguard.planner.outcomes import Forecast, Interval, find_best_excluding_uls
from labelguard.planner.prior import Prior
from labelguard.project import policies
from labelguard.project.opening import OpenProject
from labelguard.release.mechanisms import AUTO, list_option_names
from labelguard.release.mechanisms.options import FeatureOptions
from labelguard.release.protocol import Featured, Mechanism
from labelguard.release.request import ReleaseRequest
from labelguard.storage.executor import Workers
from labelguard.text import Progress

# Mechanisms of whose heads, on features, a forecast says what they give; rr's noise is known.
_FORECAST = ("statistic", "props")
_FEW_DRAWS = 6


@dataclass(frozen=True)
class ResolvedRequest:
    """A request with its mechanism, its policy and what a first policy is sized by.

    `policy_id` is None until a first policy is stored. Before the input is read, `mechanism` may
    be open, and of a first `policy` δ is provisional, which decides nothing about how rows are
    read.
    """

    request: ReleaseRequest
    policy_id: int | None
    policy: Policy
    policy_request: PolicyRequest
    mechanism: Mechanism[Any] | None
    features: str | None
    forecast: Forecast | None = None
    judges: Interval | None = None
    featured: Featured | None = None
    turns: Turns = "stop"

    @property
    def makes_first_policy(self) -> bool:
        """Return True if the release makes the project's first policy."""
        return self.policy_id is None

    @property
    def event(self) -> str:
        """Return the kind of event; while the mechanism is open, one that the policy pays for."""
        return self.mechanism.priced if self.mechanism else self.policy.events[0]

    @property
    def allowance(self) -> Allowance:
        """Return what the policy allows of these events."""
        return self.policy.allowance(self.event)

    @property
    def columns(self) -> tuple[FeatureColumn, ...]:
        """Return the public columns that are read for features."""
        if self.mechanism and self.request.mechanism != AUTO:
            return self.mechanism.features
        return parse_feature_columns(self.request.build_head_options(self.features).features)

    @property
    def further_pairs(self) -> Input | None:
        """Return the further pairs to label."""
        return self.mechanism.also if self.mechanism else self.request.build_head_options().also

    def fit_to_policy(self, mechanism: Mechanism[Any]) -> ResolvedRequest:
        """Return the same by a mechanism; raise `PolicyError` if the policy does not fit it."""
        request = PolicyRequest(**self.request.terms, event=mechanism.priced)
        policy = request.check_fits_policy(self.policy)
        return replace(self, mechanism=mechanism, policy_request=request, policy=policy)

    def settings(self, again: int) -> dict[str, object]:
        """Return what fixes the release, for the ledger and its idempotency key."""
        assert self.mechanism is not None
        part, most = self.mechanism.part, self.request.max_labels_per_labeler
        return {
            "mechanism": self.mechanism.name,
            "mechanism_version": self.mechanism.version,
            "format": 1,
            "policy": self.policy_id or 1,  # it fixes all that a `ReleaseRequest` may say
            "choices": self.mechanism.settings(),
            "exhausted": self.request.exhausted,
            **({} if most is None else {"max_labels_per_labeler": most}),
            "again": again,
            **({} if part == "training" else {"part": part}),
            **({} if self.turns == self.policy.turns else {"turns": self.turns}),
        }


@dataclass(frozen=True)
class RequestIdentity:
    """The idempotency key of a request, and the release that it made or began before, if any.

    `again` counts its --again: each is an event of its own.
    """

    again: int
    key: str
    record: ReleaseRecord | None


def identify_request(
    resolved: ResolvedRequest, opened: OpenProject, digest: bytes
) -> tuple[ResolvedRequest, RequestIdentity]:
    """Return the identity of a request for an input with this public `digest`.

    An --again that crashed is taken up. Where the mechanism is open, it is the one by which this
    request was answered, if it was, whichever others were used since.
    """

    def identify(candidate: ResolvedRequest, again: int) -> RequestIdentity:
        settings = json.dumps(candidate.settings(again), sort_keys=True).encode()
        key = opened.keys.mac("idempotency", digest + settings).hex()
        return RequestIdentity(again, key, opened.ledger.releases.find(key))

    identity = identify(resolved, int(resolved.request.again))
    while identity.again and identity.record and identity.record.state == "committed":
        identity = identify(resolved, identity.again + 1)
    if identity.record or identity.again:
        return resolved, identity
    for candidate in _list_with_earlier_mechanisms(resolved, opened.ledger):
        earlier = identify(candidate, again=0)
        if earlier.record:
            return candidate, earlier
    return resolved, identity


def _list_with_earlier_mechanisms(
    resolved: ResolvedRequest, ledger: Ledger
) -> Iterator[ResolvedRequest]:
    """Yield the request by each other mechanism of releases under the policy in force.

    The newest come first; there are none unless the mechanism is open.
    """
    request = resolved.request
    if request.mechanism != AUTO or resolved.makes_first_policy or resolved.mechanism is None:
        return
    tried = {resolved.mechanism.name}
    for record in reversed(ledger.releases.all()):
        name = str(record.settings["mechanism"])
        if record.event not in resolved.policy.events or name in tried or record.part != "training":
            continue
        tried.add(name)
        with contextlib.suppress(PolicyError):  # it was not made by what is asked now
            features = record.settings["choices"].get("features")
            yield resolved.fit_to_policy(request.open_mechanism(name, features))


def resolve_from_ledger(request: ReleaseRequest, opened: OpenProject) -> ResolvedRequest:
    """Return what is known before the input is read.

    Raises `PolicyError` if what is asked contradicts the policy in force, or itself.
    """
    ledger = opened.ledger
    record = policies.find_policy_in_force(ledger)
    if record and record.policy.adjacency != "replace_labels":
        raise PolicyError(
            "this project protects whole records (labelguard align with private: records), and "
            "releases no labels; use another project for labels"
        )
    name: str | None = request.mechanism
    if name == AUTO:
        name = _find_mechanism_in_use(ledger, record) if record else None
        name = name or _infer_mechanism(request)
    features = _find_last_used_features(ledger)
    mechanism = request.open_mechanism(name, features) if name else None
    if name is None or "features" in list_option_names(name):
        check_features(request.build_head_options(features).features)
    if mechanism and mechanism.part == "held-out":
        _check_held_out_labelers_exist(mechanism, record.policy if record else None)
    _check_bound(request, mechanism)
    mechanism = mechanism.bind(opened) if mechanism else None
    event = mechanism.priced if mechanism else RANDOMIZED_LABELS.name
    if record and not mechanism:
        event = record.policy.events[0]
    defaults = mechanism.policy_defaults(np.ones(1, np.int64)) if mechanism and not record else {}
    uses = request.uses if record and event == STATISTIC_RELEASES.name else None
    asks = PolicyRequest(**request.terms, **defaults, event=event, uses=uses)
    policy = (
        asks.check_fits_policy(record.policy)
        if record
        else policies.make_first_policy(ledger, asks, 1)
    )
    return ResolvedRequest(
        *(request, record.id if record else None, policy, asks, mechanism, features),
        turns=asks.turns or _find_last_used_turns(ledger, policy),
    )


def _check_bound(request: ReleaseRequest, mechanism: Mechanism[Any] | None) -> None:
    """Raise `PolicyError` for a bound on labels beside a mechanism that takes all of them."""
    bounded = request.max_labels_per_labeler is not None
    if bounded and mechanism and mechanism.priced != RANDOMIZED_LABELS.name:
        raise PolicyError(
            "a statistic takes all labels of a labeler, clipped: --max-labels-per-labeler goes "
            "with randomized response"
        )


def _check_held_out_labelers_exist(mechanism: Mechanism[Any], policy: Policy | None) -> None:
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


def resolve_from_input(
    resolved: ResolvedRequest,
    ledger: Ledger,
    staged: Staged,
    progress: Progress,
    workers: Workers,
    *,
    forecast: bool,
) -> ResolvedRequest:
    """Add what public columns decide: an open mechanism, and the numbers of a first policy.

    `forecast`: what the mechanism may be expected to give is wanted at a first release; features
    are computed for it.
    """
    request, named = resolved.request, resolved.mechanism
    if not resolved.makes_first_policy and named is not None:
        return resolved
    periods = request.planned_release_count if resolved.makes_first_policy else 1
    if periods > 1 and resolved.policy.unit == "item":
        raise PolicyError("a content is labeled once: leave out --uses and --recurring")
    allowed: dict[str, int | None] = {}
    if named is not None and not (named.name in _FORECAST and "features" in named.settings()):
        allowed |= _compute_required_allowance(named, staged, resolved, periods)
        return _add_first_policy(resolved, ledger, staged, allowed)
    if resolved.makes_first_policy:
        resolved = _add_first_policy(resolved, ledger, staged, allowed)
    options = request.build_head_options(resolved.features)
    featured = cache(lambda: Featured.fit(staged, options.features, progress, workers))
    if named is None or forecast or (periods > 1 and named.priced == RANDOMIZED_LABELS.name):
        expected = _choose_mechanism_and_size(resolved, featured(), options, periods, progress)
        mechanism = named or request.open_mechanism(expected.mechanism, resolved.features)
        resolved = replace(resolved, mechanism=mechanism, forecast=expected)
        if named is None or periods > 1:
            allowed |= {"uses": expected.uses or periods, "block": expected.block}
            if request.max_labels_per_labeler is None:
                most = expected.max_labels_per_labeler
                resolved = replace(resolved, request=replace(request, max_labels_per_labeler=most))
    else:
        allowed |= _compute_required_allowance(named, staged, resolved, periods)
    if any(part.startswith(JUDGES) for part in options.features.split("+")):
        alone = _forecast_accuracy_of_judges_alone(featured(), resolved.policy, options, periods)
        resolved = replace(resolved, judges=alone)
    if resolved.makes_first_policy:
        # Of one statistic release the noise may be of a ball.
        if resolved.event == STATISTIC_RELEASES.name and (allowed.get("uses") or 1) == 1:
            allowed["ball"] = _find_fewest_ball_noise_components(
                featured(), resolved.policy, options
            )
        resolved = _add_first_policy(resolved, ledger, staged, allowed)
    elif resolved.mechanism:
        resolved = resolved.fit_to_policy(resolved.mechanism)
    return replace(resolved, featured=featured() if featured.cache_info().currsize else None)


def _compute_required_allowance(
    mechanism: Mechanism[Any], staged: Staged, resolved: ResolvedRequest, periods: int
) -> dict[str, int]:
    """Return the allowance needed for `periods` releases of this size, by option."""
    request = resolved.request
    if mechanism.priced == RANDOMIZED_LABELS.name:
        counts = staged.count_rows_per_unit()
        if most := request.max_labels_per_labeler:
            counts = np.minimum(counts, most)
        if block := request.terms.get("block"):
            return {"uses": periods * -(-int(counts.max(initial=1)) // block)}
        policy = resolved.policy
        uses, block = choose_blocks(counts, periods, policy.epsilon, policy.delta)
        return {"uses": uses, "block": block}
    if periods == 1:
        return {}
    if mechanism.priced == STATISTIC_RELEASES.name:
        return {"uses": periods}
    kind = events.find_event_kind(mechanism.priced)
    fixed = mechanism.policy_defaults(staged.count_rows_per_unit())
    several = replace(Allowance(mechanism.priced, 1, **fixed), allowed=periods)
    raise PolicyError(
        f"a first release makes a policy of one {kind.noun}; make one of several: labelguard "
        f"policy new NAME --allow {events.format_allowance(several)}"
    )


def _add_first_policy(
    resolved: ResolvedRequest, ledger: Ledger, staged: Staged, allowed: Mapping[str, int | None]
) -> ResolvedRequest:
    """Add a first policy for the units of an input, which allows what was asked or `allowed`."""
    terms: dict[str, Any] = {name: uses for name, uses in allowed.items() if uses is not None}
    counts = staged.count_rows_per_unit()
    defaults = resolved.mechanism.policy_defaults(counts) if resolved.mechanism else {}
    terms |= {**resolved.request.terms, **defaults}
    request = PolicyRequest(**terms, event=resolved.event)
    policy = policies.make_first_policy(ledger, request, len(counts))
    return replace(resolved, policy_request=request, policy=policy)


def _find_last_used_features(ledger: Ledger) -> str | None:
    """Return the features of the project's last release with a head."""
    records = reversed(ledger.releases.all())
    return next(filter(None, (one.settings["choices"].get("features") for one in records)), None)


def _find_last_used_turns(ledger: Ledger, policy: Policy) -> Turns:
    """Return how a policy, or else the newest release, reads prompts with earlier responses."""
    used = [policy.turns, *(one.settings.get("turns") for one in ledger.releases.all())]
    return cast(Turns, used[-1] or "stop") if policy.turns == "stop" else policy.turns


def _infer_mechanism(request: ReleaseRequest) -> str | None:
    """Return the mechanism that options imply, if they belong to one alone."""
    if request.terms.get("ties") == "zero":
        return "statistic"
    return "rr" if request.terms.get("block") or request.max_labels_per_labeler else None


def _find_mechanism_in_use(ledger: Ledger, record: PolicyRecord) -> str | None:
    """Return the mechanism of the newest release that the policy in force could pay for.

    Without any, the policy's only one; None where it pays for several.
    """
    payable = record.policy.events
    for release in reversed(ledger.releases.all()):
        if release.state != "refunded" and release.event in payable and release.part == "training":
            return str(release.settings["mechanism"])
    return payable[0] if len(payable) == 1 else None


def _choose_mechanism_and_size(
    resolved: ResolvedRequest,
    featured: Featured,
    options: FeatureOptions,
    periods: int,
    progress: Progress,
) -> Forecast:
    """Return the forecast that is best, or that of a named mechanism, for `periods`.

    Raises `PolicyError` where randomized response serves best and further pairs want a head.
    """
    x, rows, policy = featured.x, featured.compared, resolved.policy
    named = resolved.mechanism.name if resolved.mechanism else None
    prior = Prior(options.agreement)
    progress("comparing mechanisms on simulated labels", None)

    def simulate(draws: int, mechanism: str | None, bound: int | None) -> Forecast:
        forecasts = tuning.forecast(
            *(x, rows, [policy.epsilon], policy.delta, prior),
            draws=draws,
            bounds=(bound,),
            periods=periods,
            growth=False,
            progress=progress,
        )
        candidates = [f for f in forecasts if mechanism in (None, f.mechanism)]
        return find_best_excluding_uls(candidates, policy.epsilon)

    most = resolved.request.max_labels_per_labeler
    if named is None and periods == 1 and most is None:
        budget = policy.epsilon, policy.delta
        forecast = tuning.recommend(x, rows, *budget, prior, progress=progress)
    else:
        forecast = simulate(_FEW_DRAWS, named, most)
    if rows.units >= FEWEST and not is_worth_it(forecast, rows.units):
        # Few worlds are not enough to call a release of little use.
        bound = forecast.max_labels_per_labeler
        forecast = simulate(tuning.DRAWS, forecast.mechanism, bound)
    if named is None and forecast.mechanism == "rr" and options.also is not None:
        raise PolicyError("auto chose rr, which has no head to label --also; leave it out")
    return forecast


def _forecast_accuracy_of_judges_alone(
    featured: Featured, policy: Policy, options: FeatureOptions, periods: int
) -> Interval:
    """Return the accuracy to expect of what public judges say, alone.

    Nothing is known of these judges: it is that of as few columns as theirs.
    """
    judges = [group for group in featured.provider.groups() if group.name.startswith(JUDGES)]
    x = np.concatenate([featured.x[:, group.start : group.stop] for group in judges], axis=1)
    return tuning.forecast_statistic_alone(
        *(x, featured.compared, policy.epsilon, policy.delta, Prior(options.agreement)),
        periods=periods,
    )


def _find_fewest_ball_noise_components(
    featured: Featured, policy: Policy, options: FeatureOptions
) -> int | None:
    """Return the fewest components that ball noise is for; None where Gaussian noise is less.

    From public columns alone, and before anything is released: a shape of noise that were chosen
    later would not be covered by the price. Components that are asked for count up to the number of
    directions: noise for more would be paid for nothing, for the life of the policy.
    """
    tuning.check_budgets([policy.epsilon], policy.delta)
    noises = components.make_noise_chooser(policy.epsilon, policy.delta)
    directions = Directions.of_features(featured.x, featured.compared)
    wanted = options.components
    noise = noises(
        directions.best_component_count(noises) if wanted is None else min(wanted, directions.rank)
    )
    return noise.least if noise.kind == "ball" else None
