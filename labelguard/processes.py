"""Processes that one command was launched as, by `accelerate launch` or torchrun, and its cores.

Processes say so in the environment: WORLD_SIZE is how many there are, RANK which of them this one
is.
"""

from __future__ import annotations

import os
import sys

from labelguard.errors import LabelguardError


def count_processes() -> int:
    """Return how many processes were launched together; 1 where nobody says."""
    size = os.environ.get("WORLD_SIZE", "")
    return int(size) if "RANK" in os.environ and size.isdecimal() and int(size) else 1


def count_cores() -> int:
    """Return how many cores this process may use: a container or a scheduler may give it few."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def is_first_process() -> bool:
    """Return True for the process that speaks and writes: the only one, or that of rank 0."""
    return count_processes() == 1 or os.environ["RANK"] == "0"


def require_one_process(what: str) -> None:
    """Raise `LabelguardError` if several were launched: each would do all of `what` by itself."""
    count = count_processes()
    if count > 1:
        raise LabelguardError(
            f"{what} is done by one process, and {count} were launched together (WORLD_SIZE="
            f"{count}), each of which would do all of it: start it without accelerate launch or "
            "torchrun"
        )
