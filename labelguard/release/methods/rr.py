"""`--mechanism rr`: every label is flipped with a known probability."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from labelguard.ingest.staging import Staged
from labelguard.ledger.ledger import Grant
from labelguard.mechanisms import randomized_response
from labelguard.policy.events import RANDOMIZED_LABELS
from labelguard.policy.policy import Policy
from labelguard.release import card, planning
from labelguard.release.methods.randomizing import randomize_labels
from labelguard.release.planning import Plan
from labelguard.release.protocol import Finished, Job


class RandomizedResponse:
    """Randomized response: the released labels are the coins' answers, with their γ."""

    name = randomized_response.NAME
    version = randomized_response.VERSION
    priced = RANDOMIZED_LABELS.name

    @property
    def features(self) -> tuple[str, ...]:
        """None."""
        return ()

    def settings(self) -> dict[str, Any]:
        """Nothing beyond the policy."""
        return {}

    def read(self, job: Job, staged: Staged) -> bytes:
        """No further input."""
        return b""

    def prepare(
        self, job: Job, staged: Staged, plan: Plan, recorded: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Nothing to choose."""
        return {}

    def draw(self, job: Job, staged: Staged, plan: Plan, grant: Grant, drawn: Path | None) -> None:
        """Draw the coins of new labels; the released rows are known with them."""
        randomize_labels(
            staged,
            plan,
            grant,
            job.project.work,
            job.policy,
            drawn,
            workers=job.workers,
            progress=lambda share: job.progress("randomizing", share),
        )

    def finish(self, job: Job, staged: Staged, plan: Plan, grant: Grant) -> Finished:
        """The rows as drawn."""
        return Finished(randomized_card(plan, grant, job.policy))


def randomized_card(plan: Plan, grant: Grant, policy: Policy) -> dict[str, Any]:
    """What the card of a release from randomized labels says."""
    kind = "ternary randomized response" if policy.ties == "ternary" else "randomized response"
    flips = _flip_probabilities(plan, grant, policy)
    differ = flips and flips["min"] < flips["max"]
    return {
        "privacy": {
            "accounting": f"exact composition of {kind}"
            + card.together(policy, RANDOMIZED_LABELS.name)
        },
        "flip_probability": flips,
        "train_with": "forward",
        "not_protected": [card.LINKABLE] if differ else [],
    }


def _flip_probabilities(plan: Plan, grant: Grant, policy: Policy) -> dict[str, float]:
    """Minimum, median and maximum over the labels; those of earlier releases keep theirs."""
    found = []
    for bucket, units in plan.bucket_units.items():
        rows = planning.selected(plan, bucket)
        assert rows is not None
        bounds, place = np.unique(plan.capacity[units], return_inverse=True)
        prices = np.array(
            [grant.prices[int(k)]["threshold"] if int(k) in grant.prices else 0 for k in bounds],
            np.uint64,
        )
        threshold = np.where(rows.new, prices[place][rows.unit], rows.threshold)
        found.append(threshold[threshold > 0])  # a public tie was not flipped
    thresholds, place = np.unique(np.concatenate(found), return_inverse=True)
    flip_probability = RANDOMIZED_LABELS.flip_probability
    flips = np.array([flip_probability(int(t), policy.ties) for t in thresholds])
    return card.spread(flips[place] if len(flips) else flips)
