"""`--mechanism rr`: every label is flipped with a known probability.

Labels decide in `randomize_bucket`, and nowhere else: labels in, the PRIVATE map and released rows
out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.keys.coins import Coins
from labelguard.ledger.ledger import Grant
from labelguard.mechanisms import randomized_response
from labelguard.mechanisms.randomized_response import randomize, randomize_ternary
from labelguard.policy.events import RANDOMIZED_LABELS, Price
from labelguard.policy.policy import Policy
from labelguard.project import private_map
from labelguard.release import card, planning
from labelguard.release.planning import Plan
from labelguard.release.protocol import Finished, Job, Mechanism, Prepared
from labelguard.storage import buckets


class RandomizedResponse(Mechanism[Prepared]):
    """Randomized response: the released labels are the coins' answers, with their γ."""

    name = randomized_response.NAME
    version = randomized_response.VERSION
    priced = RANDOMIZED_LABELS.name

    def __init__(self, options: object = None) -> None:
        """There is nothing to choose."""

    def prepare(self, job: Job, plan: Plan, recorded: Mapping[str, Any] | None) -> Prepared:
        """Nothing to choose."""
        return Prepared(plan, {})

    def draw(self, job: Job, prepared: Prepared, grant: Grant, drawn: Path | None) -> None:
        """Draw the coins of new labels; the released rows are known with them."""
        draw_labels(job, prepared, grant, drawn)

    def finish(self, job: Job, prepared: Prepared, grant: Grant) -> Finished:
        """The rows as drawn."""
        return Finished(randomized_card(job), ((job.staged, job.outcomes),))


@dataclass(frozen=True)
class Randomizing:
    """A task for `randomize_bucket`: where rows are, and what is drawn for them.

    `selected` are a plan's rows, `staged` those of the input; released rows go to `outcomes`, the
    map to `drawn`. Without it (the release was drawn before, and is being finished) the plan holds
    no new label, and the label column is not read. `coins` are of this release alone and end with
    it; `prices` says for every k what a label costs.
    """

    staged: Path
    selected: Path
    outcomes: Path
    drawn: Path | None
    policy: Policy
    prices: Mapping[int, Price]
    coins: Coins


def draw_labels(job: Job, prepared: Prepared, grant: Grant, drawn: Path | None) -> None:
    """Draw every new label of the plan, once, into the private map that was begun at `drawn`."""
    task = Randomizing(
        job.staged.rows_directory,
        prepared.plan.directory,
        job.outcomes,
        drawn,
        job.policy,
        grant.prices,
        Coins.fresh(),
    )
    for _ in job.over_buckets("randomizing", randomize_bucket, task):
        pass


def randomize_bucket(task: Randomizing, bucket: int) -> None:
    """Draw the new labels of one bucket and write down all of its released rows, by item."""
    found = planning.selected(task.selected, task.staged, bucket)
    if found is None:
        return
    rows, table = found
    value, threshold = rows.value.copy(), rows.threshold.copy()
    new = np.flatnonzero(rows.new)
    if len(new) and task.drawn:
        own = rows[new]
        label = buckets.column(table, "label")[own.index].astype(np.uint8)
        draw = randomize_ternary if task.policy.ties == "ternary" else randomize
        bounds, bound = np.unique(own.capacity, return_inverse=True)
        prices = [task.prices[int(k)]["threshold"] for k in bounds]
        threshold[new] = np.array(prices, np.uint64)[bound]
        value[new] = draw(label, task.coins, own.key, threshold[new])
        private_map.write_bucket(
            task.drawn,
            bucket,
            own.key,
            own.author,
            own.version,
            value[new],
            threshold[new],
            own.content,
        )
    released = pa.table(
        {
            "row": buckets.column(table, "row")[rows.index],
            "key_hi": rows.key[:, 0],
            "key_lo": rows.key[:, 1],
            "value": value,
            "flip_probability": _flip_probabilities(task.policy, threshold),
        }
    )
    items = buckets.blocks(table, "item")[rows.index]
    buckets.write_part(task.outcomes, bucket, released, buckets.bucket_of(items))


def randomized_card(job: Job) -> dict[str, Any]:
    """What the card of a release from randomized labels says.

    Flip probabilities are over the labels; those of earlier releases have theirs.
    """
    policy = job.policy
    kind = "ternary randomized response" if policy.ties == "ternary" else "randomized response"
    rows = buckets.read_parts(job.outcomes)
    flips: NDArray[np.float64] = np.zeros(0)
    if rows is not None:
        flips = buckets.column(rows, "flip_probability").astype(np.float64)
    spread = card.spread(flips[flips > 0])  # a public tie was not flipped
    differ = spread and spread["min"] < spread["max"]
    return {
        "privacy": {
            "accounting": f"exact composition of {kind}"
            + card.together(policy, RANDOMIZED_LABELS.name)
        },
        "flip_probability": spread,
        "train_with": "forward",
        "not_protected": [card.LINKABLE] if differ else [],
    }


def _flip_probabilities(policy: Policy, threshold: NDArray[np.uint64]) -> NDArray[np.float64]:
    """γ of every row; a labeler's rows have few distinct prices."""
    distinct, index = np.unique(threshold, return_inverse=True)
    flip_probability = RANDOMIZED_LABELS.flip_probability
    return np.array([flip_probability(int(price), policy.ties) for price in distinct])[index]
