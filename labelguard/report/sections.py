"""Sections on a project as a whole: their facts and tables; words are in words.j2."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Set
from dataclasses import replace
from typing import Any

from labelguard.budget.policy import Allowance, Policy
from labelguard.configuration.project_file import OrganisationTable
from labelguard.errors import LabelguardError
from labelguard.ledger import people as leaving
from labelguard.ledger.journal import Anchor
from labelguard.ledger.policies import CEILINGS, Ceiling, PolicyRecord
from labelguard.ledger.records import Links, ReleaseRecord
from labelguard.project.project import Project
from labelguard.project.verification import Verification
from labelguard.release import card as cards
from labelguard.release.sections import Section
from labelguard.report.facts import (
    HookState,
    ReportFacts,
    format_best_guess_accuracy,
    format_odds_factor,
)
from labelguard.report.render import fill_words, format_small_number, format_time
from labelguard.storage import blocks
from labelguard.text import DEFAULT_AGREEMENT, pluralize

_RELEASES = 60
_FORECASTS = 24
_LEFT = 25
_LEAVERS = (
    "which released rows are those of somebody who left: whoever compares releases from before and "
    "after, sees a flip probability that only one person has, or knows who was asked what, may "
    "tell; what these rows say is within the promise"
)


def describe_to_do(facts: ReportFacts, verification: Verification) -> Section:
    """Faults, allowances that are used up, and what was begun and not finished."""
    hook = None
    with contextlib.suppress(LabelguardError):  # which the hook's section tells
        hook = HookState.read(facts.opened)
    troubles = list(hook.describe_troubles()) if hook else []
    stated = read_organisation_statements(facts.opened.project)
    missing = [name for name, value in stated.items() if value == NOT_STATED]
    shown: dict[str, Any] = {"facts": facts, "verification": verification, "troubles": troubles}
    shown["sources"] = facts.opened.ledger.people.sources()
    part = fill_words("to_do", missing=missing, exhausted=_count_exhausted(facts), **shown)
    return part if part.points else replace(part, text=("Nothing to do.",))


def _count_exhausted(facts: ReportFacts) -> dict[str, int]:
    """Return for each allowance how many units have nothing left and did not leave.

    None of contents, which are labelled once.
    """
    ledger = facts.opened.ledger
    gone = {one.pseudonym for one in ledger.people.departures()}
    linked: dict[str, set[str]] = {}
    links = ledger.people.links()
    for labeler, unit in zip(links.labelers, links.units, strict=True):
        linked.setdefault(blocks.to_hex(unit), set()).add(blocks.to_hex(labeler))
    return {
        use.event: sum(
            not linked.get(unit, {unit}) <= gone
            for unit, _, _ in ledger.releases.heavy_users(use.event, 100, use.exhausted_labelers)
        )
        for use in facts.budget.allowances
        if use.exhausted_labelers and facts.unit != "item"
    }


def describe_release_card(facts: ReportFacts, verification: Verification) -> Section | None:
    """Return the card of the release that the report is about."""
    if facts.chosen is None:
        return None
    card = facts.read_card(facts.chosen)
    if card is None:
        return fill_words("altered", "release", id=facts.chosen.id)
    privacy = card["privacy"]
    training = _strip_bold_and_code_marks(
        cards.fill_block("training", train_with=card["train_with"])
    )
    part = fill_words(
        "release",
        verification=verification,
        card=card,
        privacy=privacy,
        span=cards.describe_covered_releases(privacy),
        training=training,
    )
    return replace(
        part, facts=tuple((name.strip(), value) for name, value in cards.list_facts(card))
    )


def describe_guarantee(facts: ReportFacts, verification: Verification) -> Section:
    """Return what the project promises, and how much of its ceiling that takes."""
    cost = facts.budget.lifetime
    reactive = any(record.policy.assignment_reactive for record in facts.policies)
    independent = any(record.policy.turns == "independent" for record in facts.policies)
    declared = {name for record in facts.policies for name in record.policy.public_columns}
    conditions = [cards.fill_block("condition")] if reactive else []
    conditions += [cards.fill_block("conversations")] if independent else []
    conditions += [cards.fill_block("assumption", columns=sorted(declared))] if declared else []
    return fill_words(
        "guarantee",
        facts=facts,
        verification=verification,
        promised=any(record.state != "draft" for record in facts.policies),
        conditions=" ".join(map(_strip_bold_and_code_marks, conditions)),
        factor=format_odds_factor(cost.epsilon),
        right=format_best_guess_accuracy(cost.epsilon, cost.delta),
    )


def _strip_bold_and_code_marks(markdown: str) -> str:
    """Return a sentence of a card without its marks."""
    return markdown.replace("**", "").replace("`", "")


def describe_not_protected(facts: ReportFacts) -> Section:
    """Return what the promise leaves out: as cards say it, and what a project adds."""
    record = facts.policy_in_force_or_newest
    lines = list(cards.list_not_protected(record.policy) if record else cards.NOT_PROTECTED)
    lines += [line for card in facts.read_cards_per_mechanism() for line in card["not_protected"]]
    lines.append(_LEAVERS)
    return fill_words("not_protected", lines=dict.fromkeys(lines))


def describe_data_processing(facts: ReportFacts, verification: Verification) -> Section:
    """Return what the organisation states of itself, the risk that is left, and room to sign."""
    cost = facts.budget.lifetime
    return fill_words(
        "processing",
        facts=facts,
        verification=verification,
        stated=read_organisation_statements(facts.opened.project),
        promised=any(record.state != "draft" for record in facts.policies),
        right=format_best_guess_accuracy(cost.epsilon, cost.delta),
        people=len(facts.opened.ledger.releases.charged_units()),
        keep=facts.opened.project.ingest.get("keep"),
    )


NOT_STATED = "not stated"


def read_organisation_statements(project: Project) -> dict[str, str]:
    """Return what `[organisation]` says, in its order; "not stated" where it says nothing."""
    stated = {"contact": project.about.get("contact", "")}
    stated |= {name: value for name, value in project.organisation.items() if value.strip()}
    return {
        name.replace("_", " "): " ".join(stated.get(name, "").split()) or NOT_STATED
        for name in OrganisationTable.model_fields
    }


def describe_policies(facts: ReportFacts, verification: Verification) -> Section:
    """Return what every policy allows and costs, and the ceiling, of which the journal knows
    raises.
    """
    rows = map(_format_policy_row, facts.policies)
    raised = _describe_ceiling_raises(facts)
    return fill_words("policies", facts=facts, verification=verification, raised=raised, rows=rows)


def _format_policy_row(record: PolicyRecord) -> tuple[str, ...]:
    policy, epsilon = record.policy, f"{record.policy.epsilon:g}"
    return (
        *(record.name, record.state, format_time(record.created_at), epsilon),
        *(format_small_number(policy.delta), policy.unit, _describe_tie_protection(policy)),
        ", ".join(map(_describe_allowance, policy.allowances)),
        "–" if record.state == "draft" else epsilon,
    )


def _describe_tie_protection(policy: Policy) -> str:
    """Return whether it is a secret who called a tie, and who gave no answer."""
    ties = "public" if policy.tie_status_public else "protected"
    return f"ties {ties}, skips {'public' if policy.skips == 'public' else 'protected'}"


def _describe_ceiling_raises(facts: ReportFacts) -> str:
    """Return when the ceiling was raised, from what to what."""
    entries = [one for one in facts.opened.ledger.read_journal() if one.kind in CEILINGS]
    ceilings = [Ceiling.from_journal(json.loads(one.body)) for one in entries]
    return "; ".join(
        f"{format_time(one.at)} UTC, from {before} to {after}"
        for one, before, after in zip(entries[1:], ceilings, ceilings[1:], strict=False)
    )


def _describe_allowance(allowance: Allowance) -> str:
    if allowance.allowed is None:
        return f"as many as in the first release, rounded up, {allowance.kind.noun}s"
    return pluralize(allowance.allowed, allowance.kind.noun)


def describe_dropped_labels(facts: ReportFacts) -> Section:
    """Labels that no release holds, because an allowance was used up, or they came twice."""
    newest = next(
        (one for one in reversed(facts.committed_releases) if one.part == "training"), None
    )
    bounded = sum(bool(one.settings.get("dropped_by_bound")) for one in facts.committed_releases)
    return fill_words("left_out", facts=facts, newest=newest, bounded=bounded)


def describe_sources(facts: ReportFacts) -> Section | None:
    """Return the sources of ids and how each was declared; None before the first release."""
    sources = facts.opened.ledger.people.sources()
    rows = ((one.name, one.people, format_time(one.at)) for one in sources)
    return fill_words("sources", rows=rows) if sources else None


def describe_departures_and_links(facts: ReportFacts) -> Section | None:
    """Return what was said of single labelers, by pseudonym, never by id; None where nothing
    was.
    """
    ledger = facts.opened.ledger
    with ledger.snapshot() as connection:
        gone = leaving.read_departures(connection)
    links = ledger.people.links()
    if not (gone or links):
        return None
    others = _find_other_active_ids(links, {one.pseudonym for one in gone})
    kinds = [one.kind for one in gone]
    return fill_words(
        "people",
        rows=(
            (one.pseudonym, one.kind, format_time(one.at), ", ".join(others.get(one.pseudonym, [])))
            for one in gone[: -_LEFT - 1 : -1]
        ),
        retired=kinds.count("retired"),
        erased=kinds.count("erased"),
        linked=len(links),
        partly=len(others),
    )


def _find_other_active_ids(links: Links, gone: Set[str]) -> dict[str, list[str]]:
    """Return of who left, by pseudonym, the linked ids that did not."""
    units: dict[bytes, list[str]] = {}
    for name, unit in zip(links.labelers, blocks.to_list(links.units), strict=True):
        units.setdefault(unit, []).append(blocks.to_hex(name))
    active = [(ids, [one for one in ids if one not in gone]) for ids in units.values()]
    return {one: rest for ids, rest in active if rest for one in ids if one in gone}


def describe_forecasts(facts: ReportFacts) -> Section | None:
    """Return what the planner expected of releases, where its forecast stands with the release."""
    planned = [one for one in facts.committed_releases if "forecast" in one.settings]
    poor = [one for one in facts.committed_releases if "discouraged" in one.settings]
    if not planned and not poor:
        return None
    return fill_words(
        "planned",
        rows=map(_format_forecast_row, reversed(planned[-_FORECASTS:])),
        forecasts=planned,
        poor=poor,
        differ=1 - DEFAULT_AGREEMENT,
    )


def _format_forecast_row(record: ReleaseRecord) -> tuple[str, ...]:
    accuracy, error = (record.settings["forecast"][name] for name in ("accuracy", "label_error"))
    numbers = f"{accuracy['mean']:.3f}", f"{accuracy['low']:.3f} to {accuracy['high']:.3f}"
    return record.id, record.settings["mechanism"], *numbers, f"{error['mean']:.3f}"


def describe_releases(facts: ReportFacts) -> Section:
    """Return every release, whatever became of it."""
    names = {record.id: record.name for record in facts.policies}
    rows = tuple(
        (
            *(one.id, format_time(one.created_at), one.settings["mechanism"]),
            *(names.get(one.policy_id, ""), one.state, one.settings.get("labelers")),
            *(one.rows, one.charged, one.settings.get("dropped_by_bound")),
        )
        for one in reversed(facts.releases[-_RELEASES:])
    )
    return fill_words(
        "releases",
        rows=rows,
        newest_first=True,
        facts=facts,
        gone=sum(one.state == "abandoned" for one in facts.releases),
        older=len(facts.releases) - len(rows),
    )


def describe_hook(facts: ReportFacts) -> Section | None:
    """Return how the hook stands, in counts; None for a project without one."""
    try:
        hook = HookState.read(facts.opened)
    except LabelguardError as error:
        return fill_words("hook_unread", "hook", error=str(error))
    if hook is None:
        return None
    worker = hook.worker
    rows = [(name, "reconciled", when) for name, when in worker.list_reconciliations()]
    rows += [(name, "published", one) for name, one in sorted(worker.pushed.items())]
    rows += [
        (name, "released", f"{one}, {worker.days.get(name, '')}".rstrip(", "))
        for name, one in sorted(worker.releases.items())
    ]
    return fill_words("hook", rows=rows, waiting=hook.waiting, letters=hook.letters)


def describe_verification(
    facts: ReportFacts, verification: Verification, anchor: Anchor | None
) -> Section:
    """Return what was verified, and the line to keep elsewhere."""
    return fill_words(
        "verification",
        facts=facts,
        verification=verification,
        anchor=anchor,
        newest=Anchor(*facts.opened.ledger.read_head()),
    )
