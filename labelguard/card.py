"""The card of a release: what was done, what it guarantees, what it does not protect."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

NOT_PROTECTED = (
    "who labelled what, when and how much",
    "which annotations were skipped or discarded (they are not part of the input)",
    "prompts and responses, above all if they came from a model trained on raw labels",
    "assignment of items to labelers that reacts to raw labels",
    "one person labelling under several ids",
    "a labeler's identity outside the project; rows of one labeler may be linkable through "
    "flip_probability (bounds are rounded up to 8, 16, 32, … to blur this)",
    "labelers whose labels are correlated with one another's",
    "anything against who holds the coin keys, and against the curator, who sees raw labels",
    "raw exports made before or beside labelguard",
)
TIE_STATUS_PUBLIC = "which labels are ties (declared public with --tie-status-public)"


def not_protected(tie_status_public: bool) -> list[str]:
    """The list every card carries."""
    return [*NOT_PROTECTED, *([TIE_STATUS_PUBLIC] if tie_status_public else [])]


def budget_of(values: Mapping[str, Any]) -> str:
    """`epsilon` and `delta` as people write them: ε = 3, δ = 1e-5."""
    delta = f"{values['delta']:g}".replace("e-0", "e-")
    return f"ε = {values['epsilon']:g}, δ = {delta}"


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 release, 2 releases, 3 journal entries."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun[:-1]}ies" if noun.endswith("y") else f"{number:,} {noun}s"


def to_json(card: Mapping[str, Any]) -> str:
    """The card as it is stored."""
    return json.dumps(card, indent=2, ensure_ascii=False) + "\n"


def to_markdown(card: Mapping[str, Any]) -> str:
    """The card for people, with the front matter of a Hugging Face dataset card."""
    privacy, counts = card["privacy"], card["counts"]
    flips, budget = card["flip_probability"], card["budget"]
    limits = "\n".join(f"- {line}" for line in card["not_protected"])
    accounting = privacy["accounting"]
    ties = "public" if privacy["tie_status_public"] else "protected"
    return f"""\
---
configs:
- config_name: default
  data_files: data.parquet
tags:
- preference
- differential-privacy
- label-privacy
- labelguard
---

# Release {card["release"]}

Preference pairs whose labels were privatized by labelguard {card["labelguard"]}.

**Guarantee.** Mechanism `{card["mechanism"]}`: every {privacy["unit"]} is protected with
{budget_of(privacy)} under adjacency `{privacy["adjacency"]}`: all labels of one
{privacy["unit"]} may change. The bound holds for everything the project releases under this
policy, over its lifetime, against anyone without the project's keys.

Accounted by {accounting}. Tie status is {ties}; skip status is {privacy["skip_status"]}.

| | |
|---|---|
| rows | {counts["rows"]:,} |
| {privacy["unit"]}s | {counts["labelers"]:,} |
| labels newly charged | {counts["charged"]:,} |
| labels released before (kept as they were, free) | {counts["released_before"]:,} |
| dropped by the bound per labeler | {counts["dropped_by_bound"]:,} |
| dropped duplicates | {counts["duplicates"]:,} |
| dropped pairs with identical sides | {counts["identical_sides"]:,} |
| bad rows set aside | {counts["set_aside"]:,} |
| released as ties and left out | {counts["released_ties_dropped"]:,} |
| flip probability (min / median / max) | {_triple(flips, ".4f")} |
| places used per {privacy["unit"]} (min / median / max) | {_triple(budget["used"], ",.0f")} |
| places left per {privacy["unit"]} (min / median / max) | {_triple(budget["left"], ",.0f")} |

**Training.** `train_with: {card["train_with"]}`. Each row's `flip_probability` γ is the
probability that its label was flipped; a loss that ignores it learns from noise as if it were
truth. `forward` is −log[(1 − γ) σ(z) + γ σ(−z)], z being the margin of `chosen` over `rejected`.

**Not protected:**

{limits}
"""


def _triple(values: Mapping[str, float] | None, style: str) -> str:
    if not values:
        return "–"
    return " / ".join(format(values[name], style) for name in ("min", "median", "max"))
