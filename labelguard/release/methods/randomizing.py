"""Where labels decide: labels in, the PRIVATE map and released rows out. Nowhere else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.ingest.staging import Staged
from labelguard.keys.coins import Coins
from labelguard.ledger.ledger import Grant
from labelguard.mechanisms.randomized_response import randomize, randomize_ternary
from labelguard.policy.events import RANDOMIZED_LABELS
from labelguard.policy.policy import Policy
from labelguard.project import private_map
from labelguard.release import planning
from labelguard.release.planning import Plan
from labelguard.storage import buckets
from labelguard.storage.buckets import BucketWriter
from labelguard.storage.executor import ordered_map


def randomize_labels(
    staged: Staged,
    plan: Plan,
    grant: Grant,
    work: Path,
    policy: Policy,
    drawn: Path | None,
    *,
    workers: int,
    progress: Callable[[float], None],
) -> None:
    """Draw every new label of the plan, once, into the private map that was begun at `drawn`.

    Without it (the release was drawn before, and is being finished) the plan holds no new label,
    and the label column is not read. The released rows go to `outcomes` in the directory `work`,
    split by item, for the writer. The coins are this call's own and end with it.
    """
    draw = randomize_ternary if policy.ties == "ternary" else randomize
    prices = np.array(sorted(grant.prices), dtype=np.int64)
    thresholds = np.array([grant.prices[int(k)]["threshold"] for k in prices], dtype=np.uint64)
    coins = Coins.fresh()
    lock = threading.Lock()

    with BucketWriter(work / "outcomes") as outcomes:

        def bucket_of_labels(bucket: int) -> None:
            rows = planning.selected(plan, bucket)
            table = buckets.read_bucket(staged.rows_directory, bucket)
            if rows is None or table is None:
                return
            items = buckets.blocks(table, "item")[rows.index]
            value, threshold = rows.value.copy(), rows.threshold.copy()
            new = np.flatnonzero(rows.new)
            if len(new) and drawn:
                own = rows[new]
                label = buckets.column(table, "label")[own.index].astype(np.uint8)
                price = plan.capacity[plan.bucket_units[bucket]][own.unit]
                threshold[new] = thresholds[np.searchsorted(prices, price)]
                value[new] = draw(label, coins, own.key, threshold[new])
                private_map.write_bucket(
                    drawn,
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
                    "flip_probability": _flip_probabilities(policy, threshold),
                }
            )
            with lock:
                outcomes.append(released, buckets.bucket_of(items))

        for done, _ in enumerate(ordered_map(bucket_of_labels, range(buckets.BUCKETS), workers)):
            progress((done + 1) / buckets.BUCKETS)


def _flip_probabilities(policy: Policy, threshold: NDArray[np.uint64]) -> NDArray[np.float64]:
    """γ of every row; a labeler's rows have few distinct prices."""
    thresholds, place = np.unique(threshold, return_inverse=True)
    flip_probability = RANDOMIZED_LABELS.flip_probability
    return np.array([flip_probability(int(t), policy.ties) for t in thresholds])[place]
