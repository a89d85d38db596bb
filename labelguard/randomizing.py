"""Where labels decide: labels in, the PRIVATE map and released rows out. Nowhere else."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard import planning, pricing, segments
from labelguard._files import fresh_directory, publish_directory
from labelguard.keys import KeyRing
from labelguard.ledger import Grant
from labelguard.mechanisms.coins import Coins
from labelguard.mechanisms.randomized_response import randomize, randomize_ternary
from labelguard.parallel import ordered_map
from labelguard.planning import Plan
from labelguard.policy import Policy
from labelguard.project import Project
from labelguard.segments import BucketWriter, ReleasedMap
from labelguard.selection import of_coins
from labelguard.staging import Staged


def randomize_labels(
    staged: Staged,
    plan: Plan,
    grant: Grant,
    project: Project,
    keys: KeyRing,
    policy: Policy,
    *,
    workers: int,
    progress: Callable[[float], None],
) -> None:
    """Draw every new label of the plan, once, and flush the private map before anything leaves.

    If the map of this release is complete (a crash came after it), the plan holds no new label and
    the label column is not read. The released rows go to `outcomes` in the work directory, split
    by item, for the writer.
    """
    final = project.released / grant.release.id
    complete = final.exists()
    temporary = project.released / f"{grant.release.id}.partial"
    if not complete:
        fresh_directory(temporary, mode=0o700)
    draw = randomize_ternary if policy.ties == "ternary" else randomize
    prices = np.array(sorted(grant.prices), dtype=np.int64)
    thresholds = np.array([grant.prices[int(k)] for k in prices], dtype=np.uint64)
    prf = keys.coin_prf(grant.lineage)
    lock = threading.Lock()

    with BucketWriter(project.work / "outcomes") as outcomes:

        def work(bucket: int) -> None:
            rows = planning.selected(plan, bucket)
            table = segments.read_bucket(staged.rows_directory, bucket)
            if rows is None or table is None:
                return
            items = segments.blocks(table, "item")[rows.index]
            value, threshold = rows.value.copy(), rows.threshold.copy()
            new = np.flatnonzero(rows.new)
            if len(new):
                drawn = rows[new]
                label = segments.column(table, "label")[drawn.index].astype(np.uint8)
                units = plan.bucket_units[bucket]
                people, person = of_coins(table, plan.units[units], drawn.unit, drawn.index)
                coins = Coins(prf, keys.salts(people))
                price = plan.capacity[units][drawn.unit]
                threshold[new] = thresholds[np.searchsorted(prices, price)]
                value[new] = draw(
                    label,
                    coins,
                    coins.identify(person, items[new]),
                    _pairs(table, drawn.index),
                    drawn.version,
                    threshold[new],
                )
                ReleasedMap.write(
                    temporary,
                    bucket,
                    drawn.key,
                    drawn.version,
                    value[new],
                    threshold[new],
                    drawn.content,
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

        for bucket, _ in enumerate(ordered_map(work, range(segments.BUCKETS), workers)):
            progress((bucket + 1) / segments.BUCKETS)
    if not complete:
        (temporary / ReleasedMap.COUNT).write_text(str(plan.drawn), encoding="ascii")
        publish_directory(temporary, final)


def _flip_probabilities(policy: Policy, threshold: NDArray[np.uint64]) -> NDArray[np.float64]:
    """γ of every row; a labeler's rows have few distinct prices."""
    thresholds, place = np.unique(threshold, return_inverse=True)
    return np.array([pricing.flip_probability(policy, int(t)) for t in thresholds])[place]


def _pairs(table: pa.Table, index: NDArray[np.intp]) -> NDArray[np.uint16]:
    """Pair indices within rankings; 0 where the input has none."""
    if "pair" not in table.column_names:
        return np.zeros(len(index), np.uint16)
    return segments.column(table, "pair")[index].astype(np.uint16)
