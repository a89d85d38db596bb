"""The audit of user-wise DP-SGD: one run with many canaries (Steinke, Nasr and Jagielski 2023).

Each canary is a made-up labeler with a fair coin, by which all their labels are 1 or 0; their pairs
lie along a direction of their own. All of them are in ONE real run of `loop.train`, with the noise
that (ε, δ) buys. The attacker sees every noised sum, which the guarantee covers, and guesses the
coins of the canaries they are surest of. From how many they get right follows a lower bound on ε:
a run that is (ε, δ)-private lets nobody guess better than randomized response would.

Checks, each a way to score canaries:

- `sum`: all noised sums added up: noise that is too small, clips that bound too little;
- `order`: the sums of the steps in which a canary would be, were labelers taken in their order;
- `differences`: mean less median of all steps: noise that serves several.

How far a bound may come is limited by the number of canaries (3,000 guesses that are all right
prove ε ≥ 5), and by Poisson sampling itself: of a right run it stays far below the claim.
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard.accounting import subsampled
from labelguard.audit import bounds
from labelguard.audit.result import FALSE_ALARM, AuditResult, Check
from labelguard.errors import PolicyError
from labelguard.keys import keyring
from labelguard.mechanisms.statistic import Rows
from labelguard.policy.training_runs import ULS
from labelguard_trainer.gradient import head_records, loop
from labelguard_trainer.gradient.head_records import Comparisons
from labelguard_trainer.gradient.heads import HeadProblem
from labelguard_trainer.gradient.loop import Checkpoints, Course

Floats = NDArray[np.float64]

SHARES = (0.25, 0.1)
"""Shares of the canaries whose coins are guessed: those with the largest scores."""

_CLIP = 0.1
"""Below the norm of any one record's gradient at the start, so that every bound is met."""
_MOST_DELTA = 1e-5  # of all canaries together: beyond, one run proves nothing at FALSE_ALARM


@dataclass(frozen=True, repr=False)
class Canaries:
    """Labelers with `labels` labels each, all 1 or all 0 by `coins` (count,)."""

    coins: NDArray[np.bool_]
    labels: int

    @classmethod
    def tossed(cls, count: int, labels: int) -> Canaries:
        """So many, by fresh coins."""
        bits = np.frombuffer(keyring.random_bytes(-(-count // 8)), np.uint8)
        return cls(np.unpackbits(bits)[:count].astype(bool), labels)

    def problem(self) -> _Watched:
        """A head whose every coordinate is one canary's, at 0, with steps that leave it near 0."""
        count = len(self.coins)
        z = np.eye(count, dtype=np.float32)
        unit = np.repeat(np.arange(count), self.labels)
        records = Comparisons.of(z, Rows(unit, unit, count))
        weight = head_records.weights(records, "root")
        return _Watched(z, records, weight, np.ones(count), _CLIP)


class _Watched(HeadProblem):
    """A head that notes what the attacker sees."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.seen: list[Floats] = []

    def step(self, gradient: Floats) -> None:
        self.seen.append(gradient)
        super().step(gradient)


def audit_uls(
    epsilon: float,
    delta: float = 1e-9,
    *,
    canaries: int = 3000,
    labels: int = 8,
    sampling_probability: float = 0.02,
    steps: int = 50,
) -> AuditResult:
    """Attack one run at the price of (epsilon, delta) by so many canaries with `labels` each.

    False alarms: each check and share gets its part of FALSE_ALARM, by the union bound. Raises
    `PolicyError` for a delta that is too large for that: what fails with probability δ may fail for
    each canary.
    """
    if not canaries * delta <= _MOST_DELTA:
        raise PolicyError(
            f"canaries times delta must be at most {_MOST_DELTA:g}, found {canaries * delta:g}; "
            "take a smaller delta, of which more noise is the price"
        )
    price = {
        "noise_multiplier": subsampled.calibrate(epsilon, delta, sampling_probability, steps),
        "sampling_probability": sampling_probability,
        "steps": steps,
    }
    made = Canaries.tossed(canaries, labels)
    seen = noised_sums(made, Course.priced(price, _CLIP, canaries))
    turn = np.arange(steps)[:, None] % round(1 / sampling_probability)
    own = turn == np.arange(canaries) % round(1 / sampling_probability)
    scores = {
        "sum": seen.sum(axis=0),
        "order": (seen * own).sum(axis=0),
        "differences": seen.mean(axis=0) - np.median(seen, axis=0),
    }
    alpha = FALSE_ALARM / len(scores)
    checks = [_check(name, score, made, delta, alpha) for name, score in scores.items()]
    return AuditResult.of(ULS.name, epsilon, delta, 1, checks)


def noised_sums(canaries: Canaries, course: Course) -> Floats:
    """What a run shows of canaries: its noised sums, in clip norms, (steps, canaries).

    A canary who is in a step moves their coordinate of it by 1, down if their coin is 1.
    """
    problem = canaries.problem()
    given = np.repeat(canaries.coins, canaries.labels).astype(np.float64)
    with tempfile.TemporaryDirectory(prefix="labelguard-audit-") as directory:
        kept = Checkpoints(Path(directory), course.steps + 1, _seal)  # none
        loop.train(problem, given, course, kept, lambda share: None)
    return np.array(problem.seen) * (course.divisor / course.clip)


def lower_bound(
    score: Floats, canaries: Canaries, delta: float, alpha: float
) -> tuple[float, list[int]]:
    """The ε that guesses by `score` (canaries,) prove, and how many of each share were right.

    Above 0 a coin is guessed to be 0; each share of SHARES is tried, with its part of `alpha`.
    """
    surest = np.argsort(-np.abs(score), kind="stable")
    right = (score > 0) != canaries.coins
    found, hits = 0.0, []
    for share in SHARES:
        guessed = surest[: max(int(share * len(surest)), 1)]
        hits.append(int(right[guessed].sum()))
        sizes = len(guessed), len(surest)
        found = max(found, bounds.epsilon_of_guesses(hits[-1], *sizes, delta, alpha / len(SHARES)))
    return found, hits


def _check(name: str, score: Floats, canaries: Canaries, delta: float, alpha: float) -> Check:
    bound, hits = lower_bound(score, canaries, delta, alpha)
    count = len(canaries.coins)
    seen = (
        f"{right:,} of {int(share * count):,}" for right, share in zip(hits, SHARES, strict=True)
    )
    return Check(name, bound, f"right guesses: {', '.join(seen)}; {count:,} canaries")


def _seal(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
