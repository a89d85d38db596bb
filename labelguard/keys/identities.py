"""One person, one id: ids that differ only in how they are written are not two people.

An export that writes `José` with another accent, `7` as `07`, or a name with a blank at its end
would make everybody new, with a new budget. So every labeler has a form: the key that they would
have if their id were written in its normal form. Two labelers of one form are refused until
somebody says that they are two people, or one (`labelguard.project.linking`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks

if TYPE_CHECKING:
    from labelguard.keys.keyring import KeyRing

_NUMBER = re.compile(r"([+\u2212-]?)(?=\.?\d)(\d*)(?:\.(\d*))?(?:e([+-]?\d{1,3}))?")
# Whole numbers, or ASCII without capitals and blanks that is no number however it is read.
_PLAIN = r"^(?:0|-?[1-9][0-9]*|[!-@\[-~]*[!-*,/:-@\[-df-~][!-@\[-~]*)$"
# What is not shown although its category is not C; U+2800 is a blank to whoever sees it.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


@dataclass(frozen=True, eq=False)
class Identities:
    """Labelers in byte order and their forms, keys of shape (n, 2), and their ids where an input
    names them. Its repr shows nothing.
    """

    labelers: Blocks = field(repr=False)
    forms: Blocks = field(repr=False)
    names: Sequence[str] = field(default=(), repr=False)

    @classmethod
    def of(cls, keys: KeyRing, namespace: str, names: Sequence[str], labelers: Blocks) -> Self:
        """Return those of distinct ids in one source, whose keys are `labelers`, (n, 2)."""
        order = blocks.sort_order(labelers)  # not that of the input: an error must not depend on it
        labelers, names = labelers[order], [names[row] for row in order.tolist()]
        forms = labelers.copy()
        other = np.flatnonzero(~are_plainly_normal(names))
        written = [normalize_id(names[row]) for row in other.tolist()]
        forms[other] = keys.hash_labelers(namespace, written)
        return cls(labelers, forms, names)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the inverse of `to_bytes`, also of several joined."""
        rows = np.frombuffer(data, ">u8").reshape(-1, 4).astype(np.uint64)
        order = blocks.sort_order(rows[:, :2])
        return cls(rows[order, :2], rows[order, 2:])

    def to_bytes(self) -> bytes:
        """Labelers and forms in turn, 16 bytes each."""
        return np.column_stack([self.labelers, self.forms]).astype(">u8").tobytes()

    def without(self, known: Self) -> Self:
        """Return those who are not among the known; without names."""
        rest = blocks.find_positions(known.labelers, self.labelers) < 0
        return type(self)(self.labelers[rest], self.forms[rest])

    def add_unnamed_labelers(self, labelers: Blocks) -> Self:
        """These and labelers of whose ids only the keys are there, which may repeat.

        Their ids are taken to be written in their normal forms. Without names.
        """
        unmet = type(self)(*(blocks.unique(labelers)[0],) * 2).without(self)
        together = np.concatenate([self.labelers, unmet.labelers])
        order = blocks.sort_order(together)
        return type(self)(together[order], np.concatenate([self.forms, unmet.forms])[order])


def are_plainly_normal(names: Sequence[str]) -> NDArray[np.bool_]:
    """Return a mask of ids that are plainly in normal form, shape (n,): nearly all of most
    inputs.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pa.array(names, pa.large_string())
    mask: NDArray[np.bool_] = pc.match_substring_regex(texts, _PLAIN).to_numpy(zero_copy_only=False)
    return mask


def normalize_id(name: str) -> str:
    """Return an id as it would be written by a careful hand.

    NFKC, case folded, without what cannot be seen, blanks at its ends or several in a row; a number
    without plus sign, leading zeros, exponent, or zeros at the end of a fraction.
    """
    visible = _remove_invisible(name)
    if visible.isascii():
        folded = visible.lower()
    else:
        folded = unicodedata.normalize("NFKC", visible).casefold()
        folded = unicodedata.normalize("NFKC", folded)
    text = " ".join(folded.split())
    number = _NUMBER.fullmatch(text)
    return _format_number(*number.groups()) if number else text


def _remove_invisible(name: str) -> str:
    """Return an id without what cannot be seen: it would also part an accent from its letter."""
    if not name.isascii():
        name = _INVISIBLE.sub("", name.replace("\u2800", " "))
    if name.isprintable():
        return name
    return "".join(c for c in name if c.isspace() or not unicodedata.category(c).startswith("C"))


def _format_number(sign: str, whole: str, fraction: str | None, exponent: str | None) -> str:
    """Return the one way to write a number: without a point if it is whole."""
    # By digit: Python's int() refuses numbers of thousands of digits.
    digits = "".join(str(unicodedata.decimal(d)) for d in whole + (fraction or "")).lstrip("0")
    shortened = digits.rstrip("0")
    if not shortened:
        return "0"
    power = int(exponent or 0) - len(fraction or "") + len(digits) - len(shortened)
    written = shortened + "0" * power
    if power < 0:
        written = written.rjust(1 - power, "0")
        written = f"{written[:power]}.{written[power:]}"
    return f"-{written}" if sign in ("-", "\u2212") else written
