"""Columns declared public: those that features may read of a table that holds answers, too.

Which system wrote a response, or what a reward model says of it, is a function of the response. No
look at a table can tell such a column from one that was made from answers (who won, a mean rating),
so its provenance is declared, before a label is read, and the guarantee is conditional on it.
"""

from __future__ import annotations

from collections.abc import Iterable

from labelguard.errors import PolicyError

# Endings of the columns of a property that has one for each side.
ENDINGS = ("_a", "_b", "_chosen", "_rejected")


def parse(names: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the declared names, each once and sorted; one text is one name.

    Raises `PolicyError` for what is no name.
    """
    columns = [names] if isinstance(names, str) else list(names or ())
    for name in columns:
        if not (isinstance(name, str) and name.strip() and name.isprintable()):
            raise PolicyError("--public-column expects the name of a column of the input")
    return tuple(sorted(set(columns)))


def names_of(column: str) -> tuple[str, ...]:
    """Return the names that declare a column: its own, and without the ending of its side."""
    short = (column.removesuffix(end) for end in ENDINGS if column.endswith(end))
    return column, *filter(None, short)


def options_of(names: Iterable[str]) -> list[str]:
    """Return the words of a command that declare these names."""
    return [word for name in names for word in ("--public-column", name)]
