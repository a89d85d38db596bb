"""The card of a release: what was done, what it guarantees, what it does not protect."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard.policy.policy import Policy
from labelguard.release import sections
from labelguard.release.sections import triple
from labelguard.terms import budget_of, counted, shown

NOT_PROTECTED = (
    "who labelled what, when and how much, and how often somebody submitted again",
    "which annotations were discarded (they are not part of the input)",
    "prompts and responses, above all if they came from a model trained on raw labels; they are "
    "published as they are, with all personal data in them",
    "one person labelling under several ids",
    "a labeler's identity outside the project",
    "labelers whose labels are correlated with one another's",
    "anything against the curator, who sees raw labels, and whoever reads a running job's memory",
    "raw exports made before or beside labelguard",
)
LINKABLE = (
    "which rows are one labeler's, where flip_probability (or an estimate made from it) differs "
    "between labelers (bounds are rounded up to 8, 16, 32, … to blur this)"
)
PARAPHRASES = (
    "paraphrases, regenerated responses and parts of rankings: each is a content of its own, "
    "with a budget of its own"
)
TIE_STATUS_PUBLIC = "which labels are ties (declared public with --tie-status-public)"
SKIP_STATUS_PUBLIC = "which annotations were skipped (--skips public)"
NOT_REACTIVE = "assignment of items to labelers that reacts to raw labels"
REACTIVE = (
    "labels that decided who labels what: assignment reacts here (--assignment-reactive), and the "
    "guarantee holds only as far as it reacts to releases, not to raw labels"
)


def together(policy: Policy, event: str) -> str:
    """With what else an event is priced, for the line on accounting; empty if alone."""
    rest = [allowance for allowance in policy.allowances if allowance.event != event]
    parts = [counted(one.allowed or 0, one.kind.noun) for one in rest]
    return f", priced together with {' and '.join(parts)} per {policy.unit}" if parts else ""


def not_protected(policy: Policy) -> list[str]:
    """The list every card carries."""
    declared = (
        (True, REACTIVE if policy.assignment_reactive else NOT_REACTIVE),
        (policy.unit == "item", PARAPHRASES),
        (policy.skips == "public", SKIP_STATUS_PUBLIC),
        (policy.tie_status_public, TIE_STATUS_PUBLIC),
    )
    return [*NOT_PROTECTED, *(line for holds, line in declared if holds)]


_FIRST = (
    "release",
    "labelguard",
    "format",
    "created_at",
    "kind",
    "mechanism",
    "mechanism_version",
    "privacy",
    "counts",
)
_LAST = ("budget", "train_with", "not_protected")
"""What cards begin and end with; in between is what their mechanisms add."""


def assembled(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The common card with a mechanism's own sections; those of one name are joined."""
    card = dict(common)
    for name, value in own.items():
        if isinstance(value, Mapping):
            card[name] = {**card.get(name, {}), **value}
        elif isinstance(value, list):
            card[name] = [*card.get(name, []), *value]
        else:
            card[name] = value
    between = [name for name in card if name not in _FIRST + _LAST]
    return {name: card[name] for name in (*_FIRST, *between, *_LAST) if name in card}


def spread(values: NDArray[Any]) -> dict[str, float]:
    """Minimum, median and maximum; empty without values."""
    if not len(values):
        return {}
    return {
        "min": float(values.min()),
        "median": float(np.median(values)),
        "max": float(values.max()),
    }


def to_json(card: Mapping[str, Any]) -> str:
    """The card as it is stored."""
    return json.dumps(card, indent=2, ensure_ascii=False) + "\n"


TRAINING = {
    "forward": "Each row's `flip_probability` γ is the probability that its label was flipped; a "
    "loss that ignores it learns from noise as if it were truth. `forward` is "
    "−log[(1 − γ) σ(z) + γ σ(−z)], z being the margin of `chosen` over `rejected`.",
    "soft": "Each row's `label_probability` p is that of `chosen` being preferred: train with the "
    "cross-entropy −p log σ(z) − (1 − p) log σ(−z), z being the margin of `chosen` over "
    "`rejected`.",
    "nothing": "There is nothing to learn from here: these labelers are held out, and "
    "`evaluation.npz` holds the noisy statistic by which heads are judged "
    "(`labelguard.release.evaluation.Evaluation`).",
    "plain": "Labels are to be taken as they are. `residual_flip_estimate` estimates how often a "
    "row's label is wrong; where a model decided it is no independent coin, so losses that "
    "correct for flips do not apply.",
}
"""How to learn from a release, by the card's `train_with`."""
STOCK_TRAINERS = """TRL's own trainers drop these columns
without a word, and learn from noise as if it were truth."""


CONDITION = (
    "**Condition.** Who labels what was declared to react to labels (`--assignment-reactive`). The "
    "guarantee holds if it reacted to releases only. If raw labels decided who was asked next, how "
    "often an item was labeled tells how its labels agreed, whatever noise they got."
)


def assumption(columns: Iterable[str]) -> str:
    """Return what the guarantee assumes of columns that were declared public; empty for none."""
    names = ", ".join(f"`{shown(name).replace('`', chr(39))}`" for name in columns)
    return names and (
        f"**Assumption.** {names}: declared public (`--public-column`), made of prompts and "
        "responses alone. What features read of a column that was made from answers (who won, a "
        "rating) is published, whatever noise labels got."
    )


def to_markdown(card: Mapping[str, Any]) -> str:
    """The card for people, with the front matter of a Hugging Face dataset card."""
    privacy = card["privacy"]
    is_data = card["kind"] != "evaluation"
    data = "configs:\n- config_name: default\n  data_files: data.parquet\n" if is_data else ""
    what = (
        "Preference pairs whose labels were privatized by"
        if is_data
        else "A statistic of held-out labelers, by which heads are judged, privatized by"
    )
    limits = "\n".join(f"- {line}" for line in card["not_protected"])
    told = (*facts(card), *expected(card))
    rows = "\n".join(f"| {name.strip()} | {value} |" for name, value in told)
    ties = "public" if privacy["tie_status_public"] else "protected"
    stock = "" if card["train_with"] == "plain" else f" {STOCK_TRAINERS}"
    how = (
        "\n\n`labelguard train dpo RELEASE --model MODEL -o DIR` trains so, and so does\n"
        f"`labelguard_trainer.DPOTrainer` in a script.{stock}"
        if is_data
        else ""
    )
    return f"""\
---
{data}tags:
- preference
- differential-privacy
- label-privacy
- labelguard
---

# Release {card["release"]}

{what} labelguard {card["labelguard"]}.

{guarantee(card)}

Accounted by {privacy["accounting"]}. Tie status is {ties}; skip status is \
{privacy["skip_status"]}.

| | |
|---|---|
{rows}

**Training.** `train_with: {card["train_with"]}`. {TRAINING[card["train_with"]]}{how}

**Not protected:**

{limits}
"""


def guarantee(card: Mapping[str, Any]) -> str:
    """What a release promises, and whatever is computed from it: in Markdown."""
    privacy = card["privacy"]
    condition = f"\n\n{CONDITION}" if privacy["assignment"] == "reactive" else ""
    if assumed := assumption(privacy["public_columns"]):
        condition += f"\n\n{assumed}"
    return f"""\
**Guarantee.** Mechanism `{card["mechanism"]}`: every {privacy["unit"]} is protected with
{budget_of(privacy)} under adjacency `{privacy["adjacency"]}`: all labels of one
{privacy["unit"]} may change. The bound holds for {span(privacy)},
against anyone who sees neither raw labels nor the memory of a running job; another policy adds
to it, but all of them together give no more than
{budget_of(privacy["ceiling"])}, the project's ceiling.{condition}{_of_two(privacy)}"""


def _of_two(privacy: Mapping[str, Any]) -> str:
    """What two units together are promised; cards of 0.2 do not say it."""
    if "two_units" not in privacy:
        return ""
    unit, found = privacy["unit"], privacy["two_units"]
    who = f"Where all labels of two {unit}s may change together (two who act as one, or one person"
    if found is None:
        return f"\n\n**Two at once.** {who}\nunder two ids), no price is stated."
    return (
        f"\n\n**Two at once.** {who}\nunder two ids), the same releases give the two of them "
        f"ε = {rounded_up(found['epsilon'])},\nδ = {found['delta']:g}."
    )


def rounded_up(epsilon: float) -> str:
    """An ε with two decimals, never less than it is."""
    return f"{math.ceil(epsilon * 100) / 100:g}"


def span(privacy: Mapping[str, Any]) -> str:
    """For which releases the guarantee of a card holds; later policies add to it."""
    if "policy" not in privacy:  # cards of before policies had names
        return "the releases of its policy"
    if "newly_charged" in privacy:
        return f"all releases of all policies up to {privacy['policy']}"
    return f"all releases under policy {privacy['policy']}"


def facts(card: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What a card counts, as rows of names and values; what is part of another row is indented.

    What the mechanism says under the name of a row takes its place; its other rows follow.
    """
    own, budget = sections.facts_of(card), card["budget"]
    yield from (dict(counted_rows(card)) | own).items()
    yield "allowance used", triple(budget["used"], ",.0f")
    yield "allowance left", triple(budget["left"], ",.0f")


def expected(card: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What a release was expected to be worth before a label was read, if that was simulated."""
    if forecast := card.get("forecast"):
        wrong, right = (forecast[one]["mean"] for one in ("label_error", "accuracy"))
        yield (
            "forecast",
            f"about {100 * wrong:.0f} of 100 labels differ from what the labeler said; a model "
            f"that learns from them agrees with about {100 * right:.0f} of 100 new labels; "
            "simulated before any label was read",
        )


def counted_rows(card: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What cards of all mechanisms count."""
    counts, unit = card["counts"], card["privacy"]["unit"]
    yield f"{unit}s", f"{counts['labelers']:,}"
    yield "labels", f"{counts['rows']:,} released of {counts['rows_read']:,} read"
    if (other := counts.get("of_other_part")) and other["labels"]:
        why = "not held out" if card["kind"] == "evaluation" else "held out"
        who = counted(other["units"], unit)
        yield "  left out", f"{other['labels']:,} of {who} ({why})"
    if counts["further_pairs"]:
        yield "  further pairs", f"{counts['further_pairs']:,} (labeled by the head)"
    yield "  newly charged", f"{counts['charged']:,}"
    yield "  released before", f"{counts['released_before']:,} (same value, no charge)"
    yield "  dropped by the bound", f"{counts['dropped_by_bound']:,}"
    yield "  duplicates", f"{counts['duplicates']:,}"
    yield "  identical sides", f"{counts['identical_sides']:,}"
    for name, count, what in (
        ("skipped", "skipped", "left out"),
        ("bad rows", "set_aside", "set aside"),
    ):
        if counts[count]:
            yield f"  {name}", f"{counts[count]:,} ({what})"
    for reason, count in counts.get("left_out", {}).items():
        yield f"  {reason}", f"{count:,} (left out)"
    if own := counts.get("unit_pairs"):  # older cards do not have it
        yield "  with oneself", f"{own:,} pairs of labels of one item are of one {unit}"
