"""Which fields of a task of an annotation tool are the prompt and its responses, by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labelguard.errors import InvalidLabels
from labelguard.ingest.contents import PROMPTS, families
from labelguard.ingest.formats.seen import Seen
from labelguard.spelling import closest

SIDES = ("response_a", "response_b")


@dataclass(frozen=True)
class Fields:
    """The field of the prompt, and those of two or more responses, the first of them being A."""

    prompt: str
    responses: tuple[str, ...]

    def names(self, **others: str) -> dict[str, str]:
        """What messages call the roles of these fields, and `others`."""
        sides = self.responses if len(self.responses) == len(SIDES) else ()
        return {"prompt": self.prompt, **dict(zip(SIDES, sides, strict=False)), **others}


def fields(seen: Seen, names: Sequence[str]) -> Fields:
    """The prompt and the responses among the `names` of a task's fields.

    What `--columns` names is taken first, then what is called like a role, then names that leave no
    doubt. Raises `InvalidLabels` where there is none, or several could be meant.
    """
    named = seen.reading.columns
    for role in ("prompt", *SIDES):
        if role in named and named[role] not in names:
            raise InvalidLabels(
                f"{seen.part}: no field {named[role]!r} (given for {role})"
                f"{closest(named[role], tuple(names))}; found: {', '.join(names)}"
            )
    return Fields(prompt(seen, names), _responses(seen, names))


def prompt(seen: Seen, names: Sequence[str]) -> str:
    """The prompt among the `names` of a task's fields. Raises `InvalidLabels` as `fields` does."""
    if "prompt" in seen.reading.columns:
        return seen.reading.columns["prompt"]
    found = ["prompt"] if "prompt" in names else [name for name in names if _is(name, PROMPTS)]
    if len(found) == 1:
        return found[0]
    problem = f"fields {' and '.join(found)} may be the prompt" if found else "no field is a prompt"
    raise InvalidLabels(
        f"{seen.part}: {problem}; name it with --columns prompt=NAME; found: {', '.join(names)}"
    )


def _responses(seen: Seen, names: Sequence[str]) -> tuple[str, ...]:
    named = seen.reading.columns
    if any(role in named for role in SIDES):
        return _named(seen.part, named)
    found = [SIDES] if set(SIDES) <= set(names) else families(names)
    if len(found) == 1:
        return found[0]
    said = " or ".join(f"({', '.join(family)})" for family in found)
    problem = f"fields {said} may be the responses" if found else "no two fields are responses"
    raise InvalidLabels(
        f"{seen.part}: {problem}; name them with --columns response_a=NAME,response_b=NAME; "
        f"found: {', '.join(names)}"
    )


def _named(part: str, named: Mapping[str, str]) -> tuple[str, ...]:
    if not set(SIDES) <= set(named):
        raise InvalidLabels(f"{part}: --columns must name both response_a and response_b")
    return tuple(named[role] for role in SIDES)


def _is(name: str, words: Sequence[str]) -> bool:
    return name.lower() in words
