"""By which mechanism and under which policy a run releases: what the ledger fixes, what was asked,
and, at a project's first release, what public columns recommend.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from labelguard.ingest.sources import Input
from labelguard.ingest.staging import Staged
from labelguard.learning.features import column_features
from labelguard.ledger.ledger import Ledger
from labelguard.planner.outcomes import Forecast, Sizing
from labelguard.policy.events import RANDOMIZED_LABELS
from labelguard.policy.policy import Policy
from labelguard.policy.policy import Request as Asked
from labelguard.project import policies
from labelguard.release.methods import AUTO, auto
from labelguard.release.protocol import Mechanism
from labelguard.release.request import Request
from labelguard.terms import Progress


@dataclass(frozen=True)
class Terms:
    """What a run is, as far as it is known.

    `policy_id` is None until a first policy is stored. Before the input is read, `mechanism` may
    be open, and of a first `policy` δ is provisional, which decides nothing about how rows are
    read.
    """

    request: Request
    policy_id: int | None
    policy: Policy
    asked: Asked
    mechanism: Mechanism[Any] | None
    features: str | None
    forecast: Forecast | None = None

    @property
    def first(self) -> bool:
        """Whether the release makes the project's first policy."""
        return self.policy_id is None

    @property
    def event(self) -> str:
        """The kind of event; while the mechanism is open, one that the policy pays for."""
        return self.mechanism.priced if self.mechanism else self.policy.events[0]

    @property
    def columns(self) -> tuple[str, ...]:
        """Numeric properties of responses that are read."""
        if self.mechanism:
            return self.mechanism.features
        return column_features(self.request.head(self.features).features)

    @property
    def also(self) -> Input | None:
        """Further pairs to label."""
        return self.mechanism.also if self.mechanism else self.request.head().also


def begin(request: Request, ledger: Ledger) -> Terms:
    """What is known before the input is read.

    Raises `PolicyError` if what is asked contradicts the policy in force, or itself.
    """
    record = policies.in_force(ledger)
    name: str | None = request.mechanism
    if name == AUTO:
        standing = auto.standing(ledger, record) if record else None
        name = standing or auto.named(request.terms)
    features = _recorded_features(ledger)
    mechanism = request.opened(name, features) if name else None
    event = mechanism.priced if mechanism else RANDOMIZED_LABELS.name
    if record and not mechanism:
        event = record.policy.events[0]
    asked = Asked(**request.terms, event=event)
    if record is None:
        return Terms(request, None, policies.first(ledger, asked, 1), asked, mechanism, features)
    return Terms(request, record.id, asked.under(record.policy), asked, mechanism, features)


def settle(
    terms: Terms, ledger: Ledger, staged: Staged, progress: Progress, *, forecast: bool
) -> Terms:
    """The same with all that public columns decide: the mechanism, and a first policy's numbers.

    `forecast`: what the mechanism may be expected to give is wanted at a first release.
    """
    request, named = terms.request, terms.mechanism
    units = staged.units() if terms.first else 0
    if terms.first:
        terms = replace(terms, policy=policies.first(ledger, terms.asked, units))
    plain = named is not None and named.name == RANDOMIZED_LABELS.name
    wanted = terms.first and (request.periods > 1 or (forecast and not plain))
    if named is not None and not wanted:
        return terms
    sizing = auto.size(
        staged,
        terms.policy.epsilon,
        terms.policy.delta,
        request.head(terms.features),
        progress,
        mechanism=named.name if named else None,
        periods=request.periods if terms.first else 1,
    )
    mechanism = named or request.opened(sizing.mechanism, terms.features)
    terms = replace(terms, mechanism=mechanism, forecast=sizing.forecast)
    own = _allowed(sizing, sized=request.periods > 1 or named is None) if terms.first else {}
    asked = Asked(**{**own, **request.terms}, event=mechanism.priced)
    if terms.first:
        return replace(terms, asked=asked, policy=policies.first(ledger, asked, units))
    return replace(terms, asked=asked, policy=asked.under(terms.policy))


def _allowed(sizing: Sizing, *, sized: bool) -> dict[str, int]:
    """What a first policy is asked to allow, where nobody says it."""
    found = {"releases": sizing.releases, "max_labels_per_labeler": sizing.max_labels_per_labeler}
    return {name: uses for name, uses in found.items() if sized and uses is not None}


def _recorded_features(ledger: Ledger) -> str | None:
    """What heads of this project learn from, as its last release with one has it."""
    for record in reversed(ledger.releases()):
        if features := record.settings["choices"].get("features"):
            return str(features)
    return None
