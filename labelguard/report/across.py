"""Spending of one person in several projects, each with its own keys, ledger and pseudonyms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labelguard.budget import pricing
from labelguard.budget.policy import AnyUnit
from labelguard.budget.pricing import Total
from labelguard.errors import LedgerError, ProjectError
from labelguard.ledger.records import UnitGroups
from labelguard.project import linking
from labelguard.project.opening import OpenProject
from labelguard.storage import blocks


@dataclass(frozen=True)
class ProjectSpending:
    """One project's part of what a person has spent."""

    # the project's directory, as it was named
    project: str
    # what it protects as a whole; null before its first policy
    unit: AnyUnit | None
    # whether it knows the person
    known: bool
    # how many budgets of theirs were charged: 1, or more where their ids are not linked
    budgets: int
    # ε of all its policies, for each of these budgets; 0 where none was charged
    epsilon: float
    # δ of them
    delta: float


@dataclass(frozen=True)
class PersonSpending:
    """The spending of one person in several projects."""

    # project by project
    projects: list[ProjectSpending]
    # what all of them may have told of the person together; null where no sum exists
    total: Total | None


def add_up_spending(labeler_ids: Sequence[str], projects: Sequence[Path]) -> PersonSpending:
    """Return what the person with these ids, each `ID` or `SOURCE:ID`, has spent in the projects.

    Every id is looked up in every project. Whoever was charged in a project lost what all its
    policies cost, used or not; ε and δ of projects add up. Of several units there is no sum, and
    none where contents are the unit, whose charges are nobody's.

    Raises `LedgerError` for somebody whom no project knows, or whose id a project knows in another
    spelling only; `ProjectError` for a project that is named twice.
    """
    opened = [OpenProject.open(path) for path in projects]
    states = [one.project.state for one in opened]
    if len(set(states)) < len(states):
        raise ProjectError("two of these are one project; name each once")
    each = [
        _look_up(labeler_ids, str(path), one) for path, one in zip(projects, opened, strict=True)
    ]
    if not any(one.known for one in each):
        raise LedgerError("nobody with this id was ever seen in any of these projects")
    units = {one.unit for one in each if one.unit}
    adds_up = len(units) < 2 and "item" not in units
    return PersonSpending(each, pricing.total(each) if adds_up else None)


def _look_up(labeler_ids: Sequence[str], name: str, opened: OpenProject) -> ProjectSpending:
    ledger = opened.ledger
    keys = linking.keys_of_ids(labeler_ids, opened)[0]
    known = linking.are_known(ledger, keys)
    units = blocks.unique(UnitGroups(*ledger.people.members()).unit_of(keys))[0]
    charged = [unit for unit in units if ledger.releases.uses_by_release(unit[np.newaxis])]
    is_known = bool(known.any() or charged)
    if not is_known:
        similar = [one for text in labeler_ids for one in linking.find_similar(text, opened)]
        if similar:
            raise LedgerError(
                f"{name} knows this id in another spelling only, as labeler {similar[0]}: name it "
                "as the files of that project write it, with one --labeler more"
            )
    policies = ledger.policies.history()
    cost = pricing.total(policies * len(charged))
    unit = policies[-1].unit if policies else None
    return ProjectSpending(name, unit, is_known, len(charged), cost.epsilon, cost.delta)
