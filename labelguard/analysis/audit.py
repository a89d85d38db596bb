"""The audit of randomized response: canaries answer by real coins, fresh ones for each release.

Checks, each a distinguisher between two worlds of a canary with k labels:

- `kernel`: how often single answers are flipped, composed for k labels;
- `composition`: how many of the k answers say yes (the likelihood ratio grows with that number);
- `reuse`: every label is answered in two releases, at two prices that the budget covers together,
  and an answer that is lost at the higher noise was given at the lower one;
- `sharing`: whether the answers to two items agree, where the labels do and where they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelguard.analysis import audit_bounds as bounds
from labelguard.analysis import audit_releases as whole
from labelguard.analysis.audit_bounds import FALSE_ALARM, AuditResult, Check, check_sizes
from labelguard.budget import pricing
from labelguard.budget.events import RANDOMIZED_LABELS
from labelguard.budget.policy import Policy
from labelguard.keys import keyring
from labelguard.keys.coins import Coins
from labelguard.mechanisms import randomized_response
from labelguard.storage.blocks import from_bytes
from labelguard.text import LABEL_A, LABEL_B, Progress, no_progress

Labels = NDArray[np.uint8]
Counts = NDArray[np.int64]

_ROWS = 1 << 18


@dataclass(frozen=True)
class Canary:
    """A labeler with `labels` labels, answered by the coins of `policy`; `runs` such labelers."""

    policy: Policy
    labels: int
    runs: int

    def thresholds(self, *allowed: int) -> list[int]:
        """The threshold of a coin where so many labels of a labeler may be randomized."""
        prices = pricing.prices(self.policy, RANDOMIZED_LABELS.name, np.array(allowed, np.int64))
        return [prices[count]["threshold"] for count in allowed]

    def answers(self, labels: Labels, *thresholds: int) -> Iterator[tuple[Labels, ...]]:
        """Fresh canaries whose labels are `labels` (k,), some at a time.

        For each threshold the answers, of shape (canaries, k); all thresholds ask about the same
        labels of the same canaries.
        """
        some = max(_ROWS // self.labels, 1)
        for start in range(0, self.runs, some):
            canaries = min(some, self.runs - start)
            rows = canaries * self.labels
            row_keys = from_bytes(keyring.random_bytes(16 * rows))
            yield tuple(
                randomized_response.randomize(
                    np.tile(labels, canaries),
                    Coins.fresh(),  # a release's own
                    row_keys,
                    np.full(rows, threshold, np.uint64),
                ).reshape(canaries, self.labels)
                for threshold in thresholds
            )


def audit_randomized_response(
    epsilon: float,
    delta: float,
    *,
    labels: int = 8,
    runs: int = 100_000,
    seed: int = 0,
    pipeline_runs: int = 1,
    progress: Progress = no_progress,
) -> AuditResult:
    """Attack randomized response of `labels` labels at the price of (epsilon, delta).

    Each world has `runs` canaries with fresh keys; `pipeline_runs` whole releases are made of
    synthetic labels, which `seed` decides (0 for none). Coins are always fresh.

    No check that counts events can prove more than about ln(runs / 17): a claim above that needs
    more runs. False alarms: each of five checks gets a fifth of FALSE_ALARM, by the union bound.
    Raises `PolicyError` for values that are no budget, or too few runs or labels.
    """
    check_sizes(labels=labels, runs=runs, pipeline_runs=pipeline_runs)
    canary = Canary(Policy(epsilon, delta), labels, runs)
    alpha = FALSE_ALARM / 5
    progress("drawing coins", 0.0)
    checks = _counts(canary, alpha)
    progress("drawing coins at two prices", 0.5)
    checks.append(_reuse(canary, alpha))
    if labels > 1:
        progress("comparing answers of one labeler", 0.8)
        checks.append(_sharing(canary, alpha))
    if pipeline_runs:
        survey = whole.Survey.of_randomized_response(labels, seed)
        checks += whole.check_randomized_response(
            survey, epsilon, delta, pipeline_runs, alpha, progress
        )
    return AuditResult.of(randomized_response.NAME, epsilon, delta, runs, checks)


def _counts(canary: Canary, alpha: float) -> list[Check]:
    """`kernel` and `composition`, from one drawing of each world."""
    k, delta = canary.labels, canary.policy.delta
    [threshold] = canary.thresholds(k)
    yes = _yes_answers(canary, _constant(k, LABEL_A), threshold)
    no = _yes_answers(canary, _constant(k, LABEL_B), threshold)
    draws = k * canary.runs
    flips = np.array([draws - int(yes.sum()), int(no.sum())])
    kernel = bounds.epsilon_of_flips(flips, draws, k, delta, alpha)
    levels = _levels(k)
    composed = bounds.epsilon_of_events(
        _at_least(yes, levels), _at_least(no, levels), canary.runs, delta, alpha
    )
    seen = f"{flips.sum() / (2 * draws):.5f}"
    return [
        Check("kernel", kernel, f"{seen} of {2 * draws:,} labels flipped"),
        Check("composition", composed, f"answers that agree among {k}, {canary.runs:,} canaries"),
    ]


def _yes_answers(canary: Canary, labels: Labels, threshold: int) -> Counts:
    """How many answers of each canary are A, shape (runs,)."""
    parts = [given.sum(axis=1, dtype=np.int64) for (given,) in canary.answers(labels, threshold)]
    return np.concatenate(parts)


def _at_least(counts: Counts, levels: Counts) -> Counts:
    """How many counts reach each level."""
    return np.asarray(len(counts) - np.searchsorted(np.sort(counts), levels), np.int64)


def _levels(k: int) -> Counts:
    """Numbers of answers to compare with: up to 4.5 standard deviations above one half of k."""
    steps = k / 2 + np.sqrt(k) / 2 * np.arange(0, 5, 0.5)
    found: Counts = np.unique(np.clip(np.ceil(steps), 1, k)).astype(np.int64)
    return found


def _reuse(canary: Canary, alpha: float) -> Check:
    """Two answers to each label: k at the price of 2k uses and k at that of 4k.

    Both together cost at most what 2k uses cost. One coin for both prices would never give
    "yes" at the lower flip probability and "no" at the higher to a label that is no.
    """
    k = canary.labels
    thresholds = canary.thresholds(2 * k, 4 * k)

    def lost(answers: tuple[Labels, ...]) -> NDArray[np.bool_]:
        clear, noisy = answers
        found = (clear == LABEL_A) & (noisy == LABEL_B)
        return np.asarray(found.any(axis=1))

    worlds = _constant(k, LABEL_A), _constant(k, LABEL_B)
    bound = _told_apart(canary, worlds, lost, thresholds, alpha)
    return Check("reuse", bound, f"two prices for each label, {canary.runs:,} canaries")


def _sharing(canary: Canary, alpha: float) -> Check:
    """Whether two answers agree: one coin for two items would tell whether their labels do."""
    k = canary.labels
    alternating = np.where(np.arange(k) % 2, LABEL_A, LABEL_B).astype(np.uint8)

    def agree(answers: tuple[Labels, ...]) -> NDArray[np.bool_]:
        return np.asarray(answers[0][:, 0] == answers[0][:, 1])

    worlds = _constant(k, LABEL_A), alternating
    bound = _told_apart(canary, worlds, agree, canary.thresholds(k), alpha)
    return Check("sharing", bound, f"agreement of two answers, {canary.runs:,} canaries")


def _told_apart(
    canary: Canary,
    worlds: tuple[Labels, Labels],
    event: Callable[[tuple[Labels, ...]], NDArray[np.bool_]],
    thresholds: Sequence[int],
    alpha: float,
) -> float:
    """The ε that is proven by how many canaries show an event in each world."""
    one, other = (
        sum(int(event(given).sum()) for given in canary.answers(labels, *thresholds))
        for labels in worlds
    )
    return bounds.epsilon_of_events(one, other, canary.runs, canary.policy.delta, alpha)


def _constant(k: int, label: int) -> Labels:
    """k equal labels."""
    return np.full(k, label, np.uint8)
