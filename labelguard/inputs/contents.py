"""Which columns hold what is compared, by their names: prompts and responses, in every shape.

All others are the labelers' own, or nobody's. In JSON, where types follow from what is written,
none of those may decide how prompts and responses are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

PROMPTS = ("prompt", "instruction", "question", "context")
"""What a field of an annotation tool is called that holds a prompt."""
_ROLES = ("prompt", "response_a", "response_b", "chosen", "rejected", "responses")
_OF_SIDES = ("_chosen", "_rejected")
"""How columns end that tell of one side, which was chosen or was not."""
CONVERSATIONS = ("conversation_a", "conversation_b")
"""Whole conversations, as arenas publish them: their messages may have further members."""
_STEMS = "response|answer|completion|output|reply|candidate|generation|text|option|model"
_MEMBER = re.compile(rf"({_STEMS})([ _-]?)(?:([a-z])|([0-9]+))", re.IGNORECASE)
_COUPLES = (("chosen", "rejected"), ("left", "right"))


def roles_of_content(names: Sequence[str], columns: Mapping[str, str]) -> list[str]:
    """Return those of these columns that are called like a role of prompts and responses."""
    known = {columns.get(role, role).lower() for role in _ROLES}
    known -= {name.lower() for role, name in columns.items() if role not in _ROLES}
    return [name for name in names if name.lower() in known]


def content_columns(names: Sequence[str], columns: Mapping[str, str]) -> list[str]:
    """Return those that may hold prompts or responses; `columns` names some by role."""
    known = {columns.get(role, role).lower() for role in _ROLES}
    known |= {*PROMPTS, *CONVERSATIONS} - {*_ROLES}
    known |= {name.lower() for family in families(names) for name in family} - {*_ROLES}
    known -= {name.lower() for role, name in columns.items() if role not in _ROLES}
    return [name for name in names if name.lower() in known]


def tells_a_side(name: str) -> bool:
    """Return whether a column tells, by its name, of the chosen side alone or of the other."""
    return name.lower().endswith(_OF_SIDES)


def side_columns(names: Sequence[str], columns: Mapping[str, str]) -> list[str]:
    """Return those that tell of one side; `columns` names some by role, and others otherwise."""
    named = {column for role, column in columns.items() if tells_a_side(role)}
    others = set(columns.values()) - named
    return [n for n in names if n in named or (tells_a_side(n) and n not in others)]


def families(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Fields that are called alike but for a letter or a number, or chosen and rejected."""
    found: dict[tuple[str, ...], list[tuple[int | str, str]]] = {}
    for name in names:
        match = _MEMBER.fullmatch(name)
        if match:
            stem, sign, letter, number = match.groups()
            kind = (stem.lower(), sign, "letter" if letter else "number")
            found.setdefault(kind, []).append((letter.lower() if letter else int(number), name))
    families = [tuple(name for _, name in sorted(f)) for f in found.values() if len(f) > 1]
    lower = {name.lower(): name for name in names}
    families += [
        tuple(lower[n] for n in couple) for couple in _COUPLES if set(couple) <= set(lower)
    ]
    return families
