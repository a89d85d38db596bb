"""Personal data in texts that a release would carry: counted, never shown.

What is sought is public: texts, and who gave the labels. Patterns find the plain cases only; that
they find nothing proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

_EMAIL = r"[\w.+-]+@[\w-]+(\.[\w-]+)+"
_PHONE = r"(\+|\b00)[1-9][0-9 ().-]{6,}[0-9]\b|(\(|\b)[0-9]{3}\)?[ .-][0-9]{3}[ .-][0-9]{4}\b"
_LEAST_LETTERS = 4
_LEAST_DIGITS = r"([0-9][^0-9]*){8}"
_SLICE = 200_000


@dataclass(frozen=True)
class PersonalData:
    """How many distinct texts hold what looks like personal data."""

    texts: int
    """distinct prompts and responses that were looked at"""
    with_email: int
    """texts with an e-mail address"""
    with_phone: int
    """texts with a phone number"""
    with_labeler: int
    """texts with the id of a labeler, where that is an e-mail address or a name of four letters or
    more"""

    @property
    def found(self) -> bool:
        """Whether any text holds any of it."""
        return bool(self.with_email or self.with_phone or self.with_labeler)


def personal_data(table: pa.Table, labelers: Sequence[str]) -> PersonalData:
    """Count the texts of distinct pairs (columns prompt, first, second) that hold personal data.

    `labelers` are the ids as the input has them.
    """
    emails, names = _sought(pl.Series(labelers, dtype=pl.String))
    distinct = _texts(table).unique(maintain_order=False)
    counts = [0, 0, 0]
    for start in range(0, len(distinct), _SLICE):
        texts = distinct.slice(start, _SLICE)
        for index, found in enumerate((_emails(texts), _phones(texts))):
            counts[index] += int(found.sum())
        counts[2] += int(_named(texts, emails, names).sum())
    return PersonalData(len(distinct), *counts)


def _texts(table: pa.Table) -> pl.Series:
    """All prompts and responses as texts; of chats, the JSON of their messages."""
    frame = pl.DataFrame(pl.from_arrow(table.select(["prompt", "first", "second"])))
    return pl.concat([_text(column).rename("text") for column in frame])


def _text(column: pl.Series) -> pl.Series:
    if column.dtype == pl.String:
        return column
    return column.to_frame().to_struct("chat").struct.json_encode()


def _emails(texts: pl.Series) -> pl.Series:
    likely = texts.filter(texts.str.contains("@", literal=True))
    return likely.str.contains(_EMAIL)


def _phones(texts: pl.Series) -> pl.Series:
    likely = texts.filter(texts.str.contains(_LEAST_DIGITS))
    return likely.str.contains(_PHONE)


def _sought(labelers: pl.Series) -> tuple[pl.Series, pl.Series]:
    """The ids that are e-mail addresses, and those that are names, between blanks."""
    is_email = labelers.str.contains(rf"^{_EMAIL}$")
    written = labelers.filter(~is_email)
    is_name = written.str.contains(r"^\p{L}[\p{L} .,'’_-]*$") & (
        written.str.count_matches(r"\p{L}") >= _LEAST_LETTERS
    )
    return labelers.filter(is_email), _words(written.filter(is_name))


def _named(texts: pl.Series, emails: pl.Series, names: pl.Series) -> pl.Series:
    """Whether an id of a labeler occurs in each text that may have one."""
    patterns = pl.concat([emails, names.str.strip_chars()]).unique().sort()
    if not len(patterns):
        return pl.Series([], dtype=pl.Boolean)
    # A quick search within words leaves few texts to look at word by word.
    parts = patterns.str.split(" ").list.first().unique().sort()
    likely = texts.filter(texts.str.contains_any(parts.to_list(), ascii_case_insensitive=True))
    found = pl.Series([False] * len(likely), dtype=pl.Boolean)
    if len(emails):
        found = found | likely.str.contains_any(emails.to_list(), ascii_case_insensitive=True)
    if len(names):
        found = found | _words(likely).str.contains_any(names.to_list())
    return found


def _words(texts: pl.Series) -> pl.Series:
    """Words in small letters with one blank between them, before the first, after the last."""
    words = texts.str.to_lowercase().str.replace_all(r"[^\p{L}]+", " ").str.strip_chars()
    return pl.select(pl.format(" {} ", words)).to_series()
