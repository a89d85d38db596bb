"""What a release of an input would take from the budget, before anything is spent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Unpack

from labelguard.errors import PolicyError
from labelguard.ingest import layouts
from labelguard.ingest.conflicts import refuse_conflicts
from labelguard.ingest.sources import Input
from labelguard.ledger.records import LabelerTable
from labelguard.policy.bounds import Bound
from labelguard.project import policies, recovery
from labelguard.project.opening import OpenProject, Where, located
from labelguard.release import planning
from labelguard.release.admission import admit
from labelguard.release.intake import Intake, IntakeOptions, check_choices, check_fewest
from labelguard.release.methods import auto, open_mechanism
from labelguard.storage.executor import open_executor
from labelguard.terms import Progress, silent


@dataclass(frozen=True)
class Fit:
    """What a release of an input would take, and whether it fits."""

    policy: str
    """the policy that it would be charged to"""
    epsilon: float
    """ε of that policy"""
    delta: float
    """δ of that policy"""
    unit: str
    """what is protected as a whole"""
    rows_read: int
    """rows of the input"""
    rows: int
    """rows that would be released"""
    refused_rows: int
    """rows of labelers who have left"""
    labelers: int
    """units in it"""
    new: int
    """labels that would be drawn"""
    released_before: int
    """labels that were, which cost nothing"""
    charged: int
    """what would be charged, over all units"""
    left: int
    """what these units have left before"""
    other_units: int
    """units that are left out: held out or, for an evaluation, not held out"""
    other_labels: int
    """labels of theirs"""
    dropped_by_bound: int
    """labels beyond the bound, which would be left out"""
    exhausted_labelers: int
    """units that have too little left"""
    short: int
    """labels that they lack"""
    fits: bool
    """whether nobody is exhausted"""


def check(
    source: Input,
    *,
    mechanism: str | None = None,
    name: str | None = None,
    namespace: str | None = None,
    project: Where = None,
    progress: Progress = silent,
    **options: Unpack[IntakeOptions],
) -> Fit:
    """Plan a release of `source` under the policy in force, or a draft, and charge nothing.

    `options` say how the input is read (`release.intake.Intake`): columns, question, format,
    split, bad_rows, max_input_bytes; `mechanism` is by default the one that the policy pays for, of
    several that of the newest release. The columns of labels are dropped at the door, so the answer
    depends on public columns only. Raises what `privatize` would raise for these.
    """
    home = located(project)
    home = replace(home, namespace=namespace or home.namespace)
    intake = Intake.of(home, options)
    with OpenProject.job(home) as opened:
        ledger = opened.ledger
        record = policies.named(ledger.policies(), name)
        if record.state == "closed":
            raise PolicyError(f"policy {record.name!r} is closed; nothing can be charged to it")
        chosen = mechanism or auto.standing(ledger, record) or record.policy.events[0]
        opened_mechanism = open_mechanism(chosen)
        event = opened_mechanism.priced
        policy = record.policy
        reading = layouts.Reading(
            intake.columns,
            policy.unit,
            labelled=False,
            question=intake.question,
            format=intake.format,
            split=intake.split,
        )
        table = ledger.labelers(event) if record.state == "active" else LabelerTable.empty()
        staged = intake.stage(opened, source, reading, progress)
        check_choices(staged, opened_mechanism, policy.ties_of(event))
        check_fewest(staged, policy.allowance(event))
        admit(ledger, home.namespace, staged)
        if staged.given_ids:
            refuse_conflicts(staged)
        plan = planning.plan(
            staged,
            home,
            opened.keys,
            table,
            again=False,
            finished=None,
            earlier=recovery.known(ledger.releases(), event),
            bound=Bound.of(policy, event, named=staged.labelers or staged.recorded),
            part=opened_mechanism.part,
            held_out=policy.held_out,
            executor=open_executor(),
            progress=lambda share: progress("planning", share),
        )
        return Fit(
            record.name,
            policy.epsilon,
            policy.delta,
            policy.unit,
            rows_read=staged.rows_read,
            rows=plan.rows,
            refused_rows=staged.refused_rows,
            labelers=len(plan.units),
            new=plan.drawn,
            released_before=plan.rows - plan.drawn,
            charged=plan.new,
            left=int((plan.capacity - table.of(plan.units)[1]).sum()),
            other_units=plan.other_units,
            other_labels=plan.other_labels,
            dropped_by_bound=plan.over_bound,
            exhausted_labelers=int((plan.short > 0).sum()),
            short=int(plan.short.sum()),
            fits=not plan.short.any(),
        )
