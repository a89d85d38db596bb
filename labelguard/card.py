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


def to_json(card: Mapping[str, Any]) -> str:
    """The card as it is stored."""
    return json.dumps(card, indent=2, ensure_ascii=False) + "\n"


def to_markdown(card: Mapping[str, Any]) -> str:
    """The card for people, with the front matter of a Hugging Face dataset card."""
    privacy, counts = card["privacy"], card["counts"]
    flips, budget = card["flip_probability"], card["budget"]
    pairs = "\n".join(f"- {line}" for line in card["not_protected"])
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
(ε, δ) = ({privacy["epsilon"]:g}, {privacy["delta"]:g}) under adjacency `{privacy["adjacency"]}`:
all labels of one {privacy["unit"]} may change. The bound holds for everything the project releases
under this policy, over its lifetime. Accounted by {accounting}. Tie status is {ties}.

| | |
|---|---|
| rows | {counts["rows"]:,} |
| {privacy["unit"]}s | {counts["labelers"]:,} |
| labels newly charged | {counts["charged"]:,} |
| labels released before (kept as they were, free) | {counts["released_before"]:,} |
| dropped by the bound per labeler | {counts["dropped_by_bound"]:,} |
| dropped duplicates | {counts["duplicates"]:,} |
| dropped pairs with identical sides | {counts["identical_sides"]:,} |
| flip probability (min / median / max) | {_triple(flips, ".4f")} |
| places used per {privacy["unit"]} (min / median / max) | {_triple(budget["used"], ",.0f")} |
| places left per {privacy["unit"]} (min / median / max) | {_triple(budget["left"], ",.0f")} |

**Training.** `train_with: {card["train_with"]}`. Each row's `flip_probability` is the probability
that its label was flipped; a loss that ignores it learns from noise as if it were truth.

**Not protected:**

{pairs}
"""


def _triple(values: Mapping[str, float] | None, style: str) -> str:
    if not values:
        return "–"
    return " / ".join(format(values[name], style) for name in ("min", "median", "max"))
