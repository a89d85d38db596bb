"""For how many releases a policy is made: `--recurring weekly --for 1y`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

from labelguard.errors import PolicyError

_YEAR = Fraction(365)
_DAYS = {"d": Fraction(1), "w": Fraction(7), "m": _YEAR / 12, "y": _YEAR}
_PERIODS = {"daily": _DAYS["d"], "weekly": _DAYS["w"], "monthly": _DAYS["m"]}

# Periods after which releases may recur.
EVERY = tuple(_PERIODS)


@dataclass(frozen=True)
class Horizon:
    """Releases that recur for some time.

    every: daily, weekly or monthly.
    length: a number with d, w, m or y: 90d, 26w, 6m, 1y.

    Raises `PolicyError` for anything else, and for less time than one period.
    """

    every: str
    length: str

    def __post_init__(self) -> None:
        if self.every not in _PERIODS:
            raise PolicyError(f"--recurring is {', '.join(EVERY)}, found {self.every!r}")
        if not re.fullmatch(r"[1-9][0-9]{0,3}[dwmy]", self.length):
            raise PolicyError(
                "--for expects a number of days, weeks, months or years, for example 90d, 26w, "
                f"6m or 1y; found {self.length!r}"
            )
        if not self.releases:
            raise PolicyError(
                f"--for {self.length} is too short for one {self.every} release; take it longer"
            )

    @classmethod
    def parse(cls, recurring: str | None, duration: str | None) -> Self | None:
        """From the two options, which go together; None without both."""
        if recurring is None and duration is None:
            return None
        if recurring is None or duration is None:
            raise PolicyError(
                "give --recurring and --for together, or neither: --recurring weekly --for 1y"
            )
        return cls(recurring, duration)

    @property
    def releases(self) -> int:
        """The number of releases, to the nearest: 12 months, 52 weeks or 365 days are a year."""
        days = int(self.length[:-1]) * _DAYS[self.length[-1]]
        return int(days / _PERIODS[self.every] + Fraction(1, 2))

    def __str__(self) -> str:
        return f"{self.every} for {self.length}"
