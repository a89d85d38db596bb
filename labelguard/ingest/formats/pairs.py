"""The layouts as they are, but for prompts of another kind than the responses."""

from __future__ import annotations

from labelguard.ingest.formats.seen import Adapted, Format, Seen
from labelguard.ingest.formats.sides import adapt_sides, has_chosen

_SIDES = ("response_a", "response_b")
_CHOSEN = ("chosen", "rejected")


def _is_labeled(seen: Seen) -> bool:
    return seen.all("prompt", *_SIDES)


def _adapt(seen: Seen) -> Adapted | None:
    if _is_labeled(seen) and seen.any(*_CHOSEN):
        return None  # both layouts: an error
    return adapt_sides(seen, *(_SIDES if _is_labeled(seen) else _CHOSEN))


PAIRS = Format(
    "pairs",
    "prompt, chosen, rejected; or prompt, response_a, response_b, label",
    lambda seen: _is_labeled(seen) or has_chosen(seen),
    _adapt,
    tells=lambda seen: has_chosen(seen) or "label" in seen.reading.columns or seen.all("label"),
)
RANKINGS = Format(
    "rankings", "prompt, responses, ranks", lambda seen: seen.all("prompt", "responses")
)
