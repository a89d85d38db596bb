"""Making, showing and changing the policies of a project: what the `policy` commands do.

    import labelguard as lg
    lg.policies.new("weekly", epsilon=3, delta=1e-5, allow=["statistic:releases=52"])
    lg.policies.activate("weekly")

`project` is everywhere a `Project`, its directory, or found from here.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence

from labelguard.budget import events, pricing
from labelguard.budget.events import RANDOMIZED_LABELS
from labelguard.budget.label_values import Skips, Ties, Turns, parse_public_columns
from labelguard.budget.policy import Allowance, AnyUnit, Policy
from labelguard.budget.pricing import Total
from labelguard.budget.request import PolicyRequest
from labelguard.errors import PolicyError
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.policies import PolicyRecord
from labelguard.project.opening import OpenProject, Where
from labelguard.project.policy_facts import (
    Activation,
    Closed,
    PolicyDetails,
    PolicyLine,
    PolicyOverview,
)
from labelguard.text import suggest_misspelled_keywords

__all__ = ["activate", "close", "listing", "new", "preview", "show"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def parse_allowances(allow: Sequence[str], shares: str = "") -> tuple[Allowance, ...]:
    """`rr:uses=1`, `rr:uses=50,block=1`, `statistic:releases=1,ball=4`, and
    `rr=1,statistic=3`, as allowances.

    Raises `PolicyError` for anything else, and for shares of events that are not allowed.
    """
    weights = _parse_shares(shares)
    allowances = []
    for text in allow:
        event, allowed, terms = events.parse_allowance(text)
        allowances.append(Allowance(event, allowed, weights.pop(event, 1.0), **terms))
    if weights:
        raise PolicyError(f"--shares names {', '.join(weights)}, which the policy does not allow")
    return tuple(allowances)


@suggest_misspelled_keywords
def new(
    name: str,
    *,
    epsilon: float,
    delta: float,
    allow: Sequence[str],
    shares: str = "",
    ties: Ties | None = None,
    tie_status_public: bool = False,
    unit: AnyUnit = "labeler",
    skips: Skips | None = None,
    assignment_reactive: bool | None = None,
    held_out: float = 0.0,
    turns: Turns | None = None,
    accept_unproven: bool | None = None,
    public_columns: Sequence[str] | None = None,
    project: Where = None,
) -> PolicyDetails:
    """Make a policy, compute its joint price once, and keep both; it waits to be activated.

    `allow` lists the kinds of events it pays for, each as `rr:uses=50`, `statistic:releases=12`
    or `uls:runs=4,q=0.2,steps=100`, and `shares` what each weighs in the price, as in
    `rr=1,statistic=3`. The rest are the fields of a `Policy`.

    Returns what `show` shows. Raises `PolicyError` if the policy contradicts itself, has no price,
    or has the name of another.

    Example:
        >>> study = lg.init("study")
        >>> lg.policies.new(
        ...     "weekly", epsilon=3, delta=1e-5, allow=["rr:uses=8"], project=study
        ... )
        PolicyDetails('weekly', draft; ε = 3, δ = 1e-5 of each labeler; rr:uses=8; ties coin)
    """
    if not _NAME.fullmatch(name):
        raise PolicyError(
            "a policy's name has letters, digits, '.', '_' and '-' only, at most 64, "
            f"found {name!r}"
        )
    allowances = parse_allowances(allow, shares)
    policy = Policy(
        float(epsilon),
        float(delta),
        allowances,
        ties or events.choose_default_ties(allowance.event for allowance in allowances),
        tie_status_public,
        unit,
        skips or "public",
        bool(assignment_reactive),
        float(held_out),
        bool(accept_unproven),
        turns or "stop",
        parse_public_columns(public_columns),
    )
    with OpenProject.hold_for_job(project) as opened:
        ledger = opened.ledger
        record = ledger.policies.add(None, name, policy)
        return describe_policy(record, preview_activation_ignoring_ceiling(ledger, record))


def show(name: str | None = None, project: Where = None) -> PolicyDetails:
    """Return a policy with its price; by default the one in force, else the only draft.

    Raises `PolicyError` if there is none of that name, or none at all.

    Example:
        >>> study = lg.init("study")
        >>> made = lg.policies.new(
        ...     "weekly", epsilon=3, delta=1e-5, allow=["rr:uses=8"], project=study
        ... )
        >>> lg.policies.show(project=study).quote.events[0].allowed
        8
    """
    ledger = OpenProject.open(project).ledger
    record = find_policy(ledger.policies.all(), name)
    return describe_policy(record, preview_activation_ignoring_ceiling(ledger, record))


def listing(project: Where = None) -> list[PolicyLine]:
    """Return all policies, oldest first, in a few words.

    Example:
        >>> study = lg.init("study")
        >>> made = lg.policies.new(
        ...     "weekly", epsilon=3, delta=1e-5, allow=["rr:uses=8"], project=study
        ... )
        >>> [(one.name, one.state) for one in lg.policies.listing(study)]
        [('weekly', 'draft')]
    """
    ledger = OpenProject.open(project).ledger
    return [_summarize_policy(ledger, record) for record in ledger.policies.all()]


def require_policy_in_force(project: Where) -> PolicyDetails:
    """Return the policy in force. Raises `PolicyError` where there is none: a job agrees to
    nothing.
    """
    ledger = OpenProject.open(project).ledger
    if active := ledger.policies.active():
        return describe_policy(active)
    drafts = [record.name for record in ledger.policies.all() if record.state == "draft"]
    if drafts:
        raise PolicyError(
            "a job releases under a policy in force, and there are only drafts: look at "
            f"{' or '.join(drafts)} (labelguard policy show {drafts[-1]}), then labelguard "
            f"policy activate {drafts[-1]}"
        )
    raise PolicyError(
        "a job releases under a policy in force, and there is none: make one (labelguard "
        "policy new, policy activate), or a first release by hand (labelguard privatize)"
    )


def show_all(project: Where = None) -> PolicyOverview:
    """Return the policy in force, else the only draft, in detail, and the others in a few words."""
    ledger = OpenProject.open(project).ledger
    records = ledger.policies.all()
    shown = _find_standing(records)
    details = None
    if shown:
        details = describe_policy(shown, preview_activation_ignoring_ceiling(ledger, shown))
    return PolicyOverview(
        details,
        [_summarize_policy(ledger, record) for record in records if record is not shown],
    )


def _summarize_policy(ledger: Ledger, record: PolicyRecord) -> PolicyLine:
    policy = record.policy
    return PolicyLine(
        *(record.name, record.state, record.created_at),
        *(policy.epsilon, policy.delta, policy.unit),
        policy.held_out,
        {allowance.event: allowance.allowed for allowance in policy.allowances},
        policy.epsilon if record.state != "draft" else None,
        preview_activation_ignoring_ceiling(ledger, record),
    )


def preview(name: str, project: Where = None) -> Activation:
    """Return what activating a draft would mean: which policy it closes, and the total then.

    Raises `PolicyError` for a policy that cannot be put into force.

    Example:
        >>> study = lg.init("study")
        >>> made = lg.policies.new(
        ...     "weekly", epsilon=3, delta=1e-5, allow=["rr:uses=8"], project=study
        ... )
        >>> lg.policies.preview("weekly", study).total.epsilon
        3.0
    """
    return _preview_within_ceiling(OpenProject.open(project).ledger, name)


def activate(name: str, project: Where = None, *, agreed: Activation | None = None) -> Activation:
    """Put a draft into force; returns what `preview` said of it.

    `agreed` is a preview that somebody agreed to: if it is no longer so, nothing is done.

    The policy before it is closed and stays paid in full. One that is in force already stays so.
    Raises `PolicyError` for an unfinished release, a closed policy, or one that promises about
    other neighbours than those before it.

    Example:
        >>> study = lg.init("study")
        >>> made = lg.policies.new(
        ...     "weekly", epsilon=3, delta=1e-5, allow=["rr:uses=8"], project=study
        ... )
        >>> lg.policies.activate("weekly", study).activates
        'weekly'
    """
    with OpenProject.hold_for_job(project) as opened:
        ledger = opened.ledger
        activation = _preview_within_ceiling(ledger, name)
        if find_policy(ledger.policies.all(), name).state == "active":
            return activation
        epoch = opened.begin_epoch_between_releases()
        activation = _preview_within_ceiling(ledger, name)
        if agreed is not None and agreed != activation:
            raise PolicyError(
                "the project went on since this was shown, and the price is another now; look again"
            )
        ledger.policies.activate(epoch, name)
        return activation


def close(name: str | None = None, project: Where = None) -> Closed:
    """Close the policy in force without another, or remove the draft of that name.

    Nothing more can be charged to a closed policy, and it stays paid in full. The journal tells of
    a draft that was removed. Raises `PolicyError` if no policy is in force, for a name of none or
    of a closed one, and for an unfinished release.

    Example:
        >>> study = lg.init("study")
        >>> made = lg.policies.new(
        ...     "weekly", epsilon=3, delta=1e-5, allow=["rr:uses=8"], project=study
        ... )
        >>> _ = lg.policies.activate("weekly", study)
        >>> lg.policies.close("weekly", study).epsilon
        3.0
    """
    with OpenProject.hold_for_job(project) as opened:
        ledger = opened.ledger
        record = find_policy(ledger.policies.all(), name) if name else ledger.policies.active()
        if record is None:
            raise PolicyError("no policy is in force in this project; see: labelguard policy show")
        if record.state == "closed":
            raise PolicyError(f"policy {name!r} is closed already")
        if record.state == "draft":
            ledger.policies.drop(ledger.begin_job(), record.name)
            return Closed(record.name, 0.0, 0.0)
        ledger.policies.close(opened.begin_epoch_between_releases(), record)
        return _describe_closed(record)


def find_policy_in_force(ledger: Ledger) -> PolicyRecord | None:
    """Return the policy that releases are charged to; None before a first release, which makes one.

    Raises `PolicyError` if none is in force but some were made.
    """
    active = ledger.policies.active()
    if active is None and ledger.policies.all():
        raise PolicyError(
            "no policy is in force in this project; see labelguard policy show, and put one into "
            "force: labelguard policy activate NAME"
        )
    return active


def make_first_policy(ledger: Ledger, request: PolicyRequest, units: int) -> Policy:
    """Return the policy that a first release makes; `units` gave labels to it.

    Raises `PolicyError` if it costs more than the project's ceiling: the charge would fail on it
    later.
    """
    policy = request.first_policy(units)
    ledger.policies.ceiling().check(Total(policy.epsilon, policy.delta))
    return policy


def preview_activation_ignoring_ceiling(ledger: Ledger, record: PolicyRecord) -> Activation | None:
    """Return what putting a draft into force would mean, even above the ceiling.

    None for one that is no draft, or whose promise does not add up with those before it.
    """
    if record.state == "draft":
        with contextlib.suppress(PolicyError):
            return _compute_activation(ledger, record)
    return None


def describe_policy(record: PolicyRecord, activation: Activation | None = None) -> PolicyDetails:
    """Return a policy with its state and its quote, in detail."""
    return PolicyDetails(
        *(record.name, record.state, record.created_at),
        **vars(record.policy),
        quote=pricing.describe_quote(record.policy, record.quote, record.prices),
        activation=activation,
    )


def _parse_shares(text: str) -> dict[str, float]:
    shares: dict[str, float] = {}
    for assignment in filter(None, (piece.strip() for piece in text.split(","))):
        event, sign, value = (piece.strip() for piece in assignment.partition("="))
        try:
            shares[event] = float(value)
        except ValueError:
            sign = ""
        if not sign or not event:
            raise PolicyError(f"--shares expects EVENT=NUMBER pairs, found {assignment!r}")
    return shares


def _describe_closed(record: PolicyRecord) -> Closed:
    return Closed(record.name, record.policy.epsilon, record.policy.delta)


def _preview_within_ceiling(ledger: Ledger, name: str) -> Activation:
    record = find_policy(ledger.policies.all(), name)
    if record.state == "closed":
        raise PolicyError(f"policy {name!r} is closed; make a new one to change the terms")
    activation = _compute_activation(ledger, record)
    activation.ceiling.check(activation.total)
    return activation


def _compute_activation(ledger: Ledger, record: PolicyRecord) -> Activation:
    """Return the effect of putting a policy into force. Does not check the ceiling."""
    every, policy, closes = ledger.policies.history(), record.policy, None
    if record.state == "draft":
        for earlier in ledger.policies.all():
            if earlier.state != "draft":
                _check_same_neighbors(earlier, record)
            if earlier.state == "active":
                closes = _describe_closed(earlier)
        every.append(policy)
    cost, ceiling = pricing.sum_budgets(every), ledger.policies.ceiling()
    return Activation(record.name, policy.epsilon, policy.delta, policy.unit, closes, cost, ceiling)


def _check_same_neighbors(earlier: PolicyRecord, record: PolicyRecord) -> None:
    """Policies of one project promise about the same neighbours; else nothing adds up."""
    one, other = earlier.policy, record.policy
    labels = RANDOMIZED_LABELS.name in one.events and RANDOMIZED_LABELS.name in other.events
    for what, before, after in (
        ("unit", one.unit, other.unit),
        ("tie status public", one.tie_status_public, other.tie_status_public),
        ("treatment of ties", one.ties if labels else "", other.ties if labels else ""),
        ("treatment of skips", one.skips, other.skips),
        ("share of held-out units", repr(one.held_out), repr(other.held_out)),
    ):
        if before != after:
            raise PolicyError(
                f"policy {record.name!r} has another {what} ({after}) than {earlier.name!r} "
                f"({before}), which was in force before; what both promise does not add up: use "
                "another project"
            )
    if one.assignment_reactive and not other.assignment_reactive:
        raise PolicyError(
            f"policy {earlier.name!r} declared that assignment reacts to labels, and what it "
            f"released stays under that condition: make {record.name!r} anew with "
            "--assignment-reactive"
        )
    if one.turns == "independent" != other.turns:
        raise PolicyError(
            f"policy {earlier.name!r} declared that conversations went on independently of what "
            f"was chosen, and what it released stays under that condition: make {record.name!r} "
            "anew with --turns independent"
        )
    lacking = sorted({*one.public_columns} - {*other.public_columns})
    if lacking:
        raise PolicyError(
            f"policy {earlier.name!r} declared {', '.join(lacking)} public, and what it released "
            f"stays under that condition: make {record.name!r} anew with --public-column "
            f"{lacking[0]}"
        )


def find_policy(records: Sequence[PolicyRecord], name: str | None) -> PolicyRecord:
    """Return a policy by name; without one that in force, else the only draft."""
    if name is None:
        if standing := _find_standing(records):
            return standing
        raise PolicyError(
            "no policy is in force; name one: labelguard policy show"
            if records
            else "this project has no policy yet; make one: labelguard policy new"
        )
    for record in records:
        if record.name == name:
            return record
    raise PolicyError(f"there is no policy {name!r} in this project; see: labelguard policy show")


def _find_standing(records: Sequence[PolicyRecord]) -> PolicyRecord | None:
    """Return the policy in force, else the only draft."""
    active = [record for record in records if record.state == "active"]
    standing = active or [record for record in records if record.state == "draft"]
    return standing[0] if len(standing) == 1 else None


def __dir__() -> list[str]:
    return __all__
