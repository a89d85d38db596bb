"""HelpSteer2 and 3: two responses, and how much the second is better, from -3 to 3.

"-3: Response 1 is much better than Response 2 … 3: Response 2 is much better than Response 1"
(dataset card of nvidia/HelpSteer3). The sign is the label and 0 is a tie; how much better is as
private, and dropped, like what each annotator said (`individual_preference`).
"""

from __future__ import annotations

from labelguard.ingest.formats.scores import SIGNS, pair, sign
from labelguard.ingest.formats.seen import Adapted, Format, Seen
from labelguard.ingest.formats.sides import Value, agreeing

_PREFERENCES = ("overall_preference", "preference_strength")
_SAID = ("individual_preference", "preference_statement", "preference_elaboration")
_RESPONSES = (("response1", "response2"), ("response_1", "response_2"))
_PROMPTS = ("context", "prompt")


def _responses(seen: Seen) -> tuple[str, ...]:
    return next((names for names in _RESPONSES if seen.all(*names)), ())


def _adapt(seen: Seen) -> Adapted:
    given = next(name for name in _PROMPTS if seen.column(name))
    names = _responses(seen)
    prompt, *sides = (Value(seen.sql(name), seen.type(name)) for name in (given, *names))
    text = f"coalesce({', '.join(map(seen.text, _PREFERENCES))})"
    number = f"(-try_cast({text} AS DOUBLE))"
    label = sign(number, f"{text} IS NULL", f"{number} IN (-3, -2, -1, 0, 1, 2, 3)")
    return Adapted(
        pair(seen, agreeing(prompt, sides), label, given, *names, "tie"),
        frozenset(("prompt", "response_a", "response_b", "label")),
        values=SIGNS,
        names={
            "prompt": seen.column(given) or given,
            "response_a": names[0],
            "response_b": names[1],
            "label": " or ".join(name for name in _PREFERENCES if name in seen.types),
        },
    )


HELPSTEER = Format(
    "helpsteer",
    "context (or prompt), response1, response2 and overall_preference from -3 (the first is much "
    "better) to 3",
    lambda seen: bool(_responses(seen)) and seen.any(*_PROMPTS),
    _adapt,
    "HelpSteer as published names no labelers, and its overall preference is of several people.",
    tells=lambda seen: seen.any(*_PREFERENCES),
    private=(*_PREFERENCES, *_SAID),
)
