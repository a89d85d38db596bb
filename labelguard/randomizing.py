"""Where labels decide: labels in, the PRIVATE map and released rows out. Nowhere else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard import planning, pricing, private_map, segments
from labelguard.ledger import Grant
from labelguard.mechanisms.coins import Coins
from labelguard.mechanisms.randomized_response import randomize, randomize_ternary
from labelguard.parallel import ordered_map
from labelguard.planning import Plan
from labelguard.policy import Policy
from labelguard.segments import BucketWriter
from labelguard.staging import Staged


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
    thresholds = np.array([grant.prices[int(k)] for k in prices], dtype=np.uint64)
    coins = Coins.fresh()
    lock = threading.Lock()

    with BucketWriter(work / "outcomes") as outcomes:

        def bucket_of_labels(bucket: int) -> None:
            rows = planning.selected(plan, bucket)
            table = segments.read_bucket(staged.rows_directory, bucket)
            if rows is None or table is None:
                return
            items = segments.blocks(table, "item")[rows.index]
            value, threshold = rows.value.copy(), rows.threshold.copy()
            new = np.flatnonzero(rows.new)
            if len(new) and drawn:
                own = rows[new]
                label = segments.column(table, "label")[own.index].astype(np.uint8)
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
                    "row": segments.column(table, "row")[rows.index],
                    "key_hi": rows.key[:, 0],
                    "key_lo": rows.key[:, 1],
                    "value": value,
                    "flip_probability": _flip_probabilities(policy, threshold),
                }
            )
            with lock:
                outcomes.append(released, segments.bucket_of(items))

        for done, _ in enumerate(ordered_map(bucket_of_labels, range(segments.BUCKETS), workers)):
            progress((done + 1) / segments.BUCKETS)


def _flip_probabilities(policy: Policy, threshold: NDArray[np.uint64]) -> NDArray[np.float64]:
    """γ of every row; a labeler's rows have few distinct prices."""
    thresholds, place = np.unique(threshold, return_inverse=True)
    return np.array([pricing.flip_probability(policy, int(t)) for t in thresholds])[place]
