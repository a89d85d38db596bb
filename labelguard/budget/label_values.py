"""Declarations on columns of an input: the meaning of label texts, and which columns are public.

Both are named beforehand, never guessed. Which system wrote a response, or what a reward model says
of it, is a function of the response. No look at a table can tell such a column from one that was
made from answers (who won, a mean rating), so its provenance is declared, before a label is read,
and the guarantee is conditional on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Self

from labelguard.errors import InvalidLabels, PolicyError

# Treatment of ties (docs/formats.md).
Ties = Literal["coin", "zero", "drop"]

# Treatment of blank labels: left out, their status being public, or taken as ties.
Skips = Literal["public", "tie"]

# Treatment of prompts that contain responses of other items: refused, left out, or read, because
# conversations were declared to go on independently of what was chosen (`inputs.turns`).
Turns = Literal["stop", "first", "independent"]

# Characters that are trimmed around a label.
WHITE_SPACE = " \t\n\r\v\f\u00a0\u2007\u202f\u3000"

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_FIRST = re.compile(r"\s*first\s*=\s*([01])\s*", re.IGNORECASE)
_MEANINGS = ("a", "b", "tie", "skip")
# Values of a and b by the name of a coding. Who names one declares it: no label tells which.
CODINGS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "a-b": (("A", "a"), ("B", "b")),
    "left-right": (("LEFT", "Left", "left"), ("RIGHT", "Right", "right")),
    "1-2": (("1",), ("2",)),
    "true-false": (("TRUE", "True", "true"), ("FALSE", "False", "false")),
}


@dataclass(frozen=True)
class LabelValues:
    """The texts that say: A is preferred, B is, neither is, or no answer was given.

    Texts are trimmed and compared with upper and lower case told apart; where one is a number,
    numerically equal text is equal. A blank is a skip in every domain. Of choices among several
    responses, which are named by number, `first` is the number of the first one, 0 or 1.
    """

    a: tuple[str, ...] = ("1", "TRUE", "True", "true")
    b: tuple[str, ...] = ("0", "FALSE", "False", "false")
    tie: tuple[str, ...] = ("0.5",)
    skip: tuple[str, ...] = ()
    first: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """`a=left,b=right,tie=same|both bad,skip=n/a`, or of choices `first=1`; the empty text is
        the default domain. A and B may be capitals. One of `CODINGS` stands for a and b, and `tie`.

        Raises `InvalidLabels` if a or b is missing, or if one value has two meanings.
        """
        if not text:
            return cls()
        if first := _FIRST.fullmatch(text):
            return cls(first=int(first[1]))
        pieces = text.split(",")
        coding = CODINGS.get(pieces[0].strip().lower())
        meanings = dict(zip("ab", coding, strict=True)) if coding else {}
        for piece in pieces[1:] if coding else pieces:
            meaning, _, values = piece.partition("=")
            meaning = meaning.strip().lower()
            texts = tuple(sorted(value.strip(WHITE_SPACE) for value in values.split("|")))
            if meaning not in _MEANINGS or meaning in meanings or not all(texts):
                raise InvalidLabels(
                    f"--label-values expects {', '.join(CODINGS)}, or a=VALUE,b=VALUE[,tie=VALUE]"
                    "[,skip=VALUE], with | between several values, or first=1 where choices are "
                    f"counted from 1; found {piece.strip()!r}"
                )
            meanings[meaning] = texts
        if coding:
            meanings.setdefault("tie", ("TIE", "Tie", "tie"))
        if not {"a", "b"} <= set(meanings):
            raise InvalidLabels("--label-values must name the values of both a and b")
        known = [
            float(value) if is_number(value) else value
            for named in meanings.values()
            for value in named
        ]
        twice = next((value for value in known if known.count(value) > 1), None)
        if twice is not None:
            raise InvalidLabels(f"--label-values names {twice} twice; give every value one meaning")
        return cls(meanings["a"], meanings["b"], meanings.get("tie", ()), meanings.get("skip", ()))

    def __str__(self) -> str:
        """Return what `parse` reads as this domain: one text for equal domains, empty for the
        default.
        """
        if self == DEFAULT:
            return ""
        if self.first:
            return f"first={self.first}"
        named = ((meaning, getattr(self, meaning)) for meaning in _MEANINGS)
        return ",".join(f"{meaning}={'|'.join(values)}" for meaning, values in named if values)


DEFAULT = LabelValues()
# The domain where none is named, and how messages show it.
DEFAULT_TEXT = "a=1|true,b=0|false,tie=0.5"


def is_number(value: str) -> bool:
    """Return True if a value is a number, and so equal to other texts of that number."""
    return _NUMBER.fullmatch(value) is not None


# Endings of the columns of a property that has one for each side.
SIDE_ENDINGS = ("_a", "_b", "_chosen", "_rejected")


def parse_public_columns(names: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the declared names, each once and sorted; one text is one name.

    Raises `PolicyError` for what is no name.
    """
    columns = [names] if isinstance(names, str) else list(names or ())
    for name in columns:
        if not (isinstance(name, str) and name.strip() and name.isprintable()):
            raise PolicyError("--public-column expects the name of a column of the input")
    return tuple(sorted(set(columns)))


def list_names_that_declare(column: str) -> tuple[str, ...]:
    """Return the names that declare a column: its own, and without the ending of its side."""
    short = (column.removesuffix(end) for end in SIDE_ENDINGS if column.endswith(end))
    return column, *filter(None, short)


def format_public_column_options(names: Iterable[str]) -> list[str]:
    """Return the words of a command that declare these names."""
    return [word for name in names for word in ("--public-column", name)]
