"""The steps of a private run: cohort, clipped sum, noise, step; resumed where it was kept.

`NoisyRun` is sampler, steps, noise and clip in one object, made of the price charged. Cohorts are
Poisson samples for real: a shuffled order, or cohorts of a fixed size, would have another price.

A run that is killed goes on from the newest checkpoint, with fresh cohorts and fresh noise for the
steps that remain. A step that was taken after it was never visible to anybody: of a finished run
everything depends on exactly as many noised steps as were charged. That rests on the number of
steps that a checkpoint names, so it bears a seal: one of another run, or that somebody wrote, is
refused.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from labelguard.errors import ProjectError
from labelguard.keys import keyring
from labelguard.processes import require_one_process
from labelguard.storage import portions
from labelguard.storage.files import write_atomically

Floats = NDArray[np.float64]


class Problem(Protocol):
    """A model and the public records of units, who are labelers or, by record, single records.

    `labels` are those of all records, (n,), of the first side of each: 0, ½ (a tie) or 1. They are
    arguments, so that no problem ever holds them.
    """

    def clipped_sum(self, units: NDArray[np.intp], labels: Floats, clip: float) -> Any:
        """PRIVATE: Σ over these units of their gradients, each clipped to norm `clip`; flat."""

    def gradients(self, units: NDArray[np.intp], labels: Floats) -> NDArray[Any]:
        """PRIVATE: the gradient of each of these units, not clipped, (units, parameters)."""

    def add_noise(self, total: Any, deviation: float, secret: bytes) -> Any:
        """`total` plus Gaussian noise of this standard deviation, from 32 secret bytes."""

    def step(self, gradient: Any) -> None:
        """Move the parameters against a noised mean gradient."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Parameters, and those of the optimizer: with `restore`, a checkpoint."""

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """The inverse of `state`."""


COIN_RANGE = 2**64


def threshold(probability: float) -> int:
    """q as a number of the 2^64 outcomes of a coin, rounded down: less than q is priced for."""
    return math.floor(probability * COIN_RANGE)


def cohort(secret: bytes, threshold: int, units: int) -> NDArray[np.intp]:
    """SECRET: the units of one step, each with probability threshold/2^64; ascending.

    The coins are the keystream of AES-256 in counter mode under 32 secret bytes, which serve one
    step: independent and uniform for everyone without them, up to the security of AES.
    """
    if threshold >= COIN_RANGE:
        return np.arange(units)
    stream = Cipher(algorithms.AES(secret), modes.CTR(bytes(16))).encryptor()
    coins = np.frombuffer(stream.update(bytes(8 * units)), np.dtype("<u8"))
    return np.flatnonzero(coins < np.uint64(threshold))


# Covers the rounding of the noise's own deviation: clipped parts are within C exactly.
SLACK = 1 + 2.0**-48


@dataclass(frozen=True)
class NoisyRun:
    """A run of noisy gradient steps, all of it public and fixed before a label is seen.

    In every step each of `units` is in with probability `threshold`/2^64, by a secret coin; the
    clipped gradients of the cohort are summed, noise of deviation `noise_multiplier` · `clip` is
    added, and the sum is divided by q · `units`, never by the size of the cohort, which is secret.
    A step may take several such sums of its cohort, one after the other: `updates`.
    """

    threshold: int
    steps: int
    noise_multiplier: float
    clip: float
    units: int
    updates: int = field(default=1, kw_only=True)

    @classmethod
    def from_price(cls, price: Mapping[str, Any], clip: float, units: int) -> Self:
        """Return the run that a price pays for, of so many units, clipped at this norm."""
        q = threshold(float(price["sampling_probability"]))
        sampled = q, int(price["steps"]), float(price["noise_multiplier"])
        return cls(*sampled, clip, units, updates=int(price.get("updates", 1)))

    @property
    def probability(self) -> float:
        """q."""
        return self.threshold / COIN_RANGE

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise on every coordinate of a sum."""
        return self.noise_multiplier * self.clip * SLACK

    @property
    def divisor(self) -> float:
        """The public number by which sums are divided: the expected size of a cohort."""
        return self.probability * self.units


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

    def save(self, step: int, problem: Problem, *, last: bool) -> None:
        """Note where a run stands after so many steps; the last one ends in the private map."""
        if step % self.every == 0 and not last:
            state = {**problem.state(), _STEP: np.array(step)}
            seal = np.frombuffer(self.seal(portions.pack_arrays(state)), np.uint8)
            data = portions.pack_arrays({**state, _SEAL: seal})
            write_atomically(self.directory / _FILE, data, mode=0o600)

    def restore(self, problem: Problem) -> int:
        """Return how many steps were taken already; the problem stands where it stood then.

        Raises `ProjectError` for a checkpoint that is damaged, or not this run's.
        """
        path = self.directory / _FILE
        if not path.exists():
            return 0
        try:
            state = dict(portions.load_arrays(path))
            seal = state.pop(_SEAL).tobytes()
            if not hmac.compare_digest(self.seal(portions.pack_arrays(state)), seal):
                raise ValueError("a seal of something else")
            step = int(state.pop(_STEP))
            problem.restore(state)
        except (OSError, ValueError, KeyError, TypeError):
            raise ProjectError(
                f"{path} is damaged or of another run; remove it, and the same command begins the "
                "run anew"
            ) from None
        return step


SECRET_BYTES = 32
_PROGRESS_UPDATES = 20

# Called with the share of a run that is done.
Watch: TypeAlias = Callable[[float], None]


def train(
    problem: Problem,
    labels: NDArray[np.float64],
    run: NoisyRun,
    checkpoints: Checkpoints,
    watch: Watch,
) -> None:
    """All steps of a run, or those that remain of one that was interrupted.

    PRIVATE: labels (n,), in the order of the problem's records. What the problem has become is
    private until its release is committed, and may be published then. Guarantee: that of
    `accounting.subsampled` for `run`, of `accounting.zero_out` where whole records are null in one
    of two worlds; randomness is fresh for every step and never stored, so
    that nothing visible depends on more than `run.steps` times `run.updates` noised sums.

    Source: user-level-dp-finetuning, algorithm 2; aup-rlhf, algorithm 4.
    """
    require_one_process("a run of noisy steps")  # noise of each would be less than is priced
    for step in range(checkpoints.restore(problem), run.steps):
        members = cohort(keyring.random_bytes(SECRET_BYTES), run.threshold, run.units)
        for _ in range(run.updates):
            total = problem.clipped_sum(members, labels, run.clip)
            noisy_sum = problem.add_noise(total, run.deviation, keyring.random_bytes(SECRET_BYTES))
            problem.step(noisy_sum / run.divisor)
        checkpoints.save(step + 1, problem, last=step + 1 == run.steps)
        report_progress(watch, step + 1, run.steps)


def report_progress(watch: Watch, done: int, steps: int) -> None:
    """Report how far a run is, 20 times at most: never after one step, whose time tells how large
    its cohort was.
    """
    if done % max(-(-steps // _PROGRESS_UPDATES), 2) == 0:
        watch(done / steps)
