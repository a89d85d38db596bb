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

# Characters that are trimmed around a label.
WHITE_SPACE = " \t\n\r\v\f\u00a0\u2007\u202f\u3000"

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_FIRST = re.compile(r"\s*first\s*=\s*([01])\s*", re.IGNORECASE)
_SCALE = re.compile(r"\s*(-?[0-9]{1,2})\.\.(-?[0-9]{1,2})\s*")
_MEANINGS = ("a", "b", "tie", "skip")
_WORDS = ("TIE", "Tie", "tie")
_YES, _NO = ("1", "TRUE", "True", "true"), ("0", "FALSE", "False", "false")
_TRUTH = {True: _YES[1:], False: _NO[1:]}
# Values of a, b and tie by the name of a coding, which says what stands for the first response and
# then what for the second. Who names one declares it: no label tells which.
CODINGS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "1-0": (_YES, _NO, ("0.5",)),
    "0-1": (_NO, _YES, ("0.5",)),
    "1-2": (("1",), ("2",), _WORDS),
    "2-1": (("2",), ("1",), _WORDS),
    "a-b": (("A", "a"), ("B", "b"), _WORDS),
    "left-right": (("LEFT", "Left", "left"), ("RIGHT", "Right", "right"), _WORDS),
    "true-false": (_YES[1:], _NO[1:], _WORDS),
    "false-true": (_NO[1:], _YES[1:], _WORDS),
}
# What may be typed as a coding.
EXPECTED = (
    f"{', '.join(CODINGS)}, a scale such as 1..7 or -3..3 (its first number is the best for "
    "the first response), or a=VALUE,b=VALUE[,tie=VALUE][,skip=VALUE]"
)


@dataclass(frozen=True)
class LabelValues:
    """The texts that say: A is preferred, B is, neither is, or no answer was given.

    Texts are trimmed and compared with upper and lower case told apart; where one is a number,
    numerically equal text is equal. A blank is a skip in every domain. Without a and b, a label
    is a word that names a side by itself. `@NAME` as the text of a and of b stands for what is in
    these columns of the row: the systems, say, that are compared. Of choices among several
    responses, which are named by number, `first` is the number of the first one, 0 or 1.
    """

    a: tuple[str, ...] = ()
    b: tuple[str, ...] = ()
    tie: tuple[str, ...] = _WORDS
    skip: tuple[str, ...] = ()
    first: int | None = None

    @classmethod
    def parse(cls, coding: str | Mapping[str, str | Iterable[str]]) -> Self:
        """`a=left,b=right,tie=same|both bad,skip=n/a`, or of choices `first=1`; the empty text is
        the default domain. A and B may be capitals. One of `CODINGS`, or a scale, stands for a, b
        and tie. A mapping has these names as keys.

        Raises `InvalidLabels` if a or b is missing, or if one value has two meanings.
        """
        text = coding if isinstance(coding, str) else _write_coding(coding)
        if not text:
            return cls()
        if first := _FIRST.fullmatch(text):
            return cls(first=int(first[1]))
        pieces = text.split(",")
        named = CODINGS.get(pieces[0].strip().lower()) or _parse_scale(pieces[0])
        meanings = dict(zip("ab", named, strict=False)) if named else {}
        for piece in pieces[1:] if named else pieces:
            meaning, _, values = piece.partition("=")
            meaning = meaning.strip().lower()
            texts = tuple(sorted(value.strip(WHITE_SPACE) for value in values.split("|")))
            if meaning not in _MEANINGS or meaning in meanings or not all(texts):
                raise InvalidLabels(
                    f"--label-values expects {EXPECTED}, with | between several values, or of "
                    f"choices first=0 or first=1, the number of the first; found {piece.strip()!r}"
                )
            meanings[meaning] = texts
        if named:
            meanings.setdefault("tie", named[2])
        if not {"a", "b"} <= set(meanings):
            raise InvalidLabels("--label-values must name the values of both a and b")
        known = [
            float(value) if is_number(value) else value
            for values in meanings.values()
            for value in values
        ]
        twice = next((value for value in known if known.count(value) > 1), None)
        if twice is not None:
            raise InvalidLabels(f"--label-values names {twice} twice; give every value one meaning")
        made = cls(meanings["a"], meanings["b"], meanings.get("tie", ()), meanings.get("skip", ()))
        columns = sum(value.startswith("@") for value in (*made.a, *made.b))
        if columns and (columns, len(made.a), len(made.b)) != (2, 1, 1):
            raise InvalidLabels(
                "--label-values: a and b are one column each where one is, as in "
                "a=@model_a,b=@model_b"
            )
        return made

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns whose values say that the first or the second response won, if any."""
        return tuple(value[1:] for value in (*self.a, *self.b) if value.startswith("@"))

    def __str__(self) -> str:
        """Return what `parse` reads as this domain: one text for equal domains, empty for the
        default.
        """
        if self == DEFAULT:
            return ""
        if self.first is not None:
            return f"first={self.first}"
        ends = [f"{one}..{other}" for one in self.a for other in self.b if len(self.a) > 1]
        for name in (*CODINGS, *ends):
            coding = CODINGS.get(name) or _parse_scale(name)
            if coding == (self.a, self.b, self.tie) and not self.skip:
                return name
        named = ((meaning, getattr(self, meaning)) for meaning in _MEANINGS)
        return ",".join(f"{meaning}={'|'.join(values)}" for meaning, values in named if values)

    def explain(self, a: str, b: str) -> str:
        """Return in words what values mean, where the two responses are called `a` and `b`."""
        if self.first is not None:
            return f"the number of the preferred response, from {self.first}"
        meanings = [
            f"{_list_values(values)}: {words}"
            for values, words in (
                (self.a, f"{a} is preferred"),
                (self.b, f"{b} is preferred"),
                (self.tie, "neither is"),
                (self.skip, "no answer"),
            )
            if values
        ]
        return "; ".join(meanings)


DEFAULT = LabelValues()


def _list_values(values: tuple[str, ...]) -> str:
    """Return values in words, each spelling once whatever its case."""
    once = {value.lower(): value for value in values}
    return " or ".join(f"the value of {v[1:]}" if v.startswith("@") else v for v in once.values())


def _parse_scale(text: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]] | None:
    """Return the values of a scale for a, b and tie: its half at the first number is a."""
    match = _SCALE.fullmatch(text)
    if match is None or match[1] == match[2]:
        return None
    one, other = int(match[1]), int(match[2])
    step = 1 if one < other else -1
    values = [str(number) for number in range(one, other + step, step)]
    half = len(values) // 2
    a, b, middle = map(sorted, (values[:half], values[-half:], values[half:-half]))
    return tuple(a), tuple(b), tuple(middle)


def _write_coding(coding: Mapping[str, str | Iterable[str]]) -> str:
    """Return a mapping as it is typed. Raises `InvalidLabels` for one from values to meanings."""
    if not {str(meaning).lower() for meaning in coding} <= {*_MEANINGS, "first"}:
        raise InvalidLabels(
            "label_values maps meanings to values, as in "
            f"{{'a': 'win', 'b': 'loss', 'tie': 'draw'}}; found {', '.join(map(repr, coding))} as "
            "keys: turn it round"
        )
    pieces = []
    for meaning, values in coding.items():
        listed = [values] if isinstance(values, str | int | float) else list(values)
        texts = [t for v in listed for t in (_TRUTH[v] if isinstance(v, bool) else (str(v),))]
        if any(sign in text for text in texts for sign in ",|"):
            raise InvalidLabels("label_values: a value cannot hold , or |")
        pieces += [f"{meaning}={'|'.join(texts)}"] if texts else []
    return ",".join(pieces)


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
