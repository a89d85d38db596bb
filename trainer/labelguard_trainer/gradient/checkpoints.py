"""Where a run stands, on disk: parameters that were noised already, private until the commit.

A run that is killed goes on from the newest checkpoint, with fresh cohorts and fresh noise for the
steps that remain. A step that was taken after it was never visible to anybody: of a finished run
everything depends on exactly as many noised steps as were charged.

That rests on the number of steps that a checkpoint names, so it bears a seal: one of another run,
or that somebody wrote, is refused.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from labelguard.errors import ProjectError
from labelguard.storage import arrays
from labelguard.storage.files import write_atomically
from labelguard_trainer.gradient.problem import Problem

__all__ = ["Checkpoints"]

_FILE = "checkpoint.npz"
_STEP, _SEAL = "steps taken", "seal"


@dataclass(frozen=True)
class Checkpoints:
    """The newest checkpoint of a run, in a directory of its own; one after every `every` steps.

    `seal` makes a few bytes of all others in a checkpoint, by a key, for this run alone.
    """

    directory: Path
    every: int
    seal: Callable[[bytes], bytes] = field(repr=False)

    def keep(self, step: int, problem: Problem, *, last: bool) -> None:
        """Note where a run stands after so many steps; the last one ends in the private map."""
        if step % self.every == 0 and not last:
            state = {**problem.state(), _STEP: np.array(step)}
            seal = np.frombuffer(self.seal(arrays.packed(state)), np.uint8)
            data = arrays.packed({**state, _SEAL: seal})
            write_atomically(self.directory / _FILE, data, mode=0o600)

    def restore(self, problem: Problem) -> int:
        """How many steps were taken already; the problem stands where it stood then.

        Raises `ProjectError` for a checkpoint that is damaged, or not this run's.
        """
        path = self.directory / _FILE
        if not path.exists():
            return 0
        try:
            state = dict(arrays.load(path))
            seal = state.pop(_SEAL).tobytes()
            if not hmac.compare_digest(self.seal(arrays.packed(state)), seal):
                raise ValueError("a seal of something else")
            step = int(state.pop(_STEP))
            problem.restore(state)
        except (OSError, ValueError, KeyError, TypeError):
            raise ProjectError(
                f"{path} is damaged or of another run; remove it, and the same command begins the "
                "run anew"
            ) from None
        return step
