"""Where labels decide: labels in, the PRIVATE map and released rows out. Nowhere else."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from labelguard import planning, segments
from labelguard._files import fresh_directory, publish_directory
from labelguard.keys import KeyRing
from labelguard.labels import LABEL_TIE
from labelguard.ledger import Grant
from labelguard.mechanisms.coins import Coins
from labelguard.mechanisms.randomized_response import randomize, randomize_ternary
from labelguard.parallel import ordered_map
from labelguard.planning import Plan
from labelguard.project import Project
from labelguard.segments import BucketWriter, ReleasedMap
from labelguard.staging import Staged


def randomize_labels(
    staged: Staged,
    plan: Plan,
    grant: Grant,
    project: Project,
    keys: KeyRing,
    *,
    ties: str,
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
    draw = randomize_ternary if ties == "ternary" else randomize
    prices = np.array(sorted(grant.thresholds), dtype=np.int64)
    thresholds = np.array([grant.thresholds[int(k)] for k in prices], dtype=np.uint64)
    prf = keys.coin_prf()
    lock = threading.Lock()

    with BucketWriter(project.work / "outcomes") as outcomes:

        def work(bucket: int) -> None:
            rows = planning.selected(plan, bucket)
            if rows is None:
                return
            value = rows["value"].fill_null(LABEL_TIE).to_numpy().copy()
            items = np.stack([rows["item_hi"].to_numpy(), rows["item_lo"].to_numpy()], axis=1)
            row_keys = np.stack([rows["key_hi"].to_numpy(), rows["key_lo"].to_numpy()], axis=1)
            new = np.flatnonzero(rows["new"].to_numpy())
            if len(new):
                table = segments.read_bucket(staged.rows_directory, bucket)
                assert table is not None
                label = segments.column(table, "label")[rows["index"].to_numpy()[new]]
                price = rows["price"].to_numpy()[new]
                version = rows["version"].to_numpy()[new]
                coins = Coins(prf, keys.salts(plan.bucket_units[bucket]))
                value[new] = draw(
                    label.astype(np.uint8),
                    coins,
                    rows["unit"].to_numpy()[new],
                    items[new],
                    rows["pair"].to_numpy()[new],
                    version,
                    thresholds[np.searchsorted(prices, price)],
                )
                ReleasedMap.write(temporary, bucket, row_keys[new], version, value[new], price)
            released = pa.table(
                {
                    "row": rows["row"].to_numpy(),
                    "item_hi": items[:, 0],
                    "item_lo": items[:, 1],
                    "key_hi": row_keys[:, 0],
                    "key_lo": row_keys[:, 1],
                    "value": value,
                    "price": rows["price"].to_numpy(),
                    "public_tie": rows["public_tie"].to_numpy(),
                }
            )
            with lock:
                outcomes.append(released, segments.bucket_of(items))

        for bucket, _ in enumerate(ordered_map(work, range(segments.BUCKETS), workers)):
            progress((bucket + 1) / segments.BUCKETS)
    if not complete:
        publish_directory(temporary, final)
