"""Noise multipliers of mechanisms whose price takes long: by few prices, and kept on disk.

A file a calibration, in `labelguard/accounting` of the user's cache, holds what was asked for and
the noise multiplier that was found: public numbers. Nothing is taken from there on trust: a noise
multiplier that was read is used only if its price, computed anew, is what was asked for. Who can
write the cache can neither weaken noise by it nor swell it. A file that is damaged, or cannot be
read or written, is ignored.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

from labelguard.accounting import _search

__all__ = ["PER_ONE", "calibrated", "directory", "multiplier"]

PER_ONE = 2**20
"""Noise multipliers are multiples of 1/PER_ONE."""

Price: TypeAlias = Callable[[float, bool], float]
"""δ, at most 1, at a noise multiplier in which it falls; roughly, and quickly, if the second
argument is true."""

_SCHEME = 1  # part of what is kept: to be raised with every change of a price
_MOST = 2.0**23
_NEAR = 2e-5  # of ln δ: how far below what was asked for it may be
_MOST_BYTES = 2**12


def calibrated(asked: Mapping[str, Any], price: Price, guess: float) -> float:
    """`multiplier` for asked["delta"], looked up on disk first; `asked` says all else, too."""
    identity = {"scheme": _SCHEME, "dp-accounting": _dp_accounting(), **asked}
    delta = float(asked["delta"])
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    path = directory() / f"{digest[:32]}.json"
    kept = _read(path, identity)
    if kept is not None and _just(price(kept, False), delta, kept):
        return kept
    found = multiplier(price, delta, guess)
    _write(path, identity | {"noise_multiplier": found})
    return found


def multiplier(price: Price, delta: float, guess: float) -> float:
    """The noise multiplier, a multiple of 1/PER_ONE rounded up, at which the price is `delta`.

    The price at the result, not the rough one, is at most `delta`, and 2e-5 below it, relative, or
    what rounding up leaves.

    Raises ValueError where no noise multiplier below 2^23 is enough.
    """

    def excess(logarithm: float, coarse: bool) -> float:
        return math.log(price(math.exp(logarithm), coarse) / delta)

    low = high = math.log(guess)
    step = 0.1
    if excess(low, True) > 0:
        while excess(high := high + step, True) > 0:
            low, step = high, 2 * step
            if high > math.log(_MOST):
                raise ValueError(
                    f"no noise multiplier below 2^23 reaches delta = {delta!r}; "
                    "expected a larger delta, or fewer steps"
                )
    else:
        while excess(low := low - step, True) <= 0:
            high, step = low, 2 * step
    about = _search.crossing(lambda at: excess(at, True), low, high, 1e-4)
    slope = min(-1.0, (excess(about + 0.01, True) - excess(about - 0.01, True)) / 0.02)
    return _refined(price, delta, round(math.exp(about) * PER_ONE), slope)


def _refined(price: Price, delta: float, whole: int, slope: float) -> float:
    """`multiplier` from a whole number of 1/PER_ONE near it, by Newton's method within brackets."""
    fails, holds = 0, math.inf
    while True:
        found = price(whole / PER_ONE, False)
        if _just(found, delta, whole / PER_ONE):
            return whole / PER_ONE
        if found > delta:
            fails = whole
        else:
            holds = whole
        if holds - fails <= max(1.0, 1e-6 * fails):  # the price jumps where its grid changes
            return holds / PER_ONE
        step = (_NEAR / 2 + math.log(found / delta)) / slope
        whole = math.ceil(whole * math.exp(-step) if abs(step) < 1 else whole * 2)
        if not fails < whole < holds:
            whole = int(fails + holds) // 2 if holds < math.inf else 2 * fails


def _just(found: float, delta: float, noise_multiplier: float) -> bool:
    """Whether a price is what was asked for: at most that, and below it by rounding only."""
    # ln δ moves by some 2·ln(1/δ) or less for a relative change of the noise multiplier.
    left = _NEAR - 4 * math.log(delta) / (noise_multiplier * PER_ONE)
    return delta * math.exp(-left) <= found <= delta


# --- on disk -------------------------------------------------------------------------------------


def directory() -> Path:
    """`accounting` in `LABELGUARD_CACHE`, else in `labelguard` of the user's cache."""
    from platformdirs.unix import Unix

    named = os.environ.get("LABELGUARD_CACHE")
    return (Path(named) if named else Unix("labelguard").user_cache_path) / "accounting"


@cache
def _dp_accounting() -> str:
    return version("dp-accounting")


def _read(path: Path, identity: Mapping[str, Any]) -> float | None:
    """What a file says for exactly what was asked, if it is a noise multiplier at all."""
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        content = json.loads(path.read_bytes())
        found = content.pop("noise_multiplier")
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return None
    plausible = type(found) is float and 0 < found <= _MOST and (found * PER_ONE).is_integer()
    return found if plausible and content == identity else None


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """Whole or not at all; a cache that cannot be written costs time only."""
    temporary = path.with_name(f"{uuid.uuid4().hex}.partial")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(json.dumps(content, sort_keys=True) + "\n")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
