"""Suggestions for misspelled names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def suggest(name: str, candidates: Iterable[str], prefix: str = "") -> str:
    """Return the candidate that was probably meant, as a part of a message; empty if none is near.

    `prefix` is what is typed before it. A few letters are rather an abbreviation than misspelt.
    """
    from difflib import get_close_matches

    known = sorted(candidates)
    longer = [one for one in known if 1 < len(name) < 5 and one.startswith(name)]
    matches = sorted(longer, key=len) or get_close_matches(name, known, 1)
    return f" (did you mean {prefix + matches[0]!r}?)" if matches else ""


def suggest_misspelled_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """A function that tells of a keyword which it does not have which one was probably meant.

    Python says so itself from 3.13 on.
    """
    known = signature(function).parameters

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                raise TypeError(
                    f"{function.__name__}() got an unexpected keyword argument {name!r}"
                    f"{suggest(name, known)}"
                )
        return function(*args, **kwargs)

    return call
