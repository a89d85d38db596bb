"""One labeler: what was spent of them, by which releases, what is left, and whether they left."""

from __future__ import annotations

from dataclasses import dataclass

from labelguard.budget.policy import AnyUnit
from labelguard.errors import LedgerError
from labelguard.ledger import charges
from labelguard.ledger.people import Departure
from labelguard.project import erasure, linking
from labelguard.project.erasure import ReleaseUse
from labelguard.project.opening import OpenProject, Where
from labelguard.storage import blocks


@dataclass(frozen=True)
class LabelerAllowance:
    """A labeler's part of one allowance of a policy."""

    # the policy's name
    policy: str
    # the kind of event: rr or statistic
    event: str
    # how many they may use
    allowed: int
    # how many they used
    used: int
    # how many are left; 0 once the policy is closed
    left: int
    # of the policy: active or closed
    state: str


@dataclass(frozen=True)
class LabelerFacts:
    """A labeler as the project knows them, without their labels.

    What was charged, is left and was taken is that of all ids which are linked with theirs.
    """

    # 32 hexadecimal digits
    pseudonym: str
    # what the project protects as a whole; null before its first policy
    unit: AnyUnit | None
    # whether they left, how and when; null if they did not
    departure: Departure | None
    # pseudonyms of linked ids that have not left
    linked: list[str]
    # under every policy that charged them; none if nothing was charged
    allowances: list[LabelerAllowance]
    # what all policies, at their full price, may have told of them; 0 if nothing was charged. Of
    # whom all ids have left: no policy that was put into force later and never charged them. Where
    # contents are protected: of each content
    epsilon: float
    # and with which δ
    delta: float
    # what each release took of them; none where contents are protected
    releases: list[ReleaseUse]
    # rows of theirs in private maps: one for each label and release
    rows_remembered: int
    # raw rows of theirs: set aside, ingested, waiting in the inbox
    rows_set_aside: int


def read_labeler(labeler_id: str, project: Where = None) -> LabelerFacts:
    """Return the facts of a labeler, by `ID`, `SOURCE:ID` or a pseudonym (32 digits).

    Raises `LedgerError` for an id that was never seen.
    """
    report = erasure.preview_removal(labeler_id, "erased", project, never_seen=True)
    opened = OpenProject.open(project)
    ledger = opened.ledger
    if not report.known:
        raise LedgerError(linking.explain_unknown_id(labeler_id, opened))
    key = blocks.from_bytes(bytes.fromhex(report.labeler))
    [unit] = blocks.to_list(ledger.people.links().unit_of(key))
    policies = ledger.policies.history()
    with ledger.snapshot() as connection:
        uses = charges.read_uses(connection, unit)
    of = policies[-1].unit if policies else None
    is_charged = bool(uses) or of == "item"
    departures = ledger.people.departures()
    return LabelerFacts(
        report.labeler,
        of,
        next((one for one in departures if one.pseudonym == report.labeler), None),
        report.linked,
        [
            LabelerAllowance(
                *(row.name, row.event, row.capacity, row.used),
                row.capacity - row.used if row.state == "active" else 0,
                row.state,
            )
            for row in uses
        ],
        report.epsilon if is_charged else 0.0,
        report.delta if is_charged else 0.0,
        report.releases,
        report.rows_remembered,
        report.rows_set_aside,
    )
