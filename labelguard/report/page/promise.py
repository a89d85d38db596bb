"""What is promised, in plain words, to whom, and what is not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from labelguard.policy.policy import Allowance
from labelguard.release import card as cards
from labelguard.release.sections import Section, Table
from labelguard.report.page.numbers import day, small
from labelguard.report.page.project import Seen
from labelguard.terms import budget_of, counted

_LARGE = 30.0
"""ε beyond which numbers say nothing to people."""
_RAISED = "unless the ceiling is raised, which this report then shows"
_A = {"labeler": "a labeler", "item": "an item", "group": "a group"}
_WHOM = {
    "labeler": "Each labeler is protected as a whole: all labels that one labeler gives in this "
    "project, however many, count as one secret.",
    "item": "Each content (what is compared with what) is protected as a whole: all labels about "
    "it, whoever gives them, count as one secret.",
    "group": "Each group of labelers (one person with several ids, a household, a team) is "
    "protected as a whole: all labels that its members give count as one secret.",
}


def guarantee(seen: Seen) -> Section:
    """What the project promises, and how much of its ceiling that takes."""
    budget = seen.budget
    if not any(record.state != "draft" for record in seen.policies):
        return Section(
            "guarantee",
            "What is promised",
            (
                "Nothing was promised yet, and nothing released: no policy is in force.",
                "Whatever policies follow, all of them together will cost nobody more than "
                f"{budget_of(vars(budget.ceiling))}, the project's ceiling, {_RAISED}.",
            ),
        )
    epsilon, delta, unit = budget.lifetime.epsilon, budget.lifetime.delta, seen.unit
    reactive = any(record.policy.assignment_reactive for record in seen.policies)
    declared = {name for record in seen.policies for name in record.policy.public_columns}
    conditions = (cards.CONDITION if reactive else "", cards.assumption(sorted(declared)))
    return Section(
        "guarantee",
        "What is promised",
        (
            _WHOM[unit],
            "Somebody may see everything that is ever published here (releases, cards, models "
            "that were trained on them, this report), and know all other labels. Whatever they "
            f"look for in it is at most {_factor(epsilon)} times as likely with one possibility of "
            f"what {_A[unit]}'s labels say as with any other, plus {small(delta)}. In numbers: "
            f"{budget_of(vars(budget.lifetime))}, adjacency replace_labels.",
            f"For example: who guesses which of two equally likely possibilities is true is right "
            f"in at most {guessed(epsilon, delta)} of cases. A coin is in 50%.",
            "This holds for all policies of the project so far, together. Later ones can add to "
            f"it, up to the ceiling of the project, {budget_of(vars(budget.ceiling))}, {_RAISED}.",
        ),
        alert=" ".join(map(_plain, filter(None, conditions))),
    )


def _factor(epsilon: float) -> str:
    """e^ε in three digits, rounded up."""
    if epsilon > _LARGE:
        return f"e^{epsilon:g}"
    factor = math.exp(epsilon)
    step = 10.0 ** (math.floor(math.log10(factor)) - 2)
    return f"{math.ceil(factor / step) * step:,.{max(0, 2 - math.floor(math.log10(factor)))}f}"


def guessed(epsilon: float, delta: float) -> str:
    """How often the best guess between two equally likely inputs is right at most, rounded up.

    (e^ε + δ) / (e^ε + 1): the sum of both kinds of error is at least 2 (1 − δ) / (e^ε + 1).
    """
    if epsilon > _LARGE:
        return "all but 100%"
    wrong = (1 - delta) / (1 + math.exp(epsilon))
    digits = max(1, math.ceil(-math.log10(wrong)) - 1)
    return f"{math.ceil((1 - wrong) * 100 * 10**digits) / 10**digits:.{digits}f}%"


def _plain(markdown: str) -> str:
    """A sentence of a card without its marks."""
    return markdown.replace("**", "").replace("`", "")


def not_protected(seen: Seen) -> Section:
    """What the promise leaves out: as cards say it, and what a project adds."""
    record = seen.policy or next(iter(reversed(seen.policies)), None)
    lines = list(cards.not_protected(record.policy) if record else cards.NOT_PROTECTED)
    for card in seen.newest_cards():
        lines += [line for line in card["not_protected"] if line not in lines]
    return Section(
        "not-protected",
        "What is not protected",
        ("The promise is about labels. It does not cover, and nothing in this project hides:",),
        points=tuple(lines),
    )


def policies(seen: Seen) -> Section:
    """What every policy allows and costs, and the ceiling."""
    budget = seen.budget
    rows = tuple(
        (
            record.name,
            record.state,
            day(record.created_at),
            f"{record.policy.epsilon:g}",
            small(record.policy.delta),
            record.policy.unit,
            ", ".join(map(_allowed, record.policy.allowances)),
            "–" if record.state == "draft" else f"{record.policy.epsilon:g}",
        )
        for record in seen.policies
    )
    columns = ("policy", "state", "made (UTC)", "ε", "δ", "protects", "allows each", "costs ε")
    share = seen.policy.policy.held_out if seen.policy else 0.0
    held_out = (
        (
            f"About {share:.0%} of {seen.unit}s are held out: their labels are in no release that "
            "anything learns from, and judge models by a statistic of their own.",
        )
        if share
        else ()
    )
    return Section(
        "policies",
        "Policies",
        (
            "A policy says what may happen to a labeler's labels, and what that costs; it never "
            "changes, and stays paid when another takes its place.",
            *held_out,
        ),
        Table("Policies, oldest first", columns, rows) if rows else None,
        facts=(
            ("cost so far", budget_of(vars(budget.lifetime))),
            ("ceiling", budget_of(vars(budget.ceiling))),
            ("ceiling raised", _raises(seen)),
        ),
    )


def _raises(seen: Seen) -> str:
    """When the ceiling was raised, if it ever was: the journal knows."""
    at = [day(entry.at) for entry in seen.opened.ledger.journal() if entry.kind == "ceiling"]
    return ", ".join(f"{one} UTC" for one in at) or "never"


def _allowed(allowance: Allowance) -> str:
    if allowance.allowed is None:
        return f"as many as in the first release, rounded up, {allowance.kind.noun}s"
    return counted(allowance.allowed, allowance.kind.noun)


def this_release(seen: Seen) -> Iterator[Section]:
    """The card of the release that the report is about, and what its mechanism says."""
    record = seen.chosen
    if record is None:
        return
    card = seen.card(record)
    if card is None:
        yield Section(
            "release",
            f"Release {record.id}",
            alert=f"The card of release {record.id} is missing or was altered: nothing of it is "
            "repeated here.",
        )
        return
    yield Section("release", f"Release {record.id}", _of_card(card), facts=_facts(card))


def _of_card(card: Mapping[str, Any]) -> tuple[str, ...]:
    privacy = card["privacy"]
    return (
        f"Made {day(card['created_at'])} UTC by mechanism {card['mechanism']} with labelguard "
        f"{card['labelguard']}. Every {privacy['unit']} is protected with {budget_of(privacy)} "
        f"over {cards.span(privacy)}; accounted by {privacy['accounting']}.",
        _plain(cards.TRAINING.get(card["train_with"], "")),
    )


def _facts(card: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((name.strip(), value) for name, value in cards.facts(card))
