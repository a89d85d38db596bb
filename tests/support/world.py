"""The clock and the randomness of a test: fixed here, by every test that fixes them.

The seam in the library is one function for each: `labelguard.clock.now` and
`labelguard.keys.keyring.random_bytes`. A clock takes nothing and answers a time as text; randomness
takes a number of bytes.
"""

import functools
import hashlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from labelguard import clock
from labelguard.keys import keyring
from labelguard.mechanisms import statistic

NEW_YEAR = "2026-01-01T00:00:00Z"
Clock = Callable[[], str]


def repeatable_bytes(seed=""):
    """A generator of bytes that starts anew, the same, in every process; for tests only."""
    calls = itertools.count()

    def generate(count):
        return hashlib.shake_256(f"{seed} {next(calls)}".encode()).digest(count)

    return generate


def fixed_bytes(count):
    """The same bytes in every project; for tests only."""
    return hashlib.shake_256(str(count).encode()).digest(count)


def fix_clock(patch, now=NEW_YEAR):
    """It is always this time, or what a clock says."""
    patch.setattr(clock, "now", (lambda: now) if isinstance(now, str) else now)


def fix_randomness(patch, draw=fixed_bytes):
    """All randomness is drawn from here."""
    patch.setattr(keyring, "random_bytes", draw)


def note_randomness(patch):
    """Whatever is drawn from now on, in order."""
    noted: list[bytes] = []
    draw = keyring.random_bytes

    def note(count):
        noted.append(draw(count))
        return noted[-1]

    fix_randomness(patch, note)
    return noted


def fix(patch, draw=fixed_bytes, now=NEW_YEAR):
    """Both."""
    fix_randomness(patch, draw)
    fix_clock(patch, now)


def note_calls(patch, owner, name, note=lambda *arguments, **options: arguments):
    """Return what `note` says of each call of a function from now on, before the call is made."""
    noted: list[Any] = []
    function = getattr(owner, name)

    @functools.wraps(function)
    def noting(*arguments, **options):
        noted.append(note(*arguments, **options))
        return function(*arguments, **options)

    patch.setattr(owner, name, noting)
    return noted


def hold_noisy_sum(patch):
    """Every noisy statistic is this one, whatever was summed; the rest must follow from it."""

    def held(total, *_):
        return np.array([place << 32 for place in range(1, len(total) + 1)], object)

    patch.setattr(statistic, "add_noise", held)
